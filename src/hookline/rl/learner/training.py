"""`train`: runs reinforcement learning from settings, in this process or on Ray.

With Ray, the learner and N rollout workers are actors:

- One run record: the learner's journal is the main one, and each rollout worker adds one (``rollout0``, ...). On
  several machines, ``output_dir`` has to be a shared directory.
- Rollouts are at most ``max_staleness`` versions old when they are learnt from: see `RemoteRollouts`. A worker whose
  process dies is replaced, and an alert names it: see `RolloutFleet`.
- One curriculum chooses the lessons of all workers. The learner's journal has the evaluations and hook results.
- Callbacks run in the learner's process and hooks in that of worker 0, whose steps they count. Both are sent there as
  copies, and their state does not come back. The weights do: the given model is trained afterwards.
- SIGINT and SIGTERM stop the training at the next step boundary with a checkpoint; a second one ends it at once. If
  the learner fails, everything ends, with the error raised here and recorded. If its process dies, another one resumes
  the run from its last checkpoint, ``learner_restarts`` times in a row without a new one.

The order in which workers complete steps depends on time, so two runs with one seed differ, unlike in one process.
"""

import contextlib
import copy
import logging
import os
import queue
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.checks import require_number
from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.hooks import Hook, as_hook_list
from hookline._engine.metrics import plain
from hookline._engine.state import LoopArtifacts
from hookline._engine.torch_models import is_sharded, plain_state
from hookline._record.reader import FINAL, MAIN, last_status
from hookline._record.recorder import Recorder
from hookline.config.loading import load_config
from hookline.loops import checkpoint, distributed
from hookline.loops.backends import is_sharding_requested
from hookline.loops.signals import StopSignals
from hookline.rl.learner.config import RLConfig, worker_config
from hookline.rl.learner.learner import GRPOLearner
from hookline.rl.learner.stream import RolloutSource
from hookline.rl.learner.weights import whole_copy
from hookline.rl.policies.hf import HFPolicy
from hookline.rl.policies.server import ServerPolicy, ServerPolicyConfig
from hookline.rl.ray_cluster import RayCluster, import_ray
from hookline.rl.rollouts.actor import RolloutActor, WorkerSpec
from hookline.rl.rollouts.curriculum import Curriculum
from hookline.rl.rollouts.fleet import SUPERVISION_GROUP, ActorFactory, RemoteRollouts
from hookline.rl.rollouts.worker import RolloutWorker

logger = logging.getLogger("hookline")

HEARTBEAT_SECONDS = 1.0
FETCH_SECONDS = 10.0
"""How long an answer of the learner may take beyond the heartbeat, on a busy machine; its alerts would be lost."""
LEARNER_CONCURRENCY = 4
"""How many calls to the learner may run at once: training, status, and stop requests."""


def train(
    config: RLConfig | str | Path,
    *,
    model: Any = None,
    tokenizer: Any = None,
    hooks: Iterable[Hook] | None = None,
    callbacks: Any = None,
    custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
    hook_fns: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> LoopArtifacts:
    """Generate, score and learn in turns, for the number of steps in the settings.

    Args:
        config: The settings, or the path of a file with them.
        model: The model to train, with its ``tokenizer``; by default that of the settings.
        hooks: Run after each rollout step; by default the evaluation hooks of the curriculum.
        callbacks: Callbacks in addition to those of the settings.
        overrides: Settings that override those of the file, such as ``"train.max_steps=100"``.
    """
    config = _load_config(config, overrides)
    hooks = None if hooks is None else as_hook_list(hooks)
    model, tokenizer = resolve_model(config, model, tokenizer)
    options = {"callbacks": callbacks, "custom_logger_fns": custom_logger_fns, "hook_fns": hook_fns}
    if config.executor == "ray":
        if distributed.world_size() > 1:
            raise OptionError("RLConfig(executor='ray') starts its processes itself: run the program in one process.")
        return train_on_ray(config, model, tokenizer, hooks=hooks, **options)
    return make_learner(config, model, tokenizer, hooks=hooks, **options).fit()


def make_learner(
    config: RLConfig, model: Any, tokenizer: Any, *, hooks: Iterable[Hook] | None = None, **options: Any
) -> GRPOLearner:
    """Build a learner and its rollout worker, both in this process.

    Of several processes, each makes rollouts of its own. They generate with the model that is trained, or, if that is
    sharded, with a whole copy in each process, which gets the gathered weights after each step. With servers in the
    settings, these generate, and get the weights after each step.

    Args:
        options: Further arguments of `GRPOLearner`: callbacks, logger functions, hook functions.
    """
    if config.policy is not None:
        return _server_learner(config, config.policy, model, tokenizer, hooks, options)
    # A policy generates at its own pace, and processes that share the parts of a model compute together.
    is_in_parts = is_sharded(model) or (distributed.world_size() > 1 and is_sharding_requested())
    policy = HFPolicy(whole_copy(model) if is_in_parts else model, tokenizer)
    worker = RolloutWorker(worker_config(config), policy=policy, hooks=hooks, index=distributed.rank())
    return _learner(config, model, tokenizer, worker, options)


def _server_learner(
    config: RLConfig,
    servers: ServerPolicyConfig,
    model: Any,
    tokenizer: Any,
    hooks: Iterable[Hook] | None,
    options: Mapping[str, Any],
) -> GRPOLearner:
    if distributed.world_size() > 1:
        raise OptionError("RLConfig(policy=...) in several processes: run one, which sends the servers its weights.")
    policy = ServerPolicy(**msgspec.structs.asdict(servers), tokenizer=tokenizer, source=model)
    worker = RolloutWorker(worker_config(config), policy=policy, hooks=hooks)
    worker.owns_policy = True
    return _learner(config, model, tokenizer, worker, options)


def _learner(
    config: RLConfig, model: Any, tokenizer: Any, rollouts: RolloutSource, options: Mapping[str, Any]
) -> GRPOLearner:
    learner = GRPOLearner(
        model,
        rollouts,
        pad_id=tokenizer.pad_token_id or 0,
        config=config.train,
        grpo=config.grpo,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        max_tokens=config.rollout.max_tokens,
        reward_weights=config.rollout.reward_weights,
        **options,
    )
    learner.recorded_config = config
    return learner


def _load_config(config: Any, overrides: Sequence[str]) -> RLConfig:
    if isinstance(overrides, str):
        raise OptionError(f"overrides={overrides!r}: give a list, [{overrides!r}].")
    if isinstance(config, str | Path):
        return load_config(config, RLConfig, overrides)
    if not isinstance(config, RLConfig):
        raise OptionError(f"config={config!r}: give an RLConfig, or the path of a file with one.")
    if overrides:
        raise OptionError("overrides= requires a configuration file.")
    return config


def resolve_model(config: RLConfig, model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Return the given model and tokenizer, or load those of the settings."""
    if (model is None) != (tokenizer is None):
        raise OptionError("model= and tokenizer= belong together: give both, or neither.")
    if model is not None:
        return model, tokenizer
    if config.model is None:
        raise OptionError("There is no model: give train(model=, tokenizer=), or a model in the settings.")
    from hookline.loops.worker import model_and_tokenizer

    return model_and_tokenizer(config.model)


class LearnerLostError(HooklineError, RuntimeError):
    """The learner's process died, and it is not started again."""


@dataclass(slots=True)
class LearnerSpec:
    """What the learner actor is built from.

    Attributes:
        options: Further arguments of `GRPOLearner`, such as ``callbacks``.
        resources: The resources that each rollout actor requests from Ray.
        command: The driver's command line, which the record names.
        directory: The driver's working directory.
        restarted: Why the learner is started again; empty if it is not.
    """

    config: RLConfig
    model: Any
    tokenizer: Any
    hooks: list[Hook] | None
    options: dict[str, Any]
    resources: dict[str, float]
    heartbeat_seconds: float
    command: list[str]
    directory: str
    restarted: str = ""


@dataclass(frozen=True, slots=True)
class LearnerStatus:
    """What the driver learns from polling the learner."""

    alerts: list[str]
    has_begun: bool
    run_dir: Path | None


class LearnerActor:
    """Runs the learner as a Ray actor; the driver calls `fit` once and the other methods meanwhile.

    It creates the rollout workers, so Ray ends them with the learner, however that ends. Signals stay with the driver.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        sys.argv[:] = spec.command
        with contextlib.suppress(OSError):  # another machine may not have this directory
            os.chdir(spec.directory)
        self._spec = spec
        self._learner: GRPOLearner | None = None
        self._alerts: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def fit(self) -> tuple[LoopArtifacts, Mapping[str, Any]]:
        """Train to the end, and return the artifacts and the weights."""
        spec, config = self._spec, self._spec.config
        device = "cuda" if spec.resources["num_gpus"] else None
        # Put into the object store before the learner moves the model to its device.
        worker_spec = import_ray().put(
            WorkerSpec(
                worker_config(config),
                spec.model,
                spec.tokenizer,
                spec.hooks,
                device,
                config.grpo.advantages(config.rollout.reward_weights),
            )
        )
        rollouts = RemoteRollouts(
            lambda run_dir: self._actor_factory(worker_spec, run_dir),
            workers=config.rollout_workers,
            max_staleness=config.max_staleness,
            curriculum=Curriculum(config.curriculum, config.train.seed or 0),
            updates=config.grpo.updates * config.grpo.mini_batches,
            heartbeat_seconds=spec.heartbeat_seconds,
            restarted=spec.restarted,
            alert=self._alerts.put,
        )
        learner = self._learner = _learner(config, spec.model, spec.tokenizer, rollouts, spec.options)
        made = learner.fit()
        artifacts = LoopArtifacts(made.step, plain(made.metrics), made.checkpoints, made.output_dir, made.stop_reason)
        return artifacts, {name: tensor.detach().cpu() for name, tensor in plain_state(learner.model).items()}

    def poll_status(self, seconds: float) -> LearnerStatus:
        """Return new alerts, waiting up to a number of seconds for one."""
        received: list[str | None] = []
        with contextlib.suppress(queue.Empty):
            received.append(self._alerts.get(timeout=seconds))
            while True:
                received.append(self._alerts.get_nowait())
        learner = self._learner
        has_begun = learner is not None and learner.state != "created"
        run_dir = None if learner is None else learner.output_dir
        return LearnerStatus([alert for alert in received if alert is not None], has_begun, run_dir)

    def request_stop(self, reason: str) -> None:
        """Request a stop at the next step boundary; ignored before training has begun."""
        if self._learner is not None and self._learner.state == "running":
            self._learner.request_stop(reason)

    def _actor_factory(self, worker_spec: Any, run_dir: Path | None) -> ActorFactory:
        actor_class = import_ray().remote(concurrency_groups={SUPERVISION_GROUP: 1})(RolloutActor)
        actor_class = actor_class.options(**self._spec.resources)
        self._alerts.put(None)  # wakes poll_status(), so the driver knows the record's directory before anything fails
        return lambda index, state: actor_class.remote(worker_spec, index, run_dir=run_dir, state=state)


def train_on_ray(
    config: RLConfig,
    model: Any,
    tokenizer: Any,
    *,
    hooks: Iterable[Hook] | None = None,
    callbacks: Any = None,
    custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
    hook_fns: Mapping[str, Any] | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> LoopArtifacts:
    """Train with the given settings, and load the trained weights into the model.

    Args:
        heartbeat_seconds: The longest delay of alerts and stop requests.

    Raises:
        OptionError: An argument cannot be sent to another process.
        LearnerLostError: The learner's process died, too often to be started again.
    """
    require_number("heartbeat_seconds", heartbeat_seconds, above=0)
    options = {
        "callbacks": _materialized(callbacks),
        "custom_logger_fns": _materialized(custom_logger_fns),
        "hook_fns": hook_fns,
    }
    hooks = None if hooks is None else list(hooks)
    with RayCluster(config.rollout_workers + 1, on_gpus=config.train.device != "cpu") as cluster:
        _require_picklable(cluster.ray.cloudpickle.dumps, config=config, hooks=hooks, **options)
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
        spec = LearnerSpec(
            config=_with_absolute_paths(config),
            model=model if is_on_cpu else copy.deepcopy(model).cpu(),  # so that every process can read it
            tokenizer=tokenizer,
            hooks=hooks,
            options=options,
            resources=cluster.resources(),
            heartbeat_seconds=heartbeat_seconds,
            command=sys.argv,
            directory=str(Path.cwd()),
        )
        artifacts, weights = _Driver(cluster, spec).run()
    model.load_state_dict(weights)
    return artifacts


class _Driver:
    """Waits for the learner, logs its alerts, passes on stop requests, and ends it."""

    def __init__(self, cluster: RayCluster, spec: LearnerSpec) -> None:
        self._ray, self._heartbeat_seconds = cluster.ray, spec.heartbeat_seconds
        self._redact = spec.config.train.redact
        self._stop_reason: str | None = None
        self._has_begun = False
        self._run_dir: Path | None = None
        self._spec, self._restarts_left = spec, spec.config.learner_restarts
        self._saved: Path | None = None
        self._start_learner()

    def run(self) -> tuple[LoopArtifacts, Mapping[str, Any]]:
        """Return the result of `LearnerActor.fit`, or raise its error."""
        signals = StopSignals(self._note_signal)
        signals.install()
        try:
            made = self._result()
        except BaseException as error:
            original = self._original_error(error)
            self._end_record(original)
            if original is error:
                raise
            raise original from error
        finally:
            self._ray.kill(self._learner)
            signals.restore()
        return made

    def _start_learner(self) -> None:
        actor_class = self._ray.remote(max_concurrency=LEARNER_CONCURRENCY)(LearnerActor)
        self._learner = actor_class.options(**self._spec.resources).remote(self._spec)

    def _result(self) -> tuple[LoopArtifacts, Mapping[str, Any]]:
        """Wait for the result; a learner whose process dies is started again from its last checkpoint."""
        while True:
            try:
                made: tuple[LoopArtifacts, Mapping[str, Any]] = self._ray.get(self._wait())
            except self._ray.exceptions.RayActorError as error:
                if not self._restart(error):
                    raise
            else:
                return made

    def _restart(self, error: BaseException) -> bool:
        """Start a learner that resumes the run, unless that was tried too often without a new checkpoint."""
        run_dir = self._run_dir
        if not self._has_begun or run_dir is None or not run_dir.is_dir() or self._stop_reason is not None:
            return False
        saved = checkpoint.last(run_dir)
        if saved != self._saved:
            self._saved, self._restarts_left = saved, self._spec.config.learner_restarts
        if not self._restarts_left:
            return False
        self._restarts_left -= 1
        train = msgspec.structs.replace(self._spec.config.train, resume=str(run_dir))
        config = msgspec.structs.replace(self._spec.config, train=train)
        self._spec = replace(self._spec, config=config, restarted=_last_line(error))
        self._ray.kill(self._learner)
        self._start_learner()
        return True

    def _wait(self) -> Any:
        """Wait until training ends, and return the reference of its result."""
        result, status = self._learner.fit.remote(), self._learner.poll_status.remote(self._heartbeat_seconds)
        while True:
            ready, _ = self._ray.wait([result, status], num_returns=1, timeout=2 * self._heartbeat_seconds)
            if self._ray.wait([status], timeout=0)[0]:
                self._update_status(status)
                status = self._learner.poll_status.remote(self._heartbeat_seconds)
            if result in ready:
                self._update_status(status)  # it may have taken the last alerts
                self._update_status(self._learner.poll_status.remote(0.0))
                return result
            if self._stop_reason is not None:  # repeated, because the learner ignores it before training has begun
                self._learner.request_stop.remote(self._stop_reason)

    def _update_status(self, reference: Any) -> None:
        """Log alerts in this process, where logging is configured; a dead learner has no status."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            status: LearnerStatus = self._ray.get(reference, timeout=self._heartbeat_seconds + FETCH_SECONDS)
            self._has_begun = self._has_begun or status.has_begun
            self._run_dir = status.run_dir or self._run_dir
            for alert in status.alerts:
                logger.error("%s", alert)

    def _note_signal(self, reason: str) -> None:
        self._stop_reason = reason  # no call to Ray here: the signal may have interrupted one

    def _original_error(self, error: BaseException) -> BaseException:
        """Return the error that was raised in the learner's process."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return error.cause if isinstance(error.cause, BaseException) else error
        if isinstance(error, self._ray.exceptions.RayActorError):
            problem = "The learner's process died" if self._has_begun else "The learner cannot start"
            return LearnerLostError(f"{problem}, and training ends: {_last_line(error)}")
        return error

    def _end_record(self, error: BaseException) -> None:
        """Record the final status if the learner could not."""
        self._ray.kill(self._learner)
        if self._run_dir is None or not self._run_dir.is_dir():
            return
        last = last_status(self._run_dir)
        if last is None or last.status not in FINAL:
            status = "stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
            recorder = Recorder(self._run_dir, name=MAIN, durability="checkpoint", redact=self._redact)
            recorder.status(status, f"{type(error).__name__}: {error}")
            recorder.close()


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[-1][:500]


def _materialized(given: Any) -> Any:
    """Turn an iterator into a list, since an iterator cannot be sent to another process."""
    return given if given is None or isinstance(given, Mapping | str) or hasattr(given, "__len__") else list(given)


def _require_picklable(dumps: Callable[[Any], bytes], **arguments: Any) -> None:
    for name, value in arguments.items():
        parts: list[tuple[str, Any]] = []  # checked one by one first, so that the error names the offender
        if isinstance(value, Mapping):
            parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
        elif isinstance(value, list | tuple | CallbackCollection):
            parts = [(f"{name}[{index}]", part) for index, part in enumerate(value)]
        for label, part in [*parts, (name, value)]:
            try:
                dumps(part)
            except Exception as error:  # pickling runs code of the object
                raise OptionError(
                    f"{label}, {part!r:.200}, cannot be sent to another process, which executor='ray' requires: "
                    f"{type(error).__name__}: {_last_line(error)}. Let it open its locks, files and threads when "
                    "training starts, or train with executor='local'."
                ) from error


def _with_absolute_paths(config: RLConfig) -> RLConfig:
    """Make relative paths absolute: another process may have another working directory."""
    train = config.train
    if train.output_dir is not None:
        train = msgspec.structs.replace(train, output_dir=str(Path(train.output_dir).resolve()))
    if train.resume is not None and Path(train.resume).exists():
        train = msgspec.structs.replace(train, resume=str(Path(train.resume).resolve()))
    return msgspec.structs.replace(config, train=train)

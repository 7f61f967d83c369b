"""`train_on_ray`: reinforcement learning with the learner and N rollout workers as actors of Ray.

What holds:

- One run record: the learner's journal is the main one, each rollout worker has one beside it (``rollout0``, ...). On
  several machines, ``output_dir`` has to be a directory that all of them share.
- Rollouts that are learnt from are at most ``max_staleness`` versions behind, and workers do not run ahead: see
  `RemoteRollouts`. A rollout worker whose process dies is replaced, and an alarm names it: see `RolloutFleet`.
- One curriculum draws the lessons of all workers. Evaluations, and what hooks return, are in the learner's journal.
- Callbacks run in the learner's process, hooks in that of worker 0, whose steps they count. Both are sent there as
  copies: what they keep does not come back. The weights do: the model that was given is trained afterwards.
- SIGINT and SIGTERM stop the training at the next step boundary, and it is saved; a second one ends it at once. A
  learner that fails ends everything, with its error here and in the record; one whose process dies, too.

Which of the workers is the next to complete a step depends on time, so unlike in one process two runs of a seed differ.

`LearnerActor`: the learner of a training on Ray, in a process of its own.

It hires the rollout workers, so that they end when it does, however that comes. The driver waits for `fit`, hears of
alarms by `news`, and passes on requests to stop; signals are the driver's.
"""

import contextlib
import copy
import logging
import os
import queue
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.hooks import Hook
from hookline._engine.metrics import plain
from hookline._engine.state import LoopArtifacts
from hookline._engine.torch_models import plain_state
from hookline._record.reader import FINAL, MAIN, last_status
from hookline._record.recorder import Recorder
from hookline.loops.signals import StopSignals
from hookline.rl.learner.config import RLConfig, worker_config
from hookline.rl.learner.learner import GRPOLearner
from hookline.rl.rollouts.actor import RolloutActor, RolloutOrder
from hookline.rl.rollouts.curriculum import Curriculum
from hookline.rl.rollouts.fleet import WATCH, Hire, RayCluster, import_ray
from hookline.rl.rollouts.remote import RemoteRollouts


@dataclass(slots=True)
class LearnerOrder:
    """What a learner on Ray is made from.

    Attributes:
        given: What `GRPOLearner` is given besides: ``callbacks`` and the like.
        resources: What each rollout actor asks Ray for.
        command: Of the driver, which the record names.
        directory: That of the driver.
    """

    config: RLConfig
    model: Any
    tokenizer: Any
    hooks: list[Hook] | None
    given: dict[str, Any]
    resources: dict[str, float]
    heartbeat_seconds: float
    command: list[str]
    directory: str


@dataclass(frozen=True, slots=True)
class News:
    """What the driver hears from the learner."""

    alarms: list[str]
    has_begun: bool
    run_dir: Path | None


class LearnerActor:
    """Runs as an actor of Ray; the driver calls its methods, `fit` once and the others meanwhile."""

    def __init__(self, order: LearnerOrder) -> None:
        sys.argv[:] = order.command
        with contextlib.suppress(OSError):  # on another machine it need not be there
            os.chdir(order.directory)
        self._order = order
        self._learner: GRPOLearner | None = None
        self._news: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def fit(self) -> tuple[LoopArtifacts, Mapping[str, Any]]:
        """Train to the end; what came of it, and the weights."""
        order, config = self._order, self._order.config
        rollouts = RemoteRollouts(
            self._hiring(),
            workers=config.rollout_workers,
            max_staleness=config.max_staleness,
            curriculum=Curriculum(config.curriculum, config.train.seed or 0),
            updates=config.grpo.updates,
            heartbeat_seconds=order.heartbeat_seconds,
            alarm=self._news.put,
        )
        pad_id = order.tokenizer.pad_token_id or 0
        learner = self._learner = GRPOLearner(
            order.model,
            rollouts,
            pad_id=pad_id,
            config=config.train,
            grpo=config.grpo,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            **order.given,
        )
        learner.recorded_config = config
        made = learner.fit()
        artifacts = LoopArtifacts(made.step, plain(made.metrics), made.checkpoints, made.output_dir, made.stop_reason)
        return artifacts, {name: tensor.detach().cpu() for name, tensor in plain_state(learner.model).items()}

    def news(self, seconds: float) -> News:
        """What there is to hear, waiting for it so long."""
        heard: list[str | None] = []
        with contextlib.suppress(queue.Empty):
            heard.append(self._news.get(timeout=seconds))
            while True:
                heard.append(self._news.get_nowait())
        alarms = [alarm for alarm in heard if alarm is not None]
        learner = self._learner
        has_begun = learner is not None and learner.state != "created"
        return News(alarms, has_begun, None if learner is None else learner.output_dir)

    def request_stop(self, reason: str) -> None:
        """Ask for a stop at the next step boundary; before training has begun it is not heard."""
        if self._learner is not None and self._learner.state == "running":
            self._learner.request_stop(reason)

    def _hiring(self) -> Callable[[Path | None], Hire]:
        """What makes rollout actors, once the directory of the run is known."""
        ray, order = import_ray(), self._order
        device = "cuda" if order.resources["num_gpus"] else None
        parts = ray.put(RolloutOrder(worker_config(order.config), order.model, order.tokenizer, order.hooks, device))
        kind = ray.remote(concurrency_groups={WATCH: 1})(RolloutActor).options(**order.resources)

        def in_run(run_dir: Path | None) -> Hire:
            self._news.put(None)  # the driver learns where the record is before anything can go wrong
            return lambda index, state: kind.remote(parts, index, run_dir=run_dir, state=state)

        return in_run


logger = logging.getLogger("hookline")

HEARTBEAT_SECONDS = 1.0
LEARNER_CALLS = 4
"""How many calls of the learner may run at once: training, news, and requests."""


class LearnerLostError(HooklineError, RuntimeError):
    """A learner whose process died."""


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
    """Train as the settings say, and load the weights into the model.

    Args:
        heartbeat_seconds: Within which alarms are raised, and requests to stop passed on.

    Raises:
        OptionError: Something that is to be sent to another process cannot be.
        LearnerLostError: The learner's process died.
    """
    if not heartbeat_seconds > 0:
        raise OptionError(f"heartbeat_seconds={heartbeat_seconds!r}: give a number above 0.")
    given = {"callbacks": _listed(callbacks), "custom_logger_fns": _listed(custom_logger_fns), "hook_fns": hook_fns}
    hooks = None if hooks is None else list(hooks)
    with RayCluster(config.rollout_workers + 1, on_gpus=config.train.device != "cpu") as cluster:
        _require_picklable(cluster.ray.cloudpickle.dumps, config=config, hooks=hooks, **given)
        order = LearnerOrder(
            config=_with_absolute_paths(config),
            model=_on_cpu(model),
            tokenizer=tokenizer,
            hooks=hooks,
            given=given,
            resources=cluster.resources(),
            heartbeat_seconds=heartbeat_seconds,
            command=sys.argv,
            directory=str(Path.cwd()),
        )
        artifacts, weights = _Driver(cluster, order).run()
    model.load_state_dict(weights)
    return artifacts


class _Driver:
    """Waits for the learner, passes on what it says and what it is to hear, and ends it."""

    def __init__(self, cluster: RayCluster, order: LearnerOrder) -> None:
        self._ray, self._heartbeat_seconds = cluster.ray, order.heartbeat_seconds
        self._stop_reason: str | None = None
        self._has_begun = False
        self._run_dir: Path | None = None
        kind = self._ray.remote(max_concurrency=LEARNER_CALLS)(LearnerActor)
        self._learner = kind.options(**order.resources).remote(order)

    def run(self) -> tuple[LoopArtifacts, Mapping[str, Any]]:
        """What `LearnerActor.fit` returns, or raises."""
        signals = StopSignals(self._note_signal)
        signals.install()
        try:
            made: tuple[LoopArtifacts, Mapping[str, Any]] = self._ray.get(self._trained())
        except BaseException as error:
            reported = self._reported(error)
            self._end_record(reported)
            if reported is error:
                raise
            raise reported from error
        finally:
            self._ray.kill(self._learner)
            signals.restore()
        return made

    def _trained(self) -> Any:
        """Wait until training has come to its end, whichever; the reference of what came of it."""
        result, news = self._learner.fit.remote(), self._learner.news.remote(self._heartbeat_seconds)
        while True:
            ready, _ = self._ray.wait([result, news], num_returns=1, timeout=2 * self._heartbeat_seconds)
            if self._ray.wait([news], timeout=0)[0]:
                self._hear(news)
                news = self._learner.news.remote(self._heartbeat_seconds)
            if result in ready:
                self._hear(self._learner.news.remote(0.0))
                return result
            if self._stop_reason is not None:  # again and again: it is only heard once training has begun
                self._learner.request_stop.remote(self._stop_reason)

    def _hear(self, news: Any) -> None:
        """Raise alarms here, where logging is set up; a learner that is dead says nothing."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            heard: News = self._ray.get(news, timeout=self._heartbeat_seconds)
            self._has_begun, self._run_dir = heard.has_begun, heard.run_dir
            for alarm in heard.alarms:
                logger.error("%s", alarm)

    def _note_signal(self, reason: str) -> None:
        self._stop_reason = reason  # no call to Ray from a signal handler: it may have come in the middle of one

    def _reported(self, error: BaseException) -> BaseException:
        """The error as it was raised in the learner's process."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return error.cause if isinstance(error.cause, BaseException) else error
        if isinstance(error, self._ray.exceptions.RayActorError):
            what = "The learner's process died" if self._has_begun else "The learner cannot start"
            return LearnerLostError(f"{what}, and training ends: {_last_line(error)}")
        return error

    def _end_record(self, error: BaseException) -> None:
        """Say how it ended where the learner could not."""
        self._ray.kill(self._learner)
        if self._run_dir is None or not self._run_dir.is_dir():
            return
        last = last_status(self._run_dir)
        if last is None or last.status not in FINAL:
            word = "stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
            recorder = Recorder(self._run_dir, name=MAIN, durability="checkpoint")
            recorder.status(word, f"{type(error).__name__}: {error}")
            recorder.close()


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[-1][:500]


def _listed(given: Any) -> Any:
    """An iterator as a list: what is sent elsewhere is read here first."""
    return given if given is None or isinstance(given, Mapping | str) or hasattr(given, "__len__") else list(given)


def _require_picklable(dumps: Callable[[Any], bytes], **given: Any) -> None:
    for name, value in given.items():
        for label, part in [*_parts(name, value), (name, value)]:
            try:
                dumps(part)
            except Exception as error:  # pickling runs code of the object
                raise OptionError(
                    f"{label}, {part!r:.200}, cannot be sent to another process, as executor='ray' has to: "
                    f"{type(error).__name__}: {_last_line(error)}. Let it open what it holds (locks, files, threads) "
                    "when training starts, or train with executor='local'."
                ) from error


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a collection holds, each with a name that tells it from the others."""
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | CallbackCollection):
        yield from ((f"{name}[{place}]", part) for place, part in enumerate(value))


def _with_absolute_paths(config: RLConfig) -> RLConfig:
    """The settings as they mean the same in another directory."""
    train = config.train
    if train.output_dir is not None:
        train = msgspec.structs.replace(train, output_dir=str(Path(train.output_dir).resolve()))
    if train.resume is not None and Path(train.resume).exists():
        train = msgspec.structs.replace(train, resume=str(Path(train.resume).resolve()))
    return msgspec.structs.replace(config, train=train)


def _on_cpu(model: Any) -> Any:
    """The model where every process can read it."""
    is_there = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return model if is_there else copy.deepcopy(model).cpu()

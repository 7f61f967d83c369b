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
"""

import contextlib
import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hookline.core.collection import CallbackCollection
from hookline.core.errors import HooklineError, OptionError
from hookline.core.hook import Hook
from hookline.core.state import LoopArtifacts
from hookline.loops.signals import StopSignals
from hookline.record.reader import FINAL, MAIN, last_status
from hookline.record.recorder import Recorder
from hookline.rl.learner_actor import LearnerActor, LearnerOrder, News
from hookline.rl.ray_cluster import RayCluster
from hookline.rl.rl_config import RLConfig

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

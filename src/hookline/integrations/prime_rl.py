"""prime-rl: a monitor that records what its orchestrator reports, and fires hookline's moments.

    from hookline.integrations.prime_rl import HooklineMonitor

    monitor = HooklineMonitor(["sample_logger"], name="math")  # beside those in prime-rl's monitors.MONITORS

How the calls of a monitor become moments:

- ``log(metrics, step)`` ends a step: its row has the metrics by prime-rl's names, ``loss/mean`` as the ``loss``. Steps
  that prime-rl counts from 0 are counted from 1, as everywhere in hookline.
- ``log_episodes(episodes, step, kind, subset)`` of training fires `on_rollout_start` and `on_rollout_end` with a
  `Rollout` for each trace: its chat, its named rewards and their weighted sum.
- Metrics ``eval/<environment>/<metric>`` are the evaluation of that environment, ``<environment>/<metric>``, with the
  rollouts of ``log_episodes`` of an evaluation as its outputs.
- ``close()`` ends the run.

A monitor only listens: callbacks cannot stop the training, save a checkpoint or see weights. The run is one of the
orchestrator's process. A bridge does not import prime-rl.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from hookline._engine.checks import require_integer
from hookline._engine.defaults import NAME
from hookline.integrations.passive_run import PassiveRun
from hookline.loops.options import RunOptions
from hookline.rl.types import Completion, Rollout, Task

__all__ = ["HooklineMonitor"]

logger = logging.getLogger("hookline")

LOSSES = ("loss/mean", "loss")
EVALUATION = "eval/"


class ListeningRun(PassiveRun):
    """A run that cannot be stopped: one in which a callback requested it has run to its end."""

    no_stops = "prime-rl's monitors only listen"
    no_gradients = "prime-rl's trainer is another process"

    def _cuts_short(self, reason: str | None) -> bool:
        return False


class HooklineMonitor:
    """A monitor of prime-rl.

    Args:
        callbacks, name, options: As for every run of hookline.
        steps: How many steps are trained (``max_steps``). Monitors are not notified of it; progress bars need it.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
        history: What was logged, as every monitor of prime-rl keeps it.
    """

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        steps: int | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._steps = require_integer("steps", steps, optional=True)
        self.loop = ListeningRun(name, callbacks=callbacks, **options)
        self.history: list[dict[str, Any]] = []
        self._first: int | None = None
        self._evaluated: dict[str, list[Rollout]] = {}
        self._has_warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.loop.failed(error)
        else:
            self.close()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record metrics: those of a step, which ends it, and those of evaluations."""
        self.history.append(dict(metrics))
        try:
            number = self._begin(step)
            evaluated = {name: value for name, value in metrics.items() if name.startswith(EVALUATION)}
            row = {name: value for name, value in metrics.items() if name not in evaluated}
            if row:
                self._end_step(row, number)
            for name, values in _by_environment(evaluated).items():
                self._evaluate(name, values)
            self._check_requests()
        except BaseException as error:
            self.loop.failed(error)
            raise

    def log_episodes(
        self, episodes: Sequence[Any], step: int, kind: str = "train", subset: str | None = None, **others: Any
    ) -> None:
        """Report rollouts: those of training at once, those of an evaluation with its metrics."""
        try:
            self._begin(step)
            rollouts = [_rollout(episode, trace) for episode in episodes for trace in episode.traces]
            if kind != "train":
                self._evaluated.setdefault(subset or "", []).extend(rollouts)
                return
            self._open_step()
            self.loop.rollout_start(self.loop.step, subset)
            self.loop.rollout_end(self.loop.step, rollouts)
        except BaseException as error:
            self.loop.failed(error)
            raise

    def log_distributions(self, distributions: Mapping[str, Sequence[float]], step: int, **others: Any) -> None:
        """Do nothing: the episodes hold the numbers."""

    def save_final_summary(self, *args: Any, **others: Any) -> None:
        """Do nothing: the record is the summary."""

    def flush(self, *args: Any, **others: Any) -> None:
        """Do nothing: logged values are already recorded."""

    def close(self) -> None:
        """End the run."""
        if self.loop.is_running:
            try:
                self.loop.epoch_end()
                self.loop.train_end()
            except BaseException as error:
                self.loop.failed(error)
                raise

    def _begin(self, step: int) -> int:
        """Begin the run with the first call, and return the number of completed steps that a step of prime-rl is."""
        if self._first is None:
            self._first = step
        number = step + (self._first == 0)
        if not self.loop.is_running:
            self.loop.begin()
            self.loop.train_start(step=max(0, number - 1), num_steps=self._steps, num_epochs=1)
            self.loop.epoch_start(0)
        return number

    def _open_step(self) -> None:
        if not self.loop.in_step:
            self.loop.step_start()

    def _end_step(self, row: dict[str, Any], number: int) -> None:
        loop = self.loop
        if number <= loop.step:  # more metrics of a step that has ended
            loop.host_log(loop.recordable(row), step=number)
            return
        self._open_step()
        loss = next(({"loss": row[name]} for name in LOSSES if name in row), {})
        loop.step_end(None, loop.recordable(loss | row), step=number)

    def _evaluate(self, name: str, metrics: dict[str, Any]) -> None:
        loop, rollouts = self.loop, self._evaluated.pop(name, [])
        loop.validation_start()
        if rollouts:
            loop.validation_batch_start()
            loop.validation_batch_end({"rollouts": rollouts})
        own = {f"{EVALUATION}{name}/{metric}": value for metric, value in metrics.items()}
        named = {f"{name}/{metric}": value for metric, value in metrics.items()}
        loop.validation_end(name, loop.recordable({**named, **own}))

    def _check_requests(self) -> None:
        loop = self.loop
        if (loop.stop_requested or loop.checkpoint_requested or loop.validation_requested) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "A callback requested a stop, a checkpoint or a validation. prime-rl's monitors only listen."
            )


def _by_environment(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metrics of evaluations by environment: ``eval/<environment>/<metric>``."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        environment, _, metric = name.removeprefix(EVALUATION).partition("/")
        found.setdefault(environment, {})[metric or environment] = value
    return found


def _rollout(episode: Any, trace: Any) -> Rollout:
    """Return a trace of verifiers as a rollout."""
    messages = [{"role": each.role, "content": each.content} for each in trace.messages]
    first = next((index for index, each in enumerate(messages) if each["role"] == "assistant"), len(messages))
    prompt, completion = messages[:first], messages[first:]
    given = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    group = getattr(getattr(episode, "group", None), "id", None)
    return Rollout(
        Task(_text(prompt), id=str(group or trace.task.key or ""), messages=prompt),
        Completion(trace.last_reply, messages=completion),
        rewards={name: float(reward.score) for name, reward in given.items()},
        total=float(trace.reward),
        success=bool(episode.ok) and trace.reward > 0,
    )


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(str(each["content"]) for each in messages)

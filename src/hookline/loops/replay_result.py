"""The result of a replay: what each subscriber would have done, beside what the recording has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.costs import Cost
from hookline._engine.failures import Failure

MOST_ALERTS, MOST_ERRORS, MOST_VALUES = 10_000, 1_000, 100_000
"""How many of each a result holds; `Replay.left_out` counts the others."""


class ReplayedStop(NamedTuple):
    """A stop that a subscriber would have requested: its first one, since training would have ended there."""

    step: int
    reason: str
    subscriber: str


class ReplayedAlert(NamedTuple):
    """An alert that a subscriber would have raised, or one in the recording, whose subscriber is not known."""

    step: int | None
    metric: str
    value: Any
    message: str
    severity: str = "warning"
    subscriber: str = ""


@dataclass(slots=True)
class ReplayedCheckpoint:
    """A checkpoint that a subscriber would have saved, and the step at which it would have been deleted."""

    step: int
    subscriber: str
    deleted_at: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it would still be there at the end."""
        return self.deleted_at is None


class ReplayedValue(NamedTuple):
    """A value that a subscriber returned or logged."""

    step: int
    name: str
    value: Any
    subscriber: str


@dataclass(slots=True)
class Recording:
    """What happened in the recording.

    Attributes:
        status: ``finished``, ``stopped``, ``failed``, or ``running`` if the recording has no end.
        checkpoints: The steps at which checkpoints were saved.
        alerts: The alerts that it has.
    """

    run: str
    name: str
    directory: Path
    step: int = 0
    rows: int = 0
    evaluations: int = 0
    status: str = "running"
    stop_reason: str | None = None
    error: str | None = None
    checkpoints: list[int] = field(default_factory=list)
    alerts: list[ReplayedAlert] = field(default_factory=list)


@dataclass(slots=True)
class Replay:
    """The actions that subscribers would have taken in a recorded run.

    Attributes:
        recording: What happened.
        subscribers: Their names, in the order in which they run.
        stops: The first stop that each would have requested.
        alerts: The alerts that they would have raised.
        checkpoints: The checkpoints that they would have saved, with those that they would have deleted.
        values: What they returned or logged.
        errors: Their exceptions.
        costs: The time that each took.
        unavailable: What each subscriber would need and a recording does not have: moments that did not fire, and
            attributes of the loop that it read, such as ``loop.model``.
        ended_by: The exception of a critical subscriber that ended the replay, as it would have ended training.
        left_out: How many alerts, values and errors are not listed here.
        seconds: How long the replay took.
    """

    recording: Recording
    subscribers: list[str] = field(default_factory=list)
    stops: list[ReplayedStop] = field(default_factory=list)
    alerts: list[ReplayedAlert] = field(default_factory=list)
    checkpoints: list[ReplayedCheckpoint] = field(default_factory=list)
    values: list[ReplayedValue] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    costs: Sequence[Cost] = ()
    unavailable: dict[str, list[str]] = field(default_factory=dict)
    ended_by: BaseException | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def kept(self) -> list[int]:
        """The steps of the checkpoints that would be there at the end."""
        return [saved.step for saved in self.checkpoints if saved.is_kept]

    def of(self, subscriber: str) -> "Replay":
        """Return the part of the result that is about one subscriber.

        Raises:
            UnknownNameError: There is no such subscriber.
        """
        if subscriber not in self.subscribers:
            from hookline._engine.errors import UnknownNameError, closest

            raise UnknownNameError(f"{subscriber!r} was not replayed. {closest(subscriber, self.subscribers)}")
        return Replay(
            self.recording,
            [subscriber],
            [each for each in self.stops if each.subscriber == subscriber],
            [each for each in self.alerts if each.subscriber == subscriber],
            [each for each in self.checkpoints if each.subscriber == subscriber],
            [each for each in self.values if each.subscriber == subscriber],
            [each for each in self.errors if each.subscriber == subscriber],
            [each for each in self.costs if each.name == subscriber],
            {name: needs for name, needs in self.unavailable.items() if name == subscriber},
            self.ended_by,
            self.left_out,
            self.seconds,
        )

    def document(self) -> dict[str, Any]:
        """Return the result as plain data."""
        recording = self.recording
        recorded = {
            "status": recording.status,
            "step": recording.step,
            "rows": recording.rows,
            "evaluations": recording.evaluations,
            "stop_reason": recording.stop_reason,
            "error": recording.error,
            "checkpoints": recording.checkpoints,
            "alerts": [each._asdict() for each in recording.alerts],
        }
        errors = [
            {"step": e.step, "moment": e.moment, "error": _error_text(e.error), "subscriber": e.subscriber}
            for e in self.errors
        ]
        saved = [{"step": c.step, "deleted_at": c.deleted_at, "subscriber": c.subscriber} for c in self.checkpoints]
        costs = {cost.name: {"calls": cost.calls, "seconds": cost.total_seconds} for cost in self.costs}
        return {
            "run": recording.run,
            "name": recording.name,
            "recorded": recorded,
            "subscribers": self.subscribers,
            "stops": [each._asdict() for each in self.stops],
            "alerts": [each._asdict() for each in self.alerts],
            "checkpoints": saved,
            "values": [each._asdict() for each in self.values],
            "errors": errors,
            "costs": costs,
            "unavailable": self.unavailable,
            "ended_by": None if self.ended_by is None else _error_text(self.ended_by),
            "left_out": self.left_out,
            "seconds": self.seconds,
        }


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

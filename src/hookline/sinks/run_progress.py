"""A run as destinations see it: its metadata (`read_metadata`) and its progress (`RunProgress`).

`RunProgress` is for sinks that show a state rather than a history. It is updated record by record and can be saved in a
sink's state. Only the run's main writer and the delivery's own writer, which reports that the training process died,
change the status. The remaining time is estimated from the speed since the training started or was resumed.

The metadata comes from ``run.json``. Without that file, the directory's name stands in, so delivery does not depend on
it. `Membership` places a run in its experiment, so any process finds its group in a tracker. `histogram` counts values
for destinations that show distributions.
"""

import json
import math
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from hookline._record.reader import DELIVERY_WRITER, EVERY_AXIS, FINAL, MAIN, JournalEntry, is_resume, resumed_steps
from hookline._record.records import Event, Metrics, Status, clean, parse_nonfinite
from hookline._record.run_directory import METADATA

MOST_STEPS = (1 << 63) - 1
CREATED = "created"
"""The status before the first one is recorded."""
STATUS_WRITERS = frozenset({MAIN, DELIVERY_WRITER})
BUCKETS = 30
MOST_MAGNITUDE = 1e150
"""Larger values are left out of histograms: their squares overflow."""


class RunProgress(msgspec.Struct):
    """The latest status, steps and metrics."""

    status: str = CREATED
    status_time: float = 0.0
    steps: dict[str, int] = {}
    num_steps: int | None = None
    num_epochs: int | None = None
    reported_epoch: int | None = msgspec.field(default=None, name="told_epoch")  # the name in saved states
    component: str = ""
    began_step: int = 0
    began_time: float = 0.0
    time: float = 0.0
    metrics: dict[str, dict[str, Any]] = {}
    events: dict[str, int] = {}

    @classmethod
    def restored(cls, saved: Any) -> "RunProgress":
        """Restore the result of `saved`; None gives a new one."""
        try:
            progress = msgspec.convert(saved or {}, cls)
        except msgspec.ValidationError:  # by another version: starting over is better than failing
            return cls()
        for values in progress.metrics.values():
            values.update({name: parse_nonfinite(value) for name, value in values.items()})
        return progress

    def saved(self) -> dict[str, Any]:
        """All of it as JSON values."""
        fields = zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
        return {encoded: clean(getattr(self, name)) for name, encoded in fields}

    def add(self, entry: JournalEntry) -> None:
        """Update the progress with a record."""
        record, writer = entry.record, entry.file.name
        match record:
            case Status(status="heartbeat") if writer == MAIN:  # has the step, but is not a status of the run
                self.reach(record.step or 0, record.time)
            case Status() if writer in STATUS_WRITERS:
                self._add_status(record, is_own=writer == MAIN)
            case Metrics() if writer == MAIN:
                self.metrics.setdefault(record.axis, {}).update(record.values)
                self.reach(record.step, record.time, record.axis)
            case Event():
                self.events[record.name] = self.events.get(record.name, 0) + 1
                if is_resume(record) and writer == MAIN:
                    limits = resumed_steps(record)
                    for axis, step in self.steps.items():
                        kept = [clamped_step(limits[name]) for name in (axis, EVERY_AXIS) if name in limits]
                        self.steps[axis] = max(0, min(step, *kept)) if kept else step

    def reach(self, step: int, time: float, axis: str = "train") -> None:
        """Note that a step is complete; rows may arrive in any order."""
        step = clamped_step(step)
        if step > self.steps.get(axis, -1):
            self.steps[axis] = step
            self.time = max(self.time, time)

    @property
    def step(self) -> int:
        """The completed training steps."""
        return self.steps.get("train", 0)

    @property
    def has_ended(self) -> bool:
        """Whether the run has a final status."""
        return self.status in FINAL

    @property
    def progress(self) -> float | None:
        """The completed share, from 0 to 1; None if the number of steps is unknown."""
        if self.status == "finished":
            return 1.0
        return min(1.0, max(0.0, self.step / self.num_steps)) if self.num_steps else None

    @property
    def seconds_per_step(self) -> float | None:
        """The average duration of a step since the training started."""
        done, seconds = self.step - self.began_step, self.time - self.began_time
        return seconds / done if done > 0 and seconds > 0 and self.began_time else None

    @property
    def eta_seconds(self) -> float | None:
        """The estimated remaining time."""
        if self.has_ended or not self.num_steps or self.seconds_per_step is None:
            return 0.0 if self.status == "finished" else None
        return max(0, self.num_steps - self.step) * self.seconds_per_step

    @property
    def seconds_per_epoch(self) -> float | None:
        """The estimated duration of an epoch."""
        if self.seconds_per_step is None or not self.num_steps or not self.num_epochs:
            return None
        return self.seconds_per_step * self.num_steps / self.num_epochs

    @property
    def epoch(self) -> int | None:
        """The epoch of the latest step, counted from 1."""
        if not self.num_steps or not self.num_epochs:
            return None if self.reported_epoch is None else self.reported_epoch + 1
        return min(self.num_epochs, max(1, math.ceil(self.step * self.num_epochs / self.num_steps)))

    def _add_status(self, record: Status, *, is_own: bool) -> None:
        if record.time < self.status_time:  # the delivery reported a death before the run's last records were read
            return
        self.status, self.status_time = record.status, record.time
        data, report = record.data, is_report(record)
        if "num_steps" in data:  # the training starts
            self.num_steps, self.num_epochs = _count(data.get("num_steps")), _count(data.get("num_epochs"))
            self.began_step, self.began_time = clamped_step(record.step or 0), record.time
            self.steps["train"], self.time, self.reported_epoch = self.began_step, record.time, None
            if report:  # another training in the same process, not a resumed one
                self.metrics = {}
        elif record.step is not None and (self.has_ended or report):
            self.reach(record.step, record.time)
            if self.has_ended and is_own and not report:
                # A step that failed may have a row without being complete; the run knows how many are.
                self.steps["train"] = clamped_step(record.step)
        if report:
            self.component = str(data.get("component") or self.component)
            epoch = _count(data.get("epoch"))
            self.reported_epoch = self.reported_epoch if epoch is None else epoch
            metrics = data.get("metrics")
            self.metrics.setdefault("train", {}).update(metrics if isinstance(metrics, dict) else {})


def is_report(record: Any) -> bool:
    """Whether a status comes from one of the status functions, which put more into its data."""
    return isinstance(record, Status) and isinstance(record.data.get("report"), dict)


def clamped_step(step: int) -> int:
    """A step within 64 bits; a record may hold an integer of any size."""
    return max(-MOST_STEPS, min(MOST_STEPS, step))


def _count(value: Any) -> int | None:
    return clamped_step(value) if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Membership:
    """A run's place in its experiment; the runs of an arm are a group."""

    experiment: str
    experiment_id: str
    group: str
    group_id: str
    arm: str
    run_key: str = ""
    repeat: int | None = None
    stage: str | None = None
    seed: int | None = None

    @property
    def group_path(self) -> str:
        """A name for the group that is unique across experiments."""
        return f"{self.experiment}/{self.group}"

    @property
    def experiment_key(self) -> str:
        """A key for the experiment that is unique across machines, given that its id is."""
        return _key("experiment", self.experiment_id)

    @property
    def group_key(self) -> str:
        """A key for the group that is unique across experiments."""
        return _key("group", self.experiment_id, self.group_id)

    def facts(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """A run's metadata; ``key`` is unique across machines."""

    id: str
    key: str
    name: str = ""
    project: str = "default"
    config: Any = None
    started: float = 0.0
    user: str = ""
    command: str = ""
    commit: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    membership: Membership | None = None

    @property
    def title(self) -> str:
        """The run's name for people."""
        return (self.membership.run_key if self.membership is not None else "") or self.id


def read_metadata(run_dir: Path) -> RunMetadata:
    """Read a run's metadata from its directory."""
    try:
        known = json.loads((run_dir / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, Mapping):
        return RunMetadata(run_dir.name, _key(socket.gethostname(), str(run_dir.resolve())))
    run_id, started = str(known.get("id") or run_dir.name), float(known.get("started") or 0.0)
    membership = _membership(known.get("experiment"))
    # Runs of different experiments may have the same id, such as low-r0.
    experiment = () if membership is None else (membership.experiment_id,)
    return RunMetadata(
        id=run_id,
        key=_key(str(known.get("host")), repr(started), run_id, *experiment),
        name=str(known.get("name") or ""),
        project=str(known.get("project") or "default"),
        config=known.get("config"),
        started=started,
        user=str(known.get("user") or ""),
        command=" ".join(map(str, known.get("command") or ())),
        commit=str((known.get("git") or {}).get("commit") or ""),
        tags=tuple(map(str, known.get("tags") or ())),
        notes=str(known.get("notes") or ""),
        membership=membership,
    )


def _membership(known: Any) -> Membership | None:
    if not isinstance(known, Mapping) or not known.get("id"):
        return None
    experiment_id, arm = str(known["id"]), str(known.get("arm") or known.get("group") or "")
    group = str(known.get("group") or arm)
    return Membership(
        experiment=str(known.get("name") or experiment_id),
        experiment_id=experiment_id,
        group=group,
        group_id=str(known.get("group_id") or group),
        arm=arm,
        run_key=str(known.get("run_key") or ""),
        repeat=known.get("repeat"),
        stage=known.get("stage"),
        seed=known.get("seed"),
    )


def _key(*parts: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, "hookline:" + "\n".join(parts)).hex


def finite(values: Iterable[Any]) -> list[float]:
    """The numbers that a histogram can hold."""
    return [float(value) for value in values if isinstance(value, int | float) and abs(value) <= MOST_MAGNITUDE]


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return math.fsum(values) / len(values)


def histogram(values: Sequence[float]) -> tuple[list[int], list[float]]:
    """The number of values in each bucket, and the edges of the buckets, of which there is one more."""
    low, high = min(values), max(values)
    width = (high - low) / BUCKETS or 1.0
    counts = [0] * BUCKETS
    for value in values:
        counts[min(int((value - low) / width), BUCKETS - 1)] += 1
    return counts, [low + width * index for index in range(BUCKETS)] + [max(high, low + width)]

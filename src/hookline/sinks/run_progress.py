"""Where a run stands: what sinks that show a state, rather than a history, keep of the records.

Only the writers that speak for the run change it: its main one, and the courier, which says that the
training process died. Steps, metrics and the end come from records; how long it will take follows from
the pace since the training began, or was taken up again.

What a run's ``run.json`` says about it, for destinations that have runs of their own.

Where there is no such file, the directory's name stands in: delivering does not depend on it. A run of an
experiment says there which one it is (`Membership`), so it finds its place in a tracker from any process.
"""

import json
import math
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from hookline._record.reader import DELIVERY_WRITER, EVERY_AXIS, FINAL, MAIN, JournalEntry, is_resume, resumed_steps
from hookline._record.records import Event, Metrics, Status, clean, parse_nonfinite
from hookline._record.run_directory import METADATA

LARGEST = (1 << 63) - 1
"""Steps, and numbers of them, that are larger are taken for this."""
CREATED = "created"
"""The status before the run has said one."""
SPEAKERS = frozenset({MAIN, DELIVERY_WRITER})


class RunProgress(msgspec.Struct):
    """The latest of everything, as the records up to now have it."""

    status: str = CREATED
    status_time: float = 0.0
    steps: dict[str, int] = {}
    num_steps: int | None = None
    num_epochs: int | None = None
    told_epoch: int | None = None
    component: str = ""
    began_step: int = 0
    began_time: float = 0.0
    time: float = 0.0
    metrics: dict[str, dict[str, Any]] = {}
    events: dict[str, int] = {}

    @classmethod
    def restored(cls, saved: Any) -> "RunProgress":
        """What `saved` gave, or a new one for None."""
        try:
            standing = msgspec.convert(saved or {}, cls)
        except msgspec.ValidationError:  # by another version: better to begin anew than to go nowhere
            return cls()
        for values in standing.metrics.values():
            values.update({name: parse_nonfinite(value) for name, value in values.items()})
        return standing

    def saved(self) -> dict[str, Any]:
        """Everything in a form that JSON can hold."""
        return {name: clean(getattr(self, name)) for name in self.__struct_fields__}

    def note(self, parcel: JournalEntry) -> None:
        """Take a record into account."""
        record, writer = parcel.record, parcel.file.name
        match record:
            case Status(status="heartbeat") if writer == MAIN:  # it says how far the run is, not what it does
                self.reach(record.step or 0, record.time)
            case Status() if writer in SPEAKERS:
                self._note_status(record, is_own=writer == MAIN)
            case Metrics() if writer == MAIN:
                self.metrics.setdefault(record.axis, {}).update(record.values)
                self.reach(record.step, record.time, record.axis)
            case Event():
                self.events[record.name] = self.events.get(record.name, 0) + 1
                if is_resume(record) and writer == MAIN:
                    self._go_back(resumed_steps(record))

    def reach(self, step: int, time: float, axis: str = "train") -> None:
        """Note that a step is complete; rows may come in any order."""
        step = within_limits(step)
        if step > self.steps.get(axis, -1):
            self.steps[axis] = step
            self.time = max(self.time, time)

    @property
    def step(self) -> int:
        """How many steps of the training are complete."""
        return self.steps.get("train", 0)

    @property
    def has_ended(self) -> bool:
        """Whether the run has said that it is over."""
        return self.status in FINAL

    @property
    def progress(self) -> float | None:
        """The share that is done, from 0 to 1; None where nobody said how many steps there are."""
        if self.status == "finished":
            return 1.0
        return min(1.0, max(0.0, self.step / self.num_steps)) if self.num_steps else None

    @property
    def seconds_per_step(self) -> float | None:
        """How long a step takes, on average since the training began."""
        done, seconds = self.step - self.began_step, self.time - self.began_time
        return seconds / done if done > 0 and seconds > 0 and self.began_time else None

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest will take at that pace."""
        if self.has_ended or not self.num_steps or self.seconds_per_step is None:
            return 0.0 if self.status == "finished" else None
        return max(0, self.num_steps - self.step) * self.seconds_per_step

    @property
    def seconds_per_epoch(self) -> float | None:
        """How long an epoch takes at that pace."""
        if self.seconds_per_step is None or not self.num_steps or not self.num_epochs:
            return None
        return self.seconds_per_step * self.num_steps / self.num_epochs

    @property
    def epoch(self) -> int | None:
        """The epoch that the latest step belongs to, counted from 1."""
        if not self.num_steps or not self.num_epochs:
            return None if self.told_epoch is None else self.told_epoch + 1
        return min(self.num_epochs, max(1, math.ceil(self.step * self.num_epochs / self.num_steps)))

    def _note_status(self, record: Status, *, is_own: bool) -> None:
        if record.time < self.status_time:  # the courier's word of a death came before what the dead had said
            return
        self.status, self.status_time = record.status, record.time
        report = is_report(record)
        if "num_steps" in record.data:
            self._begin(record, report)
        elif record.step is not None and (self.has_ended or report):
            self.reach(record.step, record.time)
            if self.has_ended and is_own and not report:
                # a step that failed had a row, and is not complete: the run itself knows how many steps are
                self.steps["train"] = within_limits(record.step)
        if report:
            self._note_report(record.data)

    def _begin(self, record: Status, report: bool) -> None:
        self.num_steps, self.num_epochs = (_count(record.data.get(name)) for name in ("num_steps", "num_epochs"))
        self.began_step, self.began_time, self.told_epoch = within_limits(record.step or 0), record.time, None
        self.steps["train"], self.time = self.began_step, record.time
        if report:  # another training in the same process, not the same one again
            self.metrics = {}

    def _note_report(self, data: dict[str, Any]) -> None:
        self.component = str(data.get("component") or self.component)
        epoch = _count(data.get("epoch"))
        self.told_epoch = self.told_epoch if epoch is None else epoch
        metrics = data.get("metrics")
        self.metrics.setdefault("train", {}).update(metrics if isinstance(metrics, dict) else {})

    def _go_back(self, limits: dict[str, int]) -> None:
        for axis, step in self.steps.items():
            kept = [within_limits(limits[name]) for name in (axis, EVERY_AXIS) if name in limits]
            self.steps[axis] = max(0, min(step, *kept)) if kept else step


def is_report(record: Any) -> bool:
    """Whether a status was recorded by one of the status functions, which say more in its data."""
    return isinstance(record, Status) and isinstance(record.data.get("report"), dict)


def within_limits(step: int) -> int:
    """A step that can be worked with: a record may hold a whole number of any size."""
    return max(-LARGEST, min(LARGEST, step))


def _count(value: Any) -> int | None:
    return within_limits(value) if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Membership:
    """Which run of an experiment this is; the runs of an arm are a group."""

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
        """A name for the group that no arm of another experiment has."""
        return f"{self.experiment}/{self.group}"

    @property
    def experiment_key(self) -> str:
        """What no other experiment has, on any machine, as far as its id is its own."""
        return _key("experiment", self.experiment_id)

    @property
    def group_key(self) -> str:
        """What no other group has, also not one of the same id in another experiment."""
        return _key("group", self.experiment_id, self.group_id)

    def facts(self) -> dict[str, Any]:
        """What is known of it, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as a destination needs to know it; ``key`` is what no other run has, on any machine."""

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
        """What people call the run."""
        return (self.membership.run_key if self.membership is not None else "") or self.id


def read_facts(run_dir: Path) -> RunFacts:
    """What is written down about a run."""
    try:
        known = json.loads((run_dir / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, Mapping):
        return RunFacts(run_dir.name, _key(socket.gethostname(), str(run_dir.resolve())))
    run_id, started = str(known.get("id") or run_dir.name), float(known.get("started") or 0.0)
    membership = _membership(known.get("experiment"))
    whose = () if membership is None else (membership.experiment_id,)  # their runs have the same ids, say low-r0
    return RunFacts(
        id=run_id,
        key=_key(str(known.get("host")), repr(started), run_id, *whose),
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
    """A run's place in its experiment; None for one that belongs to none."""
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

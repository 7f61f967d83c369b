"""The event files of a run: one for each writer and axis, in a directory of its own.

What has to be known to go on exactly where a crash cut it off is the state: for each file its size, and
what was written of the latest step's samples.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event

from hookline.core.errors import RefusedError
from hookline.record.reader import EVERY_AXIS, MAIN, Parcel, resumed_steps
from hookline.record.records import Metrics, Rewards, Sample
from hookline.sinks import tensorboard_events as events
from hookline.sinks.appended_file import AppendedFile
from hookline.sinks.histogram import finite

REWARDS_KEPT = 1000
"""How many rewards of a step's samples a histogram is made of."""


class EventFiles:
    """Writes records to the event files below a directory.

    Args:
        root: The directory.
        file_name: What each file is called.
        samples_per_step: How many samples of a step and lesson are shown.
    """

    def __init__(self, root: Path, file_name: str, samples_per_step: int) -> None:
        self.root, self.file_name, self.samples_per_step = root, file_name, samples_per_step
        self._streams: dict[str, Stream] = {}
        self._files: dict[str, AppendedFile] = {}

    def open(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Cut the files back to a state, and go on from there."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._streams = {folder: Stream(**stream) for folder, stream in state.items()}
        for folder, stream in self._streams.items():
            if folder != _folder(stream.writer, stream.axis):  # a state from elsewhere must not choose what is cut
                raise RefusedError(f"{folder!r} in the sink's state is no folder of its event files.")
            self._file(folder)
        return self._state()

    def append(self, parcels: Sequence[Parcel]) -> dict[str, Any]:
        """Write what can be shown of a batch."""
        shown = [parcel for parcel in parcels if isinstance(parcel.record, Metrics | Rewards | Sample)]
        for (writer, axis), group in groupby(sorted(shown, key=_writer_and_axis), key=_writer_and_axis):
            folder = _folder(writer, axis)
            stream = self._streams.setdefault(folder, Stream(writer, axis))
            self._write(folder, list(stream.events(list(group), self.samples_per_step)))
        return self._state()

    def restart(self, mark: Parcel) -> dict[str, Any]:
        """Mark where a resumed writer does its steps again."""
        steps = resumed_steps(mark.record)
        for folder, stream in self._streams.items():
            limits = [steps[axis] for axis in (stream.axis, EVERY_AXIS) if axis in steps]
            if stream.writer == mark.file.name and limits and stream.step > min(limits):
                stream.begin_again(min(limits))
                self._write(folder, [events.start(mark.record.time, min(limits) + 1)])
        return self._state()

    def is_intact(self) -> bool:
        """Whether the files still have what was written to them."""
        return all(file.is_intact() for file in self._files.values())

    def close(self) -> None:
        """Close the files. May be called again."""
        while self._files:
            self._files.popitem()[1].close()

    def _write(self, folder: str, new: list[Event]) -> None:
        file = self._file(folder)
        begins = events.beginning(new[0].wall_time, new[0].step) if new and file.size == 0 else []
        stream = self._streams[folder]
        stream.bytes = file.append(events.encoded(begins + new))
        stream.crc = file.crc

    def _file(self, folder: str) -> AppendedFile:
        if folder not in self._files:
            stream = self._streams[folder]
            mark = {"inode": stream.inode, "crc": stream.crc}
            file = self._files[folder] = AppendedFile(self.root / folder / self.file_name, stream.bytes, mark)
            stream.inode, stream.crc = file.inode, file.crc
        return self._files[folder]

    def _state(self) -> dict[str, Any]:
        return {folder: asdict(stream) for folder, stream in self._streams.items()}


@dataclass
class Stream:
    """The rows of one writer and axis: how far they are written, and what is shown of the latest step.

    Args:
        writer: The writer's name.
        axis: What its steps count.
        bytes: The size of the event file.
        inode: Which file it is.
        crc: Its checksum.
        step: The highest step in it.
        session: The writer's session that wrote it last.
        latest: The step of the latest samples and rewards.
        shown: How many of the samples are shown, by lesson.
        rewards: The samples' rewards by function.
        told: The rewards by function of those that were recorded by themselves, perhaps a few at a time.
    """

    writer: str
    axis: str
    bytes: int = 0
    inode: int | None = None
    crc: int | None = None
    step: int = -1
    session: int = 0
    latest: int | None = None
    shown: dict[str, int] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    told: dict[str, list[float]] = field(default_factory=dict)

    def events(self, parcels: Sequence[Parcel], samples_per_step: int) -> Iterator[Event]:
        """What a batch adds to the file."""
        for (session, step), group in groupby(parcels, key=_session_and_step):
            records = [parcel.record for parcel in group]
            if self._evaluates_again(session, step):
                yield events.start(records[0].time, step)
            self.session, self.step = session, max(self.step, step)
            yield from (events.metrics_event(record) for record in records if isinstance(record, Metrics))
            yield from self._of_rewards(step, [record for record in records if isinstance(record, Rewards)])
            samples = [record for record in records if isinstance(record, Sample)]
            yield from self._of_samples(step, samples, samples_per_step)

    def begin_again(self, step: int) -> None:
        """Forget what comes after a step."""
        self.step, self.latest = step, None

    def _evaluates_again(self, session: int, step: int) -> bool:
        """Whether a resumed run evaluates anew the step at which it was taken up, which the resume itself keeps."""
        return self.axis == "eval" and session > self.session and step <= self.step

    def _of_rewards(self, step: int, given: Sequence[Rewards]) -> Iterator[Event]:
        for record in given:
            self._turn_to(step)
            told = self.told.setdefault(record.name, [])
            told += finite(record.values)[: REWARDS_KEPT - len(told)]
        # One point for each function: a wrapper may record the rewards of a step one by one.
        for name, time in {record.name: record.time for record in given}.items():
            if self.told[name]:
                yield events.rewards_event(time, step, name, self.told[name])

    def _of_samples(self, step: int, samples: Sequence[Sample], samples_per_step: int) -> Iterator[Event]:
        for sample in samples:
            self._turn_to(step)
            number = self.shown.get(sample.lesson or "", 0) + 1
            if number <= samples_per_step:
                self.shown[sample.lesson or ""] = number
                yield events.sample_event(sample, number)
            self._keep(sample.rewards)
        if samples and self.rewards:
            yield events.distribution_event(samples[-1].time, step, self.rewards)

    def _turn_to(self, step: int) -> None:
        if step != self.latest:
            self.latest, self.shown, self.rewards, self.told = step, {}, {}, {}

    def _keep(self, rewards: Mapping[str, Any]) -> None:
        for name, value in rewards.items():
            numbers = finite([value]) if name not in self.told else []
            if numbers and len(kept := self.rewards.setdefault(name, [])) < REWARDS_KEPT:
                kept += numbers


def _writer_and_axis(parcel: Parcel) -> tuple[str, str]:
    return parcel.file.name, getattr(parcel.record, "axis", "train")


def _session_and_step(parcel: Parcel) -> tuple[int, int]:
    return parcel.file.session, parcel.record.step  # type: ignore[return-value]


def _folder(writer: str, axis: str) -> str:
    """Where the rows of a writer and an axis go, below the log directory."""
    parts = ([] if writer == MAIN else [writer]) + ([] if axis == "train" else [axis])
    return "/".join(re.sub(r"[^\w.-]", "_", part).strip(".") or "_" for part in parts)

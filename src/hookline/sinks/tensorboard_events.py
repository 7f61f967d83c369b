"""The event files of a run: one for each writer and axis, in a directory of its own.

What has to be known to go on exactly where a crash cut it off is the state: for each file its size, and
what was written of the latest step's samples.

Records as TensorBoard's events, and events as the bytes of an event file.

Numbers become scalars, which TensorBoard keeps as 32-bit floats; strings become texts, under a tag of
their own, since TensorBoard allows one kind of data per tag. All events carry the record's own time,
so that the same records always give the same bytes.
"""

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from hookline._engine.errors import RefusedError
from hookline._record.reader import EVERY_AXIS, MAIN, JournalEntry, resumed_steps
from hookline._record.records import Metrics, Rewards, Sample
from hookline.sinks.output_files import AppendedFile
from hookline.sinks.rows import finite, histogram, mean

_TEXTS = ("prompt", "reasoning", "completion", "answer", "expected")
_STEPS = range(-(2**63), 2**63)


def encoded(events: Iterable[Event]) -> bytes:
    """Events as they lie in a file, each with its length and checksums."""
    data = io.BytesIO()
    writer = RecordWriter(data)
    for event in events:
        writer.write(event.SerializeToString())
    return data.getvalue()


def beginning(time: float, step: int) -> list[Event]:
    """What every file begins with: TensorBoard takes the first start in it for none that drops anything."""
    return [Event(wall_time=time, file_version="brain.Event:2"), start(time, step)]


def start(time: float, step: int) -> Event:
    """The mark that a step and all after it come anew: readers drop what they have of them."""
    return Event(wall_time=time, step=_step(step), session_log=SessionLog(status=SessionLog.START))


def metrics_event(record: Metrics) -> Event:
    """The values of a row."""
    values = [_value(name, value) for name, value in record.values.items() if value is not None]
    return _event(record.time, record.step, values)


def rewards_event(time: float, step: int, name: str, values: Sequence[float]) -> Event:
    """What a reward function gave at a step: its distribution and its mean.

    The mean is not called ``rewards/<name>/mean``: rows of metrics have that name.
    """
    middle = Summary.Value(tag=f"rewards/{name}", simple_value=mean(values))
    return _event(time, step, [middle, _histogram(name, values)])


def distribution_event(time: float, step: int, rewards: Mapping[str, Sequence[float]]) -> Event:
    """The distributions of the rewards of a step's samples."""
    return _event(time, step, [_histogram(name, values) for name, values in rewards.items()])


def sample_event(record: Sample, number: int) -> Event:
    """A sample as a text to read; the samples of a step are told apart by their numbers."""
    tag = f"samples/{record.lesson or record.axis}/{number}"
    return _event(record.time, record.step, [_text(tag, markdown(record))])


def markdown(sample: Sample) -> str:
    """A sample for people: its texts as they are, in blocks, and what it was rewarded."""
    parts = []
    for name in _TEXTS:
        text = getattr(sample, name)
        if text is not None:
            parts.append(f"**{name}**\n\n" + "\n".join("    " + line for line in text.split("\n")))
    facts = {**sample.rewards, "total": sample.total, "advantage": sample.advantage, "group": sample.group}
    told = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return "\n\n".join([*parts, f"**rewards** {told}"] if told else parts)


def _event(time: float, step: int, values: Sequence[Summary.Value]) -> Event:
    return Event(wall_time=time, step=_step(step), summary=Summary(value=values))


def _value(name: str, value: Any) -> Summary.Value:
    if isinstance(value, int | float):
        return Summary.Value(tag=name, simple_value=_float(value))
    return _text(f"{name}/text_summary", str(value))


def _text(tag: str, text: str) -> Summary.Value:
    metadata: SummaryMetadata = create_summary_metadata(display_name=None, description=None)
    return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()]))


def _histogram(name: str, values: Sequence[float]) -> Summary.Value:
    counts, edges = histogram(values)
    value = HistogramProto(
        min=min(values),
        max=max(values),
        num=len(values),
        sum=math.fsum(values),
        sum_squares=math.fsum(value * value for value in values),
        bucket_limit=edges[1:],
        bucket=counts,
    )
    return Summary.Value(tag=f"rewards/{name}/histogram", histo=value)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # a whole number: copysign would make it a float, too


def _step(step: int) -> int:
    return min(max(step, _STEPS.start), _STEPS.stop - 1)


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

    def append(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        """Write what can be shown of a batch."""
        shown = [entry for entry in entries if isinstance(entry.record, Metrics | Rewards | Sample)]
        for (writer, axis), group in groupby(sorted(shown, key=_writer_and_axis), key=_writer_and_axis):
            folder = _folder(writer, axis)
            stream = self._streams.setdefault(folder, Stream(writer, axis))
            self._write(folder, list(stream.events(list(group), self.samples_per_step)))
        return self._state()

    def restart(self, mark: JournalEntry) -> dict[str, Any]:
        """Mark where a resumed writer does its steps again."""
        steps = resumed_steps(mark.record)
        for folder, stream in self._streams.items():
            limits = [steps[axis] for axis in (stream.axis, EVERY_AXIS) if axis in steps]
            if stream.writer == mark.file.name and limits and stream.step > min(limits):
                stream.begin_again(min(limits))
                self._write(folder, [start(mark.record.time, min(limits) + 1)])
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
        begins = beginning(new[0].wall_time, new[0].step) if new and file.size == 0 else []
        stream = self._streams[folder]
        stream.bytes = file.append(encoded(begins + new))
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

    def events(self, entries: Sequence[JournalEntry], samples_per_step: int) -> Iterator[Event]:
        """What a batch adds to the file."""
        for (session, step), group in groupby(entries, key=_session_and_step):
            records = [entry.record for entry in group]
            if self._evaluates_again(session, step):
                yield start(records[0].time, step)
            self.session, self.step = session, max(self.step, step)
            yield from (metrics_event(record) for record in records if isinstance(record, Metrics))
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
                yield rewards_event(time, step, name, self.told[name])

    def _of_samples(self, step: int, samples: Sequence[Sample], samples_per_step: int) -> Iterator[Event]:
        for sample in samples:
            self._turn_to(step)
            number = self.shown.get(sample.lesson or "", 0) + 1
            if number <= samples_per_step:
                self.shown[sample.lesson or ""] = number
                yield sample_event(sample, number)
            self._keep(sample.rewards)
        if samples and self.rewards:
            yield distribution_event(samples[-1].time, step, self.rewards)

    def _turn_to(self, step: int) -> None:
        if step != self.latest:
            self.latest, self.shown, self.rewards, self.told = step, {}, {}, {}

    def _keep(self, rewards: Mapping[str, Any]) -> None:
        for name, value in rewards.items():
            numbers = finite([value]) if name not in self.told else []
            if numbers and len(kept := self.rewards.setdefault(name, [])) < REWARDS_KEPT:
                kept += numbers


def _writer_and_axis(entry: JournalEntry) -> tuple[str, str]:
    return entry.file.name, getattr(entry.record, "axis", "train")


def _session_and_step(entry: JournalEntry) -> tuple[int, int]:
    return entry.file.session, entry.record.step  # type: ignore[return-value]


def _folder(writer: str, axis: str) -> str:
    """Where the rows of a writer and an axis go, below the log directory."""
    parts = ([] if writer == MAIN else [writer]) + ([] if axis == "train" else [axis])
    return "/".join(re.sub(r"[^\w.-]", "_", part).strip(".") or "_" for part in parts)

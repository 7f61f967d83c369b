"""TensorBoard's event files: one per writer and axis, each in its own directory.

Numbers become scalars, which TensorBoard stores as 32-bit floats. Strings become texts, with their own tags, because
TensorBoard allows one kind of data per tag. Events carry the time of their record, so the same records always give the
same bytes.

The state is what is needed to continue exactly after a crash: the size of each file, and the samples and rewards of its
latest step.
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

MOST_REWARDS = 1000
"""How many rewards of a step's samples a histogram uses."""
_TEXTS = ("prompt", "reasoning", "completion", "answer", "expected")
_STEPS = range(-(2**63), 2**63)


def encoded(events: Iterable[Event]) -> bytes:
    """Encodes events for a file, each with its length and checksums."""
    data = io.BytesIO()
    writer = RecordWriter(data)
    for event in events:
        writer.write(event.SerializeToString())
    return data.getvalue()


def beginning(time: float, step: int) -> list[Event]:
    """The first events of a file. TensorBoard drops nothing at the first start mark."""
    return [Event(wall_time=time, file_version="brain.Event:2"), start(time, step)]


def start(time: float, step: int) -> Event:
    """A restart mark: readers drop this step and all later ones, which follow again."""
    return Event(wall_time=time, step=_step(step), session_log=SessionLog(status=SessionLog.START))


def metrics_event(record: Metrics) -> Event:
    """The event for a row of metrics."""
    values = [_value(name, value) for name, value in record.values.items() if value is not None]
    return _event(record.time, record.step, values)


def rewards_event(time: float, step: int, name: str, values: Sequence[float]) -> Event:
    """The event for the rewards of a function at a step: their distribution and mean.

    The mean is not named ``rewards/<name>/mean``, because rows of metrics use that name.
    """
    average = Summary.Value(tag=f"rewards/{name}", simple_value=mean(values))
    return _event(time, step, [average, _histogram(name, values)])


def distribution_event(time: float, step: int, rewards: Mapping[str, Sequence[float]]) -> Event:
    """The event for the distributions of the rewards of a step's samples."""
    return _event(time, step, [_histogram(name, values) for name, values in rewards.items()])


def sample_event(record: Sample, number: int) -> Event:
    """The event for a sample as text; the number distinguishes the samples of a step."""
    tag = f"samples/{record.lesson or record.axis}/{number}"
    return _event(record.time, record.step, [_text(tag, markdown(record))])


def markdown(sample: Sample) -> str:
    """Formats a sample as Markdown: its texts in blocks, and its rewards."""
    parts = []
    for name in _TEXTS:
        text = getattr(sample, name)
        if text is not None:
            parts.append(f"**{name}**\n\n" + "\n".join("    " + line for line in text.split("\n")))
    facts = {**sample.rewards, "total": sample.total, "advantage": sample.advantage, "group": sample.group}
    rewards = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return "\n\n".join([*parts, f"**rewards** {rewards}"] if rewards else parts)


def _event(time: float, step: int, values: Sequence[Summary.Value]) -> Event:
    return Event(wall_time=time, step=_step(step), summary=Summary(value=values))


def _value(name: str, value: Any) -> Summary.Value:
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:  # a large integer; copysign would overflow too
            number = math.inf if value > 0 else -math.inf
        return Summary.Value(tag=name, simple_value=number)
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


def _step(step: int) -> int:
    return min(max(step, _STEPS.start), _STEPS.stop - 1)


class EventFiles:
    """Writes records to event files below a directory.

    Args:
        root: The directory.
        file_name: The name of each file.
        samples_per_step: How many samples of a step and lesson are shown.
    """

    def __init__(self, root: Path, file_name: str, samples_per_step: int) -> None:
        self.root, self.file_name, self.samples_per_step = root, file_name, samples_per_step
        self._streams: dict[str, Stream] = {}
        self._files: dict[str, AppendedFile] = {}

    def open(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Truncate the files to a state."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._streams = {folder: Stream(**stream) for folder, stream in state.items()}
        for folder, stream in self._streams.items():
            if folder != _folder(stream.writer, stream.axis):  # a foreign state must not choose the file to truncate
                raise RefusedError(f"{folder!r} in the sink's state is not one of its folders.")
            self._file(folder)
        return self._state()

    def append(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        """Write the metrics, rewards and samples of a batch."""
        shown = [entry for entry in entries if isinstance(entry.record, Metrics | Rewards | Sample)]
        for (writer, axis), group in groupby(sorted(shown, key=_writer_and_axis), key=_writer_and_axis):
            folder = _folder(writer, axis)
            stream = self._streams.setdefault(folder, Stream(writer, axis))
            self._write(folder, list(stream.events(list(group), self.samples_per_step)))
        return self._state()

    def restart(self, mark: JournalEntry) -> dict[str, Any]:
        """Mark the step from which a resumed writer repeats its steps."""
        steps = resumed_steps(mark.record)
        for folder, stream in self._streams.items():
            limits = [steps[axis] for axis in (stream.axis, EVERY_AXIS) if axis in steps]
            if stream.writer == mark.file.name and limits and stream.step > min(limits):
                stream.step, stream.latest = min(limits), None
                self._write(folder, [start(mark.record.time, min(limits) + 1)])
        return self._state()

    def is_intact(self) -> bool:
        """Whether the files still have all events."""
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
    """The state of one writer and axis; saved under these names.

    Args:
        writer: The writer's name.
        axis: The axis of its steps.
        bytes: The size of the event file.
        inode: Its inode.
        crc: Its checksum.
        step: The highest step in it.
        session: The last session of the writer.
        latest: The step of the latest samples and rewards.
        shown: How many of its samples are shown, by lesson.
        rewards: The rewards of its samples, by function.
        told: Its rewards that were recorded without samples, by function; possibly a few at a time.
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
        """The events that a batch adds to the file."""
        for (session, step), group in groupby(entries, key=_session_and_step):
            records = [entry.record for entry in group]
            # A resume keeps the evaluation of the step it continues from; the resumed run evaluates that step again.
            if self.axis == "eval" and session > self.session and step <= self.step:
                yield start(records[0].time, step)
            self.session, self.step = session, max(self.step, step)
            yield from (metrics_event(record) for record in records if isinstance(record, Metrics))
            yield from self._reward_events(step, [record for record in records if isinstance(record, Rewards)])
            samples = [record for record in records if isinstance(record, Sample)]
            yield from self._sample_events(step, samples, samples_per_step)

    def _reward_events(self, step: int, given: Sequence[Rewards]) -> Iterator[Event]:
        for record in given:
            self._start_step(step)
            values = self.told.setdefault(record.name, [])
            values += finite(record.values)[: MOST_REWARDS - len(values)]
        # One point per function, because a wrapper may record the rewards of a step one by one.
        for name, time in {record.name: record.time for record in given}.items():
            if self.told[name]:
                yield rewards_event(time, step, name, self.told[name])

    def _sample_events(self, step: int, samples: Sequence[Sample], samples_per_step: int) -> Iterator[Event]:
        for sample in samples:
            self._start_step(step)
            number = self.shown.get(sample.lesson or "", 0) + 1
            if number <= samples_per_step:
                self.shown[sample.lesson or ""] = number
                yield sample_event(sample, number)
            for name, value in sample.rewards.items():
                numbers = finite([value]) if name not in self.told else []
                if numbers and len(kept := self.rewards.setdefault(name, [])) < MOST_REWARDS:
                    kept += numbers
        if samples and self.rewards:
            yield distribution_event(samples[-1].time, step, self.rewards)

    def _start_step(self, step: int) -> None:
        if step != self.latest:
            self.latest, self.shown, self.rewards, self.told = step, {}, {}, {}


def _writer_and_axis(entry: JournalEntry) -> tuple[str, str]:
    return entry.file.name, getattr(entry.record, "axis", "train")


def _session_and_step(entry: JournalEntry) -> tuple[int, int]:
    return entry.file.session, entry.record.step  # type: ignore[return-value]


def _folder(writer: str, axis: str) -> str:
    """The folder of a writer and axis, relative to the log directory."""
    parts = ([] if writer == MAIN else [writer]) + ([] if axis == "train" else [axis])
    return "/".join(re.sub(r"[^\w.-]", "_", part).strip(".") or "_" for part in parts)

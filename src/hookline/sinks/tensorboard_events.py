"""TensorBoard's event files: one per writer and axis, each in its own directory.

Numbers become scalars, which TensorBoard stores as 32-bit floats. Strings become texts, with their own tags, because
TensorBoard allows one kind of data per tag. Events carry the time of their record, so the same records always give the
same bytes.

Media are in the form of TensorBoard's plugins: images (videos as animated GIFs), audio, histograms, precision-recall
curves, and texts, which also show tables and the other plots. The run's configuration is in the first event of the main
file, for the plugin hparams.

The state is what is needed to continue exactly after a crash: the size of each file, the samples and rewards of its
latest step, and the first rows of each table of its latest step.
"""

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_FLOAT, DT_STRING
from tensorboard.plugins.audio import metadata as audio_plugin
from tensorboard.plugins.histogram import metadata as histogram_plugin
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image import metadata as image_plugin
from tensorboard.plugins.pr_curve import metadata as pr_curve_plugin
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from hookline._engine.errors import RefusedError
from hookline._record.reader import EVERY_AXIS, MAIN, JournalEntry, resumed_steps
from hookline._record.records import Media, Metrics, Rewards, Sample, TableRows
from hookline.sinks.media import CannotShowError, RunMedia, histogram_bins, markdown_table, plural, table_of
from hookline.sinks.output_files import AppendedFile
from hookline.sinks.run_progress import RunMetadata, finite, histogram, mean

MOST_REWARDS = 1000
"""How many rewards of a step's samples a histogram uses."""
MOST_TABLE_ROWS = 20
"""How many rows of a table are shown at a step."""
_MOST_CELL_LETTERS = 500
_WRITE_BYTES = 8 << 20
"""How many bytes of events are collected before they are written."""
_CURVE_THRESHOLDS = 201
_TEXTS = ("prompt", "reasoning", "completion", "answer", "expected")
_STEPS = range(-(2**63), 2**63)
_RECORDS = Metrics | Rewards | Sample | Media | TableRows
LEFT_OUT = "left_out"
"""The key of the state that is no folder."""


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


def hparams_event(metadata: RunMetadata) -> Event | None:
    """The event for the run's configuration; None if it has none."""
    values = {name: value for name, value in _flat_config("", metadata.config) if value is not None}
    if not values:
        return None
    return Event(wall_time=metadata.started, summary=hparams_pb(values, metadata.id, metadata.started))


def _flat_config(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat_config(f"{prefix}/{key}" if prefix else str(key), item)
    elif prefix:
        is_known = isinstance(value, bool | float | str | None) or (isinstance(value, int) and value in _STEPS)
        yield prefix, value if is_known else str(value)


def media_event(record: Media, media: RunMedia) -> Event | None:
    """The event for an image, a histogram, a text, ...; None if TensorBoard cannot show it."""

    def values(record: Media) -> list[Summary.Value]:
        return _media_values(record, media, record.name if not record.index else f"{record.name}/{record.index}")

    found = media.convert(record, values)
    return _event(record.time, record.step, found) if found else None


def _media_values(record: Media, media: RunMedia, tag: str) -> list[Summary.Value]:
    description = record.caption or None
    match record.type, record.format:
        case ("figure", "plotly.json") | ("file", _):
            raise CannotShowError("figures of Plotly" if record.type == "figure" else plural("file"))
        case "image" | "figure", _:
            content, _, size = media.picture(record)
            return [_image(tag, content, size, description)]
        case "video", _:
            return [_image(tag, *media.gif(record), description)]
        case "audio", "wav":
            parts = [media.content(record), (record.caption or "").encode()]
            shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1), TensorShapeProto.Dim(size=2)])
            tensor = TensorProto(dtype=DT_STRING, string_val=parts, tensor_shape=shape)
            metadata = audio_plugin.create_summary_metadata(tag, description, audio_plugin.Encoding.Value("WAV"))
            return [Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]
        case "audio", _:
            raise CannotShowError("audio that is not WAV")
        case "histogram", _:
            counts, edges = histogram_bins(record)
            rows = [number for index, count in enumerate(counts) for number in (*edges[index : index + 2], count)]
            metadata = histogram_plugin.create_summary_metadata(tag, description)
            return [Summary.Value(tag=tag, metadata=metadata, tensor=_numbers(rows, len(counts), 3, DT_DOUBLE))]
        case "plot", _ if record.data["plot"] == "pr_curve" and "thresholds" in record.data["series"][0]:
            series = record.data["series"]
            tags = [tag if len(series) == 1 else f"{tag}/{each['label']}" for each in series]
            return [_pr_curve(each_tag, each) for each_tag, each in zip(tags, series, strict=True)]
        case "plot" | "text" | "markdown" | "html", _:
            return [_text(f"{tag}/text_summary", _as_markdown(record, media))]
    raise CannotShowError(plural(record.type))


def _as_markdown(record: Media, media: RunMedia) -> str:
    """A text or a plot as Markdown, which is what TensorBoard shows as text."""
    if record.type == "plot":
        columns, rows = table_of(record)
        areas = [f"{each['label']}: area {each['area']:.4f}" for each in record.data.get("series") or ()]
        shown = [] if areas else [markdown_table(columns, rows[:100], more=len(rows[100:]))]
        return "\n\n".join([*areas, *shown, record.caption]).strip()
    text = media.text(record)
    return text if record.type != "text" else "\n".join("    " + line for line in text.split("\n"))


def _image(tag: str, content: bytes, size: tuple[int, int], description: str | None) -> Summary.Value:
    metadata = image_plugin.create_summary_metadata(tag, description)
    parts = [str(size[0]).encode(), str(size[1]).encode(), content]
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=3)])
    return Summary.Value(
        tag=tag, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=parts, tensor_shape=shape)
    )


def _numbers(values: Sequence[float], rows: int, columns: int, dtype: Any) -> TensorProto:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=rows), TensorShapeProto.Dim(size=columns)])
    held = {"double_val": values} if dtype == DT_DOUBLE else {"float_val": values}
    return TensorProto(dtype=dtype, tensor_shape=shape, **held)


def _pr_curve(tag: str, series: Mapping[str, Any]) -> Summary.Value:
    """A precision-recall curve at evenly spaced thresholds, as TensorBoard has them."""
    positives, negatives = series["positives"], series["negatives"]
    # One point for each threshold, from the highest; the curve's first point, after all of them, has none.
    points = list(zip(series["thresholds"], series["x"][1:], series["y"][1:], strict=True))
    count = _CURVE_THRESHOLDS
    if points[-1][0] >= 0.0 and points[0][0] <= 1.0:
        chosen = []
        for index in range(count):
            reached = [point for point in points if point[0] >= index / (count - 1)]
            chosen.append(reached[-1] if reached else (1.0, 0.0, points[0][2]))
    else:  # scores that are no probabilities: by rank
        chosen, count = points[::-1], len(points)
    columns = []
    for _, recall, precision in chosen:
        hits = recall * positives
        misses = hits / precision - hits if precision else 0.0
        columns.append((hits, misses, negatives - misses, positives - hits, precision, recall))
    metadata = pr_curve_plugin.create_summary_metadata(tag, None, count)
    flat = [column[row] for row in range(6) for column in columns]
    return Summary.Value(tag=tag, metadata=metadata, tensor=_numbers(flat, 6, count, DT_FLOAT))


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
        media: Reads the run's media.
        metadata: The run's metadata.
    """

    def __init__(
        self, root: Path, file_name: str, samples_per_step: int, media: RunMedia, metadata: RunMetadata
    ) -> None:
        self.root, self.file_name, self.samples_per_step = root, file_name, samples_per_step
        self._media, self._metadata = media, metadata
        self._streams: dict[str, Stream] = {}
        self._files: dict[str, AppendedFile] = {}

    def open(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Truncate the files to a state."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._streams = {
            folder: msgspec.convert(stream, Stream) for folder, stream in state.items() if folder != LEFT_OUT
        }
        for folder, stream in self._streams.items():
            if folder != _folder(stream.writer, stream.axis):  # a foreign state must not choose the file to truncate
                raise RefusedError(f"{folder!r} in the sink's state is not one of its folders.")
            self._file(folder)
        return self._state()

    def append(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        """Write the metrics, rewards, samples and media of a batch."""
        shown = [entry for entry in entries if isinstance(entry.record, _RECORDS)]
        for (writer, axis), group in groupby(sorted(shown, key=_writer_and_axis), key=_writer_and_axis):
            folder = _folder(writer, axis)
            stream = self._streams.setdefault(folder, Stream(writer, axis))
            self._write(folder, stream.events(list(group), self.samples_per_step, self._media))
        return self._state()

    def restart(self, mark: JournalEntry) -> dict[str, Any]:
        """Mark the step from which a resumed writer repeats its steps."""
        steps = resumed_steps(mark.record)
        for folder, stream in self._streams.items():
            limits = [steps[axis] for axis in (stream.axis, EVERY_AXIS) if axis in steps]
            if stream.writer == mark.file.name and limits and stream.step > min(limits):
                stream.step, stream.latest = min(limits), None
                self._write(folder, iter([start(mark.record.time, min(limits) + 1)]))
        return self._state()

    def is_intact(self) -> bool:
        """Whether the files still have all events."""
        return all(file.is_intact() for file in self._files.values())

    def close(self) -> None:
        """Close the files. May be called again."""
        while self._files:
            self._files.popitem()[1].close()

    def _write(self, folder: str, new: Iterator[Event]) -> None:
        file = self._file(folder)
        stream = self._streams[folder]
        waiting: list[Event] = []
        size = 0
        for event in new:
            if file.size == 0 and not waiting:
                waiting += beginning(event.wall_time, event.step)
                about = hparams_event(self._metadata) if not folder else None
                waiting += [] if about is None else [about]
            waiting.append(event)
            size += event.ByteSize()
            if size > _WRITE_BYTES:  # a batch of images may be larger than the memory
                file.append(encoded(waiting))
                waiting, size = [], 0
        stream.bytes = file.append(encoded(waiting))
        stream.crc = file.crc

    def _file(self, folder: str) -> AppendedFile:
        if folder not in self._files:
            stream = self._streams[folder]
            mark = {"inode": stream.inode, "crc": stream.crc}
            file = self._files[folder] = AppendedFile(self.root / folder / self.file_name, stream.bytes, mark)
            stream.inode, stream.crc = file.inode, file.crc
        return self._files[folder]

    def _state(self) -> dict[str, Any]:
        return {folder: msgspec.to_builtins(stream) for folder, stream in self._streams.items()} | self._media.state()


class Stream(msgspec.Struct):
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
        bare_rewards: Its rewards that were recorded without samples, by function; possibly a few at a time.
        tables: The latest step of each table with its rows so far, by tag.
    """

    writer: str
    axis: str
    bytes: int = 0
    inode: int | None = None
    crc: int | None = None
    step: int = -1
    session: int = 0
    latest: int | None = None
    shown: dict[str, int] = {}
    rewards: dict[str, list[float]] = {}
    bare_rewards: dict[str, list[float]] = msgspec.field(default_factory=dict, name="told")  # the name in saved states
    tables: dict[str, dict[str, Any]] = {}

    def events(self, entries: Sequence[JournalEntry], samples_per_step: int, media: RunMedia) -> Iterator[Event]:
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
            for record in records:
                event = media_event(record, media) if isinstance(record, Media) else None
                if event is not None:
                    yield event
            yield from self._table_events(step, [record for record in records if isinstance(record, TableRows)], media)

    def _reward_events(self, step: int, given: Sequence[Rewards]) -> Iterator[Event]:
        for record in given:
            self._start_step(step)
            values = self.bare_rewards.setdefault(record.name, [])
            values += finite(record.values)[: MOST_REWARDS - len(values)]
        # One point per function, because a wrapper may record the rewards of a step one by one.
        for name, time in {record.name: record.time for record in given}.items():
            if self.bare_rewards[name]:
                yield rewards_event(time, step, name, self.bare_rewards[name])

    def _sample_events(self, step: int, samples: Sequence[Sample], samples_per_step: int) -> Iterator[Event]:
        for sample in samples:
            self._start_step(step)
            number = self.shown.get(sample.lesson or "", 0) + 1
            if number <= samples_per_step:
                self.shown[sample.lesson or ""] = number
                yield sample_event(sample, number)
            for name, value in sample.rewards.items():
                numbers = finite([value]) if name not in self.bare_rewards else []
                if numbers and len(kept := self.rewards.setdefault(name, [])) < MOST_REWARDS:
                    kept += numbers
        if samples and self.rewards:
            yield distribution_event(samples[-1].time, step, self.rewards)

    def _table_events(self, step: int, given: Sequence[TableRows], media: RunMedia) -> Iterator[Event]:
        # One text per table and step, with all of its rows: of two, TensorBoard would show the later one.
        for record in given:
            media.convert(record, self._add_rows)
        for name, record in {record.name: record for record in given}.items():
            table = self.tables.get(name)
            if table is not None and table["step"] == step:
                text = markdown_table(table["columns"], table["rows"], table["count"] - len(table["rows"]))
                yield _event(record.time, step, [_text(f"{name}/text_summary", text)])

    def _add_rows(self, record: TableRows) -> None:
        table = self.tables.get(record.name)
        if table is None or (table["step"], table["columns"]) != (record.step, record.columns):
            table = {"step": record.step, "columns": record.columns, "rows": [], "count": 0}
            self.tables[record.name] = table
        room = MOST_TABLE_ROWS - len(table["rows"])
        table["rows"] += [[_short_cell(cell) for cell in row] for row in record.rows[:room]]
        table["count"] += len(record.rows)

    def _start_step(self, step: int) -> None:
        if step != self.latest:
            self.latest, self.shown, self.rewards, self.bare_rewards = step, {}, {}, {}


def _short_cell(cell: Any) -> Any:
    return cell[:_MOST_CELL_LETTERS] + "…" if isinstance(cell, str) and len(cell) > _MOST_CELL_LETTERS else cell


def _writer_and_axis(entry: JournalEntry) -> tuple[str, str]:
    return entry.file.name, getattr(entry.record, "axis", "train")


def _session_and_step(entry: JournalEntry) -> tuple[int, int]:
    return entry.file.session, entry.record.step  # type: ignore[return-value]


def _folder(writer: str, axis: str) -> str:
    """The folder of a writer and axis, relative to the log directory."""
    parts = ([] if writer == MAIN else [writer]) + ([] if axis == "train" else [axis])
    folder = "/".join(re.sub(r"[^\w.-]", "_", part).strip(".") or "_" for part in parts)
    return f"{folder}_" if folder == LEFT_OUT else folder

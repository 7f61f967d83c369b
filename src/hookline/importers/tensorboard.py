"""TensorBoard's event files: every scalar, of the old and of the new encoding, with its time; texts as events.

A directory's values that follow each other within a second at one step make a row, with the time of
the first. Values of a sub-directory (``train``, ``validation``, one made by ``add_scalars``) carry its name:
``validation/epoch_loss``. Where a writer said that it does steps again, which TensorBoard's page then
drops, so does the run's view. What hookline's own sink wrote gets its axes back. Pictures, sound and
histograms are counted as left out.

The records of an event file: each with its length, and checksums of both, as TFRecord files have them.

A record whose content is damaged is named and left out; where the length itself is, nothing behind it
can be found, and the rest of the file is named. A record that is cut off is the end: the writer was
killed, or is still writing.
"""

import functools
import heapq
import itertools
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hookline._engine.errors import MissingExtraError
from hookline.importers.source import EVAL_WORDS, Item, Occurrence, Reading, Restart, Row, Source, axis_of, rows

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_FRAME = _HEADER.size + _CHECKSUM.size


def records(path: Path, reading: Reading) -> Iterator[bytes]:
    """The contents of a file's whole records."""
    try:
        with path.open("rb") as file:
            yield from _whole(file, path, reading)
    except OSError as error:
        reading.skip(str(path), error)


def _whole(file: BinaryIO, path: Path, reading: Reading) -> Iterator[bytes]:
    size, begin = path.stat().st_size, 0
    while begin < size:
        try:
            content = _next(file, size - begin)
        except _DamagedError as damaged:
            reading.skip(f"{path}, byte {begin}", damaged)
            passed = damaged.size or size - begin
        else:
            yield content
            passed = len(content) + _FRAME
        reading.advance(passed)
        begin += passed


class _DamagedError(Exception):
    """A record that is no good; without a size nothing behind it can be found."""

    def __init__(self, reason: str, size: int = 0) -> None:
        super().__init__(reason)
        self.size = size


def _next(file: BinaryIO, room: int) -> bytes:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise _DamagedError("the last record is cut off")
    length, checksum = _HEADER.unpack(header)
    if _length_checksum(header[:8]) != checksum:
        raise _DamagedError("the length of a record is damaged; the rest of the file is left out")
    if length + _FRAME > room:
        raise _DamagedError("the last record is cut off")
    content = file.read(length)
    if _checksum(content) != _CHECKSUM.unpack(file.read(_CHECKSUM.size))[0]:
        raise _DamagedError("a record is damaged; it is left out", length + _FRAME)
    return content


def _checksum(content: bytes) -> int:
    """TensorBoard's own checksum, which is written in Python: it takes most of the time of an import."""
    return int(_masked_crc32c()(content))


_length_checksum = functools.lru_cache(maxsize=1 << 12)(_checksum)
"""Most records have one of a few lengths."""


@functools.cache
def _masked_crc32c() -> Any:
    return import_module("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").masked_crc32c


ROW_SECONDS = 1.0
"""How far apart in time two values of a row may have been written."""
_OPEN_DIRECTORIES = 200
"""How many directories are read side by side, in the order of time; more would take too many open files."""
_OURS = "events.out.tfevents.hookline."
_TEXT = "/text_summary"
_CONFIGS = {"args/text_summary": "args", "model_config/text_summary": "model"}
"""Texts in which Hugging Face's trainer writes down what it was started with."""

_OTHERS = {"histo": "histograms", "image": "images", "audio": "sounds"}
_NO_NUMBERS = "they are no numbers over steps"


class EventFiles(Source):
    """The event files of a run.

    Args:
        files: The files.
        homes: The directories that sub-directories count from.
    """

    format = "tensorboard"
    has_times = True
    is_secondary = True

    def __init__(self, files: list[Path], homes: list[Path]) -> None:
        super().__init__(sorted(files))
        self._homes = homes

    def check(self) -> None:
        try:
            import_module("tensorboard")
        except ImportError:
            raise MissingExtraError("Reading TensorBoard's event files", "tensorboard") from None

    def items(self, reading: Reading) -> Iterator[Item]:
        self.check()
        directories: dict[Path, list[Path]] = {}
        for file in self.files:
            directories.setdefault(file.parent, []).append(file)
        streams = [_Stream(reading, *self._place(files[0])).items(files) for files in directories.values()]
        if len(streams) > _OPEN_DIRECTORIES:
            return itertools.chain.from_iterable(streams)
        return heapq.merge(*streams, key=lambda item: item.time)

    def _place(self, file: Path) -> tuple[str, str | None]:
        """The prefix of the names in a file's directory, and the axis of all of them where there is one."""
        directory = file.parent
        home = max((home for home in self._homes if directory.is_relative_to(home)), key=lambda home: len(home.parts))
        parts = [part for part in directory.relative_to(home).parts if not _is_number(part)]
        if file.name.startswith(_OURS):
            writer = parts[:1] if parts and re.fullmatch(r"rank\d+", parts[0]) else []
            return "".join(f"{part}/" for part in writer), "/".join(parts[len(writer) :]) or "train"
        prefix = "".join(f"{part}/" for part in parts)
        return prefix, "eval" if parts and parts[0].lower() in EVAL_WORDS else None


@dataclass
class _Stream:
    """The events of one directory as rows."""

    reading: Reading
    prefix: str
    axis: str | None
    step: int = 0
    time: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)
    axes: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)

    def items(self, files: list[Path]) -> Iterator[Item]:
        for file in files:
            for event in _events(file, self.reading):
                yield from self._take(event)
        yield from self._flush()

    def _take(self, event: Any) -> Iterator[Item]:
        if event.HasField("summary"):
            if event.step != self.step or event.wall_time - self.time > ROW_SECONDS:
                yield from self._flush()
            for value in event.summary.value:
                yield from self._take_value(event, value)
        elif event.HasField("session_log") and event.session_log.status == event.session_log.START:
            yield from self._flush()
            yield from (Restart(event.step, event.wall_time, axis) for axis in sorted(self.axes))

    def _take_value(self, event: Any, value: Any) -> Iterator[Item]:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            yield from self._add(event, value.tag, value.simple_value)
            return
        plugin = self.plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
        if plugin == "hparams":
            self.reading.config |= _hyperparameters(value)
        elif kind == "tensor" and plugin in ("", "scalars", "text"):
            yield from self._take_tensor(event, value)
        else:
            self.reading.leave(_OTHERS.get(plugin or kind or "", f"values of {plugin or kind!r}"), _NO_NUMBERS)

    def _take_tensor(self, event: Any, value: Any) -> Iterator[Item]:
        from tensorboard.util.tensor_util import make_ndarray

        array = make_ndarray(value.tensor)
        if array.dtype.kind in "OSU":
            text = "\n".join(_text(each) for each in array.ravel())
            yield from self._take_text(event, value.tag, text)
        elif array.size == 1:
            yield from self._add(event, value.tag, array.item())
        else:
            self.reading.leave("tensors of several values", _NO_NUMBERS)

    def _take_text(self, event: Any, tag: str, text: str) -> Iterator[Item]:
        if tag in _CONFIGS and (config := _mapping(text)) is not None:
            self.reading.config[_CONFIGS[tag]] = config
        elif self.axis is not None and tag.endswith(_TEXT):  # a metric that is a string, as our own sink writes it
            yield from self._add(event, tag.removesuffix(_TEXT), text)
        else:
            name = self.prefix + tag.removesuffix(_TEXT)
            yield Occurrence(event.step, event.wall_time, "text", {"tag": name, "text": text})

    def _add(self, event: Any, tag: str, value: Any) -> Iterator[Item]:
        name = self.names.get(tag) or self.names.setdefault(tag, self.reading.name(self.prefix + tag))
        if name in self.values:
            yield from self._flush()
        if not self.values:
            self.step, self.time = event.step, event.wall_time
        self.values[name] = value

    def _flush(self) -> Iterator[Row]:
        if self.values:
            values, self.values = self.values, {}
            if self.axis is not None:
                made = [Row(self.step, self.time, values, self.axis)]
            elif len(values) == 1:  # the usual case
                made = [Row(self.step, self.time, values, axis_of(next(iter(values))))]
            else:
                made = list(rows(self.step, self.time, values))
            self.axes.update(row.axis for row in made)
            yield from made


def _events(file: Path, reading: Reading) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event

    damaged = import_module("google.protobuf.message").DecodeError
    for number, content in enumerate(records(file, reading)):
        try:
            yield Event.FromString(content)
        except damaged as error:
            reading.skip(f"{file}, record {number + 1}", error)


def _hyperparameters(value: Any) -> dict[str, Any]:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    told = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info.hparams
    return {name: getattr(each, each.WhichOneof("kind") or "string_value") for name, each in told.items()}


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_number(part: str) -> bool:
    """Whether a directory is called after a time, as `add_hparams` does it."""
    return part.replace(".", "", 1).isdigit()

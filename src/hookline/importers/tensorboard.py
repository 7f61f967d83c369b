"""Reads TensorBoard's event files: scalars, images, sounds, histograms, texts and precision-recall curves, with times.

Values of one directory and step that were written within a second form a row with the time of the first. Values of a
subdirectory (``train``, ``validation``, one made by ``add_scalars``) carry its name: ``validation/epoch_loss``. Where a
writer announced that it repeats steps, the earlier values are obsolete, as on TensorBoard's page. Files of hookline's
own sink get their axes back. Each kind is read in the old encoding (a field of its own) and the new one (a tensor).
Texts become Markdown, which is how TensorBoard shows them. Graphs, meshes and other plugins' data are counted as not
imported.

A file is a sequence of TFRecords: length, content, and a checksum of each. A record with damaged content is reported
and skipped. If the length is damaged, nothing after it can be located, so the rest of the file is skipped. A record
that is cut off is the end: the writer was killed, or is still writing.
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
from typing import Any

from hookline._engine.metrics import EVAL_WORDS, axis_of
from hookline._record.media import Markdown
from hookline.compat.tensorboard.events import MEDIA_PLUGINS, TEXT_SUFFIX, hyperparameters_in, media_of
from hookline.compat.tensorboard.values import joined_name
from hookline.importers.sources import (
    Item,
    MediaRow,
    ReadReport,
    Restart,
    Row,
    Source,
    split_by_axis,
)

ROW_SECONDS = 1.0
"""How far apart in time two values of a row may have been written."""
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_FRAME = _HEADER.size + _CHECKSUM.size
_OPEN_DIRECTORIES = 200
"""How many directories are merged in the order of time; more would exceed the limit on open files."""
_OWN_FILES = "events.out.tfevents.hookline."
_CONFIGS = {"args/text_summary": "args", "model_config/text_summary": "model"}
"""Texts in which Hugging Face's trainer stores its settings."""
_NOT_NUMBERS = "only numbers, media and texts over steps are imported"


class EventFiles(Source):
    """The event files of a run.

    Args:
        files: The files.
        homes: The directories to which subdirectory names are relative.
    """

    format = "tensorboard"
    has_times = True
    is_secondary = True
    package = "tensorboard"
    package_use = ("Reading TensorBoard's event files", "tensorboard")

    def __init__(self, files: list[Path], homes: list[Path]) -> None:
        super().__init__(sorted(files))
        self._homes = homes

    def items(self, report: ReadReport) -> Iterator[Item]:
        self.check()
        directories: dict[Path, list[Path]] = {}
        for file in self.files:
            directories.setdefault(file.parent, []).append(file)
        streams = [
            _DirectoryReader(report, *self._folder_and_axis(files[0])).items(files) for files in directories.values()
        ]
        if len(streams) > _OPEN_DIRECTORIES:
            return itertools.chain.from_iterable(streams)
        return heapq.merge(*streams, key=lambda item: item.time)

    def _folder_and_axis(self, file: Path) -> tuple[str, str | None]:
        """Return a file's directory below that of its run, and their axis if the directory determines it."""
        directory = file.parent
        home = max((home for home in self._homes if directory.is_relative_to(home)), key=lambda home: len(home.parts))
        # add_hparams() names directories after a time, which is no part of a metric's name.
        parts = [part for part in directory.relative_to(home).parts if not part.replace(".", "", 1).isdigit()]
        if file.name.startswith(_OWN_FILES):
            writer = parts[:1] if parts and re.fullmatch(r"rank\d+", parts[0]) else []
            return "/".join(writer), "/".join(parts[len(writer) :]) or "train"
        return "/".join(parts), "eval" if parts and parts[0].lower() in EVAL_WORDS else None


@dataclass
class _DirectoryReader:
    """Turns the events of one directory into rows."""

    report: ReadReport
    folder: str
    axis: str | None
    step: int = 0
    time: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)
    axes: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)

    def items(self, files: list[Path]) -> Iterator[Item]:
        from tensorboard.compat.proto.event_pb2 import Event

        decode_error = import_module("google.protobuf.message").DecodeError
        for file in files:
            for number, content in enumerate(_records(file, self.report)):
                try:
                    event = Event.FromString(content)
                except decode_error as error:
                    self.report.skip(f"{file}, record {number + 1}", error)
                else:
                    yield from self._event(event)
        yield from self._flush()

    def _event(self, event: Any) -> Iterator[Item]:
        if event.HasField("summary"):
            if event.step != self.step or event.wall_time - self.time > ROW_SECONDS:
                yield from self._flush()
            for value in event.summary.value:
                yield from self._value(event, value)
        elif event.HasField("session_log") and event.session_log.status == event.session_log.START:
            yield from self._flush()
            yield from (Restart(event.step, event.wall_time, axis) for axis in sorted(self.axes))

    def _value(self, event: Any, value: Any) -> Iterator[Item]:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            yield from self._scalar(event, value.tag, value.simple_value)
            return
        plugin = self.plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
        if plugin == "hparams":
            self.report.config |= hyperparameters_in(value)
        elif kind in ("image", "audio", "histo") or (kind == "tensor" and plugin in MEDIA_PLUGINS):
            yield from self._media(event, value, plugin)
        elif kind == "tensor" and plugin in ("", "scalars", "text"):
            yield from self._tensor(event, value)
        else:
            self.report.leave(f"values of {plugin or kind!r}", _NOT_NUMBERS)

    def _media(self, event: Any, value: Any, plugin: str) -> Iterator[Item]:
        name = joined_name(self.folder, value.tag)
        try:
            found = media_of(value, plugin)
        except (TypeError, ValueError, IndexError) as error:
            self.report.skip(f"step {event.step}, {name!r}", error)
            return
        axis = self.axis or axis_of(name)
        for index, media in enumerate(found):
            yield MediaRow(event.step, event.wall_time, name, media, axis, position=index)

    def _tensor(self, event: Any, value: Any) -> Iterator[Item]:
        from tensorboard.util.tensor_util import make_ndarray

        array = make_ndarray(value.tensor)
        if array.dtype.kind in "OSU":
            texts = (each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in array.flat)
            yield from self._text(event, value.tag, "\n".join(texts))
        elif array.size == 1:
            yield from self._scalar(event, value.tag, array.item())
        else:
            self.report.leave("tensors of several values", _NOT_NUMBERS)

    def _text(self, event: Any, tag: str, text: str) -> Iterator[Item]:
        if tag in _CONFIGS and (config := _json_mapping(text)) is not None:
            self.report.config[_CONFIGS[tag]] = config
        elif self.axis is not None and tag.endswith(TEXT_SUFFIX):  # hookline's sink writes string metrics like this
            yield from self._scalar(event, tag.removesuffix(TEXT_SUFFIX), text)
        else:
            name = joined_name(self.folder, tag.removesuffix(TEXT_SUFFIX))
            yield MediaRow(event.step, event.wall_time, name, Markdown(text), self.axis or axis_of(name))

    def _scalar(self, event: Any, tag: str, value: Any) -> Iterator[Item]:
        name = self.names.get(tag) or self.names.setdefault(tag, self.report.rename(joined_name(self.folder, tag)))
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
                made = list(split_by_axis(self.step, self.time, values))
            self.axes.update(row.axis for row in made)
            yield from made


def _records(path: Path, report: ReadReport) -> Iterator[bytes]:
    """Yield the contents of a file's intact records."""
    try:
        with path.open("rb") as file:
            size, start = path.stat().st_size, 0
            while start < size:
                problem, content, passed = "", b"", size - start
                header = file.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    problem = "the last record is cut off"
                else:
                    length, checksum = _HEADER.unpack(header)
                    if _length_checksum(header[:8]) != checksum:
                        problem = "the length of a record is damaged; the rest of the file is skipped"
                    elif length + _FRAME > size - start:
                        problem = "the last record is cut off"
                    else:
                        passed = length + _FRAME
                        content = file.read(length)
                        if _checksum(content) != _CHECKSUM.unpack(file.read(_CHECKSUM.size))[0]:
                            problem = "a record is damaged; it is skipped"
                if problem:
                    report.skip(f"{path}, byte {start}", problem)
                else:
                    yield content
                report.advance(passed)
                start += passed
    except OSError as error:
        report.skip(str(path), error)


def _checksum(content: bytes) -> int:
    # TensorBoard's own function is pure Python: it takes most of the time of an import.
    return int(_masked_crc32c()(content))


_length_checksum = functools.lru_cache(maxsize=1 << 12)(_checksum)
"""Cached: most records have one of a few lengths."""


@functools.cache
def _masked_crc32c() -> Any:
    return import_module("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").masked_crc32c


def _json_mapping(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

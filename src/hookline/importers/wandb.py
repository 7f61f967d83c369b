"""Reads the directories of offline W&B runs (``offline-run-*``), and those that online runs leave (``run-*``).

The ``.wandb`` file has the history, the configuration, the summary and how the run ended; ``files/`` has the media that
the history refers to, and files that the user saved. Steps are W&B's (``_step``), times are ``_timestamp``. Artifacts
become versions of artifacts; their files, and the media in cells of tables, are in folders of W&B outside of the run's
directory (see `wandb_artifacts`).

A ``.wandb`` file is a log in LevelDB's format: blocks of 32 KiB with chunks, each with a checksum, of records, each a
protocol buffer of wandb's. A damaged record is reported and skipped. A record that is cut off is the end.
"""

import contextlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import axis_of
from hookline._record.media import Histogram, Media
from hookline._record.media_table import Table
from hookline.importers.media import SourceFile, files_inside, parse_json
from hookline.importers.sources import (
    Item,
    MediaRow,
    ReadReport,
    Source,
    StatusRow,
    flatten,
    modification_time,
    split_by_axis,
)
from hookline.importers.wandb_artifacts import CheckedFile, WandbArtifacts

SUFFIX = ".wandb"
_HEADER = b":W&B\xe1\xbe"
_FILE_HEADER = 7
_BLOCK = 32 << 10
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MAX_RECORD_BYTES = 256 << 20
_OWN_FILES = frozenset(
    {"config.yaml", "output.log", "requirements.txt", "wandb-metadata.json", "wandb-summary.json", "diff.patch"}
)
_FILE_TYPES = {
    "image-file": "image",
    "audio-file": "audio",
    "video-file": "video",
    "html-file": "html",
    "plotly-file": "figure",
    "object3D-file": "file",
    "bokeh-file": "file",
    "molecule-file": "file",
}
_LEFT = "this kind of W&B's media is not imported"


class WandbRun(Source):
    """One W&B run.

    Args:
        file: Its ``.wandb`` file; its directory is read as well.
    """

    format = "wandb"
    has_times = True
    has_statuses = True
    package = "wandb"
    package_use = ("Reading W&B's runs", "wandb")

    def __init__(self, file: Path) -> None:
        self.home = file.parent / "files"
        super().__init__([file, *files_inside(self.home)])

    def items(self, report: ReadReport) -> Iterator[Item]:
        self.check()
        record_type = import_module("wandb.proto.wandb_internal_pb2").Record
        decode_error = import_module("google.protobuf.message").DecodeError
        at = _Position(modification_time(self.files[0]))
        self._artifacts = WandbArtifacts(self.files[0].parent)
        for place, content in _records(self.files[0], report):
            try:
                record = record_type.FromString(content)
            except decode_error as error:
                report.skip(place, error)
            else:
                yield from self._record(record, at, report)
        if not at.has_ended:  # it was killed, or is still running
            yield StatusRow(at.step, at.time, "failed", "the W&B run has no end", {})
        report.config.pop("_wandb", None)
        kept = {name: value for name, value in at.summary.items() if name[:1] != "_" and not _is_media(value)}
        report.description |= {"summary": kept} if kept else {}
        for path in self.files[1:]:
            name = path.relative_to(self.home).as_posix()
            report.advance(path.stat().st_size)
            if name not in at.referred and name not in _OWN_FILES and not name.startswith("media/"):
                yield MediaRow(at.step, at.time, f"files/{name}", SourceFile(self.home, name))

    def _record(self, record: Any, at: "_Position", report: ReadReport) -> Iterator[Item]:
        match record.WhichOneof("record_type"):
            case "run":
                _describe(record.run, report)
                if not at.has_started:
                    at.has_started = True
                    at.time = record.run.start_time.seconds + record.run.start_time.nanos / 1e9 or at.time
                    yield StatusRow(0, at.time, "running", "", {})
            case "config":
                report.config |= _values(record.config.update)
            case "summary":
                at.summary |= _values(record.summary.update)
            case "history":
                yield from self._row(_values(record.history.item), record.history.step.num, at, report)
            case "artifact":
                try:
                    yield from self._artifacts.add(record.artifact, at.step, at.time)
                except OptionError as error:
                    report.leave(f"artifact {record.artifact.name!r:.100}", str(error))
            case "exit":
                at.has_ended = True
                status = "failed" if record.exit.exit_code else "finished"
                yield StatusRow(at.step, at.time, status, "imported", {"exit_code": record.exit.exit_code})

    def _row(self, values: dict[str, Any], number: int, at: "_Position", report: ReadReport) -> Iterator[Item]:
        place = f"{self.files[0]}, row {number}"
        step, time = values.pop("_step", number), values.pop("_timestamp", at.time)
        if not isinstance(step, int) or not isinstance(time, int | float) or not math.isfinite(time):
            report.skip(place, f"_step={step!r:.80} and _timestamp={time!r:.80} are not a step and a time")
            return
        at.step, at.time = step, float(time)
        values.pop("_runtime", None)
        media = dict(_find_media(values))
        plain = dict(flatten(_without_media(values)))
        report.leave_non_metrics(place, plain)
        if plain:
            yield from split_by_axis(step, at.time, plain)
        for name, value in media.items():
            try:
                found = self._media(value, at.referred)
            except (OSError, TypeError, ValueError, KeyError, LookupError) as error:
                report.skip(f"{place}, {name!r}", error)
                continue
            if not found:
                report.leave(f"values of {value['_type']!r}", _LEFT)
            for index, each in enumerate(found):
                yield MediaRow(step, at.time, name, each, axis_of(name), position=index)

    def _media(self, value: Mapping[str, Any], referred: set[str]) -> list[Media | Table]:
        """Return the media that a value of the history describes; none if the kind is unknown."""
        kind = value["_type"]
        if kind in _FILE_TYPES:
            return [self._file(value, str(value["path"]), value.get("caption"), referred)]
        if kind == "images/separated":
            captions = value.get("captions") or []
            names = value["filenames"]
            return [
                self._file(value, str(name), captions[index] if index < len(captions) else "", referred)
                for index, name in enumerate(names)
            ]
        if kind == "histogram":
            edges = value.get("bins")
            if edges is None:
                packed = value["packedBins"]
                edges = [packed["min"] + packed["size"] * index for index in range(packed["count"] + 1)]
            return [Histogram(counts=list(value["values"]), edges=list(edges))]
        if kind == "table-file":
            name = str(value["path"])
            referred.add(name)
            try:
                found = self._artifacts.table(value, self._cell)
            except (OptionError, OSError, ValueError):  # its media are gone: the texts in their place are not
                found = None
            if found is not None:
                return [found]
            content = parse_json(self.home, name)
            return [Table([str(column) for column in content["columns"]], content["data"])]
        return []

    def _cell(self, value: Mapping[str, Any], find: "Callable[[str], CheckedFile]") -> Any:
        """Return a cell of a table; its files are in the table's artifact."""
        kind = value["_type"]
        if kind not in _FILE_TYPES:
            return f"({kind})"
        data = {key: value[key] for key in ("width", "height") if isinstance(value.get(key), int)}
        layers = (value.get("boxes") or {}).values() if kind == "image-file" else ()
        boxes = [box for layer in layers if isinstance(layer, list) for box in _boxes(layer, value, {})]
        data |= {"boxes": boxes} if boxes else {}
        return find(str(value["path"])).with_facts(_FILE_TYPES[kind], str(value.get("caption") or ""), data)

    def _file(self, value: Mapping[str, Any], name: str, caption: Any, referred: set[str]) -> SourceFile:
        referred.add(name)
        data = {key: value[key] for key in ("width", "height") if isinstance(value.get(key), int)}
        kind = "image" if value["_type"] == "images/separated" else _FILE_TYPES[value["_type"]]
        data |= self._overlays(value, referred) if kind == "image" else {}
        return SourceFile(self.home, name, kind=kind, caption=str(caption or ""), data=data)

    def _overlays(self, value: Mapping[str, Any], referred: set[str]) -> dict[str, Any]:
        """Return the boxes of an image in pixels, with the names of their classes."""
        boxes: list[dict[str, Any]] = []
        labels: dict[str, str] = {}
        for each in (value.get("boxes") or {}).values():
            referred.add(str(each["path"]))
            content = parse_json(self.home, str(each["path"]))
            labels |= {str(number): str(label) for number, label in (content.get("class_labels") or {}).items()}
            boxes += _boxes(content.get("box_data") or (), value, labels)
        return ({"boxes": boxes} if boxes else {}) | ({"labels": labels} if labels else {})


def _boxes(
    found: Iterable[Mapping[str, Any]], image: Mapping[str, Any], labels: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield boxes in pixels."""
    for box in found:
        place = box["position"]
        is_pixels = box.get("domain") == "pixel"
        across, down = (1, 1) if is_pixels else (image["width"], image["height"])
        corners = [place["minX"] * across, place["minY"] * down, place["maxX"] * across, place["maxY"] * down]
        label = box.get("box_caption") or labels.get(str(box.get("class_id")))
        scores = [score for score in (box.get("scores") or {}).values() if isinstance(score, int | float)]
        facts = {"label": str(label)} if label else {}
        yield {"box": corners, **facts, **({"score": scores[0]} if scores else {})}


@dataclass
class _Position:
    """How far a file has been read."""

    time: float
    step: int = 0
    has_started: bool = False
    has_ended: bool = False
    summary: dict[str, Any] = field(default_factory=dict)
    referred: set[str] = field(default_factory=set)
    """Files that the history refers to."""


def is_wandb_file(file: Path) -> bool:
    """Check whether a file is one of W&B's."""
    if file.suffix != SUFFIX:
        return False
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return opened.read(len(_HEADER)) == _HEADER
    return False


def _describe(run: Any, report: ReadReport) -> None:
    report.config |= _values(run.config.update)
    report.facts |= {"run_id": run.run_id, "project": run.project}
    described = {"name": run.display_name, "notes": run.notes, "tags": list(run.tags)}
    report.description |= {key: value for key, value in described.items() if value}


def _values(items: Any) -> dict[str, Any]:
    """Return the values of a record, nested as they were logged."""
    row: dict[str, Any] = {}
    for item in items:
        *outer, last = item.nested_key or [item.key]
        place = row
        for name in outer:
            inner = place.setdefault(name, {})
            place = inner if isinstance(inner, dict) else place
        try:
            place[last] = json.loads(item.value_json)
        except (ValueError, RecursionError):
            place[last] = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}.get(item.value_json, item.value_json)
    return row


def _is_media(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("_type"), str)


def _find_media(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in values.items():
        if _is_media(value):
            yield f"{prefix}{name}", value
        elif isinstance(value, dict):
            yield from _find_media(value, f"{prefix}{name}/")


def _without_media(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_media(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if not _is_media(value)
    }


def _records(path: Path, report: ReadReport) -> Iterator[tuple[str, bytes]]:
    """Yield the intact records of a file, each with its location."""
    record, begin, is_broken = b"", 0, False
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(_FILE_HEADER)
        while (start := file.tell()) < size:
            left = _BLOCK - start % _BLOCK
            if left < _CHUNK.size:  # padding at the end of a block
                file.seek(left, 1)
                continue
            header = file.read(_CHUNK.size)
            checksum, length, kind = _CHUNK.unpack(header) if len(header) == _CHUNK.size else (0, 0, 0)
            chunk = file.read(length)
            report.advance(len(header) + len(chunk))
            if not kind or len(chunk) < length:
                if kind or any(header):
                    report.skip(f"{path}, byte {start}", "the last record is cut off")
                return
            if kind in (_FULL, _FIRST):
                record, begin, is_broken = b"", start, False
            is_broken |= zlib.crc32(chunk, zlib.crc32(header[6:])) != checksum or kind > _LAST
            is_broken |= len(record) + length > _MAX_RECORD_BYTES
            record = b"" if is_broken else record + chunk
            if kind in (_FULL, _LAST):
                if is_broken:
                    report.skip(f"{path}, byte {begin}", "a record is damaged; it is skipped")
                else:
                    yield f"{path}, byte {begin}", record

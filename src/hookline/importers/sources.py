"""The contract between file formats and the importer.

A `Source` reads the files that one tool wrote about one run and yields `Item`s: metric rows, samples, media, events,
statuses and restarts. It never fails on a broken line or file: it reports the location to the `ReadReport` and
continues. `combine` merges the sources of one run into a single stream without duplicates.

Metric names keep their spelling. A name that starts with ``eval``, ``evaluation``, ``val``, ``valid``, ``validation``
or ``test``, followed by ``_``, ``/``, ``-`` or ``.``, belongs to the axis ``eval``; every other name belongs to
``train``. ``epoch`` is recorded on both.
"""

import heapq
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeAlias

from hookline._engine.errors import MissingExtraError
from hookline._engine.metrics import is_evaluation
from hookline._record.console_reader import ConsoleRow
from hookline._record.environment import Environment
from hookline._record.reader import MAIN
from hookline._record.records import LogLine, Rewards, SampleUse

SKIPPED_KEPT = 100
"""How many skipped locations are listed; all are counted."""
_COMMON = frozenset({"epoch"})


class Row(NamedTuple):
    """Metrics of one step; the time is in seconds since 1970."""

    step: int
    time: float
    values: dict[str, Any]
    axis: str = "train"
    writer: str = MAIN


class SampleRow(NamedTuple):
    """A completion with the fields of ``log_samples``, and the original lengths of truncated texts."""

    step: int
    time: float
    fields: dict[str, Any]
    axis: str = "train"
    writer: str = MAIN
    truncated: dict[str, int] | None = None


class EventRow(NamedTuple):
    """An event of the run."""

    step: int | None
    time: float
    name: str
    data: dict[str, Any]
    writer: str = MAIN


class StatusRow(NamedTuple):
    """A status that the run reported about itself."""

    step: int | None
    time: float
    status: str
    message: str
    data: dict[str, Any]
    writer: str = MAIN


class MediaRow(NamedTuple):
    """An image, a table, a file, ...: a value of ``log()``."""

    step: int
    time: float
    name: str
    media: Any
    axis: str = "train"
    writer: str = MAIN
    position: int = 0
    """Its position in a list that was logged under one name."""


class ArtifactSource(NamedTuple):
    """A file of an artifact: how to open it, or the address of one that stays where it is.

    The digest of one that is opened is checked, if it is known.
    """

    path: str
    open: Callable[[], BinaryIO] | None = None
    uri: str = ""
    size: int | None = None
    sha256: str = ""
    etag: str = ""


class ArtifactRow(NamedTuple):
    """A version of an artifact that the run saved, or used."""

    step: int | None
    time: float
    name: str
    kind: str
    aliases: list[str]
    metadata: dict[str, Any]
    files: list[ArtifactSource]
    is_used: bool = False
    axis: str = "train"
    keeps_aliases: bool = False
    """Whether an alias that names another version already stays there."""
    data: dict[str, Any] | None = None
    """What the event says besides the version, where the source has the event."""


class ConsoleItem(NamedTuple):
    """A console line."""

    step: int | None
    time: float
    line: ConsoleRow
    axis: str = "train"


class EnvironmentItem(NamedTuple):
    """The environment of a session, and the folder with the blobs that it refers to."""

    step: int | None
    time: float
    environment: Environment
    blobs: Path
    axis: str = "train"


class RecordItem(NamedTuple):
    """A log line, or the values of a reward function, as an exported run recorded it."""

    step: int | None
    time: float
    record: LogLine | Rewards | SampleUse
    writer: str = MAIN
    axis: str = "train"


class Restart(NamedTuple):
    """The source repeats an axis from this step; its earlier values at this step and later are obsolete."""

    step: int
    time: float
    axis: str


Item: TypeAlias = (
    Row
    | SampleRow
    | EventRow
    | StatusRow
    | MediaRow
    | ArtifactRow
    | ConsoleItem
    | EnvironmentItem
    | RecordItem
    | Restart
)


class Skipped(NamedTuple):
    """A location in the source that could not be read, and why."""

    place: str
    reason: str


class Left(NamedTuple):
    """Something that was recognised but not imported, and why."""

    what: str
    reason: str


@dataclass
class ReadReport:
    """Collects what reading the sources of one run finds besides items.

    Args:
        on_progress: Called with the number of bytes read since the last call.
        rename: Maps a name of one source to the spelling that another source of the same run uses.
    """

    on_progress: Callable[[int], None] | None = None
    rename: Callable[[str], str] = str
    skipped: list[Skipped] = field(default_factory=list)
    skipped_count: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    description: dict[str, Any] = field(default_factory=dict)
    """The name, notes, tags and summary of the run, as far as the source has them."""

    def skip(self, place: str, reason: object) -> None:
        """Report a location that could not be read."""
        self.skipped_count += 1
        if len(self.skipped) < SKIPPED_KEPT:
            self.skipped.append(Skipped(place, " ".join(str(reason).split())))

    def leave(self, what: str, reason: str, count: int = 1) -> None:
        """Report something that is not imported."""
        self.left[what, reason] += count

    def leave_non_metrics(self, place: str, values: dict[str, Any]) -> None:
        """Remove values that cannot be metrics from a row, and report them as skipped."""
        for name in [name for name, value in values.items() if not isinstance(value, int | float | str | None)]:
            self.skip(f"{place}, {name!r}", f"a {type(values.pop(name)).__name__} is not a metric")

    def advance(self, size: int) -> None:
        """Report that more bytes were read."""
        if self.on_progress is not None:
            self.on_progress(size)


class Source(ABC):
    """The files that one tool wrote about one run.

    Args:
        files: The files, in the order in which they are read.
    """

    format: ClassVar[str]
    has_times: bool = False
    """Whether the source has timestamps; otherwise the modification time of the file is used."""
    is_secondary: ClassVar[bool] = False
    """Whether other sources have the same metrics with higher precision."""
    has_metrics: ClassVar[bool] = True
    has_statuses: bool = False
    """Whether the source reports how the run ended; otherwise the run counts as finished."""
    wants_metric_names: ClassVar[bool] = False
    """Whether `use_metric_names` must be called before reading."""
    package: ClassVar[str] = ""
    """The package that reads the files, if they need one."""
    package_use: ClassVar[tuple[str, str]] = ("", "")
    """What the package is for, and the extra that installs it, for the error when it is missing."""

    def __init__(self, files: list[Path], *, shared: Sequence[Path] = ()) -> None:
        self.files = files
        self.shared = frozenset(shared)
        """Files that hold other runs as well: what is read of them does not follow from their content."""
        self.unused: list[Path] = []
        """Files that turned out to be unnecessary while reading."""

    def check(self) -> None:
        """Check that the source can be read.

        Raises:
            MissingExtraError: A package is missing.
        """
        try:
            if self.package:
                import_module(self.package)
        except ImportError:
            raise MissingExtraError(*self.package_use) from None

    @abstractmethod
    def items(self, report: ReadReport) -> Iterator[Item]:
        """Yield everything in the source, in its order."""

    def run_facts(self, report: ReadReport) -> dict[str, Any]:
        """Return what ``run.json`` said about the run, checked; empty unless the source is an export of a whole run."""
        return {}

    def rename(self, name: str) -> str:
        """Translate a name of a secondary source to this source's spelling."""
        return name

    def use_metric_names(self, names: set[str]) -> None:  # noqa: B027 - most formats do not need them
        """Receive the metric names of the run's other sources."""


def split_by_axis(step: int, time: float, values: dict[str, Any]) -> Iterator[Row]:
    """Yield one row for each axis that has values."""
    evaluated = {name: value for name, value in values.items() if is_evaluation(name)}
    common = {name: value for name, value in values.items() if name in _COMMON}
    if len(values) > len(evaluated) + len(common) or (common and not evaluated):
        yield Row(step, time, {name: value for name, value in values.items() if name not in evaluated})
    if evaluated:
        yield Row(step, time, common | evaluated, "eval")


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values; names of nested mappings are joined with ``/``."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def json_lines(file: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the mappings in a JSON Lines file, each with its location."""
    try:
        with file.open("rb") as opened:
            for number, content in enumerate(opened, 1):
                report.advance(len(content))
                place = f"{file}, line {number}"
                try:
                    line = json.loads(content)
                except (ValueError, RecursionError) as error:
                    torn = not content.endswith(b"\n")
                    report.skip(place, "the last line is cut off" if torn else f"invalid JSON: {error}")
                    continue
                if isinstance(line, dict):
                    yield place, line
                else:
                    report.skip(place, f"a {type(line).__name__} is not a record")
    except OSError as error:
        report.skip(str(file), error)


def modification_time(file: Path) -> float:
    """Return when a file was last written."""
    return file.stat().st_mtime


def combine(sources: list[Source], report: ReadReport) -> Iterator[Item]:
    """Merge the sources of a run into one stream in which each item occurs once.

    A training may have a history (a trainer's state, a metrics table) besides TensorBoard's event files. The history
    wins: it has full precision and each value once. The event files add timestamps, names that the history lacks, and
    steps after its end. Samples are merged with the rows by step.
    """
    secondary = [source for source in sources if source.is_secondary]
    primary = [source for source in sources if source.has_metrics and not source.is_secondary]
    samples = [source for source in sources if not source.has_metrics]
    if primary:
        report.rename = primary[0].rename
    times = _times(secondary, report) if primary or samples else {}
    streams = [_with_times(source, report, times) for source in [*primary, *samples]]
    if not primary:
        yield from heapq.merge(*(source.items(report) for source in secondary), *streams, key=_step)
        return
    last: dict[str, int] = {}
    for item in heapq.merge(*streams, key=_step):
        if isinstance(item, Row):
            for name in item.values:
                last[name] = max(item.step, last.get(name, item.step))
        yield item
    for source in secondary:
        yield from _missing_from_history(source, report, last, primary[0])


def share_metric_names(sources: list[Source]) -> None:
    """Give the metric names of the histories, or else of the event files, to the sources that need them."""
    wanting = [source for source in sources if source.wants_metric_names]
    metrics = [source for source in sources if source.has_metrics]
    if not wanting or not metrics:
        return
    names: set[str] = set()
    for source in [source for source in metrics if not source.is_secondary] or metrics:
        for item in source.items(ReadReport()):
            names.update(item.values if isinstance(item, Row) else ())
    for source in wanting:
        source.use_metric_names(names)


def _step(item: Item) -> int:
    return 0 if item.step is None else item.step


def _times(secondary: list[Source], report: ReadReport) -> dict[tuple[str, int], float]:
    """Return the time at which each step of an axis was first written."""
    times: dict[tuple[str, int], float] = {}
    for source in secondary:
        # The report of this first pass is discarded: the second pass reports the same locations.
        for item in source.items(ReadReport(rename=report.rename)):
            if isinstance(item, Row):
                times.setdefault((item.axis, item.step), item.time)
    return times


def _with_times(source: Source, report: ReadReport, times: dict[tuple[str, int], float]) -> Iterator[Item]:
    """Yield a source's items with the event files' times; steps without one get the time of the previous item."""
    if source.has_times or not times:
        yield from source.items(report)
        return
    now = min(times.values())
    for item in source.items(report):
        axis = "train" if isinstance(item, EventRow | StatusRow) else item.axis
        now = times.get((axis, _step(item))) or times.get(("train", _step(item))) or now
        yield item._replace(time=now)


def _missing_from_history(source: Source, report: ReadReport, last: dict[str, int], history: Source) -> Iterator[Item]:
    left = 0
    for item in source.items(report):
        if isinstance(item, Restart):
            continue  # the history has each step once, and steps after its end were done only once so far
        if not isinstance(item, Row):
            yield item
            continue
        values = {name: value for name, value in item.values.items() if item.step > last.get(name, item.step - 1)}
        left += len(item.values) - len(values)
        if values:
            yield item._replace(values=values)
    if left:
        files = ", ".join(str(file) for file in source.files[:3]) + (", ..." if len(source.files) > 3 else "")
        report.leave(f"values in {files}", f"{history.files[0].name} has them as well", left)

"""`import_runs`: what other tools wrote, as runs.

- Values, steps and times are those of the source; a time that the source does not have is that of its file.
- The same contents are imported once, unless asked for again.
- A broken line or file is named with its place, and the rest is imported.
- A run is there complete or not at all.

Several sources of one run as one stream without duplicates.

Where a training has a history of its own (a trainer's state, a table of metrics) beside TensorBoard's event
files, the history counts: it has the numbers in full precision and each once. From the event files come
the times, and what the history does not have: names that it lacks, and steps behind its end. Samples are
put between the rows by their steps.

What tells whether the same thing was imported before: the contents of its files, wherever they lie.
"""

import hashlib
import heapq
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.errors import ConfigError, MissingExtraError
from hookline._record.run_directory import FACTS
from hookline.importers.csv import HPARAMS, read_hparams
from hookline.importers.detect import Candidate, detect
from hookline.importers.run_writer import RunWriter
from hookline.importers.source import (
    Item,
    Left,
    Occurrence,
    Reading,
    Restart,
    Row,
    SampleRow,
    Skipped,
    Source,
    StatusRow,
)
from hookline.importers.transformers import Completions

_Times = dict[tuple[str, int], float]


def combined(sources: list[Source], reading: Reading) -> Iterator[Item]:
    """Everything that the sources of a run have, each thing once."""
    secondary = [source for source in sources if source.is_secondary]
    primary = [source for source in sources if source.has_metrics and not source.is_secondary]
    samples = [source for source in sources if not source.has_metrics]
    reading.renamed = primary[0].renamed if primary else None
    times = _times(secondary, reading) if primary or samples else {}
    streams = [_timed(source, reading, times) for source in [*primary, *samples]]
    if not primary:
        yield from heapq.merge(*(source.items(reading) for source in secondary), *streams, key=_step)
        return
    last: dict[str, int] = {}
    for item in heapq.merge(*streams, key=_step):
        if isinstance(item, Row):
            for name in item.values:
                last[name] = max(item.step, last.get(name, item.step))
        yield item
    for source in secondary:
        yield from _not_there(source, reading, last, primary[0])


def metric_names(sources: list[Source]) -> set[str]:
    """The names in the histories of a run, or else in its event files, for those who have to know them beforehand."""
    metrics = [source for source in sources if source.has_metrics]
    histories = [source for source in metrics if not source.is_secondary] or metrics
    found: set[str] = set()
    for source in histories:
        for item in source.items(Reading()):
            found.update(item.values if isinstance(item, Row) else ())
    return found


def tell_rewards(sources: list[Source]) -> None:
    """Tell tables of completions which of their columns are rewards, where the metrics say it."""
    tables = [source for source in sources if isinstance(source, Completions)]
    if tables and len(sources) > len(tables):
        names = metric_names(sources)
        for table in tables:
            table.know(names)


def _step(item: Item) -> int:
    return 0 if item.step is None else item.step


def _times(secondary: list[Source], reading: Reading) -> _Times:
    """When each step was first written, by axis."""
    silent = Reading(renamed=reading.renamed)
    times: _Times = {}
    for source in secondary:
        for item in source.items(silent):
            if isinstance(item, Row):
                times.setdefault((item.axis, item.step), item.time)
    return times


def _timed(source: Source, reading: Reading, times: _Times) -> Iterator[Item]:
    """A source's items with the times of the event files; where those have none, the time of what came before."""
    if source.has_times or not times:
        yield from source.items(reading)
        return
    now = min(times.values())
    for item in source.items(reading):
        axis = "train" if isinstance(item, Occurrence | StatusRow) else item.axis
        now = times.get((axis, _step(item))) or times.get(("train", _step(item))) or now
        yield item._replace(time=now)


def _not_there(source: Source, reading: Reading, last: dict[str, int], history: Source) -> Iterator[Item]:
    left = 0
    for item in source.items(reading):
        if isinstance(item, Restart):
            continue  # the history has each step once, and what lies behind its end was done once so far
        if not isinstance(item, Row):
            yield item
            continue
        values = {name: value for name, value in item.values.items() if item.step > last.get(name, item.step - 1)}
        left += len(item.values) - len(values)
        if values:
            yield item._replace(values=values)
    if left:
        files = ", ".join(str(file) for file in source.files[:3]) + (", ..." if len(source.files) > 3 else "")
        reading.leave(f"values in {files}", f"{history.files[0].name} has them as well", left)


def fingerprint(home: Path, files: Iterable[Path], part: str = "") -> str:
    """A digest of files' contents and of their names below a directory.

    Args:
        part: Which of several runs in them is meant.
    """
    whole = hashlib.blake2b(part.encode("utf-8", "replace"), digest_size=16)
    for file in sorted(files):
        name = str(file.relative_to(home)) if file.is_relative_to(home) else file.name
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, hashlib.blake2b)
        whole.update(f"{name}\0{content.hexdigest()}\n".encode())
    return whole.hexdigest()


def imported_as(root: Path, digest: str) -> Path | None:
    """The run that was made of the same contents, if there is one."""
    for path in sorted(root.resolve().glob(f"*/*/{FACTS}")):
        try:
            content = path.read_bytes()
            if digest.encode() in content and json.loads(content)["imported"]["fingerprint"] == digest:
                return path.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


PROJECT = "imported"
"""The project of imported runs where none is given."""

Progress = Callable[[int, int], None]
_PROGRESS_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """What became of one run of another tool.

    Args:
        directory: The run's directory; None where nothing was written, because it was a trial or nothing could be read.
        name: The run's name.
        format: What it was read from, e.g. ``transformers+tensorboard+trl``.
        source: Where that lies.
        rows: How many rows of metrics it has.
        samples: How many samples it has.
        events: How many events and statuses of the source it has.
        skipped: Places in the source that could not be read, and why; the first hundred of them.
        skipped_count: How many there are.
        taken: The files that were read.
        left: What was found and not taken, and why.
        already: Whether the directory is that of an earlier import of the same contents.
    """

    directory: Path | None
    name: str
    format: str
    source: Path
    rows: int = 0
    samples: int = 0
    events: int = 0
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    taken: tuple[Path, ...] = ()
    left: tuple[Left, ...] = ()
    already: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be read."""
        return not (self.rows or self.samples or self.events or self.already)


class _Counts(NamedTuple):
    rows: int = 0
    samples: int = 0
    events: int = 0


def import_runs(
    path: str | Path,
    *,
    root: str | Path = "runs",
    project: str | None = None,
    name: str | None = None,
    format: str | None = None,  # noqa: A002 - what it is called on the command line, too
    step_column: str | None = None,
    again: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[ImportedRun]:
    """Make runs of what other tools wrote under a path: one for each training that is found there.

    Args:
        path: A file or a directory.
        root: Where runs are recorded.
        project: The project of the new runs.
        name: What the run is called, in place of its directory's name; several are numbered.
        format: Take only this format, see `FORMATS`.
        step_column: The column of steps of a CSV file, where it is none of the usual ones.
        again: Import also what was imported before.
        dry_run: Read everything and write nothing.
        progress: Called now and then with the bytes that were read and those that there are.

    Raises:
        ConfigError: There is nothing that can be read.
    """
    try:
        candidates = detect(path, format=format, step_column=step_column)
        if name is not None:
            for number, candidate in enumerate(candidates, 1):
                candidate.name = name if len(candidates) == 1 else f"{name}-{number}"
        total = sum(file.stat().st_size for candidate in candidates for file in candidate.files)
        passed = None if progress is None else _Passed(progress, total).add
        options = {"again": again, "dry_run": dry_run}
        made = [_imported(each, Path(root), project or PROJECT, passed=passed, **options) for each in candidates]
    except OSError as error:
        raise ConfigError(f"{path} cannot be imported into {root}: {error}") from error
    if all(run.is_empty for run in made):
        raise ConfigError(f"{path}: nothing in it could be read. {_reasons(made)}")
    return made


@dataclass
class _Passed:
    """Adds up what was read, and tells it now and then."""

    progress: Progress
    total: int
    read: int = 0
    told: int = 0

    def add(self, size: int) -> None:
        self.read = min(self.read + size, self.total)
        if self.read - self.told >= _PROGRESS_BYTES or self.read == self.total:
            self.told = self.read
            self.progress(self.read, self.total)


def _imported(
    candidate: Candidate,
    root: Path,
    project: str,
    *,
    again: bool,
    dry_run: bool,
    passed: Callable[[int], None] | None,
) -> ImportedRun:
    reading = Reading(passed=passed)
    _leave_unreadable(candidate, reading)
    digest = fingerprint(candidate.home, candidate.files, candidate.part)
    earlier = None if again else imported_as(root, digest)
    if earlier is not None:
        if passed is not None:
            passed(sum(file.stat().st_size for file in candidate.files))
        return ImportedRun(earlier, _name(earlier), candidate.format, candidate.path, already=True)
    items = _items(candidate, reading)
    if dry_run:
        return _told(candidate, reading, None, _counted(items))
    known = {"name": candidate.name, "project": project, "config": {}, "parents": {}}
    says_finished = not any(source.has_statuses for source in candidate.sources)
    with RunWriter(root, project, known, says_finished=says_finished) as writer:
        for item in items:
            _write(writer, item, reading)
        counts = _Counts(writer.rows, writer.samples, writer.events)
        if not any(counts):
            return _told(candidate, reading, None, counts)
        facts = {"config": reading.config, "imported": _provenance(candidate, reading, digest)}
        return _told(candidate, reading, writer.finish(facts), counts)


def _leave_unreadable(candidate: Candidate, reading: Reading) -> None:
    """Leave out what needs a package that is not there, as long as something remains.

    Raises:
        MissingExtraError: Nothing does.
    """
    missing: dict[Source, MissingExtraError] = {}
    for source in candidate.sources:
        try:
            source.check()
        except MissingExtraError as error:
            missing[source] = error
    if missing.keys() >= set(candidate.sources):
        raise next(iter(missing.values()))
    candidate.sources = [source for source in candidate.sources if source not in missing]
    for source, reason in missing.items():
        reading.leave(", ".join(str(file) for file in source.files), str(reason))


def _items(candidate: Candidate, reading: Reading) -> Iterator[Item]:
    for left in candidate.left:
        reading.leave(*left)
    settings = candidate.home / HPARAMS
    if settings in candidate.files:
        reading.config |= read_hparams(settings, reading)
    tell_rewards(candidate.sources)
    yield from combined(candidate.sources, reading)


def _write(writer: RunWriter, item: Item, reading: Reading) -> None:
    try:
        writer.write(item)
    except ConfigError:  # there is no room
        raise
    except (TypeError, ValueError) as error:  # a value that no record can hold
        reading.skip(f"step {item.step}", error)


def _counted(items: Iterator[Item]) -> _Counts:
    rows = samples = events = 0
    for item in items:
        rows += isinstance(item, Row)
        samples += isinstance(item, SampleRow)
        events += isinstance(item, Occurrence | StatusRow)
    return _Counts(rows, samples, events)


def _told(candidate: Candidate, reading: Reading, directory: Path | None, counts: _Counts) -> ImportedRun:
    unused = {file for source in candidate.sources for file in source.unused}
    return ImportedRun(
        directory,
        candidate.name,
        candidate.format,
        candidate.path,
        **counts._asdict(),
        skipped=tuple(reading.skipped),
        skipped_count=reading.skipped_count,
        taken=tuple(file for file in candidate.files if file not in unused),
        left=tuple(_left(reading)),
    )


def _left(reading: Reading) -> Iterator[Left]:
    for (what, reason), count in reading.left.items():
        yield Left(f"{count:,} {what}" if count > 1 else what, reason)


def _provenance(candidate: Candidate, reading: Reading, digest: str) -> dict[str, Any]:
    """Where a run came from, for its ``run.json``."""
    return {
        "path": str(candidate.path.resolve()),
        "format": candidate.format,
        "files": [str(file.resolve()) for file in candidate.files],
        "fingerprint": digest,
        "at": time.time(),
        "times": "source" if any(source.has_times for source in candidate.sources) else "file",
        "skipped": reading.skipped_count,
        "left": [f"{left.what}: {left.reason}" for left in _left(reading)],
        **({"facts": reading.facts} if reading.facts else {}),
    }


def _name(run_dir: Path) -> str:
    return str(json.loads((run_dir / FACTS).read_text(encoding="utf-8"))["name"])


def _reasons(made: list[ImportedRun]) -> str:
    skipped = [skip for run in made for skip in run.skipped][:5]
    told = " ".join(f"{skip.place}: {skip.reason}." for skip in skipped)
    return told or "The files are empty."

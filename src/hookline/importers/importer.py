"""Imports runs that other tools recorded.

- Values, steps and times are those of the source; if it has no times, the file's modification time is used.
- Of a whole run that hookline exported, project, name, configuration, host, command and so on are those of the export.
- The same contents are imported once, unless asked otherwise.
- A broken line or file is reported with its location, and the rest is imported.
- A run appears complete or not at all: it is written to a hidden, locked directory below the root, and renamed at the
  end. The next import removes the directories that killed imports left.
"""

import contextlib
import hashlib
import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from hookline._engine.errors import ConfigError, MissingExtraError
from hookline._record import run_directory
from hookline._record.artifact_saving import ARTIFACT_SAVED, ARTIFACT_USED, SAVED, USED
from hookline._record.artifact_versions import (
    ArtifactFile,
    ArtifactFolder,
    Manifest,
    check_foreign_files,
    make_manifest,
)
from hookline._record.blobs import BLOBS, BlobBatch, BlobError, BlobStore, references_in
from hookline._record.console import ConsoleWriter
from hookline._record.console_reader import LOG, ConsoleRow
from hookline._record.environment import Environment, convert_environment, write_environments
from hookline._record.reader import MAIN
from hookline._record.recorder import Recorder, cleaned
from hookline._record.records import LogLine, Rewards, Sample, SampleUse, clean, encode, parse_nonfinite
from hookline._record.run_directory import METADATA
from hookline._record.source_code import DIFF, read_diff
from hookline.importers.csv import HPARAMS, read_hparams
from hookline.importers.detect import DetectedRun, detect
from hookline.importers.facts import redacted_facts
from hookline.importers.media import copy_blob, media_records
from hookline.importers.sources import (
    ArtifactRow,
    ConsoleItem,
    EnvironmentItem,
    EventRow,
    Item,
    Left,
    MediaRow,
    ReadReport,
    RecordItem,
    Restart,
    Row,
    SampleRow,
    Skipped,
    Source,
    StatusRow,
    combine,
    share_metric_names,
)

PROJECT = "imported"
"""The default project of imported runs."""
Progress = Callable[[int, int], None]
_PROGRESS_BYTES = 256 << 10
_TEMPORARY = ".import-"
_TEXT_BYTES = 64 << 20
_MAX_STEP = 1 << 53
"""Larger ones are not exact in a browser, and do not fit the columns of the index."""
"""Imported texts are not truncated unless they are unreasonably long."""


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """The outcome of importing one run.

    Args:
        directory: The run's directory; None if nothing was written (a dry run, or nothing could be read).
        name: The run's name.
        format: The formats it was read from, e.g. ``transformers+tensorboard+trl``.
        source: The file or directory it was read from.
        rows: The number of metric rows.
        samples: The number of samples.
        events: The number of events and statuses.
        media: The number of images, tables, files and other media, and of artifacts.
        skipped: Locations in the source that could not be read, and why; the first hundred.
        skipped_count: The number of such locations.
        taken: The files that were read.
        left: What was found but not imported, and why.
        already: Whether the directory is that of an earlier import of the same contents.
    """

    directory: Path | None
    name: str
    format: str
    source: Path
    rows: int = 0
    samples: int = 0
    events: int = 0
    media: int = 0
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    taken: tuple[Path, ...] = ()
    left: tuple[Left, ...] = ()
    already: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be read."""
        return not (self.rows or self.samples or self.events or self.media or self.already)


def import_runs(
    path: str | Path,
    *,
    root: str | Path = "runs",
    project: str | None = None,
    name: str | None = None,
    format: str | None = None,  # noqa: A002 - the name of the command line option
    step_column: str | None = None,
    again: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[ImportedRun]:
    """Import the runs that other tools recorded under a path.

    Args:
        path: A file or a directory.
        root: The directory of the new runs.
        project: The project of the new runs; by default that of an exported run, or ``imported``.
        name: The run's name instead of that in the source, or of its directory; several runs are numbered.
        format: Import only this format, see `FORMATS`.
        step_column: The step column of a CSV file, if it is not one of the usual ones.
        again: Import contents that were imported before again.
        dry_run: Read everything and write nothing.
        progress: Called from time to time with the number of bytes read and their total.

    Raises:
        ConfigError: There is nothing that can be read.
    """
    try:
        runs = detect(path, format=format, step_column=step_column)
        if name is not None:
            for number, run in enumerate(runs, 1):
                run.name, run.is_named = name if len(runs) == 1 else f"{name}-{number}", True
        total = sum(file.stat().st_size for run in runs for file in run.files)
        advance = None if progress is None else _ProgressCounter(progress, total).add
        made = [_import_run(run, Path(root), project, again=again, dry_run=dry_run, advance=advance) for run in runs]
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path} cannot be imported into {root}: {error}") from error
    if all(run.is_empty for run in made):
        skipped = [skip for run in made for skip in run.skipped][:5]
        reasons = " ".join(f"{skip.place}: {skip.reason}." for skip in skipped)
        raise ConfigError(f"{path}: nothing in it could be read. {reasons or 'The files are empty.'}")
    return made


@dataclass
class _ProgressCounter:
    progress: Progress
    total: int
    read: int = 0
    reported: int = 0

    def add(self, size: int) -> None:
        self.read = min(self.read + size, self.total)  # event files are read twice
        if self.read - self.reported >= _PROGRESS_BYTES or self.read == self.total:
            self.reported = self.read
            self.progress(self.read, self.total)


def _import_run(
    run: DetectedRun,
    root: Path,
    project: str | None,
    *,
    again: bool,
    dry_run: bool,
    advance: Callable[[int], None] | None,
) -> ImportedRun:
    report = ReadReport(on_progress=advance)
    _drop_unreadable(run, report)
    digest = _fingerprint(run)
    earlier = None if again else _find_import(root, digest)
    if earlier is not None:
        report.advance(sum(file.stat().st_size for file in run.files))
        name = str(json.loads((earlier / METADATA).read_text(encoding="utf-8"))["name"])
        return ImportedRun(earlier, name, run.format, run.path, already=True)
    for left in run.left:
        report.leave(*left)
    if (hparams := run.home / HPARAMS) in run.files:
        report.config |= read_hparams(hparams, report)
    share_metric_names(run.sources)
    exported: dict[str, Any] = {}
    for source in run.sources:
        exported |= source.run_facts(report)
    if not run.is_named:
        run.name = exported.get("name", run.name)
    items = combine(run.sources, report)
    counts = dict.fromkeys(("rows", "samples", "events", "media"), 0)
    directory: Path | None = None
    if dry_run:
        for item in items:
            counts[_COUNTED_AS.get(type(item), "events")] += type(item) in _COUNTED_AS
    else:
        project = project or exported.get("project") or PROJECT
        known: dict[str, Any] = {"name": run.name, "project": project, "config": {}, "parents": {}}
        has_statuses = any(source.has_statuses for source in run.sources)
        with RunWriter(root, project, known, adds_statuses=not has_statuses) as writer:
            _write_items(writer, items, report)
            counts = writer.counts
            if any(counts.values()):
                facts = exported | {"project": project} | _facts(run, report, digest)
                facts = facts if exported else {"config": report.config} | facts
                directory = writer.finish(facts, is_whole=bool(exported))
    unused = {file for source in run.sources for file in source.unused}
    return ImportedRun(
        directory,
        run.name,
        run.format,
        run.path,
        rows=counts["rows"],
        samples=counts["samples"],
        events=counts["events"],
        media=counts["media"],
        skipped=tuple(report.skipped),
        skipped_count=report.skipped_count,
        taken=tuple(file for file in run.files if file not in unused),
        left=_left(report),
    )


def _write_items(writer: "RunWriter", items: Iterator[Item], report: ReadReport) -> None:
    for item in items:
        if item.step is not None and abs(item.step) > _MAX_STEP:
            report.skip(f"step {str(item.step)[:40]}", f"the step does not fit {_MAX_STEP.bit_length() - 1} bits")
            continue
        try:
            writer.write(item)
        except ConfigError:  # the disk is full
            raise
        except (TypeError, ValueError) as error:  # a value that no record can hold, a file that is missing
            name = f", {item.name!r}" if isinstance(item, MediaRow | ArtifactRow) else ""
            report.skip(f"step {item.step}{name}", error)


def _drop_unreadable(run: DetectedRun, report: ReadReport) -> None:
    """Drop sources that need a missing package, as long as others remain.

    Raises:
        MissingExtraError: None remains.
    """
    missing: dict[Source, MissingExtraError] = {}
    for source in run.sources:
        try:
            source.check()
        except MissingExtraError as error:
            missing[source] = error
    if missing.keys() >= set(run.sources):
        raise next(iter(missing.values()))
    run.sources = [source for source in run.sources if source not in missing]
    for source, reason in missing.items():
        report.leave(", ".join(str(file) for file in source.files), str(reason))


def _fingerprint(run: DetectedRun) -> str:
    """Return a digest of the files' contents and relative names, to recognise the same run elsewhere."""
    whole = hashlib.blake2b(run.part.encode("utf-8", "replace"), digest_size=16)
    shared = {file for source in run.sources for file in source.shared}
    for file in sorted(set(run.files) - shared):
        name = str(file.relative_to(run.home)) if file.is_relative_to(run.home) else file.name
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, hashlib.blake2b)
        whole.update(f"{name}\0{content.hexdigest()}\n".encode())
    return whole.hexdigest()


def _find_import(root: Path, digest: str) -> Path | None:
    """Return the run that was imported from the same contents, if there is one."""
    for path in sorted(root.resolve().glob(f"*/*/{METADATA}")):
        try:
            content = path.read_bytes()
            if digest.encode() in content and json.loads(content)["imported"]["fingerprint"] == digest:
                return path.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _left(report: ReadReport) -> tuple[Left, ...]:
    return tuple(
        Left(f"{count:,} {what}" if count > 1 else what, reason) for (what, reason), count in report.left.items()
    )


def _facts(run: DetectedRun, report: ReadReport, digest: str) -> dict[str, Any]:
    """Return what ``run.json`` says about a run besides what is known before reading; also names the run."""
    run.name = run.name if run.is_named else report.description.get("name", run.name)
    return report.description | {"name": run.name, "imported": _provenance(run, report, digest)}


def _provenance(run: DetectedRun, report: ReadReport, digest: str) -> dict[str, Any]:
    """Describe the origin of a run, for its ``run.json``."""
    return {
        "path": str(run.path.resolve()),
        "format": run.format,
        "files": [str(file.resolve()) for file in run.files],
        "fingerprint": digest,
        "at": time.time(),
        "times": "source" if any(source.has_times for source in run.sources) else "file",
        "skipped": report.skipped_count,
        "left": [f"{left.what}: {left.reason}" for left in _left(report)],
        **({"facts": report.facts} if report.facts else {}),
    }


_COUNTED_AS: dict[type, str] = {Row: "rows", SampleRow: "samples", EventRow: "events", StatusRow: "events"} | {
    MediaRow: "media",
    ArtifactRow: "media",
}


class _PlannedVersion(NamedTuple):
    """A version of an artifact that is made when the run is complete."""

    item: ArtifactRow
    manifest: Manifest
    folder: ArtifactFolder
    number: int


class RunWriter:
    """Writes an imported run to a temporary directory and moves it to its place when it is complete.

    Args:
        root: The directory of runs.
        project: The project.
        facts: The run's facts, as far as they are known before reading.
        adds_statuses: Whether to record that the run started and finished; otherwise the source has its statuses.
    """

    def __init__(self, root: Path, project: str, facts: Mapping[str, Any], *, adds_statuses: bool = True) -> None:
        self._root = root.resolve()
        self._home = self._root / project
        self._temporary = self._root / f"{_TEMPORARY}{secrets.token_hex(4)}"
        self._made_root = not self._root.exists()
        self._time = 0.0
        self._first: float | None = None
        self._step = 0
        self._adds_statuses = adds_statuses
        self._recorders: dict[str, Recorder] = {}
        self._stack = contextlib.ExitStack()
        self._blobs: BlobBatch | None = None
        self._artifacts: list[_PlannedVersion] = []
        self._consoles: dict[tuple[int, str], ConsoleWriter] = {}
        self._environments: list[Environment] = []
        self.counts = dict.fromkeys(("rows", "samples", "events", "media"), 0)
        unknown = {"git": {"commit": None, "changed": False}, "packages": {}}  # those of the import are not the run's
        try:
            for left in self._root.glob(f"{_TEMPORARY}*"):
                if (left / run_directory.LOCK).exists() and not run_directory.is_alive(left):
                    shutil.rmtree(left, ignore_errors=True)
            self._temporary.mkdir(parents=True)
            run_directory.acquire(self._temporary)
            self._directory = run_directory.create(self._temporary, project, unknown | dict(facts))
            self._recorder(MAIN)
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._stack.close()
        self._discard()

    def write(self, item: Item) -> None:
        """Record one item.

        Raises:
            ConfigError: The disk is full.
        """
        self._time = item.time
        if self._first is None:
            self._first = item.time
            if self._adds_statuses:
                self._recorder(MAIN).status("running", step=0)
        self._first = min(self._first, item.time)
        match item:
            case Row():
                self._recorder(item.writer).metrics(item.values, item.step, item.axis)
                self._step = max(self._step, item.step)
            case SampleRow():
                self._write_sample(item)
                self._step = max(self._step, item.step)
            case MediaRow() | ArtifactRow() | ConsoleItem() | EnvironmentItem() | RecordItem():
                self._write_beside(item)
                self._step = max(self._step, item.step or 0)
            case EventRow():
                self._recorder(item.writer).event(item.name, step=item.step, **item.data)
            case StatusRow():
                self._recorder(item.writer).status(item.status, item.message, step=item.step, **item.data)
            case Restart():
                # A new session makes the rows of earlier ones after its start obsolete.
                self._recorders.pop(MAIN).close()
                self._recorder(MAIN).resume(**{item.axis: item.step - 1})
        if type(item) in _COUNTED_AS:
            self.counts[_COUNTED_AS[type(item)]] += 1
        self._check_room()

    def finish(self, facts: Mapping[str, Any], *, is_whole: bool = False) -> Path:
        """Complete the run and move it to its place.

        Args:
            facts: Facts for ``run.json``.
            is_whole: Whether they are those of a whole run: the host, command and so on of this process are left out.
        """
        if self._adds_statuses:
            self._recorder(MAIN).status("finished", "imported", step=self._step)
        known = json.loads((self._directory / METADATA).read_text(encoding="utf-8"))
        place = self._reserve(known["id"])
        own = {"parents": known["parents"]} if is_whole else known
        complete = redacted_facts(own | {"id": place.name, "started": self._first} | dict(facts))
        try:
            if self._blobs is not None:
                self._blobs.commit()
            # The last thing but the run itself: a version that is there stays, whatever happens afterwards.
            for planned in self._artifacts:
                self._publish(planned, f"{self._home.name}/{place.name}")
            self._close()
            self._check_room()
            if self._environments:
                write_environments(self._directory, self._environments)
                # From its place: the blobs are in its root, not in that of the temporary directory.
                with contextlib.suppress(BlobError):
                    if diff := read_diff(place, self._environments[-1].git):
                        (self._directory / DIFF).write_bytes(diff)
            content = json.dumps(clean(complete), indent=2) + "\n"
            (self._directory / METADATA).write_text(content, encoding="utf-8")
            self._directory.rename(place)
        except BaseException:
            place.rmdir()
            raise
        return place

    def _reserve(self, run_id: str) -> Path:
        """Make an empty directory with an unused id; its number counts the runs of the day."""
        self._home.mkdir(parents=True, exist_ok=True)
        words, _, _ = run_id.rpartition("-")
        day = run_id[: len("2026-11-15")]
        number = 1 + sum(1 for _ in self._home.glob(f"{day}-*"))
        while True:
            place = self._home / f"{words}-{number}"
            try:
                place.mkdir()
            except FileExistsError:
                number += 1
            else:
                return place

    def _recorder(self, writer: str) -> Recorder:
        recorder = self._recorders.get(writer)
        if recorder is None:
            recorder = Recorder(self._directory, name=writer, text_bytes=_TEXT_BYTES, clock=lambda: self._time)
            self._recorders[writer] = recorder
        return recorder

    def _write_sample(self, item: SampleRow) -> None:
        recorder = self._recorder(item.writer)
        if item.truncated is None:
            recorder.samples([item.fields], item.step, item.axis)
            return
        # A recorder computes the lengths of truncated texts itself; here they are those of the source.
        sample = Sample(time=item.time, step=item.step, axis=item.axis, truncated=item.truncated, **item.fields)
        recorder.journal.append(encode(cleaned(sample)))

    def _write_record(self, item: RecordItem) -> None:
        recorder = self._recorder(item.writer)
        match item.record:
            case LogLine(level=level, logger=logger, message=message):
                recorder.line(level, logger, message, step=item.step)
            case Rewards(name=name, values=values, samples=samples):
                recorder.rewards(name, [parse_nonfinite(value) for value in values], samples, step=item.step or 0)
            case SampleUse(rollouts=rollouts, outcome=outcome):
                recorder.sample_use(rollouts, item.step or 0, outcome)  # without tokens: samples lose theirs as well

    def _batch(self) -> BlobBatch:
        if self._blobs is None:
            # Held until the run is in its place: a collection of unused blobs sees only runs that are.
            self._blobs = self._stack.enter_context(BlobStore(self._root / BLOBS).writing())
        return self._blobs

    def _store_artifact(self, item: ArtifactRow) -> None:
        """Store the files of a version, which is made when the run is complete, and record its event."""
        files = []
        for source in item.files:
            if source.open is None:
                known = {"sha256": source.sha256, "etag": source.etag}
                files.append(ArtifactFile(source.path, source.size, uri=source.uri, **known))
                continue
            with source.open() as file:
                info = self._batch().add_file(file)
            if source.sha256 not in ("", info.digest):
                raise ValueError(f"{source.path!r:.200} has other content than its digest says")
            files.append(ArtifactFile(source.path, info.size, blob=info.digest))
        check_foreign_files(files)
        metadata = self._recorder(MAIN).redactor.settings(item.metadata)
        manifest = make_manifest(item.kind, metadata, files, step=item.step, at=item.time, received=True)
        folder = ArtifactFolder(self._root, self._home.name, item.name)
        number, is_new = self._plan_version(folder, manifest.digest)
        self._artifacts.append(_PlannedVersion(item, manifest, folder, number))
        facts: dict[str, Any] = {"version": f"v{number}", "kind": manifest.kind, "digest": manifest.digest}
        if not item.is_used:
            size = sum(file.size or 0 for file in manifest.files)
            facts |= {"new": is_new, "aliases": item.aliases, "files": len(manifest.files), "bytes": size}
        if item.data is not None:
            facts = item.data | {name: facts[name] for name in ("version", "kind", "digest", "new")}
        name = ARTIFACT_USED if item.is_used else ARTIFACT_SAVED
        self._recorder(MAIN).event(name, step=item.step, **(facts | {"artifact": folder.id}))

    def _plan_version(self, folder: ArtifactFolder, digest: str) -> tuple[int, bool]:
        """Choose the number of a version before it is made, so that its event has its place in the order of time."""
        planned = {each.manifest.digest: each.number for each in self._artifacts if each.folder.id == folder.id}
        found = planned.get(digest, folder.same(digest))
        if found is not None:
            return found, False
        return max([-1, *planned.values(), *folder.versions(), *folder.versions(".deleted")]) + 1, True

    def _publish(self, planned: "_PlannedVersion", run: str) -> None:
        item, folder = planned.item, planned.folder
        there = folder.aliases() if item.keeps_aliases else {}
        aliases = [] if item.is_used else [alias for alias in item.aliases if alias not in there]
        manifest = msgspec.structs.replace(planned.manifest, run=run)
        number, _ = folder.publish(manifest, aliases, number=planned.number)
        if number != planned.number:
            raise ConfigError(f"{folder.id}: another process saved a version of it during the import. Import again.")
        folder.note_run(number, run, USED if item.is_used else SAVED, at=item.time)

    def _write_beside(self, item: MediaRow | ArtifactRow | ConsoleItem | EnvironmentItem | RecordItem) -> None:
        """Write what has files, is in files of its own, or comes only from exports."""
        match item:
            case MediaRow():
                self._write_media(item)
            case ArtifactRow():
                self._store_artifact(item)
            case EnvironmentItem():
                self._keep_environment(item)
            case ConsoleItem():
                self._write_line(item.line)
            case RecordItem():
                self._write_record(item)

    def _write_media(self, item: MediaRow) -> None:
        for record in media_records(item, self._batch()):
            self._recorder(item.writer).journal.append(encode(cleaned(record)))

    def _keep_environment(self, item: EnvironmentItem) -> None:
        """Keep an environment until the run is complete, also one whose code is missing."""
        facts = self._recorder(MAIN).redactor.values(msgspec.to_builtins(item.environment))
        self._environments.append(convert_environment(clean(facts)))
        for digest in references_in(msgspec.json.encode(item.environment)):
            copy_blob(item.blobs, digest, self._batch())

    def _write_line(self, line: ConsoleRow) -> None:
        key = (line.rank, line.actor)
        writer = self._consoles.get(key)
        if writer is None:
            redactor = self._recorder(MAIN).redactor
            writer = ConsoleWriter(self._directory, rank=line.rank, actor=line.actor, redact=redactor)
            self._consoles[key] = writer
        if line.stream == LOG:
            writer.log(line.level, line.logger, line.text, line.time, step=line.step)
        else:
            writer.line(line.text, line.stream, line.time, step=line.step, partial=line.partial)
        if writer.lost:
            raise ConfigError(f"{self._home}: the disk is full. Free some space, or give another root.")

    def _close(self) -> None:
        for recorder in self._recorders.values():
            recorder.close()
        for writer in self._consoles.values():
            writer.close()

    def _check_room(self) -> None:
        if any(recorder.journal.lost for recorder in self._recorders.values()):
            raise ConfigError(f"{self._home}: the disk is full. Free some space, or give another root.")

    def _discard(self) -> None:
        run_directory.release(self._temporary)
        shutil.rmtree(self._temporary, ignore_errors=True)
        if self._made_root:
            with contextlib.suppress(OSError):  # it is not empty
                self._root.rmdir()

"""``hookline runs verify``: checks that the record of runs is complete, and explains what is not.

First every line of every journal file is read (`_scan`): its checksum and line number, and the digest of the file; of
a compressed file also every frame.
Then a sequence of checks, listed in `verify`, compares that with the digests noted when files were completed, with the
stored files of images, tables, other media and the code, with the checkpoints, the run's status and its sinks. Each
check yields `Finding`s: damage, or a note that is only worth knowing. Console lines are checked in the same way, except
that the files between the first and the last ones may be gone: they are removed to bound the size. Records of version
0.1 have neither checksums nor digests, so only the form of their lines and the sizes of their files are checked.
Nothing is changed, except that leftover console files are redacted.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from hookline._record import run_directory
from hookline._record.blobs import blob_problem
from hookline._record.console import HEAD_FILES, TAIL_FILES
from hookline._record.console_rest import redact_leftovers
from hookline._record.delivery import sink_states
from hookline._record.delivery_manager import find_lost_outputs
from hookline._record.environment import ENVIRONMENT, read_environments
from hookline._record.reader import CONSOLE, DELIVERY_WRITER, JOURNAL, LineNumbers, count_missing_lines, read_lines
from hookline._record.records import DamagedLineError, Event, Media, TableRows, decode_numbered
from hookline._record.seekable import SUFFIX, CompressedFile, DamagedFrame
from hookline._record.segment import DIGESTS, JournalFile, irregular_files, open_journal, recorded_digests
from hookline._record.terminal import one_line, plural
from hookline.cli.output import AsJson, console, indented, print_json, wrong_input
from hookline.cli.runs.reference import OptionalRuns, Root, all_places, locate
from hookline.cli.runs.text import bytes_text
from hookline.loops.checkpoint import damage_of, is_checkpoint, is_file_path, recorded_lines
from hookline.store.journal_files import byte_at, regular_journal_files, trailing_data
from hookline.store.run_contents import FOLDER, saved_checkpoints
from hookline.store.run_info import RunLocation, read_facts
from hookline.store.run_summary import Liveness, RunSummary, last_contact, summarize

_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a run's record.

    Attributes:
        kind: ``damage`` if something is lost or unusable, ``note`` if it is only worth knowing.
        what: The finding, and where it is.
        means: Its consequence.
        do: What the user can do.
    """

    kind: Literal["damage", "note"]
    what: str
    means: str
    do: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of verifying a run."""

    place: RunLocation
    records: int
    bytes: int
    findings: list[Finding]

    @property
    def is_damaged(self) -> bool:
        """Whether any finding is damage."""
        return any(finding.kind == "damage" for finding in self.findings)


def verify_command(given: OptionalRuns = None, *, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Check that the records of runs are complete: of all runs, or of those given. The exit status is 1 for damage."""
    from hookline.callbacks.progress_display import transient_bar  # here, to keep other commands fast

    with wrong_input(as_json=as_json):
        chosen = [locate(root, reference) for reference in given] if given else all_places(root)
    with transient_bar("verifying", total=len(chosen)) as show:
        verdicts = []
        for place in chosen:
            verdicts.append(verify(place))
            show(len(verdicts), None)
    if as_json:
        print_json([_document(verdict) for verdict in verdicts])
    else:
        _print(console(), verdicts)
    if any(verdict.is_damaged for verdict in verdicts):
        raise typer.Exit(1)


def verify(place: RunLocation) -> Verdict:
    """Read everything that a run recorded, and report damage.

    Nothing is changed, except that secrets in what killed processes printed last are redacted.
    """
    found = [*regular_journal_files(place.journal), *irregular_files(place.journal)]
    scans = _scan_all(found)
    digests, damaged_digests = recorded_digests(place.journal)
    summary = summarize([file for file, scan in scans.items() if not scan.error])
    is_live = _is_live(summary, place)
    findings = [
        *_check_facts(place),
        *_check_missing_files(found, digests),
        *_check_files(scans, is_live=is_live, was_killed=not summary.has_ended),
        *_check_digests(digests, damaged_digests, scans),
        *_check_lost_records(scans.values()),
        *_check_blobs(place.directory, scans.values()),
        *_check_console(place.directory, is_live=is_live, was_killed=not summary.has_ended),
        *_check_checkpoints(place.directory),
    ]
    if last_contact(place.directory) is None:  # the paths in a received journal are another machine's
        findings += _check_external_checkpoints(place.directory, scans.values())
    if not any(scan.error for scan in scans.values()):
        findings += _check_lines_at_checkpoints(place.directory)
        if not is_live:
            findings += _check_end(summary, place)
            findings += _check_sinks(place.directory)
    records, size = sum(scan.records for scan in scans.values()), sum(scan.end for scan in scans.values())
    return Verdict(place, records, size, findings)


def _is_live(summary: RunSummary, place: RunLocation) -> bool:
    """Whether the run's process, or for a received run the server, may still write.

    A process may write after the end of its run. A run without any records is not waited for.
    """
    if run_directory.is_alive(place.directory):
        return True
    status = Liveness().status(summary, place.directory, read_facts(place.facts)[0])
    return bool(summary.last_seen) and status in ("running", "stalled")


@dataclass(slots=True)
class _Scan:
    """The result of reading a journal file to its end."""

    records: int = 0
    damaged: list[int] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    not_records: int = 0
    first_bad_line: int = 0
    frames: list[DamagedFrame] = field(default_factory=list)
    """The frames of a compressed file that cannot be read."""
    without_number: int = 0
    first_without_number: int = 0
    with_number: int = 0
    lost: int = 0
    end: int = 0
    error: str = ""
    digest: str = ""
    checkpoints: list[Path] = field(default_factory=list)
    """The checkpoints that were saved, according to its records."""
    blobs: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    """The stored files that its records refer to: digest, size, and the name they were logged under."""

    @property
    def is_mixed(self) -> bool:
        """Whether only some lines have a checksum."""
        return bool(self.with_number and self.without_number)

    @property
    def is_damaged(self) -> bool:
        """Whether its lines show damage."""
        return bool(
            self.holes
            or self.frames
            or self.damaged
            or self.repeated
            or self.missing
            or self.not_records
            or self.is_mixed
            or self.error
        )


@dataclass(slots=True)
class _LineNumbers:
    """The line numbers of one writer, across its files."""

    sequence: LineNumbers = field(default_factory=lambda: LineNumbers(0))
    next_file: int = 0
    unreadable: int = 0
    """Lines without a readable number since the last one that had one: each may account for a missing number."""

    def begin(self, file: JournalFile) -> None:
        if file.number != self.next_file:  # a missing file is reported once, not also by its lines
            self.sequence.following = None
        self.next_file = file.number + 1

    def add(self, number: int | None, line: int, scan: _Scan) -> None:
        if number is None:
            scan.without_number += 1
            scan.first_without_number = scan.first_without_number or line
            return
        scan.with_number += 1
        following = self.sequence.following
        if self.sequence.is_repeated(number):
            scan.repeated.append(line)
            return
        gap = 0 if following is None else number - following - self.unreadable
        if gap > 0:
            scan.missing.append((gap, line))
        self.unreadable = 0


def _scan_all(files: Iterable[JournalFile]) -> dict[JournalFile, _Scan]:
    numbers: dict[str, _LineNumbers] = {}
    return {file: _scan(file, numbers.setdefault(file.writer, _LineNumbers())) for file in files}


def _scan(file: JournalFile, numbers: _LineNumbers) -> _Scan:
    scan, digest = _Scan(), hashlib.sha256()
    numbers.begin(file)
    try:
        scan.frames = _damaged_frames(file)
        frames = {frame.offset for frame in scan.frames}
        for count, (line, end) in enumerate(read_lines(file.path), start=1):
            scan.end = end
            digest.update(line + b"\n")
            try:
                number, record = decode_numbered(line)
            except DamagedLineError:
                scan.damaged.append(count)
                numbers.unreadable += 1
                continue
            except msgspec.DecodeError:
                if end - len(line) - 1 in frames:  # a damaged frame, which is reported as such
                    continue
                if not line.strip() and byte_at(file.path, end - 1) == b"\0":
                    scan.holes.append(end - len(line) - 1)
                    continue
                scan.not_records += 1
                scan.first_bad_line = scan.first_bad_line or count
                numbers.unreadable += 1
                continue
            numbers.add(number, count, scan)
            scan.records += 1
            if isinstance(record, Media | TableRows):
                scan.blobs |= {digest: (size, record.name) for digest, size in _blobs_in(msgspec.to_builtins(record))}
            if isinstance(record, Event) and record.name == "checkpoint":
                scan.checkpoints.append(Path(str(record.data.get("path"))))
            if isinstance(record, Event) and record.name == "records_lost":
                lost = record.data.get("count")
                scan.lost += lost if isinstance(lost, int) else 0
    except OSError as error:
        scan.error = error.strerror or str(error)
    scan.digest = digest.hexdigest()
    return scan


def _damaged_frames(file: JournalFile) -> list[DamagedFrame]:
    with contextlib.suppress(FileNotFoundError), open_journal(file.path) as opened:
        return list(opened.damage()) if isinstance(opened, CompressedFile) else []
    return []


def _check_facts(place: RunLocation) -> Iterator[Finding]:
    problem = read_facts(place.facts)[1]
    if problem:
        yield Finding(
            "damage",
            problem,
            "The run's name, configuration, command and git commit are unknown; its records are not affected.",
            'Restore run.json from a copy, or write one with at least {"name": ...}.',
        )


def _check_missing_files(found: list[JournalFile], digests: dict[str, str]) -> Iterator[Finding]:
    if not any(file.name != DELIVERY_WRITER for file in found):
        yield Finding(
            "damage",
            "there is no journal",
            "All records are gone, or the process died before it recorded anything.",
            "Restore the folder journal/ from a copy, or delete the run.",
        )
        return
    # Writers number their files from zero, and a name its sessions.
    numbers: dict[str, set[int]] = {}
    sessions: dict[str, set[int]] = {}
    for file in found:
        numbers.setdefault(file.writer, set()).add(file.number)
        sessions.setdefault(file.name, set()).add(file.session)
    missing = digests.keys() - {file.path.name for file in found}
    for writer, there in numbers.items():
        missing |= {f"{writer}-{number:06d}.jsonl" for number in set(range(max(there))) - there}
    for name, there in sessions.items():
        missing |= {f"{name}-{session:04d}-*.jsonl" for session in set(range(max(there))) - there}
    for name in sorted(missing):
        yield Finding(
            "damage",
            f"journal/{name} is missing",
            "Its rows are missing from every view; the rows before and after it are shown.",
            "Restore the file from a copy; the run's views then include it.",
        )


def _check_files(
    scans: dict[JournalFile, _Scan], folder: str = JOURNAL, *, is_live: bool, was_killed: bool
) -> Iterator[Finding]:
    last = {file.writer: file for file in scans}
    for file, scan in scans.items():
        name = f"{folder}/{file.path.name}"
        if scan.error:
            yield Finding(
                "damage",
                f"{name} cannot be read: {scan.error}",
                "Its records are missing from every view.",
                "Check its permissions and the disk.",
            )
            continue
        yield from _check_lines(name, scan)
        rest = "" if is_live else trailing_data(file.path, scan.end)  # a live run is writing there
        if rest:
            yield _incomplete_end(name, scan.end, rest, was_killed=was_killed and last[file.writer] is file)


def _check_lines(name: str, scan: _Scan) -> Iterator[Finding]:
    if scan.holes:
        yield Finding(
            "damage",
            f"{name} has a hole at byte {_listed([f'{offset:,}' for offset in scan.holes])}",
            "Zeros have replaced lines; all other lines are shown. The machine lost power, the file was truncated "
            "while it was written, or a copy is incomplete.",
            "Restore the file from a copy.",
        )
    if scan.frames:
        found = [f"{frame.offset:,} ({frame.problem})" for frame in scan.frames]
        yield Finding(
            "damage",
            f"{name}{SUFFIX}: the compressed data cannot be read at byte {_listed(found)}",
            f"{sum(frame.size for frame in scan.frames):,} bytes of lines are left out of every view; all other lines "
            "are shown. The disk or a copy is faulty.",
            "Restore the file from a copy.",
        )
    if scan.damaged:
        yield Finding(
            "damage",
            f"{name}: the bytes of {_lines(scan.damaged)} changed since they were written",
            "They are left out of every view; all other lines are shown. The disk or a copy is faulty, or the file "
            "was edited.",
            "Restore the file from a copy.",
        )
    if scan.repeated:
        yield Finding(
            "damage",
            f"{name}: {_lines(scan.repeated)} repeated from above",
            "They are read once. The file was edited, or assembled from pieces.",
            "Nothing needs to be done; to get rid of this finding, restore the file from a copy.",
        )
    if scan.missing:
        gaps = _listed([f"{count:,} before line {line:,}" for count, line in scan.missing])
        yield Finding(
            "damage",
            f"{name}: lines are missing: {gaps}",
            "Lines are numbered when they are written, and these numbers are missing: the lines were removed.",
            "Restore the file from a copy.",
        )
    if scan.is_mixed:
        lines = plural(scan.without_number, "line")
        yield Finding(
            "damage",
            f"{name}: {lines} without a checksum, first line {scan.first_without_number:,}",
            "The other lines have one: these were not written by hookline, or their checksums were removed.",
            "Compare the file with a copy.",
        )
    if scan.not_records:
        count = scan.not_records
        lines = "1 line that is not a record" if count == 1 else f"{count:,} lines that are not records"
        yield Finding(
            "damage",
            f"{name} has {lines}, first line {scan.first_bad_line:,}",
            "They are left out of every view: pieces left by a full disk, or changed bytes. All other lines are shown.",
            "Nothing needs to be done; see the line for its content.",
        )


def _incomplete_end(name: str, end: int, rest: str, *, was_killed: bool) -> Finding:
    if rest == "hole":
        return Finding(
            "damage",
            f"{name} cannot be read from byte {end:,} on: there is a hole in it",
            "An incomplete file is read up to a long run of zeros: what follows is not shown. The machine lost power, "
            "or a copy is incomplete.",
            "Copy the file again from where it was recorded.",
        )
    if was_killed:
        return Finding(
            "note",
            f"{name} ends in the middle of a line, at byte {end:,}",
            "The process was killed while it wrote that record, or the file was cut off there. Nothing before it is "
            "lost.",
            "Nothing needs to be done, unless this is a copy: then copy the file again from where it was recorded.",
        )
    return Finding(
        "damage",
        f"{name} is cut off in the middle of a line, at byte {end:,}",
        "The end of the file is missing: a copy is incomplete, or the disk was full.",
        "Copy the file again from where it was recorded.",
    )


def _lines(numbers: list[int]) -> str:
    return f"line{'s' if len(numbers) > 1 else ''} {_listed([f'{number:,}' for number in numbers])}"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - _MAX_LISTED:,} more" if len(found) > _MAX_LISTED else ""
    return f"{', '.join(found[:_MAX_LISTED])}{more}"


def _check_digests(
    digests: dict[str, str],
    damaged_digests: Iterable[str],
    scans: dict[JournalFile, _Scan],
    folder: str = JOURNAL,
) -> Iterator[Finding]:
    """Complete files that changed although their lines do not show it."""
    for file, scan in scans.items():
        digest = digests.get(file.path.name)
        if digest is not None and digest != scan.digest and not scan.is_damaged:
            yield Finding(
                "damage",
                f"{folder}/{file.path.name} changed since it was complete: its SHA-256 is not the one noted then, in "
                f"{file.writer}{DIGESTS}",
                "Lines at its end are missing, or were added or changed together with their checksums.",
                "Restore the file from a copy.",
            )
    for name in damaged_digests:
        yield Finding(
            "damage",
            f"{folder}/{name} has lines that are not digests",
            "Files whose digests cannot be read are checked only by the checksums of their lines.",
            "Restore the file from a copy, or delete it.",
        )


def _check_lost_records(scans: Iterable[_Scan]) -> Iterator[Finding]:
    lost = sum(scan.lost for scan in scans)
    if lost:
        yield Finding(
            "damage",
            f"{plural(lost, 'record')} could not be written",
            "The disk was full for a while, or a journal file was truncated or removed while it was written; training "
            "continued, and those records are lost.",
            "If the disk is full, free some space first: hookline runs delete --dry-run --older-than 30d",
        )


def _blobs_in(value: object) -> Iterator[tuple[str, int | None]]:
    """The digest and the size of every stored file that a record refers to, at any depth."""
    if isinstance(value, dict):
        digest, size = value.get("blob"), value.get("size")
        if isinstance(digest, str) and digest:
            yield digest, size if isinstance(size, int) else None
        for item in value.values():
            yield from _blobs_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _blobs_in(item)


def _check_blobs(run_dir: Path, scans: Iterable[_Scan]) -> Iterator[Finding]:
    """Stored files that are missing or damaged: of media and tables by the names they were logged under, of code."""
    damaged: dict[tuple[str, str], int] = {}
    code = (each for environment in read_environments(run_dir) for each in _blobs_in(environment.git))
    blobs: dict[str, tuple[int | None, str]] = {digest: (size, ENVIRONMENT) for digest, size in code}
    for scan in scans:
        blobs |= scan.blobs
    for digest, (size, name) in blobs.items():
        problem = blob_problem(run_dir, digest, size)
        if problem:
            damaged[name, problem] = damaged.get((name, problem), 0) + 1
    for (name, problem), count in damaged.items():
        files = "one of its files" if count == 1 else f"each of {count:,} of its files"
        yield Finding(
            "damage",
            f"{name!r}: {files} {problem}",
            "It is not shown. Everything else that was recorded is.",
            "Restore it from a copy of the root"
            + (
                "; git.diff in the run's directory may have the changes."
                if name == ENVIRONMENT
                else ", or log it again."
            ),
        )


def _check_console(run_dir: Path, *, is_live: bool, was_killed: bool) -> Iterator[Finding]:
    """Console lines; a run that printed nothing has none."""
    directory = run_dir / CONSOLE
    if directory.is_symlink():
        return
    redact_leftovers(run_dir)
    found = [*regular_journal_files(directory), *irregular_files(directory)]
    scans = {
        file: scan
        for file, scan in _scan_all(found).items()
        if not (is_live and scan.error and not file.path.exists())  # removed meanwhile
    }
    yield from _check_files(scans, CONSOLE, is_live=is_live, was_killed=was_killed)
    yield from _check_digests(*recorded_digests(directory), scans, CONSOLE)
    if is_live or last_contact(run_dir) is not None:  # those that were removed before they were sent never arrive
        return
    names = {file.path.name for file in found}
    for writer, newest in {file.writer: file.number for file in found}.items():
        kept = {*range(min(HEAD_FILES, newest)), *range(max(0, newest - TAIL_FILES + 1), newest)}
        for name in [f"{writer}-{number:06d}.jsonl" for number in sorted(kept)]:
            if name not in names:
                yield Finding(
                    "damage",
                    f"{CONSOLE}/{name} is missing",
                    "Its lines are not shown; those before and after it are. Metrics are not affected.",
                    "Restore the file from a copy.",
                )


def _check_checkpoints(run_dir: Path) -> Iterator[Finding]:
    saved = saved_checkpoints(run_dir, digests=True)
    intact = [one.path.name for one in saved if one.damage is None]
    for one in saved:
        if one.damage is not None:
            instead = f"It resumes from {intact[-1]} instead." if intact else "The run has no other one."
            yield Finding(
                "damage",
                f"checkpoints/{one.path.name} is damaged: {one.damage}",
                f"It is never loaded: resuming skips it. {instead}",
                "Restore its files from a copy, or delete it.",
            )


def _check_external_checkpoints(run_dir: Path, scans: Iterable[_Scan]) -> Iterator[Finding]:
    """Checkpoints outside of the run's directory that still exist."""
    own = (run_dir / FOLDER).resolve()
    for path in dict.fromkeys(path for scan in scans for path in scan.checkpoints):
        is_ours = is_file_path(path) if path.is_file() else path.is_dir() and is_checkpoint(path)
        damage = damage_of(path, digests=True) if is_ours and path.resolve().parent != own else None
        if damage is not None:
            yield Finding(
                "damage", f"{path} is damaged: {damage}", "It is never loaded.", "Restore it from a copy, or delete it."
            )


def _check_lines_at_checkpoints(run_dir: Path) -> Iterator[Finding]:
    """Lines that existed when a writer's last checkpoint was saved, and are missing now."""
    last: dict[str, tuple[int, str]] = {}
    for saved in saved_checkpoints(run_dir):
        noted = recorded_lines(saved.path) if saved.damage is None else None
        if noted is not None and noted[1] > last.get(noted[0], (0, ""))[0]:
            last[noted[0]] = (noted[1], saved.path.name)
    for writer, (lines_then, name) in last.items():
        missing = count_missing_lines(run_dir, writer, lines_then)
        if missing:
            yield Finding(
                "damage",
                f"{missing:,} of the {lines_then:,} lines that {writer} had recorded when {name} was saved are missing",
                "A resumed run continues after that checkpoint: its record has a gap. The machine lost power while "
                "nothing was synced to disk (durability='process'), or the journal was changed.",
                "Restore the folder journal/ from a copy.",
            )


def _check_end(summary: RunSummary, place: RunLocation) -> Iterator[Finding]:
    if not summary.last_seen or summary.has_ended:
        return
    if last_contact(place.directory) is not None:
        yield Finding(
            "note",
            f"nothing was received after step {summary.step:,}",
            "Its process was killed, or cannot reach the server that receives it. Everything before is complete.",
            "Check the machine that it runs on; records that it sends later are added.",
        )
    else:
        yield Finding(
            "note",
            f"it ended after step {summary.step:,} without a final status",
            "Its process was killed, or the machine went down. Everything before is complete.",
            f"Resume it with resume={place.directory.name!r}, or leave it.",
        )


def _check_sinks(run_dir: Path) -> Iterator[Finding]:
    for name, loss in find_lost_outputs(run_dir).items():
        yield Finding(
            "damage",
            f"{name} has lost records: {loss}",
            "They are in the journal; only the sink's own output lacks them.",
            f"Deliver them again: hookline runs sync {run_dir}",
        )
    for state in sink_states(run_dir):
        if state.behind_bytes:
            yield Finding(
                "note",
                f"{bytes_text(state.behind_bytes)} have not been delivered to {state.name}",
                f"They are in the journal. {state.error}".strip(),
                f"Deliver them: hookline runs sync {run_dir}",
            )
        if state.left_out:
            were = "was" if state.left_out == 1 else "were"
            yield Finding(
                "note",
                f"{plural(state.left_out, 'value')} {were} left out of {state.name}",
                "The run has them. Servers limit the number of names; trackers do not show all kinds of media.",
                "For metrics use fewer names, e.g. one name with values over steps instead of a name for each step.",
            )
        if state.blobs_left_out:
            is_one = state.blobs_left_out == 1
            are = "image, file, other blob or artifact is" if is_one else "images, files, other blobs or artifacts are"
            yield Finding(
                "note",
                f"{state.blobs_left_out:,} {are} not at {state.name}",
                "It was too large for the server or had no room there, or is missing or damaged here."
                if is_one
                else "They were too large for the server or had no room there, or are missing or damaged here.",
                f"Once the server has room: hookline runs sync {run_dir}",
            )


def _document(verdict: Verdict) -> dict[str, object]:
    return {
        "run": verdict.place.id,
        "directory": str(verdict.place.directory),
        "ok": not verdict.is_damaged,
        "records": verdict.records,
        "bytes": verdict.bytes,
        "findings": [asdict(finding) for finding in verdict.findings],
    }


def _print(out: Console, verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        status = ("damaged", "bold red") if verdict.is_damaged else ("ok", "green")
        counts = f"  {plural(verdict.records, 'record')}, {bytes_text(verdict.bytes)}"
        out.print(Text.assemble(one_line(verdict.place.id), "  ", status, counts), soft_wrap=True)
        for finding in verdict.findings:
            out.print(indented(one_line(finding.what)), style="red" if finding.kind == "damage" else "yellow")
            out.print(indented(one_line(finding.means), 4))
            out.print(indented(one_line(finding.do), 4), style="dim")
    damaged = sum(verdict.is_damaged for verdict in verdicts)
    if len(verdicts) != 1:
        out.print(f"{len(verdicts):,} runs, {damaged:,} damaged." if verdicts else "There are no runs.")

"""``hookline runs verify``: whether what runs recorded is all there, and what it means where it is not.

Every line of every journal is read, and its checksum and number are checked. Complete journal files and the files of
checkpoints are compared with the digests noted when they were written. What version 0.1 recorded has neither checksums
nor digests: of that, the form of the lines and the sizes of the files are checked. Nothing is changed. What is wrong
makes the exit status 1; what is worth knowing, like records that wait to be delivered, does not.
"""

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
from hookline._record.delivery import sink_states
from hookline._record.delivery_manager import find_lost_outputs
from hookline._record.reader import DELIVERY_WRITER, LineNumbers, count_missing_lines, read_lines
from hookline._record.records import DamagedLineError, Event, decode_numbered
from hookline._record.segment import DIGESTS, JournalFile, irregular_files, recorded_digests
from hookline._record.terminal import one_line
from hookline.cli.output import AsJson, console, indented, print_json, wrong_input
from hookline.cli.runs.reference import OptionalRuns, Root, all_places, locate
from hookline.cli.runs.show import FOLDER, saved_checkpoints
from hookline.cli.runs.text import bytes_text
from hookline.loops.checkpoint import damage_of, is_checkpoint, is_file_path, recorded_lines
from hookline.store.journal_files import byte_at, regular_journal_files, trailing_data
from hookline.store.run_info import RunLocation, read_facts
from hookline.store.run_summary import Liveness, RunSummary, last_contact, summarize

_MOST_LISTED = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a run's record.

    Attributes:
        kind: ``damage`` where something is lost or cannot be used, ``note`` where it is only worth knowing.
        what: What was found, and where.
        means: What that means.
        do: What can be done.
    """

    kind: Literal["damage", "note"]
    what: str
    means: str
    do: str


@dataclass(slots=True)
class _JournalFile:
    """What reading a journal file to its end brought."""

    records: int = 0
    damaged: list[int] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    not_records: int = 0
    first_bad_line: int = 0
    without_number: int = 0
    first_without_number: int = 0
    with_number: int = 0
    lost: int = 0
    end: int = 0
    error: str = ""
    digest: str = ""
    saved: list[Path] = field(default_factory=list)
    """The checkpoints that it says were saved."""


@dataclass(slots=True)
class _Numbers:
    """The line numbers of one writer, through its files."""

    sequence: LineNumbers = field(default_factory=lambda: LineNumbers(0))
    next_file: int = 0
    unreadable: int = 0
    """Lines without a readable number since the last one that had one: each may account for a number."""

    def begin(self, file: JournalFile) -> None:
        """Begin a file; one that is missing before it is reported as such, and not its lines as well."""
        if file.number != self.next_file:
            self.sequence.following = None
        self.next_file = file.number + 1

    def note(self, number: int | None, line: int, seen: _JournalFile) -> None:
        """Take a line into account."""
        if number is None:
            seen.without_number += 1
            seen.first_without_number = seen.first_without_number or line
            return
        seen.with_number += 1
        following = self.sequence.following
        if self.sequence.is_repeated(number):
            seen.repeated.append(line)
            return
        gap = 0 if following is None else number - following - self.unreadable
        if gap > 0:
            seen.missing.append((gap, line))
        self.unreadable = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out about a run."""

    place: RunLocation
    records: int
    bytes: int
    findings: list[Finding]

    @property
    def is_damaged(self) -> bool:
        """Whether something is wrong."""
        return any(finding.kind == "damage" for finding in self.findings)


def verify_command(given: OptionalRuns = None, *, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Check that what runs recorded is whole, all of them or those given; the exit status is 1 if something is not."""
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
    """Read all that a run recorded, and say what is wrong with it."""
    found = [*regular_journal_files(place.journal), *irregular_files(place.journal)]
    numbers: dict[str, _Numbers] = {}
    files = {file: _read(file, numbers.setdefault(file.writer, _Numbers())) for file in found}
    digests, damaged_digests = recorded_digests(place.journal)
    can_be_read = not any(seen.error for seen in files.values())
    end = summarize([file for file, seen in files.items() if not seen.error])
    is_live = _is_live(end, place)
    findings = [
        *_about_facts(place),
        *_about_missing(found, digests),
        *_about_files(files, is_live=is_live, was_killed=not end.has_ended),
        *_about_digests(digests, files),
        *map(_damaged_digests, damaged_digests),
        *_about_lost(files.values()),
        *_about_checkpoints(place.directory),
        *(
            _about_checkpoints_elsewhere(place.directory, files.values())
            if last_contact(place.directory) is None
            else ()
        ),
        *(_about_power_cuts(place.directory) if can_be_read else ()),
        *(_about_end(end, place) if can_be_read and not is_live else ()),
        *(_about_sinks(place.directory) if can_be_read and not is_live else ()),
    ]
    return Verdict(place, sum(one.records for one in files.values()), sum(one.end for one in files.values()), findings)


def _is_live(end: RunSummary, place: RunLocation) -> bool:
    """Whether it is written, by its own process, or by a server for a run that is received; as the list of runs has it.

    A process may have something to write behind the end of its run. One that has recorded nothing is not waited for.
    """
    if run_directory.is_alive(place.directory):
        return True
    word = Liveness().status(end, place.directory, read_facts(place.facts)[0])
    return bool(end.last_seen) and word in ("running", "stalled")


def _read(file: JournalFile, numbers: _Numbers) -> _JournalFile:
    seen, digest = _JournalFile(), hashlib.sha256()
    numbers.begin(file)
    try:
        for count, (line, end) in enumerate(read_lines(file.path), start=1):
            seen.end = end
            digest.update(line + b"\n")
            try:
                number, record = decode_numbered(line)
            except DamagedLineError:
                seen.damaged.append(count)
                numbers.unreadable += 1
                continue
            except msgspec.DecodeError:
                if not line.strip() and byte_at(file.path, end - 1) == b"\0":
                    seen.holes.append(end - len(line) - 1)
                    continue
                seen.not_records += 1
                seen.first_bad_line = seen.first_bad_line or count
                numbers.unreadable += 1
                continue
            numbers.note(number, count, seen)
            seen.records += 1
            if isinstance(record, Event) and record.name == "checkpoint":
                seen.saved.append(Path(str(record.data.get("path"))))
            if isinstance(record, Event) and record.name == "records_lost":
                lost = record.data.get("count")
                seen.lost += lost if isinstance(lost, int) else 0
    except OSError as error:
        seen.error = error.strerror or str(error)
    seen.digest = digest.hexdigest()
    return seen


def _about_facts(place: RunLocation) -> Iterator[Finding]:
    wrong = read_facts(place.facts)[1]
    if wrong:
        yield Finding(
            "damage",
            wrong,
            "What was run (name, configuration, command, git commit) is not known; what it recorded is not affected.",
            'Put back run.json from a copy, or write one with at least {"name": ...}.',
        )


def _about_missing(found: list[JournalFile], noted: dict[str, str]) -> Iterator[Finding]:
    if not any(file.name != DELIVERY_WRITER for file in found):
        yield Finding(
            "damage",
            "there is no journal",
            "Nothing that was recorded is there, or the process died before it recorded anything.",
            "Put the folder journal/ back from a copy, or delete the run.",
        )
        return
    there = {file.path.name for file in found}
    for name in sorted({*_missing(found), *(noted.keys() - there)}):
        yield Finding(
            "damage",
            f"journal/{name} is missing",
            "The rows that it held are gone from every view; what lies before and behind it is shown.",
            "Put the file back from a copy; the next look at the run takes it in.",
        )


def _missing(found: list[JournalFile]) -> Iterator[str]:
    """The files that must have been there: writers count their files, and a name its sessions, from zero."""
    numbers: dict[str, set[int]] = {}
    sessions: dict[str, set[int]] = {}
    for file in found:
        numbers.setdefault(file.writer, set()).add(file.number)
        sessions.setdefault(file.name, set()).add(file.session)
    for writer, there in numbers.items():
        yield from (f"{writer}-{number:06d}.jsonl" for number in sorted(set(range(max(there))) - there))
    for name, there in sessions.items():
        yield from (f"{name}-{session:04d}-*.jsonl" for session in sorted(set(range(max(there))) - there))


def _about_files(files: dict[JournalFile, _JournalFile], *, is_live: bool, was_killed: bool) -> Iterator[Finding]:
    last = {file.writer: file for file in files}
    for file, seen in files.items():
        name = f"journal/{file.path.name}"
        if seen.error:
            yield Finding(
                "damage",
                f"{name} cannot be read: {seen.error}",
                "What it holds is missing from every view.",
                "Check its permissions and the disk.",
            )
            continue
        yield from _about_lines(name, seen)
        rest = "" if is_live else trailing_data(file.path, seen.end)  # a live run writes there just now
        if rest:
            yield _cut_off(name, seen.end, rest, was_killed=was_killed and last[file.writer] is file)


def _about_lines(name: str, seen: _JournalFile) -> Iterator[Finding]:
    if seen.holes:
        yield Finding(
            "damage",
            f"{name} has a hole at byte {_listed([f'{offset:,}' for offset in seen.holes])}",
            "Zeros are where lines were; all others are shown. The machine lost power, the file was truncated while "
            "it was written, or a copy was not complete.",
            "Put the file back from a copy.",
        )
    if seen.damaged:
        yield Finding(
            "damage",
            f"{name}: the bytes of {_lines(seen.damaged)} changed since they were written",
            "They are left out of every view; all others are shown. The disk or a copy is faulty, or somebody edited "
            "the file.",
            "Put the file back from a copy.",
        )
    if seen.repeated:
        yield Finding(
            "damage",
            f"{name}: {_lines(seen.repeated)} repeated from above",
            "They are read once. The file was edited, or put together from pieces.",
            "Nothing has to be done; to be rid of this, put the file back from a copy.",
        )
    if seen.missing:
        gaps = _listed([f"{count:,} before line {line:,}" for count, line in seen.missing])
        yield Finding(
            "damage",
            f"{name}: lines are missing: {gaps}",
            "Lines are numbered as they are written, and these numbers are not there: the lines were removed.",
            "Put the file back from a copy.",
        )
    if seen.with_number and seen.without_number:
        yield Finding(
            "damage",
            f"{name}: {seen.without_number:,} lines without a checksum, first line {seen.first_without_number:,}",
            "The others have one: these were written by something else, or their checksums were removed.",
            "Compare the file with a copy.",
        )
    if seen.not_records:
        yield _not_records(name, seen)


def _lines(numbers: list[int]) -> str:
    return f"line{'s' if len(numbers) > 1 else ''} {_listed([f'{number:,}' for number in numbers])}"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - _MOST_LISTED:,} more" if len(found) > _MOST_LISTED else ""
    return f"{', '.join(found[:_MOST_LISTED])}{more}"


def _about_digests(noted: dict[str, str], files: dict[JournalFile, _JournalFile]) -> Iterator[Finding]:
    """Complete files of which the bytes changed in a way that their lines do not show."""
    for file, seen in files.items():
        digest = noted.get(file.path.name)
        is_mixed = seen.with_number and seen.without_number
        shows = (
            seen.holes or seen.damaged or seen.repeated or seen.missing or seen.not_records or is_mixed or seen.error
        )
        if digest is not None and digest != seen.digest and not shows:
            yield Finding(
                "damage",
                f"journal/{file.path.name} changed since it was complete: its SHA-256 is not the one noted then, in "
                f"{file.writer}{DIGESTS}",
                "Lines at its end are gone, or were added or changed together with their checksums.",
                "Put the file back from a copy.",
            )


def _damaged_digests(name: str) -> Finding:
    return Finding(
        "damage",
        f"journal/{name} has lines that are not digests",
        "Of the files whose digests cannot be read, only the lines are checked, each by its own checksum.",
        "Put the file back from a copy, or delete it.",
    )


def _not_records(name: str, seen: _JournalFile) -> Finding:
    lines_are = (
        "1 line that is no record" if seen.not_records == 1 else f"{seen.not_records:,} lines that are no records"
    )
    return Finding(
        "damage",
        f"{name} has {lines_are}, first line {seen.first_bad_line:,}",
        "They are left out: pieces that a full disk left trailing_data, or bytes that changed. All others are shown.",
        "Nothing has to be done; look at the line to see what it was.",
    )


def _cut_off(name: str, end: int, rest: str, *, was_killed: bool) -> Finding:
    if rest == "hole":
        return Finding(
            "damage",
            f"{name} cannot be read from byte {end:,} on: there is a hole in it",
            "A file that was not completed is read up to a long stretch of zeros: what is behind it is not shown. The "
            "machine lost power, or a copy was not complete.",
            "Copy the file again from where it was recorded.",
        )
    if was_killed:
        return Finding(
            "note",
            f"{name} ends in the middle of a line, at byte {end:,}",
            "The process was killed while it wrote that record, or the file was cut off there. Nothing before it is "
            "lost.",
            "Nothing has to be done, unless this is a copy: then copy the file again from where it was recorded.",
        )
    return Finding(
        "damage",
        f"{name} is cut off in the middle of a line, at byte {end:,}",
        "The end of the file is gone: a copy was not complete, or the disk was full.",
        "Copy the file again from where it was recorded.",
    )


def _about_lost(files: Iterable[_JournalFile]) -> Iterator[Finding]:
    lost = sum(seen.lost for seen in files)
    if lost:
        yield Finding(
            "damage",
            f"{lost:,} records could not be written",
            "There was no room on the disk for a while, or somebody truncated or removed a journal file while it was "
            "written; training went on, those records are gone for good.",
            "If the disk is full, free some room before you go on: hookline runs delete --dry-run --older-than 30d",
        )


def _about_checkpoints(run_dir: Path) -> Iterator[Finding]:
    saved = saved_checkpoints(run_dir, digests=True)
    whole = [one.path.name for one in saved if one.damage is None]
    for one in saved:
        if one.damage is not None:
            instead = f"It goes on from {whole[-1]} instead." if whole else "There is no other one in the run."
            yield Finding(
                "damage",
                f"checkpoints/{one.path.name} is damaged: {one.damage}",
                f"It is never loaded: resuming passes it over. {instead}",
                "Put its files back from a copy, or delete it.",
            )


def _about_checkpoints_elsewhere(run_dir: Path, files: Iterable[_JournalFile]) -> Iterator[Finding]:
    """Checkpoints that lie outside the run's directory, where their files are still there."""
    own = (run_dir / FOLDER).resolve()
    for path in dict.fromkeys(path for seen in files for path in seen.saved):
        is_ours = is_file_path(path) if path.is_file() else path.is_dir() and is_checkpoint(path)
        damage = damage_of(path, digests=True) if is_ours and path.resolve().parent != own else None
        if damage is not None:
            yield Finding(
                "damage",
                f"{path} is damaged: {damage}",
                "It is never loaded.",
                "Put it back from a copy, or delete it.",
            )


def _about_power_cuts(run_dir: Path) -> Iterator[Finding]:
    """Lines that were there when the last checkpoint of a writer was saved, and are not."""
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
                "A resume continues behind that checkpoint: the record has a gap. The machine lost power while nothing "
                "was brought to the disk (durability='process'), or the journal was changed.",
                "Put the folder journal/ back from a copy.",
            )


def _about_end(end: RunSummary, place: RunLocation) -> Iterator[Finding]:
    if end.last_seen and not end.has_ended and last_contact(place.directory) is not None:
        yield Finding(
            "note",
            f"nothing more was heard of it after step {end.step:,}",
            "Its process was killed, or cannot reach the server that receives it. What arrived up to then is there.",
            "Look at the machine that it runs on; what it sends when it is back is taken in.",
        )
    elif end.last_seen and not end.has_ended:
        yield Finding(
            "note",
            f"it ended after step {end.step:,} without saying so",
            "Its process was killed, or the machine went down. What was recorded up to then is there.",
            f"Go on with resume={place.directory.name!r}, or leave it.",
        )


def _about_sinks(run_dir: Path) -> Iterator[Finding]:
    for name, loss in find_lost_outputs(run_dir).items():
        yield Finding(
            "damage",
            f"{name} has lost records: {loss}",
            "They are in the journal; only what was made from it lacks them.",
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
            yield Finding(
                "note",
                f"{state.left_out:,} values of metrics were not taken by {state.name}",
                "They are in the journal. The server limits how many names of metrics a row and a run have.",
                "Use fewer names, e.g. one name with values over steps instead of a name for each step.",
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
        word = ("damaged", "bold red") if verdict.is_damaged else ("ok", "green")
        counts = f"  {verdict.records:,} records, {bytes_text(verdict.bytes)}"
        out.print(Text.assemble(one_line(verdict.place.id), "  ", word, counts), soft_wrap=True)
        for finding in verdict.findings:
            out.print(indented(one_line(finding.what)), style="red" if finding.kind == "damage" else "yellow")
            out.print(indented(one_line(finding.means), 4))
            out.print(indented(one_line(finding.do), 4), style="dim")
    damaged = sum(verdict.is_damaged for verdict in verdicts)
    if len(verdicts) != 1:
        out.print(f"{len(verdicts):,} runs, {damaged:,} damaged." if verdicts else "There are no runs.")

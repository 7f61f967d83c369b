"""`compare_code`: the differences between the working trees of two runs.

A run records its commit, the changes against it, and with ``code="all"`` its untracked files. If both runs have the
same commit, the parts of files that either of them changed are known for both: the lines of the commit are in the
context and the removed lines of the two diffs. So the difference is that of the files, and not that of two diffs. With
different commits, the content of the commits is unknown: the changes of each run against its own commit are compared as
texts, and marked as such.

A run may come from elsewhere: nothing is executed, and the size of the result is limited.
"""

import difflib
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._record.blobs import BlobError, read_blob
from hookline._record.environment import Environment
from hookline._record.source_code import read_diff, split_diff
from hookline.store.comparison import latest_environment
from hookline.store.run_info import RunInfo

MAX_CHARACTERS = 400_000
"""The most text that is compared; further files are only listed by name."""
MAX_FILE_BYTES = 1 << 20
MAX_FILES = 1000
_MAX_PATH = 1000
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_PATH = re.compile(r'diff --git "?a/.*?"? "?b/(.*?)"?$', re.MULTILINE)


class CodeState(msgspec.Struct):
    """The code of a run: its commit and its recorded changes.

    Attributes:
        changed: Whether there were changes against the commit; None if unknown.
        problem: Why the changes are missing or incomplete.
    """

    run: str
    commit: str
    branch: str
    remote: str
    changed: bool | None
    problem: str


class Region(msgspec.Struct):
    """A part of a file in both runs, with the numbers of its first lines."""

    first_line_before: int
    first_line_after: int
    before: str
    after: str


class FileDifference(msgspec.Struct):
    """A file in which the runs differ.

    Attributes:
        kind: ``changed``; ``before`` or ``after`` if only one of the runs changed or has it; ``binary``, or
            ``left out`` if it is too large: these have no regions.
        is_patch: The regions are changes against different commits, and not the content of the file.
    """

    path: str
    kind: str
    is_patch: bool
    regions: list[Region]


class CodeComparison(msgspec.Struct):
    """The difference of the code of two runs, from the first to the second.

    Attributes:
        same_commit: Whether both have the same commit, so that the files themselves are compared.
        same_files: How many files both have changed in the same way.
        left_out: How many more files differ.
    """

    before: CodeState
    after: CodeState
    same_commit: bool
    same_files: int
    left_out: int
    files: list[FileDifference]


def compare_code(before: RunInfo, after: RunInfo) -> CodeComparison:
    """Compare the code that two runs were started with, in their latest sessions."""
    one, other = _read(before), _read(after)
    same_commit = bool(one.state.commit) and one.state.commit == other.state.commit
    files: list[FileDifference] = []
    same, left_out, room = 0, 0, MAX_CHARACTERS
    for path in sorted(one.texts.keys() | other.texts.keys()):
        first, second = one.texts.get(path), other.texts.get(path)
        if first == second:
            same += 1
            continue
        if len(files) == MAX_FILES:
            left_out += 1
            continue
        found = _file(path, first, second, same_commit=same_commit)
        size = sum(len(region.before) + len(region.after) for region in found.regions)
        if size > room:
            found = FileDifference(path, "left out", found.is_patch, [])
        else:
            room -= size
        if found.regions or found.kind in ("binary", "left out"):
            files.append(found)
        else:
            same += 1  # written differently, e.g. with other context, for the same change
    return CodeComparison(one.state, other.state, same_commit, same, left_out, files)


def unified(file: FileDifference) -> list[str]:
    """The difference of a file as the lines of a unified diff, without its header."""
    lines = []
    for region in file.regions:
        pieces = list(difflib.unified_diff(region.before.split("\n"), region.after.split("\n"), n=3, lineterm=""))
        for line in pieces[2:]:
            hunk = _HUNK.match(line)
            if hunk is None:
                lines.append(line)
                continue
            start, count, new_start, new_count = (int(part or 1) for part in hunk.groups())
            moved, new_moved = start + region.first_line_before - 1, new_start + region.first_line_after - 1
            lines.append(f"@@ -{moved},{count} +{new_moved},{new_count} @@")
    return lines


class _Text(NamedTuple):
    """A run's version of a file: its part of the diff, or the content of an untracked file."""

    content: str
    is_untracked: bool
    is_binary: bool


class _Code(NamedTuple):
    state: CodeState
    texts: dict[str, _Text]


def _read(info: RunInfo) -> _Code:
    git = (latest_environment(info.directory) or Environment(git=_facts_git(info))).git
    problems = [str(git["problem"])] if git.get("problem") else []
    texts: dict[str, _Text] = {}
    try:
        diff = read_diff(info.directory, git)
    except BlobError:
        diff = b""
        problems.append("Its changes are missing: they were not received, or were deleted.")
    for section in split_diff(diff):
        text = section.decode("utf-8", "replace")
        is_binary = "\nGIT binary patch" in text or "\nBinary files " in text
        texts[_path(text)] = _Text(text, is_untracked=False, is_binary=is_binary)
    own = git.get("diff")
    if isinstance(own, dict) and own.get("left_out"):
        problems.append(f"Left out when it was recorded: {', '.join(map(str, _list(own['left_out'])[:20]))}.")
    for path, content in _untracked(info.directory, _list(git.get("files"))):
        is_binary = b"\0" in content
        texts.setdefault(path, _Text(content.decode("utf-8", "replace"), is_untracked=True, is_binary=is_binary))
    changed = git.get("changed")
    commit, branch, remote = (str(git.get(name) or "")[:1000] for name in ("commit", "branch", "remote"))
    is_known = changed if isinstance(changed, bool) else None
    return _Code(CodeState(info.id, commit, branch, remote, is_known, " ".join(problems)), texts)


def _facts_git(info: RunInfo) -> dict[str, Any]:
    git = info.facts.get("git")  # recorded by version 0.1, or ended at once
    return git if isinstance(git, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _path(section: str) -> str:
    found = _PATH.match(section)
    return (found[1] if found else section.partition("\n")[0])[:_MAX_PATH]


def _untracked(directory: Path, files: list[Any]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        path, digest = (file.get("path"), file.get("blob")) if isinstance(file, dict) else (None, None)
        if isinstance(path, str) and isinstance(digest, str):
            try:
                yield path[:_MAX_PATH], read_blob(directory, digest, max_bytes=MAX_FILE_BYTES)
            except BlobError:
                continue  # not received, or too large to compare


def _file(path: str, before: _Text | None, after: _Text | None, *, same_commit: bool) -> FileDifference:
    kind = "after" if before is None else "before" if after is None else "changed"
    known = [text for text in (before, after) if text is not None]
    if any(text.is_binary for text in known):
        return FileDifference(path, "binary", is_patch=False, regions=[])
    if all(text.is_untracked for text in known):
        region = Region(1, 1, *("" if text is None else text.content for text in (before, after)))
        return FileDifference(path, kind, is_patch=False, regions=[region])
    if same_commit and not any(text.is_untracked or _is_moved(text.content) for text in known):
        hunks = [[] if text is None else list(_hunks(text.content)) for text in (before, after)]
        regions = list(_regions(hunks[0], hunks[1]))
        return FileDifference(path, kind, is_patch=False, regions=regions)
    region = Region(1, 1, *("" if text is None else text.content for text in (before, after)))
    return FileDifference(path, kind, is_patch=True, regions=[region])


def _is_moved(section: str) -> bool:
    """Whether a part of a diff renames or copies a file: its lines are those of another one."""
    head = section.partition("\n@@")[0]
    return "\nrename from " in head or "\ncopy from " in head


class _Hunk(NamedTuple):
    """A hunk of a diff: the lines of the commit it covers, from `first` up to before `end`, and what replaces them."""

    first: int
    end: int
    old: list[str]
    new: list[str]


def _hunks(section: str) -> Iterator[_Hunk]:
    first, old, new = -1, [], []  # type: int, list[str], list[str]
    for line in section.split("\n"):
        found = _HUNK.match(line)
        if found:
            if first >= 0:
                yield _Hunk(first, first + len(old), old, new)
            # A hunk without old lines is inserted after the line that it names.
            first = int(found[1]) + (found[2] == "0")
            old, new = [], []
        elif first >= 0 and line[:1] in (" ", "-", "+"):
            if line[0] != "+":
                old.append(line[1:])
            if line[0] != "-":
                new.append(line[1:])
    if first >= 0:
        yield _Hunk(first, first + len(old), old, new)


def _regions(before: list[_Hunk], after: list[_Hunk]) -> Iterator[Region]:
    """The parts of a file that either diff covers, in both versions; those that are the same are left out."""
    lines = {hunk.first + place: line for hunk in (*before, *after) for place, line in enumerate(hunk.old)}
    shifts = [0, 0]
    # Each hunk is visited once: a diff from elsewhere may have millions.
    waiting = [deque(sorted(hunks, key=lambda hunk: hunk.first)) for hunks in (before, after)]
    for first, end in _joined([*before, *after]):
        texts = []
        starts = [first + shift for shift in shifts]
        for side, hunks in enumerate(waiting):
            own: dict[int, _Hunk] = {}
            while hunks and hunks[0].first <= end:
                hunk = hunks.popleft()
                own[hunk.first] = hunk
            text: list[str] = []
            place = first
            while place < end or place in own:
                found = own.pop(place, None)
                if found is None:
                    text.append(lines[place])
                    place += 1
                else:
                    text += found.new
                    shifts[side] += len(found.new) - len(found.old)
                    place = found.end
            texts.append("\n".join(text))
        if texts[0] != texts[1]:
            yield Region(starts[0], starts[1], texts[0], texts[1])


def _joined(hunks: list[_Hunk]) -> Iterator[tuple[int, int]]:
    """The ranges of lines that hunks cover, without gaps in them."""
    first, end = 0, -1
    for hunk in sorted(hunks, key=lambda each: (each.first, each.end)):
        if hunk.first > end:
            if end >= 0:
                yield first, end
            first, end = hunk.first, hunk.end
        else:
            end = max(end, hunk.end)
    if end >= 0:
        yield first, end

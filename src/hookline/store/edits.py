"""Changes that people make to a run after it was started: name, tags, notes, archived; and deleting a run.

Edits are kept in ``edits.json`` beside ``run.json``, which belongs to the process that records the run: a live run can
be edited, and its process overwrites nothing. The file is replaced as a whole under a lock, so concurrent edits are all
kept. Edits stay where they are made: sinks do not send them.
"""

import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import ConfigError, OptionError, UnknownNameError
from hookline._record import files, run_directory
from hookline._record.blobs import journals_of, referenced_blobs, remove_unused_blobs
from hookline._record.records import clean
from hookline._record.run_directory import METADATA

EDITS_FILE = "edits.json"
MAX_NAME, MAX_NOTES, MAX_TAG, MAX_TAGS = 200, 20_000, 100, 100
_MAX_BYTES = 256 << 10
_LOCK_SECONDS = 10.0


class Edits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The edits of a run; None keeps the recorded value."""

    name: str | None = None
    tags: list[str] | None = None
    notes: str | None = None
    archived: bool = False


NOT_EDITED = Edits()


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one or more runs.

    Args:
        name: A new name; an empty one restores the recorded name.
        notes: New notes.
        archived: Hide the runs in listings, or show them again.
    """

    name: str | None = None
    notes: str | None = None
    add_tags: Sequence[str] = ()
    remove_tags: Sequence[str] = ()
    archived: bool | None = None

    def __post_init__(self) -> None:
        if (self.name, self.notes, self.archived) == (None, None, None) and not (self.add_tags or self.remove_tags):
            raise OptionError("Give something to change: a name, notes, tags, or archived.")
        _check_text("name", self.name, MAX_NAME)
        _check_text("notes", self.notes, MAX_NOTES)
        for tag in (*self.add_tags, *self.remove_tags):
            _check_text("tag", tag, MAX_TAG)
            if not tag.strip():
                raise OptionError("A tag is empty. Give a text.")

    def applied_to(self, edits: Edits, recorded_tags: Iterable[str]) -> Edits:
        """The edits of a run after this change.

        Raises:
            OptionError: The run would have too many tags.
        """
        tags = edits.tags
        if self.add_tags or self.remove_tags:
            before = list(recorded_tags) if tags is None else tags
            tags = [tag for tag in dict.fromkeys([*before, *self.add_tags]) if tag not in set(self.remove_tags)]
            if len(tags) > MAX_TAGS:
                raise OptionError(f"The run would have {len(tags)} tags; at most {MAX_TAGS} are accepted.")
        return Edits(
            name=edits.name if self.name is None else self.name.strip() or None,
            tags=tags,
            notes=edits.notes if self.notes is None else self.notes,
            archived=edits.archived if self.archived is None else self.archived,
        )


def _check_text(what: str, text: str | None, limit: int) -> None:
    if text is not None and (len(text) > limit or "\0" in text):
        raise OptionError(f"The {what} {text!r:.60} is not accepted: give at most {limit:,} characters without NUL.")


def read_edits(directory: Path) -> tuple[Edits, str]:
    """The edits of a run, and an error text if they cannot be read."""
    try:
        # The directory may have come from elsewhere: neither follow a link nor wait at a pipe.
        descriptor = os.open(directory / EDITS_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return NOT_EDITED, ""
    except OSError as error:
        return NOT_EDITED, f"{EDITS_FILE} cannot be read: {error.strerror}"
    try:
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            return NOT_EDITED, f"{EDITS_FILE} is larger than {_MAX_BYTES >> 10} kB; ignoring it"
        found = msgspec.json.decode(content, type=Edits)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return NOT_EDITED, f"{EDITS_FILE} cannot be read: {error}"
    tags = None if found.tags is None else [clean(tag) for tag in found.tags[:MAX_TAGS]]
    return Edits(clean(found.name), tags, clean(found.notes), found.archived), ""


def edit_run(directory: Path, change: Change) -> Edits:
    """Change a run; returns its edits afterwards.

    Raises:
        OptionError: The change is not accepted; nothing was changed.
        OSError: The directory cannot be written.
    """
    # The lock is that of the directory: a lock file would stay behind.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with files.exclusive(descriptor, seconds=_LOCK_SECONDS):
            before, after = _edited(directory, change)
            if after != before:
                _write(directory, after)
            return after
    finally:
        os.close(descriptor)


def edit_runs(directories: Sequence[Path], change: Change) -> list[Edits]:
    """Apply a change to all of the runs, or to none.

    Raises:
        ConfigError: The edits of one cannot be read; nothing was changed.
        OptionError: The change is not accepted for one; nothing was changed.
        OSError: One cannot be written; the others were changed back.
    """
    for directory in directories:
        _edited(directory, change)
    done: list[tuple[Path, Edits]] = []
    try:
        for directory in directories:
            before, _ = read_edits(directory)
            edit_run(directory, change)
            done.append((directory, before))
    except BaseException:
        for directory, before in done:
            with suppress(OSError):
                _write(directory, before)
        raise
    return [read_edits(directory)[0] for directory in directories]


def _edited(directory: Path, change: Change) -> tuple[Edits, Edits]:
    """The edits of a run before and after a change."""
    before, problem = read_edits(directory)
    if problem:
        raise ConfigError(f"{directory.name}: {problem}. Remove the file to edit the run.")
    needs_tags = change.add_tags or change.remove_tags
    return before, change.applied_to(before, _recorded_tags(directory) if needs_tags else ())


def _write(directory: Path, edits: Edits) -> None:
    if edits == NOT_EDITED:
        (directory / EDITS_FILE).unlink(missing_ok=True)
    else:
        files.write_atomically(directory / EDITS_FILE, msgspec.json.encode(edits))


def _recorded_tags(directory: Path) -> tuple[str, ...]:
    try:
        facts = msgspec.json.decode((directory / METADATA).read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{directory.name}: {METADATA} cannot be read: {error}. Its tags cannot be changed."
        ) from None
    return tags_of(clean(facts.get("tags"))) if isinstance(facts, dict) else ()


def tags_of(value: Any) -> tuple[str, ...]:
    """The tags of a run as they are recorded: a list, or a mapping."""
    if isinstance(value, dict):
        return tuple(f"{name}={tag}" for name, tag in value.items())
    return tuple(map(str, value)) if isinstance(value, list) else ()


def run_directory_of(root: Path, run: str) -> Path:
    """The directory of a run, by its id.

    Raises:
        UnknownNameError: There is none. Links, hidden directories and paths are no runs.
    """
    project, _, name = run.partition("/")
    directory = root / project / name
    is_plain = all(part and part[0] != "." and not {"/", "\\", "\0"} & set(part) for part in (project, name))
    if not is_plain or (root / project).is_symlink() or directory.is_symlink() or not (directory / METADATA).is_file():
        raise UnknownNameError(f"There is no run {run!r:.200}. It may have been deleted.")
    return directory


def remove_run(root: Path, directory: Path) -> None:
    """Remove a run's directory; renames it first, so no listing shows half of a run.

    Raises:
        OSError: It is running, a link, outside of the root, or cannot be removed.
    """
    _remove(directory, _moved_aside(root, directory))


def remove_runs(root: Path, directories: Sequence[Path]) -> None:
    """Remove the directories of all of the runs, or none.

    Raises:
        OSError: One is running, a link, outside of the root, or cannot be removed; then none is.
    """
    aside: list[tuple[Path, Path]] = []
    try:
        for directory in directories:
            aside.append((directory, _moved_aside(root, directory)))  # noqa: PERF401 - known if a later one fails
    except BaseException:
        for directory, moved in reversed(aside):
            with suppress(OSError):
                moved.rename(directory)
        raise
    for directory, moved in aside:
        _remove(directory, moved)


def _moved_aside(root: Path, directory: Path) -> Path:
    project = directory.parent
    if directory.is_symlink() or project.is_symlink() or project.parent != root:
        raise OSError(f"{directory} is a link, or outside of {root}")
    if run_directory.is_alive(directory):
        raise OSError("it is running")
    return directory.rename(directory.with_name(f".deleted-{secrets.token_hex(4)}"))


def _remove(directory: Path, aside: Path) -> None:
    shutil.rmtree(aside)
    with suppress(OSError):  # it has other runs
        directory.parent.rmdir()


def blobs_of(directories: Iterable[Path]) -> set[str]:
    """The blobs that runs refer to."""
    return referenced_blobs(
        path for directory in directories if not directory.is_symlink() for path in journals_of(directory)
    )


def remove_blobs(root: Path, used: set[str]) -> int:
    """Remove blobs that are no longer referenced; returns the freed bytes."""
    return remove_unused_blobs(root, used).bytes if used else 0

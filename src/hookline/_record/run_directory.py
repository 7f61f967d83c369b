"""A run's directory: ``<root>/<project>/<run id>/``, with ``run.json``, the journal and the checkpoints.

Ids are readable (``2026-11-15-brave-otter-3``) and sort by date. ``run.json`` describes the run: the configuration, the
command, host and versions, and the git commit; uncommitted changes lie beside it in ``git.diff`` (see
`hookline._record.environment`). It is replaced as a whole, so a reader never sees a part of it. A lock marks a running
run and ends with its process.
"""

import contextlib
import functools
import getpass
import json
import os
import platform
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError, OptionError, UnknownNameError, closest
from hookline._record import files, trust
from hookline._record.files import sync_directory, write_atomically
from hookline._record.reader import last_status
from hookline._record.records import clean
from hookline._record.redaction import Redactor
from hookline._record.source_code import head_commit

METADATA = "run.json"
LOCK = "lock"
EXPERIMENT_LOCK = "experiment.lock"
"""Held by the process that runs an experiment, in the experiment's directory."""
RECEIVED = "received.json"
"""In a run that another machine sends: who sends it. Its modification time is that of the last contact."""
_UPDATES = threading.Lock()
"""Held while ``run.json`` is read and replaced: threads may set notes and a summary at once."""
_MAX_NAME_BYTES = 255
_MAX_SUGGESTED = 3
_ADJECTIVES = (
    "amber bold brave bright calm clever crisp eager fair fleet gentle glad keen lively mellow noble "
    "quick quiet rapid ready sharp silver smooth steady still sturdy sunny swift tidy warm wise witty"
)
_ANIMALS = (
    "badger bear beaver crane deer dolphin eagle falcon finch fox gecko hare hawk heron ibis jay lark "
    "lynx marten mole moose otter owl panda puma raven robin seal stork swan tern wolf wren"
)


def _renew_lock() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it."""
    global _UPDATES
    _UPDATES = threading.Lock()


@functools.cache
def _renew_in_children() -> None:
    """Renew the lock in forked children; registered by the first update, not by the import."""
    os.register_at_fork(after_in_child=_renew_lock)


def create(
    root: str | Path,
    project: str,
    facts: dict[str, Any],
    *,
    run_id: str | None = None,
    redactor: Redactor | None = None,
) -> Path:
    """Create the directory and ``run.json`` of a new run; both survive a power cut.

    Args:
        facts: Added to the metadata.
        run_id: The directory's name; a new unique one by default.
        redactor: Redacts the command, the configuration, notes and tags; well-known secrets by default.

    Raises:
        ConfigError: The project's name is not valid, or the directory cannot be written.
    """
    try:
        is_valid = "\0" not in project and 0 < len(os.fsencode(project)) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:  # a lone surrogate
        is_valid = False
    if not is_valid or project == ".." or Path(project).name != project:
        raise ConfigError(f"project={project!r:.80}: give a name without '/', of at most {_MAX_NAME_BYTES} bytes.")
    if project[0] == "." and run_id is None:  # with an id as well, the run is hidden on purpose
        raise ConfigError(f"project={project!r}: runs of a project that begins with '.' are never listed.")
    home = Path(root).resolve() / project
    try:
        # Before they are created: each new directory is a name in its parent, which has to be synced.
        new = [path for path in (home, *home.parents) if not path.exists()]
        home.mkdir(parents=True, exist_ok=True)
        directory = _make(home) if run_id is None else home / run_id
        directory.mkdir(exist_ok=True)
        _write_metadata(directory, _describe_run(directory, facts, redactor or Redactor()))
        # Otherwise a power cut could take the directory with the synced file in it.
        for path in (directory, *new):
            sync_directory(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{home} cannot be written: {error.strerror}. Give another directory, or None to record nothing."
        ) from error
    return directory


def update(directory: Path, name: str, change: Any) -> None:
    """Change one value of ``run.json``.

    Args:
        change: The new value, None to remove it, or, for a mapping, a pair of its new items and the names to remove.
    """
    _renew_in_children()
    # Threads only: a run belongs to one process, which holds its lock.
    with _UPDATES:
        metadata = read_metadata(directory)
        if isinstance(change, tuple):
            new, removed = change
            before = metadata.get(name)
            items = before if isinstance(before, dict) else {} if before is None else {"config": before}
            metadata[name] = {
                key: value for key, value in (items | clean(dict(new))).items() if key not in set(removed)
            }
        else:
            metadata[name] = clean(change)
        kept = {key: value for key, value in metadata.items() if key != name or value is not None}
        _write_metadata(directory, kept)


def read_metadata(directory: Path) -> dict[str, Any]:
    """Return the content of ``run.json``; empty if it cannot be read."""
    file = directory / METADATA
    # One of a shared root may be anything: reading a pipe would wait for ever.
    with contextlib.suppress(OSError, ValueError, RecursionError):
        metadata = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return metadata if isinstance(metadata, dict) else {}
    return {}


def find(root: str | Path, project: str, reference: str | Path, *, name: str) -> Path | None:
    """Find the run to resume: a directory, an id in the project, or with ``"auto"`` the latest unfinished of a name.

    Raises:
        UnknownNameError: There is no such run. With ``"auto"``, None is returned instead.
    """
    home = Path(root).resolve() / project
    if reference == "auto":
        mine = runs_named(root, project, name)
        return next((directory for directory in mine if not is_finished(directory) and not is_alive(directory)), None)
    for directory in (Path(reference).resolve(), home / str(reference)):
        # A directory without it is not a run: nothing is written to it.
        if (directory / METADATA).is_file():
            return require_resumable(directory)
    runs = sorted((path.parent.name for path in home.glob(f"*/{METADATA}")), reverse=True)
    hint = closest(str(reference), ["auto", "last", *runs], listed=["auto", "last", *runs[:_MAX_SUGGESTED]])
    raise UnknownNameError(f"resume={str(reference)!r}: there is no such run in {home}. {hint}")


def runs_named(root: str | Path, project: str, name: str) -> list[Path]:
    """Return the runs of a name in a project, latest first."""
    runs = {path.parent: read_metadata(path.parent) for path in (Path(root).resolve() / project).glob(f"*/{METADATA}")}
    mine = [directory for directory, metadata in runs.items() if metadata.get("name") == name]
    # By the recorded time, not the file's: notes and a summary are written later.
    return sorted(mine, key=lambda directory: runs[directory].get("started") or 0.0, reverse=True)


def require_resumable(directory: Path) -> Path:
    """Return the directory if its run can be resumed.

    Raises:
        ConfigError: The run is still running, or the directory has links that lead out of it.
    """
    if is_alive(directory):
        raise still_running_error(directory)
    trust.reject_outside_links(directory)
    return directory


def still_running_error(directory: Path) -> ConfigError:
    """Make the error for resuming a run that another process still runs."""
    return ConfigError(f"resume={str(directory)!r}: that run is still running, in another process.")


def is_finished(directory: Path) -> bool:
    """Return whether the run finished; one that was stopped, failed or was killed can be resumed."""
    last = last_status(directory)
    return last is not None and last.status == "finished"


def acquire(directory: Path) -> bool:
    """Lock a run until this process releases it or dies; returns whether no other process has it.

    Raises:
        ConfigError: The run belongs to another user.
    """
    try:
        return files.acquire_lock(directory / LOCK)
    except PermissionError as error:
        raise ConfigError(
            f"{directory} cannot be written: it is another user's run. Resume it as that user, or start a new run."
        ) from error


def release(directory: Path) -> None:
    """Release the lock of a run."""
    files.release_lock(directory / LOCK)


def is_alive(directory: Path) -> bool | None:
    """Return whether a process holds the run; None if this user may not see that."""
    return files.is_locked(directory / LOCK)


def last_received(directory: Path) -> float | None:
    """Return when another machine last sent something of the run; None if it was recorded here."""
    try:
        return (directory / RECEIVED).lstat().st_mtime
    except OSError:
        return None


def _make(home: Path) -> Path:
    """Create a directory with a new id; the number counts the runs of the day."""
    day = time.strftime("%Y-%m-%d")
    words = f"{secrets.choice(_ADJECTIVES.split())}-{secrets.choice(_ANIMALS.split())}"
    number = 1 + sum(1 for _ in home.glob(f"{day}-*"))
    while True:
        directory = home / f"{day}-{words}-{number}"
        try:
            # Creating it is the test: two processes cannot both succeed.
            directory.mkdir()
        except FileExistsError:
            number += 1
        else:
            return directory


def user_name() -> str:
    """Return the name of this process's user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _describe_run(directory: Path, facts: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    # Only what takes no time: a thread of the session gathers the rest.
    metadata: dict[str, Any] = {
        "id": directory.name,
        "started": time.time(),
        "command": redactor.command(sys.argv),
        "cwd": redactor(str(Path.cwd())),
        "host": socket.gethostname(),
        "user": user_name(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if "git" not in facts:
        metadata["git"] = {"commit": head_commit(Path.cwd())}
    known: dict[str, Any] = clean(metadata | facts)
    for name in ("config", "notes", "tags"):
        if name in known:
            known[name] = redactor.settings(known[name])
    return known


def _write_metadata(directory: Path, metadata: dict[str, Any]) -> None:
    # Synced at every durability level: a checkpoint is found through this file.
    write_atomically(directory / METADATA, (json.dumps(metadata, indent=2) + "\n").encode())


MAX_TAGS = 32
MAX_TAG_LENGTH = 64


def checked_tags(given: Any) -> tuple[str, ...]:
    """Return tags without duplicates, in the order given.

    >>> checked_tags(["nightly", "lr-sweep", "nightly"])
    ('nightly', 'lr-sweep')

    Raises:
        OptionError: They are not a list of short strings.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise OptionError(f"tags={given!r:.200}: give a list of strings, e.g. tags=['nightly', 'lr-sweep'].")
    tags = list(given)
    for tag in tags:
        if not (isinstance(tag, str) and 0 < len(tag) <= MAX_TAG_LENGTH and tag == tag.strip() and tag.isprintable()):
            raise OptionError(
                f"tags: {tag!r:.200} is not a tag. Give strings of 1 to {MAX_TAG_LENGTH} printable characters without "
                "leading or trailing spaces, e.g. 'nightly'."
            )
    kept = tuple(dict.fromkeys(tags))
    if len(kept) > MAX_TAGS:
        raise OptionError(f"tags: {len(kept)} are given; at most {MAX_TAGS} are accepted.")
    return kept


def checked_notes(given: Any) -> str:
    """Return notes.

    Raises:
        OptionError: They are not a string.
    """
    if not isinstance(given, str):
        raise OptionError(f"notes={given!r:.200}: give a string.")
    return given

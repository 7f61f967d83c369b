"""A run's directory: ``<root>/<project>/<run id>/``, with ``run.json``, the journal and the checkpoints.

Ids are readable (``2026-11-15-brave-otter-3``) and sort by date. ``run.json`` describes the run: the configuration, the
command, host and versions, and the git commit; uncommitted changes lie beside it in ``git.diff``. It is replaced as a
whole, so a reader never sees a part of it. A lock marks a running run and ends with its process.
"""

import contextlib
import getpass
import json
import os
import platform
import secrets
import socket
import subprocess
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

METADATA = "run.json"
LOCK = "lock"
_UPDATES = threading.Lock()
"""Held while ``run.json`` is read and replaced: threads may set notes and a summary at once."""
_MAX_DIFF_BYTES = 1 << 20
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


def create(root: str | Path, project: str, facts: dict[str, Any], *, run_id: str | None = None) -> Path:
    """Create the directory and ``run.json`` of a new run; both survive a power cut.

    Args:
        facts: Added to the metadata; if it has ``git``, git is not called.
        run_id: The directory's name; a new unique one by default.

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
        _write_metadata(directory, clean(_describe_run(directory, facts)))
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
    with contextlib.suppress(OSError, ValueError):
        metadata = json.loads((directory / METADATA).read_text(encoding="utf-8"))
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


def git_metadata(directory: Path) -> dict[str, Any]:
    """Return the commit of the current directory, and write uncommitted changes to ``git.diff``."""
    try:
        # With a limit: git may hang on a network file system, and a training must start without it.
        run = {"capture_output": True, "timeout": 5, "check": True}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **run).stdout.decode().strip()  # type: ignore[call-overload]  # noqa: S607
        diff = subprocess.run(["git", "diff", "HEAD"], **run).stdout  # type: ignore[call-overload]  # noqa: S607
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        commit, diff = None, b""
    if diff:
        write_atomically(directory / "git.diff", diff[:_MAX_DIFF_BYTES])
    return {"commit": commit, "changed": bool(diff)}


def _describe_run(directory: Path, facts: dict[str, Any]) -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    metadata: dict[str, Any] = {
        "id": directory.name,
        "started": time.time(),
        "command": sys.argv,
        "cwd": str(Path.cwd()),
        "host": socket.gethostname(),
        "user": user,
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(),
    }
    if "git" not in facts:
        metadata["git"] = git_metadata(directory)
    return metadata | facts


def _write_metadata(directory: Path, metadata: dict[str, Any]) -> None:
    # Synced at every durability level: a checkpoint is found through this file.
    write_atomically(directory / METADATA, (json.dumps(metadata, indent=2) + "\n").encode())


def _packages() -> dict[str, str]:
    """Return the versions of the loaded packages that have one."""
    # A copy, made atomically: other threads may import something meanwhile.
    tops = {name: module for name, module in sys.modules.copy().items() if "." not in name and name[0] != "_"}
    others = sorted(tops.keys() - sys.stdlib_module_names)
    # From the dict, because a module's own `__getattr__` may import things or warn.
    versions = {name: getattr(tops[name], "__dict__", {}).get("__version__") for name in others}
    return {name: version for name, version in versions.items() if isinstance(version, str)}


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

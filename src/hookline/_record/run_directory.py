"""A run's directory: ``<root>/<project>/<run id>/``, with ``run.json``, the journal and the checkpoints.

Ids can be read and said (``2026-11-15-brave-otter-3``) and sort by date. ``run.json`` says what was
run: the configuration, the command, host and versions, and the git commit; changes that were not
committed lie beside it in ``git.diff``.

Tags, short words that a run is found by, and notes. They are checked before anything is recorded.
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
from collections.abc import Iterable, Mapping
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
"""Held while a file is read and replaced: threads may set notes and a summary at once."""
_DIFF_BYTES = 1 << 20
_NAME_BYTES = 255
_RUNS_NAMED = 3
_ADJECTIVES = (
    "amber bold brave bright calm clever crisp eager fair fleet gentle glad keen lively mellow noble "
    "quick quiet rapid ready sharp silver smooth steady still sturdy sunny swift tidy warm wise witty"
)
_ANIMALS = (
    "badger bear beaver crane deer dolphin eagle falcon finch fox gecko hare hawk heron ibis jay lark "
    "lynx marten mole moose otter owl panda puma raven robin seal stork swan tern wolf wren"
)


def create(root: str | Path, project: str, facts: dict[str, Any], *, run_id: str | None = None) -> Path:
    """Make the directory of a new run and write down what is known about it, so that it survives a power cut.

    Args:
        facts: What is known besides; where it has ``git``, git is not asked.
        run_id: The directory's name, which nobody else may use; one that nobody has by default.

    Raises:
        ConfigError: The project's name is no name, or the directory cannot be written.
    """
    _require_project(project)
    if project[0] == "." and run_id is None:  # whoever names the run, too, may want it out of sight
        raise ConfigError(f"project={project!r}: runs of a name that begins with '.' are never listed. Give another.")
    home = Path(root).resolve() / project
    try:
        new = [path for path in (home, *home.parents) if not path.exists()]
        home.mkdir(parents=True, exist_ok=True)
        directory = _make(home) if run_id is None else home / run_id
        directory.mkdir(exist_ok=True)
        _write_facts(directory, facts)
        for path in (directory, *new):
            sync_directory(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{home} cannot be written: {error.strerror}. Give another directory, or None to record nothing."
        ) from error
    return directory


def _require_project(project: str) -> None:
    try:
        is_plain = "\0" not in project and 0 < len(os.fsencode(project)) <= _NAME_BYTES
    except UnicodeEncodeError:  # half of a character
        is_plain = False
    if not is_plain or project == ".." or Path(project).name != project:
        raise ConfigError(f"project={project!r:.80}: give a name without '/', of {_NAME_BYTES} bytes at most.")


def update(directory: Path, name: str, change: Any) -> None:
    """Change one thing that ``run.json`` says, as a whole or not at all.

    Args:
        change: The new value, None to remove it, or, of a mapping, a pair of its new items and the names to remove.
    """
    with _UPDATES:
        known = read_metadata(directory)
        known[name] = _changed(known.get(name), *change) if isinstance(change, tuple) else clean(change)
        kept = {key: value for key, value in known.items() if key != name or value is not None}
        _replace_facts(directory, kept)


def _changed(there: Any, new: Mapping[str, Any], removed: Iterable[str]) -> dict[str, Any]:
    before = there if isinstance(there, dict) else {} if there is None else {"config": there}
    gone = set(removed)
    return {name: value for name, value in {**before, **clean(dict(new))}.items() if name not in gone}


def read_metadata(directory: Path) -> dict[str, Any]:
    """What ``run.json`` says; nothing where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads((directory / METADATA).read_text(encoding="utf-8"))
        return known if isinstance(known, dict) else {}
    return {}


def find(root: str | Path, project: str, reference: str | Path, *, name: str) -> Path | None:
    """The run to take up: a directory, an id in the project, or with ``"auto"`` the latest unfinished one of the name.

    Raises:
        UnknownNameError: There is no such run. With ``"auto"`` there need not be one.
    """
    home = Path(root).resolve() / project
    if reference == "auto":
        mine = runs_named(root, project, name)
        return next((directory for directory in mine if not is_finished(directory) and not is_alive(directory)), None)
    for directory in (Path(reference).resolve(), home / str(reference)):
        if (directory / METADATA).is_file():
            return require_resumable(directory)
    runs = sorted((path.parent.name for path in home.glob(f"*/{METADATA}")), reverse=True)
    hint = closest(str(reference), ["auto", "last", *runs], listed=["auto", "last", *runs[:_RUNS_NAMED]])
    raise UnknownNameError(f"resume={str(reference)!r}: there is no such run in {home}. {hint}")


def runs_named(root: str | Path, project: str, name: str) -> list[Path]:
    """The runs of a name in a project, the one that was started last first."""
    runs = {path.parent: read_metadata(path.parent) for path in (Path(root).resolve() / project).glob(f"*/{METADATA}")}
    mine = [directory for directory, known in runs.items() if known.get("name") == name]
    # by what it says, not by the file's time: notes and a summary are written later
    return sorted(mine, key=lambda directory: runs[directory].get("started") or 0.0, reverse=True)


def require_resumable(directory: Path) -> Path:
    """The directory of a run that somebody wants to go on with.

    Raises:
        ConfigError: It is still running, or has links that lead out of it.
    """
    if is_alive(directory):
        raise still_running_error(directory)
    trust.reject_outside_links(directory)
    return directory


def still_running_error(directory: Path) -> ConfigError:
    """What is said to whoever wants to take up a run that somebody holds."""
    return ConfigError(f"resume={str(directory)!r}: that run is still running, in another process.")


def is_finished(directory: Path) -> bool:
    """Whether the run finished; one that was stopped, failed or was killed can be taken up."""
    last = last_status(directory)
    return last is not None and last.status == "finished"


def acquire(directory: Path) -> bool:
    """Mark a run as alive until this process lets go of it or dies; whether nobody else holds it.

    Raises:
        ConfigError: It is another user's.
    """
    try:
        return files.acquire_lock(directory / LOCK)
    except PermissionError as error:
        raise ConfigError(
            f"{directory} cannot be written: it is another user's run. Resume it as that user, or start a new run."
        ) from error


def release(directory: Path) -> None:
    """Take the mark away."""
    files.release_lock(directory / LOCK)


def is_alive(directory: Path) -> bool | None:
    """Whether a process holds the run; None where its user lets nobody else see that."""
    return files.is_locked(directory / LOCK)


def _make(home: Path) -> Path:
    """A directory whose id nobody has; the number counts the runs of the day."""
    day = time.strftime("%Y-%m-%d")
    words = f"{secrets.choice(_ADJECTIVES.split())}-{secrets.choice(_ANIMALS.split())}"
    number = 1 + sum(1 for _ in home.glob(f"{day}-*"))
    while True:
        directory = home / f"{day}-{words}-{number}"
        try:
            directory.mkdir()
        except FileExistsError:
            number += 1
        else:
            return directory


def git_metadata(directory: Path) -> dict[str, Any]:
    """The commit of the current directory; what was changed since is written to ``git.diff``."""
    commit, diff = _git()
    if diff:
        write_atomically(directory / "git.diff", diff[:_DIFF_BYTES])
    return {"commit": commit, "changed": bool(diff)}


def _write_facts(directory: Path, facts: dict[str, Any]) -> None:
    known: dict[str, Any] = {
        "id": directory.name,
        "started": time.time(),
        "command": sys.argv,
        "cwd": str(Path.cwd()),
        "host": socket.gethostname(),
        "user": _user(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(),
    }
    if "git" not in facts:
        known["git"] = git_metadata(directory)
    _replace_facts(directory, clean(known | facts))


def _replace_facts(directory: Path, known: dict[str, Any]) -> None:
    write_atomically(directory / METADATA, (json.dumps(known, indent=2) + "\n").encode())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _packages() -> dict[str, str]:
    """The versions of the packages that are loaded and say theirs."""
    # A copy, in one operation: other threads may import something meanwhile.
    tops = {name: module for name, module in sys.modules.copy().items() if "." not in name and name[0] != "_"}
    others = sorted(tops.keys() - sys.stdlib_module_names)
    versions = {name: getattr(tops[name], "__dict__", {}).get("__version__") for name in others}
    return {name: version for name, version in versions.items() if isinstance(version, str)}


def _git() -> tuple[str | None, bytes]:
    """The commit of the current directory, and what was changed since; nothing where there is no git."""
    try:
        run = {"capture_output": True, "timeout": 5, "check": True}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **run).stdout.decode().strip()  # type: ignore[call-overload]  # noqa: S607
        diff = subprocess.run(["git", "diff", "HEAD"], **run).stdout  # type: ignore[call-overload]  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        return None, b""
    return commit, diff


MAX_TAGS = 32
MAX_TAG_LENGTH = 64


def checked_tags(given: Any) -> tuple[str, ...]:
    """Tags as they are kept: each once, in the order given.

    >>> checked_tags(["nightly", "lr-sweep", "nightly"])
    ('nightly', 'lr-sweep')

    Raises:
        OptionError: They are not a list of short texts.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise OptionError(f"tags={given!r:.200}: give a list of texts, e.g. tags=['nightly', 'lr-sweep'].")
    tags = list(given)
    for tag in tags:
        if not isinstance(tag, str) or not _is_tag(tag):
            raise OptionError(
                f"tags: {tag!r:.200} is not a tag. Give strings of 1 to {MAX_TAG_LENGTH} printable characters without "
                "leading or trailing spaces, e.g. 'nightly'."
            )
    kept = tuple(dict.fromkeys(tags))
    if len(kept) > MAX_TAGS:
        raise OptionError(f"tags: {len(kept)} are given; at most {MAX_TAGS} are accepted.")
    return kept


def checked_notes(given: Any) -> str:
    """Notes as they are kept: any text.

    Raises:
        OptionError: They are no text.
    """
    if not isinstance(given, str):
        raise OptionError(f"notes={given!r:.200}: give a text.")
    return given


def _is_tag(text: str) -> bool:
    return 0 < len(text) <= MAX_TAG_LENGTH and text == text.strip() and text.isprintable()

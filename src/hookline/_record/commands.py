"""Commands to a live run, and the mailbox beside its journal that they go through.

    <run>/control/offer.json        what the run accepts: commands, parameters, subscribers
    <run>/control/inbox/*.json      one file per command, until the run has read it
    <run>/control/log.jsonl         every state that a command reached, with its result
    <run>/control/flag              one byte, mapped by the run, which a sender sets

A server keeps the same files for a run that another machine sends to it: it passes on what is in the inbox, and gets
copies of the offer and of the log (`hookline.sinks.hookline_control`).

A sender writes a file and then sets the flag. The run clears the flag before it looks into the inbox, so no command is
missed. While nobody sends anything, the run reads one byte of mapped memory per step and makes no system call.

A command is applied at most once. The run writes that it received a command before it applies it, so one that is
delivered again, or whose run was killed in between, is never applied a second time. The author of a command is the
owner of its file; the directory belongs to the owner of the run and is closed to other users.
"""

import contextlib
import json
import math
import mmap
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

import msgspec

from hookline._engine.defaults import ROOT, resolved
from hookline._engine.errors import OptionError, RefusedError, UnknownNameError, closest
from hookline._record import run_directory, segment
from hookline._record.files import exclusive, is_locked, write_atomically
from hookline._record.records import is_too_deep, valid_text

DIRECTORY = "control"
_FLAG = f"{DIRECTORY}/flag"
COMMAND_BYTES = 16 << 10
"""How large a command may be."""
AT_ONCE = 100
"""How many commands a run takes at one step boundary, and how many may wait for a sender to add another."""
MOST_WAITING = 1000
"""How many commands may wait in all; a run refuses those behind."""
LOG_BYTES, OFFER_BYTES = 64 << 20, 4 << 20
"""How much of a log and of an offer is read."""
EXPIRES_SECONDS = 3600.0
MOST_SECONDS = 30 * 86400.0
SILENT_SECONDS = 60.0
"""A run of another machine that has sent nothing for so long takes no commands."""
BUSY = b"\1"
"""The flag of a run that is to look into its inbox."""
OFF = "HOOKLINE_CONTROL"
"""The environment variable that switches control off."""

State = Literal["sent", "received", "applied", "refused", "failed", "expired"]
FINAL = frozenset({"applied", "refused", "failed", "expired"})
BUILT_IN: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "stop": {"reason": (str,)},
    "checkpoint": {},
    "validate": {},
    "pause": {"limit": (int, float)},
    "continue": {},
    "set": {"name": (str,), "value": (int, float, str)},
    "hooks.enable": {"name": (str,)},
    "hooks.disable": {"name": (str,)},
    "hooks.schedule": {"name": (str,), "every": (int,), "start": (int,)},
    "hooks.add": {"use": (str,), "with": (dict,), "every": (int,), "start": (int,), "name": (str,)},
    "hooks.remove": {"name": (str,)},
}
"""The commands of every run, with the types of their arguments."""
REQUIRED = {
    "set": ("name", "value"),
    "hooks.enable": ("name",),
    "hooks.disable": ("name",),
    "hooks.remove": ("name",),
    "hooks.schedule": ("name", "every"),
    "hooks.add": ("use",),
}
_ID = re.compile(r"[0-9A-Za-z_-]{8,64}\Z")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}\Z")
_PAGE = mmap.PAGESIZE
_CODE = re.compile(r"[^\s:]*[^\W\d][^\s:]*:")
"""What callbacks could take for ``module:Name``, whose module is imported whether or not it has the name."""
POLL_SECONDS = 0.02


class Command(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request to a live run from outside.

    Attributes:
        name: What to do: ``stop``, ``set``, ``hooks.disable``, or a command that a callback offers.
        arguments: What it needs, as plain values; `on_command` may change them.
        author: Who sent it.
        via: The address of the server that passed it on, or ``mcp`` for an agent's; empty for a command that a person
            or a program of this machine sent.
        time: When it was sent, in seconds since 1970.
        expires: When it is no longer to be applied.
    """

    id: str
    name: str
    arguments: dict[str, Any] = {}
    author: str = ""
    via: str = ""
    time: float = 0.0
    expires: float = 0.0
    refusal: str | None = None
    """Why it is refused, once `refuse` was called."""

    def refuse(self, reason: str) -> None:
        """Refuse the command, in `on_command`."""
        self.refusal = str(reason)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({given})"


class Outcome(msgspec.Struct, kw_only=True):
    """A state that a command has reached.

    Attributes:
        state: ``sent``, ``received``, ``applied``, ``refused``, ``failed`` or ``expired``.
        result: What came of it, in words.
        step: The completed steps of the run then; None before it was received.
        command: What was asked for, with the arguments as they were applied.
        again: Whether a resumed run applied it again, at the step at which it was applied before.
        supersedes: Earlier commands that a resume no longer applies because of this one.
    """

    id: str
    state: State
    result: str = ""
    time: float = 0.0
    step: int | None = None
    command: Command | None = None
    again: bool = False
    supersedes: list[str] = []
    resumed_at: int | None = None
    """In a line that a resume writes: the step of its checkpoint, behind which commands were dropped."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the command."""
        return self.state in FINAL


_decoder = msgspec.json.Decoder(Command)
_outcomes = msgspec.json.Decoder(Outcome)


def new_command(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    author: str = "",
    via: str = "",
    expires: float = EXPIRES_SECONDS,
    id: str | None = None,  # noqa: A002 - what the field is called
) -> Command:
    """Make a command, and check everything about it that does not depend on the run.

    Args:
        expires: After how many seconds it is no longer to be applied.
        id: Its id; a command with an id that was used before is not applied again.

    Raises:
        OptionError: It is not a command.
    """
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 < expires <= MOST_SECONDS:
        raise OptionError(f"expires={expires!r}: give seconds, more than 0 and at most {MOST_SECONDS:,.0f}.")
    now = time.time()
    command = Command(
        id=secrets.token_hex(8) if id is None else id,
        name=name,
        arguments={key: value for key, value in (arguments or {}).items() if value is not None},
        author=author,
        via=via,
        time=now,
        expires=now + expires,
    )
    problem = problem_of(command)
    if problem is not None:
        raise OptionError(problem)
    return command


def problem_of(command: Command) -> str | None:
    """Return why a command is invalid for any run, or None."""
    if not _ID.match(command.id):
        return f"id={command.id!r:.80}: give 8 to 64 letters, digits, '-' and '_'."
    if not _NAME.match(command.name):
        return f"{command.name!r:.80} is not the name of a command."
    if not all(math.isfinite(each) for each in (command.time, command.expires)):
        return "The time of a command has to be finite."
    found = _not_plain(command.arguments)
    if found is not None:
        return f"{command.name}: {found!r:.80} is not a plain value. Give finite numbers, texts, lists and mappings."
    if len(msgspec.json.encode(command)) > COMMAND_BYTES:
        return f"{command.name}: the command is longer than {COMMAND_BYTES:,} bytes."
    if command.name in BUILT_IN:
        return _problem_of_arguments(command.name, command.arguments)
    return f"{closest(command.name, BUILT_IN)}" if "." in command.name else None


_KINDS = {int: "a whole number", float: "a number", str: "a string", dict: "an object"}


def _problem_of_arguments(name: str, arguments: Mapping[str, Any]) -> str | None:
    accepted = BUILT_IN[name]
    for key, value in arguments.items():
        if key not in accepted:
            known = ", ".join(accepted) or "none"
            return f"{name}: there is no argument {key!r:.80}; it takes {known}."
        if not isinstance(value, accepted[key]) or (isinstance(value, bool) and key != "value"):
            kinds = [kind for kind in accepted[key] if kind is not int or float not in accepted[key]]
            return f"{name}: {key}={value!r:.80}: give {' or '.join(_KINDS[kind] for kind in kinds)}."
    missing = [key for key in REQUIRED.get(name, ()) if key not in arguments]
    if missing:
        return f"{name}: {missing[0]} is missing."
    for key, least in (("every", 1), ("start", 0)):
        if key in arguments and arguments[key] < least:
            return f"{name}: {key}={arguments[key]}; give at least {least}."
    if not 0 < arguments.get("limit", 1) <= MOST_SECONDS:
        return f"pause: limit={arguments['limit']!r}; give seconds, more than 0 and at most {MOST_SECONDS:,.0f}."
    return _problem_of_addition(arguments) if name == "hooks.add" else None


def _problem_of_addition(arguments: Mapping[str, Any]) -> str | None:
    given = list(_texts(arguments.get("with", {})))
    code = next((text for text in [arguments["use"], *given] if _CODE.match(text)), None)
    if code is not None:
        return f"hooks.add: {code!r:.80} names code. A command adds registered names only, without code in arguments."
    outside = next((text for text in given if _is_outside(text)), None)
    if outside is not None:
        return f"hooks.add: {outside!r:.80} is a path outside of the run's directory. Give a path inside of it."
    return None


def _is_outside(text: str) -> bool:
    path = PurePath(text)
    return path.is_absolute() or ".." in path.parts or text.startswith("~")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _not_plain(value: Any) -> Any:
    """Return the first part of a value that JSON cannot hold exactly, or None."""
    if isinstance(value, dict | list) and is_too_deep(value):
        return "a value nested too deeply"
    if isinstance(value, dict):
        parts = [key for key in value if not isinstance(key, str)]
        parts += [found for item in value.values() if (found := _not_plain(item)) is not None]
        return parts[0] if parts else None
    if isinstance(value, list):
        return next((found for item in value if (found := _not_plain(item)) is not None), None)
    if isinstance(value, bool | str):
        return None
    if isinstance(value, int):
        return None if abs(value) < 2**53 else value
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    return "None" if value is None else value


class Flag:
    """The byte of mapped memory that senders set; ``flag.map[0]``."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(self.descriptor, bytes(_PAGE), 0)
            self.map = mmap.mmap(self.descriptor, _PAGE)
        except BaseException:
            os.close(self.descriptor)
            raise
        segment.guard(self)  # a file that is truncated must not end the training

    def restore(self) -> bool:
        """Give a truncated file its size back."""
        try:
            os.ftruncate(self.descriptor, _PAGE)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Unmap the file."""
        segment.release(self)
        self.map.close()
        os.close(self.descriptor)


class Taken(NamedTuple):
    """What a run finds in its inbox: commands, and what it refuses without looking further."""

    commands: list[Command]
    refused: list[tuple[Command, str]]


class Mailbox:
    """The files of a run's control, for the run and for senders.

    Args:
        run_dir: The run's directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.directory = run_dir / DIRECTORY
        self.inbox = self.directory / "inbox"
        self.log = self.directory / "log.jsonl"
        self.offer_file = self.directory / "offer.json"
        self.flag_file = run_dir / _FLAG

    # The run's side

    def create(self) -> Flag:
        """Create missing files, for this user alone, and map the flag."""
        self._make_directories()
        return Flag(self.flag_file)

    def _make_directories(self) -> None:
        for path in (self.directory, self.inbox):
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{path} is not a directory of this user")

    def take(self, known: Mapping[str, Outcome]) -> tuple[Taken, bool]:
        """Take commands out of the inbox, oldest first; returns them, and whether more wait.

        Args:
            known: What is known of earlier commands, by id; these are not taken again.
        """
        try:
            names = self.waiting_names()
        except OSError:
            return Taken([], []), False
        taken = Taken([], [])
        for name in [*names[:AT_ONCE], *names[MOST_WAITING : MOST_WAITING + AT_ONCE]]:
            command, problem = self._read(self.inbox / name)
            is_new = command.id not in known and all(command.id != each.id for each in taken.commands)
            if is_new and problem is None and name in names[MOST_WAITING:]:
                problem = f"More than {MOST_WAITING:,} commands were waiting."
            if is_new and problem is not None:
                taken.refused.append((command, problem))
            elif is_new:
                taken.commands.append(command)
        return taken, len(names) > AT_ONCE

    def forget(self, wanted: Container[str]) -> None:
        """Remove the files of commands with these ids, which are in the log."""
        with contextlib.suppress(OSError):
            for name in self.waiting_names():
                if _id_of(name) in wanted:
                    self._remove(self.inbox / name)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:  # a directory: were it to stay, it would take the place of a command at each boundary
            shutil.rmtree(path, ignore_errors=True)

    def waiting_names(self) -> list[str]:
        """Return the names of the files in the inbox, oldest first."""
        with os.scandir(self.inbox) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith(".json"))

    def _read(self, path: Path) -> tuple[Command, str | None]:
        """Read a file that anybody may have put there; returns the command and what is wrong with it."""
        unread = Command(id=_id_of(path.name), name="unknown")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return unread, f"The command cannot be read: {error.strerror}."
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return unread, "The command is not a regular file."
            if found.st_uid not in (os.geteuid(), 0):
                return unread, f"The command comes from user {found.st_uid}, and the run belongs to {os.geteuid()}."
            content = os.pread(descriptor, COMMAND_BYTES + 1, 0)
        finally:
            os.close(descriptor)
        try:
            command = _decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return unread, f"The command cannot be read: {error}"
        if command.id != unread.id:
            return unread, "The command has another id than its file."
        own = run_directory.user_name()
        if not command.via and command.author not in ("", own):
            return command, f"The author {command.author!r:.80} is not {own!r}, who owns the command."
        command.author, command.refusal = command.author or own, None
        return command, problem_of(command)

    def write(self, outcome: Outcome) -> None:
        """Append a state to the log."""
        line = msgspec.json.encode(outcome) + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.log, flags, 0o600)
        try:
            # One write: a reader never sees the lines of two processes mixed.
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def write_offer(self, offer: Mapping[str, Any]) -> None:
        """Replace the run's offer."""
        write_atomically(self.offer_file, json.dumps(offer).encode(), sync=False)

    # Both sides

    def outcomes(self) -> list[Outcome]:
        """Return all states in the log, oldest first; a damaged line is left out."""
        return self.outcomes_from(0)[0]

    def outcomes_from(self, offset: int) -> tuple[list[Outcome], int]:
        """Return the states behind an offset in the log, and the offset behind them; at most `LOG_BYTES` of them."""
        content = _content(self.log, LOG_BYTES, offset)
        if content is None:
            return [], offset
        whole = content[: content.rfind(b"\n") + 1]
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found.append(_outcomes.decode(line))
        return found, offset + len(whole)

    def waiting(self) -> list[Outcome]:
        """Return the commands that the run has not received yet, as ``sent``, oldest first."""
        found = []
        with contextlib.suppress(OSError):
            for name in self.waiting_names()[:AT_ONCE]:
                command, problem = self._read(self.inbox / name)
                if problem is None:
                    state: State = "sent" if command.expires > time.time() else "expired"
                    found.append(Outcome(id=command.id, state=state, time=command.time, command=command))
        known = {each.id for each in self.outcomes()} if found else set()
        return [each for each in found if each.id not in known]

    def offer(self) -> dict[str, Any] | None:
        """Return the offer that the run last wrote; None if it never did."""
        try:
            found = json.loads(_content(self.offer_file, OFFER_BYTES) or b"")
        except (ValueError, RecursionError):
            return None
        return found if _is_offer(found) else None

    # The side of a server that passes commands on to another machine, where the run is

    def open_copy(self) -> bool:
        """Create what is missing of the copy that a server keeps, clear its flag, and return whether it was set."""
        self._make_directories()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.flag_file, flags, 0o600)
        try:
            was_set = os.pread(descriptor, 1, 0) == BUSY
            if was_set:  # cleared first: a command that is posted from here on sets it again
                os.pwrite(descriptor, b"\0", 0)
        finally:
            os.close(descriptor)
        return was_set

    def is_flagged(self) -> bool:
        """Whether a command was posted, or the offer was asked for, since the flag was cleared."""
        return is_flagged(self.run_dir)

    def flag_changed_at(self) -> float:
        """Return when the flag was last set or cleared, in seconds since 1970; 0 if never."""
        try:
            return self.flag_file.lstat().st_mtime
        except OSError:
            return 0.0

    def log_from(self, offset: int, limit: int) -> bytes:
        """Return whole lines of the log from an offset on, of at most so many bytes."""
        content = _content(self.log, limit, offset) or b""
        return content[: content.rfind(b"\n") + 1]

    def copy_log(self, offset: int, lines: bytes) -> int:
        """Add lines of the run's log at an offset of the copy, and return its size; at 0 they replace all of it.

        Lines at another offset than the copy's end are not added, nor are those that would make it too large to read.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.log, flags, 0o600)
        try:
            with exclusive(descriptor):
                size = os.fstat(descriptor).st_size
                if lines and offset in (0, size) and offset + len(lines) <= LOG_BYTES:
                    os.ftruncate(descriptor, offset)
                    os.pwrite(descriptor, lines, offset)
                return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    # The sender's side

    def wake(self) -> None:
        """Set the flag: the run looks into its inbox, and brings its offer up to date."""
        # Without waiting: in a directory of somebody else, it may be a pipe that nobody reads.
        descriptor = os.open(self.flag_file, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.pwrite(descriptor, BUSY, 0)
        finally:
            os.close(descriptor)

    def post(self, command: Command) -> None:
        """Put a command into the inbox, and wake the run.

        Raises:
            RefusedError: Too many wait already, or the run belongs to another user.
        """
        waiting = 0
        with contextlib.suppress(OSError):  # writing fails below, with a message
            waiting = len(self.waiting_names())
        if waiting >= AT_ONCE:
            raise RefusedError(
                f"{waiting} commands wait for {self.run_dir.name} already, which takes {AT_ONCE} per step. "
                "Send this one when some are answered."
            )
        try:
            name = f"{int(command.time * 1e9):020d}-{command.id}.json"
            write_atomically(self.inbox / name, msgspec.json.encode(command), sync=False)
            self.wake()
        except PermissionError as error:
            raise RefusedError(f"{self.run_dir} belongs to another user, and only its owner controls it.") from error
        except OSError as error:
            raise RefusedError(f"The command cannot be written: {error}") from error


def is_flagged(run_dir: Path | str) -> bool:
    """Whether a command for a run was posted, or its offer was asked for, since it looked last."""
    return _content(f"{run_dir}/{_FLAG}", 1) == BUSY


def _content(path: Path | str, limit: int, offset: int = 0) -> bytes | None:
    """Return the content of a file in an untrusted directory; None if it is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(descriptor, limit, offset) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_offer(found: Any) -> bool:
    """Whether decoded JSON has the form of an offer as far as senders rely on it."""
    if not isinstance(found, dict) or not isinstance(found.get("time", 0.0), int | float):
        return False
    if not all(isinstance(found.get(name, {}), dict) for name in ("cannot", "commands", "tunables")):
        return False
    if not isinstance(found.get("subscribers", []), list):
        return False
    return all(
        isinstance(each, dict)
        and each.get("type") in ("float", "int", "bool", "str")
        and isinstance(each.get("choices", []), list)
        and all(isinstance(each.get(bound, 0), int | float) for bound in ("min", "max"))
        for each in found.get("tunables", {}).values()
    )


def _id_of(name: str) -> str:
    """Return the id in the name of a command's file."""
    # A name need not be text, but the id goes into the log.
    return valid_text(name.removesuffix(".json").partition("-")[2])


class RunControl:
    """Sends commands to a live run; made by `hl.control`.

    Each method sends one command and returns its `Outcome`: at once as ``sent``, or, with ``wait=10``, what has become
    of it after at most so many seconds.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)
        self.mailbox = Mailbox(self.run_dir)
        is_experiment = (self.run_dir / run_directory.EXPERIMENT_LOCK).exists()
        self._lock = self.run_dir / (run_directory.EXPERIMENT_LOCK if is_experiment else run_directory.LOCK)

    def stop(self, reason: str = "", **options: Any) -> Outcome:
        """Stop the training at the next step boundary."""
        return self.send("stop", {"reason": reason} if reason else {}, **options)

    def checkpoint(self, **options: Any) -> Outcome:
        """Save a checkpoint."""
        return self.send("checkpoint", **options)

    def validate(self, **options: Any) -> Outcome:
        """Validate now."""
        return self.send("validate", **options)

    def pause(self, limit: float | None = None, **options: Any) -> Outcome:
        """Save a checkpoint and wait at the step boundary, for at most ``limit`` seconds (an hour by default)."""
        return self.send("pause", {"limit": limit}, **options)

    def unpause(self, **options: Any) -> Outcome:
        """Continue after a pause."""
        return self.send("continue", **options)

    def set(self, name: str, value: Any, **options: Any) -> Outcome:
        """Set a parameter that the run offers, such as ``learning_rate``."""
        return self.send("set", {"name": name, "value": value}, **options)

    def enable(self, name: str, **options: Any) -> Outcome:
        """Switch a subscriber on again."""
        return self.send("hooks.enable", {"name": name}, **options)

    def disable(self, name: str, **options: Any) -> Outcome:
        """Switch a subscriber off."""
        return self.send("hooks.disable", {"name": name}, **options)

    def schedule(self, name: str, every: int, start: int | None = None, **options: Any) -> Outcome:
        """Run a subscriber every N steps, after the first ``start``."""
        return self.send("hooks.schedule", {"name": name, "every": every, "start": start}, **options)

    def add(
        self, use: str, arguments: Mapping[str, Any] | None = None, *, every: int | None = None, **options: Any
    ) -> Outcome:
        """Add a registered callback or hook by its name, with arguments."""
        return self.send("hooks.add", {"use": use, "with": dict(arguments or {}), "every": every}, **options)

    def remove(self, name: str, **options: Any) -> Outcome:
        """Remove a subscriber."""
        return self.send("hooks.remove", {"name": name}, **options)

    def send(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        wait: float | None = None,
        expires: float = EXPIRES_SECONDS,
        id: str | None = None,  # noqa: A002 - what the field is called
    ) -> Outcome:
        """Send any command: one of the built-in ones, or one that a callback of the run offers.

        Args:
            name: Its name, such as ``set``, ``hooks.disable`` or ``lower_lr``.
            arguments: Its arguments.
            wait: Wait so many seconds for what becomes of it.
            expires: After how many seconds it is no longer to be applied.
            id: Its id. One that was used before is not sent again: the earlier outcome is returned.

        Raises:
            OptionError: The command or an argument is wrong.
            RefusedError: The run is over, does not accept it, or has too many waiting.
        """
        command = new_command(name, arguments, author=run_directory.user_name(), expires=expires, id=id)
        return self.deliver(command, wait=wait)

    def deliver(self, command: Command, *, wait: float | None = None) -> Outcome:
        """Send a command that was made elsewhere, such as on a server."""
        known = self.outcome(command.id) or next((e for e in self.mailbox.waiting() if e.id == command.id), None)
        if known is not None:
            return known
        check_offer(self.require_offer(), command)
        _, offset = self.mailbox.outcomes_from(0)
        self.mailbox.post(command)
        sent = Outcome(id=command.id, state="sent", time=command.time, command=command)
        return sent if wait is None else self._wait(sent, wait, offset)

    def outcome(self, id: str) -> Outcome | None:  # noqa: A002 - what the field is called
        """Return the latest state of a command that the run has received."""
        return next((each for each in reversed(self.mailbox.outcomes()) if each.id == id), None)

    def history(self) -> list[Outcome]:
        """Return the latest state of each command that the run has received, oldest first."""
        return list({each.id: each for each in self.mailbox.outcomes() if each.command is not None}.values())

    def offer(self) -> dict[str, Any] | None:
        """Return the run's offer: its commands, parameters and subscribers; None if it does not listen."""
        return self.mailbox.offer()

    @property
    def is_over(self) -> bool:
        """Whether no process runs it; of a run of another machine, that is not known here."""
        return run_directory.last_received(self.run_dir) is None and is_locked(self._lock) is False

    def require_offer(self) -> dict[str, Any]:
        """Return the run's offer.

        Raises:
            RefusedError: It is over, or does not listen to commands.
        """
        name = self.run_dir.name
        contact = run_directory.last_received(self.run_dir)
        if self.is_over:
            raise RefusedError(f"{name} is over: no process runs it.")
        # Through a link, a command would reach another run than the one that it was allowed for.
        offer = None if self.mailbox.directory.is_symlink() else self.mailbox.offer()
        if offer is None:
            raise RefusedError(
                f"{name} does not listen to commands: it was started with control=False or {OFF}=off, by another user, "
                "or by a version without control; or its sink has control=False."
            )
        if not offer.get("listens"):
            raise RefusedError(f"{name} does not listen to commands: {offer.get('reason') or 'it has ended.'}")
        if contact is not None and (silence := time.time() - contact) > SILENT_SECONDS:
            raise RefusedError(f"{name} is silent: its machine has sent nothing for {silence:,.0f} s.")
        return offer

    def _wait(self, sent: Outcome, seconds: float, offset: int) -> Outcome:
        deadline, latest = time.monotonic() + seconds, sent
        while True:
            found, offset = self.mailbox.outcomes_from(offset)
            latest = next((each for each in reversed(found) if each.id == sent.id), latest)
            if latest.is_final or time.monotonic() >= deadline:
                return latest
            time.sleep(POLL_SECONDS)

    def __repr__(self) -> str:
        return f"<control of {self.run_dir.name}>"


def check_offer(offer: Mapping[str, Any], command: Command) -> None:
    """Refuse a command that the run does not offer; the run checks it again, by what is there then.

    Raises:
        RefusedError: The run cannot do this, or the value is out of bounds.
        UnknownNameError: The run has no such command or parameter.
    """
    cannot: Mapping[str, str] = offer.get("cannot", {})
    if command.name in cannot:
        raise RefusedError(f"{command.name}: {cannot[command.name]}")
    own = offer.get("commands", {})
    if command.name not in BUILT_IN and command.name not in own:
        raise UnknownNameError(f"There is no command {command.name!r}. {closest(command.name, [*BUILT_IN, *own])}")
    if command.name == "set":
        tunables, name = offer.get("tunables", {}), command.arguments["name"]
        if name not in tunables:
            raise UnknownNameError(unknown_parameter(name, tunables))
        problem = problem_of_value(name, tunables[name], command.arguments["value"])
        if problem is not None:
            raise RefusedError(problem)


def unknown_parameter(name: str, offered: Iterable[str]) -> str:
    """Return the message for a parameter that the run does not offer."""
    known = list(offered)
    hint = "" if known else " Offer it with run.tunable()."
    return f"The run offers no parameter {name!r:.80}. {closest(name, known)}{hint}"


def problem_of_value(name: str, offered: Mapping[str, Any], value: Any) -> str | None:
    """Return why a value does not fit the type and the bounds of a parameter, or None."""
    kind, choices = offered["type"], offered.get("choices")
    fits: dict[str, Callable[[Any], bool]] = {
        "float": lambda given: isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given),
        "int": lambda given: isinstance(given, int) and not isinstance(given, bool),
        "bool": lambda given: isinstance(given, bool),
        "str": lambda given: isinstance(given, str),
    }
    if not fits[kind](value):
        article = {"float": "a finite number", "int": "a whole number", "bool": "true or false", "str": "a text"}[kind]
        return f"{name}={value!r:.80}: give {article}."
    if choices is not None and value not in choices:
        return f"{name}={value!r:.80}: give one of {', '.join(map(repr, choices))}."
    least, most = offered.get("min"), offered.get("max")
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = [
            f"{words} {bound:g}" for words, bound in (("at least", least), ("at most", most)) if bound is not None
        ]
        return f"{name}={value!r:.80}: give {' and '.join(bounds)}."
    return None


def control(run: Any, *, root: str | Path = ROOT) -> RunControl:
    """Return the object that sends commands to a live run: ``hl.control("latest").stop("too high")``.

    Args:
        run: The run's directory or id, ``"latest"`` for the run that was started last, or a `Run` of this process. Or
            the directory of an experiment.
        root: The directory of the runs, by default that of ``HOOKLINE_ROOT``, or ``runs``.

    Raises:
        UnknownNameError: There is no such run.
    """
    root = resolved(root)
    own = getattr(run, "dir", None)
    if not isinstance(run, str | os.PathLike):
        if own is None:
            raise OptionError(f"control({run!r:.80}): give a run's directory or id, or a run that is recorded.")
        return RunControl(own)
    if any((Path(run) / name).is_file() for name in (run_directory.METADATA, run_directory.EXPERIMENT_LOCK)):
        return RunControl(Path(run).resolve())
    known = {path.parent.name: path.parent for path in Path(root).resolve().glob(f"*/*/{run_directory.METADATA}")}
    if str(run) == "latest" and known:
        started = {path: run_directory.read_metadata(path).get("started") for path in known.values()}
        times = {path: at if isinstance(at, int | float) else 0.0 for path, at in started.items()}
        return RunControl(max(times, key=lambda path: times[path]))
    name = str(run).rpartition("/")[2]
    if name not in known or (Path(run).parent.name and known[name].parent.name != Path(run).parent.name):
        raise UnknownNameError(f"There is no run {str(run)!r} in {Path(root).resolve()}. {closest(str(run), known)}")
    return RunControl(known[name])

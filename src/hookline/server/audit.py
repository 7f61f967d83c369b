"""`AuditLog`: who did what on a server, in ``<root>/.hookline/audit.jsonl``, one JSON object per line.

Guarantees:

- A line is appended and never changed. It is brought to the disk within `SYNC_SECONDS`, and when the log is closed: a
  crash of the machine may lose the last seconds.
- Only the owner can read the files. A file that would exceed `MAX_BYTES` becomes ``audit.jsonl.1``, and so on;
  `KEPT_FILES` old files are kept. Several servers and commands may write at the same time.
- Events that a client can cause at will, such as failed logins, are counted: the first one gets a line, the others of
  the next `COUNT_SECONDS` one line with their number. At most `COUNTED_KEYS` different ones are distinguished. Counting
  never waits for the disk: a thread writes these lines.
- No line contains a token. Text from clients is cut.
- An error of the disk is logged once a minute and stops no request.
"""

import contextlib
import getpass
import logging
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import ConfigError
from hookline._record import files
from hookline.server.tokens import FOLDER, Principal, ProjectScope, redact

logger = logging.getLogger("hookline")

AUDIT_FILE = "audit.jsonl"
MAX_BYTES = 8 << 20
KEPT_FILES = 4
SYNC_SECONDS = 2.0
COUNT_SECONDS = 60.0
COUNTED_KEYS = 200
_REMEMBERED = 10_000
_MAX_TEXT = 300
_TAIL = 1 << 16
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the log.

    Attributes:
        time: Seconds since 1970; of the first one if several are counted.
        action: ``token.created``, ``token.rotated``, ``token.revoked``, ``token.rejected``, ``run.claimed``,
            ``blobs.refused``, ``run.edited``, ``run.deleted``, ``samples.annotated``, and from MLflow's clients
            ``run.written``, ``run.restored`` and ``experiment.created``, ``.edited``, ``.deleted`` or ``.restored``.
        token: The id of the token; empty if it is unknown.
        name: The name of the token, or of the user of a command.
        address: The client's address; empty for a command on the server's machine.
        project: The project that it concerns, if it concerns one.
        target: The run or the token that it concerns.
        result: ``ok``, or why it was refused.
        count: How many equal events the entry stands for.
    """

    time: float
    action: str
    token: str = ""
    name: str = ""
    address: str = ""
    project: str = ""
    target: str = ""
    result: str = ""
    count: int = 1


_decoder = msgspec.json.Decoder(AuditEvent)


def local_user() -> Principal:
    """Who runs a command on the server's machine."""
    try:
        return Principal(name=getpass.getuser())
    except (KeyError, OSError, ImportError):  # a user without a name, as in a container
        return Principal(name=str(os.getuid()))


class AuditLog:
    """Writes and reads the log of a root. May be used from any thread.

    Args:
        root: The directory of the runs.
        clock: Seconds since 1970.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time, max_bytes: int = MAX_BYTES) -> None:
        self.path = root / FOLDER / AUDIT_FILE
        self._clock, self._max_bytes = clock, max_bytes
        # Never held while a file is written: the event loop counts.
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], AuditEvent] = {}
        self._pending: list[AuditEvent] = []
        self._written: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self._window_end = float("-inf")
        self._failed_at = float("-inf")
        self._worker: threading.Thread | None = None
        self._wakes, self._closes = threading.Event(), threading.Event()

    def record(
        self,
        action: str,
        principal: Principal | None = None,
        *,
        address: str = "",
        project: str = "",
        target: str = "",
        result: str = "ok",
    ) -> None:
        """Append an entry."""
        self._write([self._event(action, principal, address, project, target, result)])
        self._sync_later()

    def count(
        self,
        action: str,
        principal: Principal | None = None,
        *,
        address: str = "",
        project: str = "",
        target: str = "",
        result: str = "ok",
    ) -> None:
        """Append an entry, or add to the count of equal ones: for events that clients can cause at will."""
        event = self._event(action, principal, address, project, target, result)
        key: tuple[str, ...] = (action, event.token, event.address, event.project, event.target, event.result)
        with self._lock:
            if event.time >= self._window_end:
                self._take_counts()
            if not self._counts:
                self._window_end = event.time + COUNT_SECONDS
            if key not in self._counts and len(self._counts) >= COUNTED_KEYS:
                key = (action,)
                event = AuditEvent(event.time, action, address="others", result="several")
            known = self._counts.get(key)
            if known is None:
                self._pending.append(event)
                self._counts[key] = msgspec.structs.replace(event, count=0)
            else:
                first = event.time if known.count == 0 else known.time
                self._counts[key] = msgspec.structs.replace(known, time=first, count=known.count + 1)
        self._sync_later()

    def record_first(
        self,
        action: str,
        principal: Principal,
        *,
        address: str = "",
        project: str = "",
        target: str = "",
        result: str = "ok",
    ) -> None:
        """Append an entry, unless this object has appended an equal one before, as far as it remembers."""
        key = (action, principal.id, address, project, target, result)
        with self._lock:
            is_known = key in self._written
            self._written[key] = None
            self._written.move_to_end(key)
            if len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)
        if not is_known:
            self.record(action, principal, address=address, project=project, target=target, result=result)

    def read(self, limit: int, *, scope: ProjectScope | None = None) -> list[AuditEvent]:
        """The latest entries, the latest first.

        Args:
            scope: Only entries that concern one of these projects; all by default.
        """
        self._write_pending()
        found: list[AuditEvent] = []
        for event in self._events_reversed():
            if len(found) >= limit:
                break
            if scope is None or scope.is_all or (event.project and scope.allows(event.project)):
                found.append(event)
        return found

    def close(self) -> None:
        """Write what is counted, and bring everything to the disk."""
        with self._lock:
            self._closes.set()
            worker, self._worker = self._worker, None
        self._wakes.set()
        if worker is not None:
            worker.join()
        with self._lock:
            self._take_counts()
        self._flush()

    def _event(
        self, action: str, principal: Principal | None, address: str, project: str, target: str, result: str
    ) -> AuditEvent:
        who = principal or Principal()
        fields = {"token": who.id, "name": who.name, "address": address}
        fields |= {"project": project, "target": target, "result": result}
        texts: dict[str, Any] = {name: redact(text)[:_MAX_TEXT] for name, text in fields.items()}
        return AuditEvent(self._clock(), action, **texts)

    def _take_counts(self) -> None:
        """End the current window. The lock is held."""
        self._pending += [event for event in self._counts.values() if event.count]
        self._counts.clear()

    def _write_pending(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        if pending:
            self._write(pending)

    def _write(self, events: list[AuditEvent]) -> None:
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_written = False
            while not is_written:
                with self._opened() as descriptor:
                    size = os.fstat(descriptor).st_size
                    is_written = not size or size + len(lines) <= self._max_bytes
                    if is_written:
                        os.write(descriptor, lines)
                    else:
                        files.sync_descriptor(descriptor)  # later syncs are of the new file
                        self._rotate()
        except OSError as error:
            now = time.monotonic()
            if now - self._failed_at >= 60.0:
                self._failed_at = now
                logger.error("The audit log %s cannot be written: %s", self.path, error)  # noqa: TRY400

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The log, locked; opened each time, because another process may have rotated it."""
        if self.path.parent.is_symlink():
            raise OSError(f"{self.path.parent} is a link")
        while True:
            descriptor = os.open(self.path, _FLAGS, 0o600)
            try:
                with files.exclusive(descriptor):
                    opened = os.fstat(descriptor)
                    if not stat.S_ISREG(opened.st_mode):
                        raise OSError(f"{self.path} is not a regular file")
                    if stat.S_IMODE(opened.st_mode) & 0o077:
                        os.fchmod(descriptor, 0o600)
                    with contextlib.suppress(FileNotFoundError):
                        if os.path.samestat(self.path.lstat(), opened):
                            yield descriptor
                            return
            finally:
                os.close(descriptor)

    def _rotate(self) -> None:
        """Rename the files; the lock of the current one is held, so only one process does."""
        for number in range(KEPT_FILES, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._old(number - 1).replace(self._old(number))

    def _old(self, number: int) -> Path:
        return self.path.with_name(f"{AUDIT_FILE}.{number}") if number else self.path

    def _sync_later(self) -> None:
        with self._lock:
            if self._worker is None and not self._closes.is_set():
                self._worker = threading.Thread(target=self._work, name="hookline-audit", daemon=True)
                self._worker.start()
        self._wakes.set()

    def _work(self) -> None:
        while not self._closes.is_set():
            self._wakes.wait()
            self._wakes.clear()
            self._closes.wait(SYNC_SECONDS)  # many lines share a sync
            with self._lock:
                if self._clock() >= self._window_end:
                    self._take_counts()
                if self._counts:
                    self._wakes.set()  # what is counted is written when its window ends
            self._flush()

    def _flush(self) -> None:
        self._write_pending()
        with contextlib.suppress(OSError):  # nothing is written yet, or the disk is broken, which writing reports
            files.sync_file(self.path)

    def _events_reversed(self) -> Iterator[AuditEvent]:
        for number in range(KEPT_FILES + 1):
            try:
                descriptor = os.open(self._old(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ConfigError(f"The audit log {self._old(number)} cannot be read: {error.strerror}.") from error
            with os.fdopen(descriptor, "rb") as file:
                place, rest = file.seek(0, os.SEEK_END), b""
                while place:
                    place, end = max(0, place - _TAIL), place
                    file.seek(place)
                    rest, *lines = (file.read(end - place) + rest).split(b"\n")
                    yield from self._decoded(reversed(lines))
                yield from self._decoded([rest])

    @staticmethod
    def _decoded(lines: Iterable[bytes]) -> Iterator[AuditEvent]:
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # cut off by a full disk
                if line:
                    yield _decoder.decode(line)

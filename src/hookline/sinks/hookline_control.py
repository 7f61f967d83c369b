"""`ControlRelay`: fetches commands for a run from `hookline serve`, and reports what it offers and answered.

- The way into a run is its mailbox (`hookline._record.commands`), for these commands as for those of its own machine.
  Nothing reaches a run that does not listen, and its checks are the same.
- A command that is passed on twice is applied once: the run knows it by its id.
- The sink calls `exchange` on its own thread, after a batch and between batches. It opens no port.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import RefusedError
from hookline._record import run_directory
from hookline._record.commands import Command, Mailbox, problem_of
from hookline.sinks.hookline_upload import JournalUploader
from hookline.sinks.http import EndpointError, redacted

logger = logging.getLogger("hookline")

_LINES_BYTES = 1 << 20
_ROUNDS = 100
"""How many requests one exchange makes at most; a long log takes one for each megabyte."""
_FIRST_SECONDS = 1.0
_MOST_SECONDS = 60.0
_OLD_OFFER_SECONDS = 10.0
_ROUND_SECONDS = 0.5
"""The time between two rounds of a delivery: the round that is nearest to the time to ask is taken."""


class _Passed(msgspec.Struct):
    id: str
    name: str
    seconds: float
    arguments: dict[str, Any] = {}
    author: str = ""


class ControlRelay:
    """Exchanges the commands of one run with a server.

    Args:
        uploader: Sends requests to the server.
        run_dir: The run's directory.
        clock: Seconds, from any start.
    """

    def __init__(self, uploader: JournalUploader, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._uploader, self._run_dir, self._clock = uploader, run_dir, clock
        self._mailbox = Mailbox(run_dir)
        self._run = ""
        self._offset = 0
        self._reported: Any = None
        self._posted: set[str] = set()
        self._every = _FIRST_SECONDS
        self._last = float("-inf")
        self._is_off = False

    def open(self, run: str) -> None:
        """Start, or start again after a fault: the server may have lost what it had.

        Args:
            run: ``<project>/<run>`` on the server.
        """
        self._run, self._offset, self._reported, self._is_off = run, 0, None, False
        self._last = float("-inf")

    def exchange(self, last_sent: float) -> bool:
        """Exchange what is new, if there is something or if it is time to ask; returns whether it did.

        Args:
            last_sent: When something else was last sent, whose answer said whether commands wait.

        Raises:
            EndpointError: The server cannot be reached.
        """
        stamp = self._stamp()
        if self._is_off or stamp is None:
            return False
        is_due = self._clock() - max(self._last, last_sent) >= self._every - _ROUND_SECONDS / 2
        if not (is_due or self._uploader.control_waits or stamp != self._reported):
            return False
        try:
            is_new = stamp != self._reported
            for _ in range(_ROUNDS):
                is_new, has_more = self._exchange_once(is_new=is_new)
                if not is_new and not has_more:
                    break
        except RefusedError as error:
            self._is_off = True
            logger.info("Commands do not reach %s through %s: %s", self._run, redacted(self._uploader.url), error)
            return False
        self._reported, self._last = stamp, self._clock()
        return True

    def _stamp(self) -> Any:
        """Return what changes with the offer, the log and the end of the process; None if the run does not listen."""
        try:
            offer = self._mailbox.offer_file.lstat()
        except OSError:
            return None
        size = 0
        with contextlib.suppress(OSError):
            size = self._mailbox.log.lstat().st_size
        return offer.st_mtime_ns, offer.st_ino, size, run_directory.is_alive(self._run_dir)

    def _exchange_once(self, *, is_new: bool) -> tuple[bool, bool]:
        """Make one request; returns whether the offer, and whether more of the log, is to be sent with another one."""
        is_over = run_directory.is_alive(self._run_dir) is False
        offer = self._mailbox.offer() if is_new else None
        if offer is not None and is_over and offer.get("listens"):
            offer = {"listens": False, "reason": "no process runs it."}
        lines = self._mailbox.log_from(self._offset, _LINES_BYTES)
        head = json.dumps({"offset": self._offset, "offer": offer}).encode()
        answer = self._uploader.exchange_control(self._run, head + b"\n" + lines)
        before, self._offset = self._offset, int(answer.get("offset", 0))
        if not is_over:
            self._every = min(max(float(answer.get("every_seconds", _MOST_SECONDS)), _FIRST_SECONDS), _MOST_SECONDS)
            self._post(answer.get("commands"))
            self._refresh(is_watched=bool(answer.get("refresh")))
        else:
            self._every = float("inf")  # only what is new is reported
        is_lost = not is_new and not answer.get("has_offer")
        return is_lost, self._offset != before and bool(self._mailbox.log_from(self._offset, _LINES_BYTES))

    def _post(self, passed: Any) -> None:
        """Put commands into the run's mailbox."""
        try:
            commands = msgspec.convert(passed, list[_Passed])
        except msgspec.ValidationError as error:
            raise RefusedError(f"its answer has no valid commands: {error}") from None
        now = time.time()
        for each in commands:
            if each.id in self._posted:
                continue
            author, via = each.author or "unknown", redacted(self._uploader.url)
            command = Command(
                id=each.id, name=each.name, arguments=each.arguments, author=author, via=via, time=now,
                expires=now + each.seconds,
            )  # fmt: skip
            problem = problem_of(command)
            if problem is not None:  # from a server that checks less; the id may not even be a file's name
                logger.warning("%s passed on a command that is not valid: %s", via, problem)
            else:
                try:
                    self._mailbox.post(command)
                except RefusedError as error:  # full, or the disk is: it is passed on again
                    raise EndpointError(f"A command for {self._run} cannot be passed on yet: {error}") from error
            self._posted.add(each.id)

    def _refresh(self, *, is_watched: bool) -> None:
        """Let the run update its offer, if it has viewers."""
        with contextlib.suppress(OSError):
            if is_watched and time.time() - self._mailbox.offer_file.lstat().st_mtime > _OLD_OFFER_SECONDS:
                self._mailbox.wake()

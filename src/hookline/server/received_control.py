"""`ReceivedControl`: passes commands to runs of other machines, with the answers to their senders' own requests.

- A run's directory here has a copy of its mailbox (`hookline._record.commands`): a command is posted there as for a
  local run, and stays until the log of the run, which the sender reports, has it.
- The sender asks when the answer to a batch or a heartbeat says that commands wait, and otherwise every second to five
  seconds, depending on how many runs ask. It needs no open port, so the run may be behind NAT.
- A command may be passed on several times; the run applies it once, by its id. Its remaining time is passed on instead
  of a date, because clocks differ.
- Nothing that a sender reports is trusted: sizes are limited, and what is shown is checked when it is read.

All methods may be called from any thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hookline._engine.errors import OptionError
from hookline._record.commands import LOG_BYTES, OFFER_BYTES, Mailbox, is_flagged
from hookline.server.limits import RecentSenders, check_depth, check_name
from hookline.server.received_runs import ReceivedRuns, check_lines

MAX_REPORT_BYTES = 8 << 20
WATCHED_SECONDS = 60.0
"""So long after somebody looked at a run's controls its sender asks every second."""
MIN_SECONDS, MAX_SECONDS = 1.0, 5.0
"""How often a sender asks that has nothing to send."""
RARELY_SECONDS = 60.0
"""How often it asks if there are very many: the answers to its heartbeats say whether commands wait."""
RUNS_PER_SECOND = 50
"""How many senders may ask in a second, before they ask less often."""
_LIVE_SECONDS = 1.5 * RARELY_SECONDS


class ControlReport(msgspec.Struct, forbid_unknown_fields=True):
    """What a sender reports of a run, before the lines of its log.

    Attributes:
        offset: Where the lines begin in the log; at 0 they replace what is stored.
        offer: What the run offers; None if that has not changed.
    """

    offset: Annotated[int, msgspec.Meta(ge=0, le=LOG_BYTES)] = 0
    offer: dict[str, Any] | None = None


class PassedCommand(msgspec.Struct):
    """A command for a run, with the seconds until it expires; negative if it has."""

    id: str
    name: str
    arguments: dict[str, Any]
    author: str
    seconds: float


class ControlReply(msgspec.Struct):
    """Commands for the run.

    Attributes:
        offset: How much of the log is stored.
        has_offer: Whether what the run offers is known here.
        refresh: Whether somebody looks at the run's controls: an old offer is to be reported again.
        commands: Those that the run has not reported as received.
        every_seconds: When to ask again if there is nothing else to send.
    """

    offset: int
    has_offer: bool
    refresh: bool
    commands: list[PassedCommand]
    every_seconds: float


def decode_report(text: bytes) -> ControlReport:
    """Return a report.

    Raises:
        OptionError: It is not valid.
    """
    try:
        report = msgspec.json.decode(text, type=ControlReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f'The first line of the body is not valid: {error}. Send {{"offset": 0}}.') from None
    if report.offer is not None:
        check_depth("offer", report.offer)
        if len(text) > OFFER_BYTES // 2:
            raise OptionError(f"The offer has {len(text):,} bytes; at most {OFFER_BYTES // 2:,} are accepted.")
    return report


@dataclass(frozen=True, slots=True)
class ReceivedControl:
    """Exchanges commands with the senders of runs.

    Args:
        received: The received runs.
        is_stored: Whether the runs are in an object store, through which commands cannot be passed on.
        clock: Seconds since 1970.
    """

    received: ReceivedRuns
    is_stored: bool = False
    clock: Callable[[], float] = time.time
    _senders: RecentSenders = field(default_factory=lambda: RecentSenders(_LIVE_SECONDS))

    def has_mail(self, project: str, run: str) -> bool:
        """Whether the sender of a run is to ask for commands now."""
        # A text and not a mailbox: every batch and every heartbeat asks.
        names = check_name("project", project), check_name("run", run)
        return not self.is_stored and is_flagged("/".join((str(self.received.root), *names)))

    def exchange(self, project: str, run: str, *, origin: str, report: ControlReport, lines: bytes) -> ControlReply:
        """Store what a sender reports, and return the commands for its run.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
            OptionError: The lines are not valid, or this server passes no commands on.
        """
        if self.is_stored:
            raise OptionError("The runs of this server are in an object store: it passes no commands on to them yet.")
        check_lines(lines)
        with self.received.owned(project, run, origin=origin):
            mailbox = self._mailbox(project, run)
            is_watched = mailbox.open_copy()
            now = self.clock()
            if report.offer is not None:
                # By this clock: the page compares its age.
                mailbox.write_offer({**report.offer, "time": now})
            offset = mailbox.copy_log(report.offset, lines)
            mailbox.forget({each.id for each in mailbox.outcomes()} if mailbox.waiting_names() else ())
            passed = [
                PassedCommand(command.id, command.name, command.arguments, command.author, command.expires - now)
                for outcome in mailbox.waiting()
                if (command := outcome.command) is not None
            ]
            every = (
                MIN_SECONDS
                if now - mailbox.flag_changed_at() < WATCHED_SECONDS
                else self._seconds(f"{project}/{run}", now)
            )
            return ControlReply(offset, mailbox.offer() is not None, is_watched, passed, every)

    def _mailbox(self, project: str, run: str) -> Mailbox:
        root: Path = self.received.root
        return Mailbox(root / check_name("project", project) / check_name("run", run))

    def _seconds(self, name: str, now: float) -> float:
        """Return how often a sender asks, so that all together ask at most `RUNS_PER_SECOND` times a second."""
        every = max(MIN_SECONDS, self._senders.count(name, now) / RUNS_PER_SECOND)
        return every if every <= MAX_SECONDS else RARELY_SECONDS

"""The alerts of a root, with their deliveries, acknowledgements and mutes.

They are kept in ``.hookline/alerts.json`` below the root, which is replaced as a whole under a lock, so the server, the
command line and several servers can change it at the same time. An alert is written, with its deliveries as pending,
before anything is sent: after ``kill -9`` the next server sends what is pending. An alert has an id made of its rule,
its run and where it was raised, so raising it again changes nothing.

The file is bounded: the oldest alerts without pending deliveries are dropped.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from hookline._engine.errors import ConfigError, OptionError, UnknownNameError
from hookline._record import files
from hookline._record.records import clean, parse_nonfinite

FOLDER = ".hookline"
ALERTS_FILE = "alerts.json"
MOST_ALERTS, MOST_MUTES, MOST_RULES = 2000, 200, 100
_MAX_BYTES = 16 << 20
_MAX_TEXT = 2000
_LOCK_SECONDS = 10.0

Delivered = Literal["pending", "delivered", "failed", "muted"]


class DeliveryState(msgspec.Struct):
    """The progress of an alert's delivery to one destination."""

    state: Delivered = "pending"
    attempts: int = 0
    error: str = ""
    time: float = 0.0


class RaisedAlert(msgspec.Struct, omit_defaults=True):
    """An alert of a run.

    Attributes:
        rule: The name of the callback, ``silence``, or the name of the rule in the process that recorded it.
        time: When the record that broke the rule was made.
        acknowledged: When, and by whom; 0 if it is not.
    """

    id: str
    run: str
    rule: str
    message: str
    time: float
    metric: str = ""
    value: Any = None
    step: int | None = None
    severity: str = "warning"
    acknowledged: float = 0.0
    acknowledged_by: str = ""
    deliveries: dict[str, DeliveryState] = {}

    @property
    def state(self) -> str:
        """``acknowledged``, ``muted``, ``pending``, ``failed``, ``delivered``, or ``raised`` without a destination."""
        states = {each.state for each in self.deliveries.values()}
        if self.acknowledged:
            return "acknowledged"
        return next((state for state in ("pending", "failed", "muted", "delivered") if state in states), "raised")


class Mute(msgspec.Struct, omit_defaults=True):
    """Stops delivery of the alerts of a rule, of a run, or of a rule in a run; an empty field matches everything.

    Attributes:
        until: When it ends; 0 for never.
    """

    rule: str = ""
    run: str = ""
    until: float = 0.0

    def covers(self, alert: RaisedAlert, now: float) -> bool:
        """Whether an alert is muted."""
        is_over = self.until and now >= self.until
        return not is_over and self.rule in ("", alert.rule) and self.run in ("", alert.run)


class AlertRule(msgspec.Struct, omit_defaults=True):
    """A rule that was added on the page (see `hookline.server.alert_rules`).

    Attributes:
        use: The name of its callback.
        arguments: Plain values for the callback.
        project: The project to whose runs it applies; empty for all.
        author: Who added it.
        time: When it was added; older records raise no alerts.
    """

    name: str
    use: str
    arguments: dict[str, Any] = {}
    project: str = ""
    author: str = ""
    time: float = 0.0


class Book(msgspec.Struct):
    """The content of the file.

    Attributes:
        since: When rules were first evaluated here; older records raise no alerts.
        rules: The rules that were added in the page.
        file_rules: The rules of the alert file of the server that was started last, as texts.
        destinations: Where that server delivers alerts.
    """

    since: float = 0.0
    alerts: dict[str, RaisedAlert] = {}
    mutes: list[Mute] = []
    rules: list[AlertRule] = []
    file_rules: list[str] = []
    destinations: list[str] = []


def alert_id(run: str, rule: str, place: object) -> str:
    """Return the id of an alert: the same for the same rule, run and place."""
    return hashlib.blake2b(f"{run}\0{rule}\0{place}".encode("utf-8", "replace"), digest_size=8).hexdigest()


class AlertBook:
    """The alerts of a root; see the module.

    Args:
        clock: Returns seconds since 1970.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = root / FOLDER / ALERTS_FILE
        self._clock = clock

    def read(self) -> Book:
        """Return the content of the file; an empty book if there is none.

        Raises:
            ConfigError: The file cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return Book()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}.") from error
        try:
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise ConfigError(f"{self.path} is larger than {_MAX_BYTES >> 20} MB. Remove it to start over.")
            book = msgspec.json.decode(content, type=Book)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}. Remove it to start over.") from error
        for alert in book.alerts.values():
            alert.value = parse_nonfinite(alert.value)
        return book

    @contextmanager
    def change(self) -> Iterator[Book]:
        """Read the file under its lock, and write it back if the body changed it."""
        self.path.parent.mkdir(exist_ok=True)
        # Lock the folder itself: a lock file would stay behind.
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with files.exclusive(descriptor, seconds=_LOCK_SECONDS):
                book = self.read()
                before = _encoded(book)
                yield book
                _drop_oldest(book)
                after = _encoded(book)
                if after != before:
                    files.write_atomically(self.path, after)
        finally:
            os.close(descriptor)

    def version(self) -> tuple[int, ...]:
        """Return a value that changes whenever the file does; empty without a file."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def start(self) -> float:
        """Return since when rules are evaluated here; the first call sets it."""
        with self.change() as book:
            book.since = book.since or self._clock()
            return book.since

    def add(self, raised: Iterable[RaisedAlert], destinations: Iterable[str]) -> list[RaisedAlert]:
        """Add the alerts that are new, with a pending delivery to each destination; returns those."""
        raised, destinations = list(raised), list(destinations)
        added: list[RaisedAlert] = []
        if not raised:
            return added
        with self.change() as book:
            now = self._clock()
            for alert in raised:
                if alert.id in book.alerts or alert.time < book.since:
                    continue
                is_muted = any(mute.covers(alert, now) for mute in book.mutes)
                state: Delivered = "muted" if is_muted else "pending"
                alert.message = alert.message[:_MAX_TEXT]
                alert.deliveries = {name: DeliveryState(state) for name in destinations}
                book.alerts[alert.id] = alert
                added.append(alert)
        return added

    def delivered(self, alert: str, destination: str, state: DeliveryState) -> None:
        """Record the progress of a delivery."""
        with self.change() as book:
            if alert in book.alerts:
                book.alerts[alert].deliveries[destination] = state

    def describe(self, rules: list[str], destinations: list[str]) -> None:
        """Record a starting server's rules and destinations, if they differ from the file's."""
        before = self.read()
        if (before.file_rules, before.destinations) != (rules, destinations):
            with self.change() as book:
                book.file_rules, book.destinations = rules, destinations

    def add_rule(self, rule: AlertRule) -> None:
        """Add a rule, effective immediately.

        Raises:
            OptionError: There is one of this name, or there are too many.
        """
        with self.change() as book:
            if any(each.name == rule.name for each in book.rules):
                raise OptionError(f"There is a rule {rule.name!r} already. Remove it first, or give another name.")
            if len(book.rules) >= MOST_RULES:
                raise OptionError(f"There are {MOST_RULES} rules already. Remove some first.")
            rule.time = self._clock()
            book.since = book.since or rule.time
            book.rules.append(rule)

    def remove_rule(self, name: str) -> AlertRule:
        """Remove a rule; its alerts stay.

        Raises:
            UnknownNameError: There is no such rule.
        """
        with self.change() as book:
            found = next((each for each in book.rules if each.name == name), None)
            if found is None:
                raise UnknownNameError(f"There is no rule {name!r:.100}. It may have been removed.")
            book.rules.remove(found)
            return found

    def acknowledge(self, alerts: Iterable[str], by: str = "") -> list[str]:
        """Acknowledge alerts by their ids, or the beginnings of ids; returns the ids.

        Raises:
            UnknownNameError: There is no such alert, or several begin so; none is acknowledged.
        """
        with self.change() as book:
            found = [_find(book, each) for each in alerts]
            for alert in found:
                alert.acknowledged = alert.acknowledged or self._clock()
                alert.acknowledged_by = alert.acknowledged_by or by[:100]
                # An acknowledged alert needs no further message.
                for state in alert.deliveries.values():
                    state.state = "muted" if state.state == "pending" else state.state
            return [alert.id for alert in found]

    def mute(self, *, rule: str = "", run: str = "", seconds: float | None = None, off: bool = False) -> list[Mute]:
        """Mute alerts of a rule, a run or both, or unmute them; returns the mutes.

        Raises:
            OptionError: There are too many mutes, or nothing is given.
        """
        if not rule and not run:
            raise OptionError("Give a rule, a run, or both to mute.")
        if len(rule) > _MAX_TEXT or len(run) > _MAX_TEXT or (seconds is not None and not 0 < seconds < float("inf")):
            raise OptionError(
                f"rule={rule!r:.60}, run={run!r:.60}, seconds={seconds!r}: give names and a time above 0."
            )
        with self.change() as book:
            now = self._clock()
            same = [mute for mute in book.mutes if (mute.rule, mute.run) == (rule, run)]
            book.mutes = [mute for mute in book.mutes if mute not in same and not (mute.until and now >= mute.until)]
            if not off:
                if len(book.mutes) >= MOST_MUTES:
                    raise OptionError(f"There are {MOST_MUTES} mutes already. Remove some first.")
                book.mutes.append(Mute(rule, run, 0.0 if seconds is None else now + seconds))
            for alert in book.alerts.values():
                if any(mute.covers(alert, now) for mute in book.mutes):
                    for state in alert.deliveries.values():
                        state.state = "muted" if state.state == "pending" else state.state
            return book.mutes


def _find(book: Book, reference: str) -> RaisedAlert:
    found = [alert for known, alert in book.alerts.items() if reference and known.startswith(reference)]
    if len(found) != 1:
        count = "no alert" if not found else f"{len(found)} alerts"
        raise UnknownNameError(f"{reference!r:.60}: there is {count} with such an id. See: hookline alerts list")
    return found[0]


def _encoded(book: Book) -> bytes:
    for alert in book.alerts.values():
        alert.value = clean(alert.value)
    return msgspec.json.encode(book)


def _drop_oldest(book: Book) -> None:
    room = len(book.alerts) - MOST_ALERTS
    if room <= 0:
        return
    oldest = sorted(book.alerts.values(), key=lambda alert: (alert.state == "pending", alert.time))
    for alert in oldest[:room]:
        del book.alerts[alert.id]

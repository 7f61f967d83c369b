"""Evaluates rules over the runs of a root while a server runs, and delivers the alerts.

The rules are callbacks, the same as in a training and in `hl.replay`. Each watched run has its own, which get the
moments of what its journal gained since the last look (see `hookline.loops.replay`). Besides, a run whose process says
nothing for too long raises an alert, and an alert that a run recorded itself is taken over.

- An alert is in the book (`hookline.store.alert_book`) before it is sent, and a destination that fails is tried again,
  later and later. After a restart, rules are evaluated again from the beginning of each journal and raise the same
  alerts with the same ids, so none is delivered twice and none is lost; a message that was sent right before a kill may
  come again, with the same id.
- Rules come from a file, and from the page (`hookline.server.alert_rules`), where they may be added and removed at any
  time. A server without either looks at nothing.
- A rule raises one alert per run, or, with ``rearm: recovered`` and for `NoProgress`, one each time it is armed again.
- Bounded: at most `MOST_RUNS` runs are watched, the latest first; one that has ended is let go.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from hookline._engine.checks import require_number
from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import ConfigError, HooklineError, OptionError, RefusedError
from hookline._engine.failures import Policy
from hookline._record.reader import FINAL, JOURNAL, MAIN, Reader
from hookline._record.records import AnyRecord, Event, Status, valid_text
from hookline._record.segment import journal_files
from hookline._record.terminal import one_line
from hookline.callbacks.alert import ALERT, Alert, severity_level
from hookline.config.loading import load_callbacks
from hookline.config.sources import read_source
from hookline.loops.replay import Replayer, ReplayLoop
from hookline.server.alert_delivery import Destination, make_destinations
from hookline.server.alert_rules import add_rules, entry_text, page_name
from hookline.store.alert_book import AlertBook, AlertRule, DeliveryState, RaisedAlert, alert_id
from hookline.store.run_info import RunLocation, find_runs

logger = logging.getLogger("hookline")

POLL_SECONDS = 2.0
MOST_RUNS = 200
MOST_RECORDS = 20_000
"""How many records of a run are read at a look; the others wait for the next one."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS, MOST_ATTEMPTS = 2.0, 600.0, 50
SAME_SECONDS = 600.0
"""A rule of a run's own process may fire at every step: such an alert within so long of the last is the same one."""
KEYS = ("callbacks", "silence_seconds", "deliver")


@dataclass(slots=True)
class AlertSettings:
    """The content of an alert file; nothing by default.

    Attributes:
        callbacks: The entries of the rules.
        silence_seconds: How long a run may record nothing; None to not look.
        destinations: Where alerts are delivered, by name.
    """

    callbacks: list[Any] = field(default_factory=list)
    silence_seconds: float | None = None
    destinations: dict[str, Destination] = field(default_factory=dict)

    def rules(self) -> CallbackCollection:
        """Build the rules for one run."""
        return load_callbacks(self.callbacks, policy=Policy(report_seconds=1e9))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to evaluate or to deliver."""
        return not self.callbacks and self.silence_seconds is None and not self.destinations

    def texts(self) -> list[str]:
        """Return the rules, as the page lists them."""
        silent = [] if self.silence_seconds is None else [f"silence: {{seconds: {self.silence_seconds:g}}}"]
        return [valid_text(entry_text(each))[:300] for each in self.callbacks] + silent


def load_alerts(path: Path) -> AlertSettings:
    """Read an alert file, and build its rules once to check them.

    Raises:
        ConfigError: Something in it is not accepted.
    """
    source = read_source(path)
    data = source.data
    if not isinstance(data, Mapping) or not set(data) <= set(KEYS):
        unknown = ", ".join(sorted(map(str, set(data) - set(KEYS)))) if isinstance(data, Mapping) else repr(data)[:60]
        raise ConfigError(f"{path}: {unknown}: give {', '.join(KEYS)}.")
    callbacks = data.get("callbacks", [])
    if not isinstance(callbacks, list):
        raise ConfigError(f"{path}: callbacks={callbacks!r:.60}: give a list of rules, such as - alert: {{above: 3}}.")
    try:
        silence = require_number("silence_seconds", data.get("silence_seconds"), above=0, optional=True)
    except OptionError as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        load_callbacks(callbacks).close()
    except HooklineError as error:
        raise ConfigError(f"{path}: {error}") from error
    return AlertSettings(list(callbacks), silence, make_destinations(data.get("deliver", []), source))


class _WatchedLoop(ReplayLoop):
    """The loop of a watched run, whose alerts go to the book."""

    is_watched = True
    on_alert: Callable[[RaisedAlert], None]

    def note_alert(self, facts: Mapping[str, Any], step: int | None) -> None:
        rule = self.caller() or str(facts.get("rule", ALERT))
        registered = self.callbacks.find(rule)
        subscriber = registered[0].subscriber if registered else None
        once = isinstance(subscriber, Alert) and subscriber.rearm == "always"
        self.on_alert(_raised(self.id, rule, facts, step, self.now, place="" if once else step))


def _raised(
    run: str, rule: str, facts: Mapping[str, Any], step: int | None, at: float, *, place: object
) -> RaisedAlert:
    value = facts.get("value")
    return RaisedAlert(
        id=alert_id(run, rule, place),
        run=valid_text(run),
        rule=valid_text(rule)[:200],
        message=valid_text(str(facts.get("message", ""))),
        time=at,
        metric=valid_text(str(facts.get("metric", "")))[:200],
        value=value if value is None or isinstance(value, bool | int | float) else str(value)[:200],
        step=step,
        severity=valid_text(str(facts.get("severity", "warning")))[:20],
    )


class _WatchedRun:
    """A run whose journal is followed.

    Args:
        location: Where it is.
        rules: Its rules.
        place: A directory for what the rules write.
    """

    def __init__(self, location: RunLocation, rules: CallbackCollection, place: Path) -> None:
        self.raised: list[RaisedAlert] = []
        self.has_ended = False
        self.last_record = 0.0
        self._recorded: dict[str, float] = {}  # when each rule of its own process last recorded an alert
        self._reader = Reader(location.directory / JOURNAL)
        self.loop = _WatchedLoop(location.directory, rules, place)
        self.loop.on_alert = self.raised.append
        self._replayer = Replayer(self.loop)
        self._replayer.prepare()
        self._has_begun = self._has_failed = False

    def look(self) -> bool:
        """Read what is new, and fire it; returns whether there may be more."""
        found = [file for file in journal_files(self._reader.directory) if file.name == MAIN]
        records: list[AnyRecord] = []
        for entry in self._reader.new(found):
            records.append(entry.record)
            if len(records) >= MOST_RECORDS:
                break
        for record in records:
            self._note(record)
        if not self._has_begun and records:
            self._has_begun = True
            self._replayer.begin(records)
        if not self._has_failed:
            try:
                self._replayer.feed(records)
            except Exception as error:  # a critical rule: this run is watched no more, others are
                self._has_failed = True
                logger.warning("%s: its rules are no longer evaluated: %s", self.loop.id, error)
        # Only alerts count here; a long run would fill the rest of the result.
        self.loop.result.values.clear()
        self.loop.result.recording.alerts.clear()
        return len(records) >= MOST_RECORDS

    def _note(self, record: AnyRecord) -> None:
        self.last_record = max(self.last_record, record.time)
        if isinstance(record, Status) and record.status != "heartbeat":
            self.has_ended = record.status in FINAL
        elif isinstance(record, Event) and record.name == "resume":
            self.has_ended = False
        elif isinstance(record, Event) and record.name == ALERT:
            rule = f"{record.data.get('rule', ALERT)} (recorded)"
            before, self._recorded[rule] = self._recorded.get(rule, -math.inf), record.time
            if record.time - before >= SAME_SECONDS or not record.data.get("repeats"):
                place = (record.step, record.time)
                self.raised.append(_raised(self.loop.id, rule, record.data, record.step, record.time, place=place))

    def close(self) -> None:
        self.loop.callbacks.close()


@dataclass(slots=True)
class _Retry:
    at: float = 0.0
    attempts: int = 0


@dataclass
class AlertService:
    """Evaluates rules and delivers alerts, on two threads of its own while it is entered.

    Args:
        root: The directory of the runs.
        settings: The rules and destinations.
        poll_seconds: How often journals are looked at.
        clock: Returns seconds since 1970.
    """

    root: Path
    settings: AlertSettings
    poll_seconds: float = POLL_SECONDS
    clock: Callable[[], float] = time.time
    book: AlertBook = field(init=False)
    _rules: list[AlertRule] = field(default_factory=list)  # those of the page
    _rules_version: tuple[int, ...] = ()
    _runs: dict[str, _WatchedRun] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)  # runs that ended, by the size of their journals then
    _retries: dict[tuple[str, str], _Retry] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.book = AlertBook(self.root, self.clock)
        self._since = 0.0
        self._place: TemporaryDirectory[str] | None = None  # made when needed: a service may never be started

    def __enter__(self) -> Self:
        if not self.settings.is_empty:
            self._since = self.book.start()
        try:
            self.book.describe(self.settings.texts(), list(self.settings.destinations))
        except (HooklineError, OSError) as error:  # a directory that cannot be written has no rules of the page
            logger.warning("Alerts: %s", error)
        # Two threads: a mail server that hangs must not keep rules from being evaluated.
        for name, action in (("rules", self.evaluate), ("delivery", self.deliver)):
            thread = threading.Thread(target=self._repeat, args=(action,), name=f"hookline-alert-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(15.0)
        self.close()

    def close(self) -> None:
        """Release runs, connections and temporary files. May be called again."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()
        for destination in self.settings.destinations.values():
            destination.close()
        if self._place is not None:
            self._place.cleanup()
            self._place = None

    def _folder(self) -> Path:
        if self._place is None:
            self._place = TemporaryDirectory(prefix="hookline-alerts-")
        return Path(self._place.name)

    def _repeat(self, action: Callable[[], object]) -> None:
        has_failed = False
        while True:
            try:
                action()
                has_failed = False
            except Exception as error:  # whatever it is: without this thread, nobody learns of any run
                if not has_failed:
                    has_failed = True
                    logger.warning("Alerts: %s: %s. It is tried again.", type(error).__name__, error)
            if self._stopping.wait(self.poll_seconds):
                return

    def evaluate(self) -> None:
        """Look at all watched runs once, and put their new alerts into the book."""
        self._read_rules()
        if self.settings.is_empty and not self._rules:
            return
        self._since = self._since or self.book.start()
        for location in self._due():
            try:
                rules = self.settings.rules()
                add_rules(rules, self._rules, location, self.root)
                self._runs[location.id] = _WatchedRun(location, rules, self._folder())
            except Exception as error:
                self._let_go(location.id, location.directory, error)
        raised: list[RaisedAlert] = []
        since = {name: rule.time for rule in self._rules for name in (rule.name, page_name(rule))}
        for name, run in list(self._runs.items()):
            try:
                while run.look() and not self._stopping.is_set():
                    pass
            except Exception as error:
                self._let_go(name, run.loop.recorded_dir, error)
            found, run.raised[:] = list(run.raised), []
            raised += [alert for alert in found if alert.time >= since.get(alert.rule, self._since)]
            if name not in self._runs:
                continue
            raised += self._silent(name, run)
            if run.has_ended or not run.loop.recorded_dir.is_dir():
                self._let_go(name, run.loop.recorded_dir)
        for alert in self.book.add(raised, self.settings.destinations):
            logger.log(severity_level(alert.severity), "%s: %s: %s", alert.run, alert.rule, one_line(alert.message))

    def _read_rules(self) -> None:
        """Read the rules of the page; if they have changed, all runs are looked at again from their beginnings."""
        version = self.book.version()
        if version == self._rules_version:
            return
        rules = self.book.read().rules
        if rules != self._rules:
            for run in self._runs.values():
                run.close()
            self._runs.clear()
            self._done.clear()
        self._rules, self._rules_version = rules, version

    def _let_go(self, name: str, directory: Path, error: Exception | None = None) -> None:
        """Stop watching a run until its journal grows: it has ended, or cannot be read, which must not stop others."""
        if error is not None and name not in self._done:
            logger.warning("%s: its rules are not evaluated: %s: %s", name, type(error).__name__, error)
        self._done[name] = _journal_bytes(directory)
        run = self._runs.pop(name, None)
        if run is not None:
            run.close()

    def _silent(self, name: str, run: _WatchedRun) -> Iterator[RaisedAlert]:
        limit = self.settings.silence_seconds
        silent = self.clock() - run.last_record
        if limit is None or run.has_ended or not run.last_record or silent < limit:
            return
        # By the last record: a run that records again is armed again.
        message = f"nothing was recorded for {silent:.0f} s, and the run has not ended"
        facts = {"message": message, "severity": "error", "value": silent}
        yield _raised(name, "silence", facts, run.loop.step, self.clock(), place=run.last_record)

    def _due(self) -> list[RunLocation]:
        """The runs to watch besides those that are: the latest that have records since alerts were looked for."""
        known = [place for place in find_runs(self.root) if place.id not in self._runs]
        changed = []
        for place in known:
            newest = _newest(place.journal)
            # A record of a process that sleeps is older than its file; a minute more costs a look at most.
            if newest >= self._since - 60 and self._done.get(place.id) != _journal_bytes(place.directory):
                changed.append((newest, place))
        changed.sort(key=lambda entry: entry[0], reverse=True)
        return [place for _, place in changed[: max(0, MOST_RUNS - len(self._runs))]]

    def deliver(self) -> None:
        """Send what is pending and due, and note in the book what became of it."""
        if not self.settings.destinations:
            return
        now = self.clock()
        for alert in sorted(self.book.read().alerts.values(), key=lambda each: each.time):
            for name, state in alert.deliveries.items():
                destination = self.settings.destinations.get(name)
                retry = self._retries.setdefault((alert.id, name), _Retry()) if state.state == "pending" else None
                if destination is None or retry is None or now < retry.at or self._stopping.is_set():
                    continue
                self._send(alert, name, destination, retry)

    def _send(self, alert: RaisedAlert, name: str, destination: Destination, retry: _Retry) -> None:
        retry.attempts += 1
        try:
            destination.send(alert)
            state = DeliveryState("delivered", retry.attempts, time=self.clock())
        except Exception as error:
            # The message was the notification, so its failure is logged; the text of some errors has addresses only.
            is_final = isinstance(error, RefusedError) or retry.attempts >= MOST_ATTEMPTS
            text = f"{type(error).__name__}: {error}"[:500]
            state = DeliveryState("failed" if is_final else "pending", retry.attempts, text, self.clock())
            retry.at = self.clock() + min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2 ** (retry.attempts - 1))
            if is_final or retry.attempts == 1:
                logger.warning("An alert is not delivered to %s: %s", name, text)
        self.book.delivered(alert.id, name, state)
        if state.state != "pending":
            del self._retries[alert.id, name]


def _newest(journal: Path) -> float:
    try:
        with os.scandir(journal) as entries:
            return max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=0.0)
    except OSError:
        return 0.0


def _journal_bytes(directory: Path) -> int:
    try:
        with os.scandir(directory / JOURNAL) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0

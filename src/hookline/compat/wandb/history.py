"""`History`: the rows of a run, with the steps that wandb gives them.

A row without ``step`` is complete, and the step rises by one; ``commit=False`` keeps it open for the next call. Rows
with ``step=n`` gather at that step until a larger one. Three things differ from wandb:

- Every call is written at once as a separate record, so an open row survives ``kill -9``. A reader merges the
  records of a step; of a name that was logged twice, the last value counts. What a definition adds to the row
  (`Definitions.missing_steps`) is written when it is complete.
- A step that is lower than the current one is recorded there, with one warning; wandb drops it. The summary keeps the
  values of the later steps, as in wandb.
- Any thread may log, and a forked process, which writes files of its own.
"""

import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.metrics import MetricsRow, copied, is_collected, plain
from hookline._record.device import defer
from hookline._record.reader import read
from hookline._record.recorder import Recorder, checked_step
from hookline._record.records import SUMMARY, Event, Media, Metrics, TableRows
from hookline.compat.wandb.logged import CapturedValue, logged_values
from hookline.compat.wandb.metrics import Definitions, Metric
from hookline.compat.wandb.run_summary import SummaryValues
from hookline.compat.wandb.terminal import termwarn

DEFINED = "wandb_metric"
"""The event of a definition in the journal."""
NESTED = "wandb_nested"
"""The event with names of metrics that were logged in a dict, whose names have a dot in the record."""
SYNCED = "wandb_tensorboard"
"""The event of a run that writers of TensorBoard record into, too: rows at their steps, beside those of the program."""
SAVED_FILES = "files/"
"""The beginning of the names of media that are saved files, which belong to no row."""
_FLAT: frozenset[str] = frozenset()


Boundary = Callable[[int, Mapping[str, Any]], None]
"""Called after each complete row, with its step."""


class History:
    """Writes the rows of a run.

    Args:
        recorder: The run's recorder.
        definitions: The definitions of `define_metric`.
        summary: The summary, which complete rows are added to.
        capture: Captures a media value under a name; returns a list of captured media.
        boundary: Called after each complete row.
    """

    def __init__(
        self,
        recorder: Recorder,
        definitions: Definitions,
        summary: SummaryValues,
        *,
        capture: Callable[[str, Any], CapturedValue],
        boundary: Boundary,
    ) -> None:
        self.step = 0
        """The step of the next call without ``step``."""
        self.last_step: int | None = None
        self.last_time = 0.0
        self.definitions = definitions
        self._recorder, self._summary = recorder, summary
        self._capture, self.boundary = capture, boundary
        self._write = recorder.metrics  # bound once: this is the hot path
        self._row: dict[str, Any] | None = None  # what was logged at the current step, while it is open
        self._is_defined = bool(definitions)
        self._nested: set[str] = set()
        self._has_warned = False
        # Re-entrant: a signal handler may log as well.
        self._lock = threading.RLock()
        _histories.add(self)

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Record values; see `Run.log`."""
        with self._lock:
            # Checked before anything changes: a call that raises leaves the row unchanged.
            if type(data) is dict and is_collected(data):
                if self._row is None and step is None and commit is not False and not self._is_defined:
                    # The usual case. No copy: plain values are encoded before this returns.
                    self._write(data, self.step)
                    self._complete(data)
                    return
                logged = Logged(data, data, {})
            else:
                logged = self._sorted(data)
            at = self.step if step is None else checked_step(operator.index(step))
            if at < self.step:
                self._log_late(at, logged)
                return
            if at > self.step:
                self.flush()
                self.step = at
            if logged.media:
                self._record_media(logged.media, self.step)
            if self._row is None:
                self._row = {}
            self._row.update(logged.shown)
            if commit if commit is not None else step is None:
                self._end_row(logged.values)
            elif logged.values:
                self._write(logged.values, self.step)

    def flush(self) -> None:
        """Complete the open row."""
        with self._lock:
            if self._row is not None:
                self._end_row({})

    def define(self, metric: Metric, *, overwrite: bool) -> None:
        """Add a definition, also for the rows so far."""
        with self._lock:
            self.definitions.add(metric, overwrite=overwrite)
            self._is_defined = True
            self._recorder.event(DEFINED, definitions=self.definitions.plain())
            directory = self._recorder.journal.directory.parent
            if metric.summary and self.last_step is not None:
                self._recorder.flush()
                self._summary.recount(iter(recorded_rows(directory).values()))
                self._summary.show_statistics(frozenset(self._nested))

    def note_sync(self) -> None:
        """Record that writers of TensorBoard record into the run, too."""
        self._recorder.event(SYNCED)

    def restore(self, replayed: "Replayed", *, step: int | None = None) -> None:
        """Continue after the rows of earlier sessions.

        Args:
            replayed: What they recorded.
            step: The step to continue at; the one after the last by default.
        """
        self.last_step = replayed.last_step
        self.step = (-1 if replayed.last_step is None else replayed.last_step) + 1 if step is None else step
        self._nested |= replayed.nested

    def _end_row(self, values: dict[str, Any]) -> None:
        """Complete the open row with its last values, which are not written yet, and what definitions add."""
        row = self._row or {}
        if self._is_defined and row:
            summary = self._summary
            missing = self.definitions.missing_steps(row, summary.last or summary.values)
            if missing:
                row, values = {**row, **missing}, copied(values)
                values.update(missing)
        if values or not row:
            self._write(values, self.step)
        self._complete(row)

    def _complete(self, row: Mapping[str, Any]) -> None:
        self._summary.add_row(row, frozenset(self._nested.intersection(row)) if self._nested else _FLAT)
        step = self.last_step = self.step
        self.last_time = time.time()
        self._row = None
        self.step = step + 1
        self.boundary(step, row)

    def _log_late(self, at: int, logged: "Logged") -> None:
        """Record values at a step before the current one."""
        if not self._has_warned:
            self._has_warned = True
            termwarn(
                f"Step {at} is lower than the current step {self.step}. hookline records it there; wandb would ignore "
                "it. Later ones are recorded without a warning."
            )
        if logged.media:
            self._record_media(logged.media, at)
        if logged.values:
            self._write(logged.values, at)

    def _record_media(self, media: dict[str, list[Any]], step: int) -> None:
        self._recorder.media(media, step, step_now=lambda: self.step)

    def _sorted(self, data: Any) -> "Logged":
        if not isinstance(data, Mapping):
            raise TypeError("wandb.log must be passed a dictionary")
        if any(not isinstance(key, str) for key in data):
            raise TypeError("Key values passed to `wandb.log` must be strings.")
        found = logged_values(data)
        values: dict[str, Any] = found.plain
        if found.on_device:
            defer(found.on_device)
            values = MetricsRow(values)
            values.update(found.on_device)
        nested = {name for name in (*found.plain, *found.media) if "." in name and name not in data}
        if new := nested - self._nested:
            self._nested |= new
            self._recorder.event(NESTED, names=sorted(new))
        logged = Logged(values, dict(dict.items(values)), {})
        for name, value in found.media.items():
            captured = self._capture(name, value)
            if captured.media:
                logged.media[name] = captured.media
            if captured.shown is not None:
                logged.shown[name] = captured.shown
        return logged

    def renew_lock(self) -> None:
        """Replace the lock in a forked process, where another thread may have held it."""
        self._lock = threading.RLock()


class Logged(NamedTuple):
    """The values of one call of `log`.

    Attributes:
        values: Values of the row, which may still be on a device.
        shown: The same values, with the summary's entries for media.
        media: Captured media by name.
    """

    values: dict[str, Any]
    shown: dict[str, Any]
    media: dict[str, list[Any]]


_histories: "weakref.WeakSet[History]" = weakref.WeakSet()


def _renew_locks() -> None:
    for history in list(_histories):
        history.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class Replayed(NamedTuple):
    """The rows and the summary that a run has recorded so far.

    Attributes:
        rows: The rows of each step, merged, by flat name.
        times: When the last record of each step was written.
        summary: The summary that follows from them.
        definitions: The definitions that were in force at the end.
        nested: The names of metrics that were logged in a dict.
        media: The records of media and of tables, by step and name.
    """

    rows: dict[int, dict[str, Any]]
    times: dict[int, float]
    summary: SummaryValues
    definitions: Definitions
    nested: set[str]
    media: dict[int, dict[str, list[Media | TableRows]]]

    @property
    def last_step(self) -> int | None:
        """The highest step; None where there is none."""
        return max({*self.rows, *self.media}, default=None)


def replay(directory: Path, *, until: int | None = None) -> Replayed:
    """Read the rows of a run, and compute the summary as it was while they were logged.

    Args:
        directory: The run's directory.
        until: Leave out rows of later steps.
    """
    definitions, plain_rows = Definitions(), SummaryValues(Definitions())
    found = Replayed({}, {}, SummaryValues(definitions), definitions, set(), {})
    set_by_program: set[str] = set()  # after the last row with the name
    highest: int | None = None
    latest: dict[str, int] | None = None  # the step of each metric, where their steps are unrelated
    for record in read(directory):
        if isinstance(record, Metrics):
            if until is not None and record.step > until:
                continue
            values = {name: plain(value) for name, value in record.values.items()}
            found.rows.setdefault(record.step, {}).update(values)
            found.times[record.step] = record.time
            if latest is not None:
                values = {name: value for name, value in values.items() if record.step >= latest.get(name, 0)}
                latest.update(dict.fromkeys(values, record.step))
            elif highest is not None and record.step < highest:  # a late row is not in the summary
                continue
            highest = record.step
            plain_rows.add_row(values, frozenset(found.nested.intersection(values)))
            set_by_program.difference_update(values)
        elif isinstance(record, Media | TableRows):
            if (until is None or record.step <= until) and not record.name.startswith(SAVED_FILES):
                found.media.setdefault(record.step, {}).setdefault(record.name, []).append(record)
                found.times.setdefault(record.step, record.time)
        elif isinstance(record, Event):
            if record.name == SYNCED and latest is None:
                latest = {}
            _replay_event(record, found, plain_rows, set_by_program)
    found.summary.values.update(plain_rows.shown())
    found.summary.recount(found.rows[step] for step in sorted(found.rows))
    found.summary.show_statistics(frozenset(found.nested), leave=set_by_program)
    return found


def _replay_event(event: Event, found: Replayed, summary: SummaryValues, set_by_program: set[str]) -> None:
    """Apply a definition, or values that the program set in the summary; malformed data are skipped."""
    known, names = event.data.get("definitions"), event.data.get("names")
    if event.name == DEFINED and isinstance(known, list):
        for each in known:
            if isinstance(each, dict) and isinstance(each.get("name"), str):
                found.definitions.add(Metric.from_plain(each), overwrite=True)
    elif event.name == NESTED and isinstance(names, list):
        found.nested.update(map(str, names))
    elif event.name == SUMMARY:
        values, removed = event.data.get("values"), event.data.get("removed")
        for name, value in values.items() if isinstance(values, dict) else ():
            summary.values[name] = value
            set_by_program.add(name)
        for name in removed if isinstance(removed, list) else ():
            summary.values.pop(name, None)


def recorded_rows(directory: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of a run by step, the records of a step merged."""
    rows: dict[int, dict[str, Any]] = {}
    for record in read(directory):
        if isinstance(record, Metrics):
            rows.setdefault(record.step, {}).update(record.values)
    return rows

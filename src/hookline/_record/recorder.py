"""`Recorder`: the interface of the journal that loops use.

`log` accepts what people log: numbers, strings, arrays and tensors with one element, nested dicts. The usual case, a
dict of plain numbers, is encoded without a look at each value: the encoder itself finds what is not plain, and the line
shows whether something needs a second look.

A record with values on a device is written when they have arrived, with the time of its `log`, by a thread of
`PendingRecords`. A value that cannot be fetched (its array was deleted) is recorded as None and logged.
"""

import contextlib
import logging
import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, Source, collect, copied, is_on_device, size_of
from hookline._record.device import defer, defer_uniform
from hookline._record.journal import Durability, Journal
from hookline._record.reader import EVERY_AXIS, JOURNAL
from hookline._record.records import (
    Event,
    LogLine,
    Metrics,
    Record,
    Rewards,
    Sample,
    Status,
    clean,
    encode,
    valid_text,
)

logger = logging.getLogger("hookline")

TEXT_BYTES = 64 << 10
"""How many bytes of one text are kept by default."""

_SAMPLE_FIELDS = tuple(name for name in Sample.__struct_fields__ if name not in ("time", "truncated", "axis"))
_TEXT_FIELDS = ("prompt", "completion", "expected", "reasoning", "answer")
_NUMBERS = frozenset({float, int}).issuperset
_USUAL = dict.fromkeys((*_TEXT_FIELDS, "group", "lesson", "axis"), (str,)) | {
    "step": (int,),
    "total": (float, int),
    "advantage": (float, int),
    "rewards": (dict,),
}
"""The usual types of a sample's fields: such a sample is encoded without conversion."""


class Recorder:
    """Writes records to the journal of one writer of a run.

    Args:
        run_dir: The run's directory.
        name: The writer's name, ``main`` or e.g. ``rank1``.
        text_bytes: How many bytes of a text are kept; longer ones are truncated, and their length is recorded.
        redact: Called with every text of a sample; its result is recorded.
        durability: See `Journal`.
        clock: Returns seconds since 1970.
        journal: Other arguments of `Journal`.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        name: str = "main",
        text_bytes: int = TEXT_BYTES,
        redact: Callable[[str], str] | None = None,
        durability: Durability = "process",
        clock: Callable[[], float] = time.time,
        **journal: Any,
    ) -> None:
        require_integer("text_bytes", text_bytes)
        directory = Path(run_dir) / JOURNAL
        self.journal = Journal(directory, name=name, durability=durability, on_gap=self._record_gap, **journal)
        self._append_line = self.journal.append  # bound once: this is the hot path
        self._text_bytes = text_bytes
        self._short = text_bytes // 4  # characters, of at most four bytes each: surely short enough
        self._redact = redact
        self._clock = clock
        self._pending = PendingRecords(self._append_resolved)

    def log(self, *args: Any, step: int = 0, axis: str = "train", **values: Any) -> None:
        """Record metrics: ``log({...}, step=3)`` or ``log(loss=0.5, step=3)``."""
        self.metrics(collect(args, values, defer, defer_uniform), step, axis)

    def metrics(self, values: dict[str, Any], step: int, axis: str = "train") -> None:
        """Record flat, plain values, as `collect` returns them."""
        record = Metrics(
            time=self._clock(), step=step if type(step) is int else checked_step(step), values=values, axis=axis
        )
        try:
            line = encode(record)
            if line.rfind(b"null") < 0:  # no None and no NaN, which the encoder writes as null; faster than `in`
                self._append_line(line)
                return
        except (TypeError, ValueError, OverflowError):  # a lone surrogate, a subclass of a plain type, ...
            pass
        self._append(record)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int = 0, axis: str = "train") -> None:
        """Record samples, one mapping each; keys that are not fields of `Sample` go to its ``extra``.

        Raises:
            OptionError: One of them cannot be recorded. Then none is.
        """
        lines: list[bytes] = []
        slow: list[Sample] = []
        step, axis = checked_step(step), _check_axis(axis)
        for row in rows:
            # From the first slow one on, all are slow: rows that were encoded are written first, and the order must not
            # change.
            line = self._plain_sample(row, step, axis) if not slow else None
            if line is None:
                slow.append(self._sample(row, step, axis))
            else:
                lines.append(line)
        if slow:
            _defer_values(slow)
        for line in lines:  # nothing can be refused from here on: all are recorded, or none was
            self.journal.append(line)
        for sample in slow:
            self._append(sample)

    def _plain_sample(self, row: Any, step: int, axis: str) -> bytes | None:
        """Encode a sample of plain values within the limits; None if something needs a closer look."""
        if type(row) is not dict or self._redact is not None:
            return None
        for name, value in row.items():
            kind = type(value)
            if kind not in _USUAL.get(name, ()) or (kind is str and len(value) > self._short):
                return None
        numbers = [*row.get("rewards", {}).values(), row.get("total", 0.0), row.get("advantage", 0.0)]
        fields: dict[str, Any] = {"time": self._clock(), "step": step, "axis": axis} | row
        try:
            return encode(Sample(**fields)) if _NUMBERS(map(type, numbers)) and all(map(isfinite, numbers)) else None
        except (TypeError, ValueError, OverflowError):
            return None

    def rewards(self, name: str, values: Sequence[Any], samples: Sequence[str] = (), *, step: int = 0) -> None:
        """Record the values of a reward function for a batch."""
        given = {str(index): value for index, value in enumerate(values)}
        plain = list(dict.values(collect((given,), {}, defer)))
        self._append(Rewards(time=self._clock(), step=step, name=name, values=plain, samples=[str(s) for s in samples]))

    def status(self, status: str, /, message: str = "", *, step: int | None = None, **data: Any) -> None:
        """Record the status of the run."""
        self._append(Status(time=self._clock(), status=status, message=message, step=step, data=data))

    def event(self, name: str, /, *, step: int | None = None, **data: Any) -> None:
        """Record something that happened."""
        self._append(Event(time=self._clock(), name=name, step=step, data=data))

    def line(self, level: str, logger: str, message: str, *, step: int | None = None) -> None:
        """Record a line of logging."""
        message = self._truncate(message)[0]
        self._append(LogLine(time=self._clock(), level=level, logger=logger, message=message, step=step))

    def resume(self, step: int | None = None, **steps: int) -> None:
        """Mark that this session continues every axis, or those given, after a step: ``resume(400)``.

        With a full disk the mark is the first line when there is room again: without it, rows would be there twice.
        """
        data = {"steps": steps if step is None else {EVERY_AXIS: step, **steps}}
        mark = cleaned(Event(time=self._clock(), name="resume", step=None, data=data))
        self.journal.append_surely(encode(mark))

    def flush(self) -> None:
        """Wait until everything recorded so far is in the journal: values from a device take a moment."""
        self._pending.flush()

    def close(self) -> None:
        """Finish the journal. May be called again."""
        # First: its rows still have to be written to the journal.
        self._pending.close()
        self.journal.close()

    def _append(self, record: Record) -> None:
        if sources := _sources(record):
            if isinstance(record, Metrics):
                record.values = dict(dict.items(record.values))  # a copy: the caller may change its dict
            self._pending.add(record, sources)
        else:
            self._append_now(record)

    def _append_resolved(self, record: Record) -> None:
        if type(record) is Metrics:  # plain numbers need no second look, as in `metrics`
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                line = encode(record)
                if line.rfind(b"null") < 0:
                    self.journal.append(line)
                    return
        self._append_now(record)

    def _append_now(self, record: Record) -> None:
        self.journal.append(encode(cleaned(record)))

    def _record_gap(self, lost: int) -> None:
        # Called by the journal in the middle of an `append`, which may therefore be re-entered.
        self.event("records_lost", count=lost)

    def _sample(self, row: Mapping[str, Any], step: int, axis: str) -> Sample:
        if not isinstance(row, Mapping):
            raise _samples_error(f"{row!r} is not a mapping; give a dict per sample.")
        extra = row.get("extra") or {}
        if not isinstance(extra, Mapping):
            raise _samples_error(f"extra={extra!r}; give a dict.")
        known = {name: row[name] for name in _SAMPLE_FIELDS if name in row and name != "extra"}
        extra = dict(extra) | {key: row[key] for key in row if key not in (*_SAMPLE_FIELDS, "axis")}
        axis = _check_axis(row.get("axis", axis))
        own: dict[str, Any] = {"time": self._clock(), "step": step, "axis": axis, "extra": extra}
        sample = Sample(**own | known)
        sample.step = checked_step(sample.step)
        sample.group, sample.lesson = (None if v is None else str(v) for v in (sample.group, sample.lesson))
        _check_sample(sample)
        self._truncate_texts(sample)
        # Left on the device here: one transfer for all samples follows in `_defer_values`.
        sample.rewards = copied(collect((sample.rewards,), {}, _keep_on_device))
        return sample

    def _truncate_texts(self, sample: Sample) -> None:
        cut: dict[str, int] = {}
        for name in _TEXT_FIELDS:
            value = getattr(sample, name)
            if value is not None:
                kept, length = self._truncate(value if isinstance(value, str) else str(value))
                setattr(sample, name, kept)
                cut |= {name: length} if length else {}
        sample.extra = self._truncate_inside(sample.extra, "extra", cut)
        sample.truncated = cut

    def _truncate_inside(self, value: Any, path: str, cut: dict[str, int]) -> Any:
        """Truncate every text in a nested value; notes the original lengths in ``cut``."""
        if isinstance(value, str):
            kept, length = self._truncate(value)
            cut |= {path: length} if length else {}
            return kept
        if isinstance(value, Mapping):
            return {key: self._truncate_inside(item, f"{path}.{key}", cut) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._truncate_inside(item, f"{path}[{i}]", cut) for i, item in enumerate(value)]
        return value

    def _truncate(self, value: str) -> tuple[str, int]:
        """Redact and truncate a text; returns it with its original length in bytes, or 0 if it was short enough."""
        value = self._redact(value) if self._redact is not None else value
        encoded = value.encode("utf-8", "replace")
        if len(encoded) <= self._text_bytes:
            return valid_text(value), 0
        # The cut may be in the middle of a character, whose rest is dropped.
        return encoded[: self._text_bytes].decode("utf-8", "ignore"), len(encoded)


def _samples_error(text: str) -> OptionError:
    return OptionError(f"log_samples(): {text}")


def _check_axis(axis: Any) -> str:
    if not isinstance(axis, str):
        raise _samples_error(f"axis={axis!r}; give a string.")
    return axis


def _check_sample(sample: Sample) -> None:
    for name in ("prompt", "completion"):
        if getattr(sample, name) is None:
            raise _samples_error(f"{name}=None; give a string, or leave {name!r} out.")
    for name in ("total", "advantage"):
        if isinstance(value := getattr(sample, name), Mapping):
            raise _samples_error(f"{name}={value!r}; give a number.")
    if not isinstance(sample.rewards, Mapping):
        raise _samples_error(f"rewards={sample.rewards!r}; give a dict of numbers by function.")


def _defer_values(samples: list[Sample]) -> None:
    """Make the numbers of samples plain; those on a device are fetched later, with one transfer for all samples."""
    numbers = [
        dict(collect(({"total": sample.total, "advantage": sample.advantage},), {}, _keep_on_device))
        for sample in samples
    ]
    others = [{k: v for k, v in sample.extra.items() if is_on_device(v) and size_of(v) == 1} for sample in samples]
    defer(*(sample.rewards for sample in samples), *numbers, *others)
    for sample, own, other in zip(samples, numbers, others, strict=True):
        sample.extra |= other
        sample.total, sample.advantage = own["total"], own["advantage"]


def _keep_on_device(values: dict[str, Any]) -> None:
    """Stand in for `defer` where all samples are deferred together later."""


def checked_step(step: Any) -> int:
    """Return a step as a Python int.

    Raises:
        OptionError: It is not an integer, or too large for a record.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise OptionError(f"step={step!r}: give a whole number.") from None
    # `clean` makes infinite what a record cannot hold.
    if clean(number) != number:
        raise OptionError(f"step: a number of {number.bit_length()} bits cannot be recorded; give a smaller one.")
    return number


def cleaned(record: Record) -> Record:
    """Convert every field of a record, in place, to what JSON can represent."""
    for name in record.__struct_fields__:
        setattr(record, name, clean(getattr(record, name)))
    return record


POLL_SECONDS = 0.05
"""How often the thread checks whether the oldest pending record has arrived."""


class PendingRecords:
    """Records with values on their way from a device, written in order by a thread of their own.

    Nothing wakes the thread, because waking a thread costs the one that does it: it polls.

    Args:
        write: Called with a record when all of its values are numbers.
    """

    def __init__(self, write: Callable[[Record], None], *, poll_seconds: float = POLL_SECONDS) -> None:
        self._write = write
        self._poll_seconds = poll_seconds
        # A deque, whose ends need no lock: the training thread, in `add`, must never wait for a write.
        self._records: deque[tuple[Record, set[Source]]] = deque()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._process = os.getpid()

    def add(self, record: Record, sources: set[Source]) -> None:
        """Add a record and the sources of its values."""
        if os.getpid() != self._process:  # forked: the parent writes what was pending, and a thread may hold its lock
            self._records, self._thread, self._process = deque(), None, os.getpid()
            self._writing, self._closed = threading.Lock(), threading.Event()
        # Before the thread is started, and also if it cannot be: `flush` finds it.
        self._records.append((record, sources))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="hookline-device-values", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: `flush` writes it
                thread.start()
                self._thread = thread

    def flush(self) -> None:
        """Wait for everything that is pending, and write it."""
        if self._process != os.getpid():  # forked: see `add`
            return
        # Held for whole records: `flush` does not overtake the one that the thread is writing.
        with self._writing:
            while self._records:
                self._write_oldest()

    def close(self) -> None:
        """Write everything that is pending, and end the thread."""
        self.flush()
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._poll_seconds):
            with self._writing:
                # Only from the front: rows stay in order even if a later one has arrived first.
                while self._records and self._has_arrived(self._records[0][1]):
                    self._write_oldest()

    @staticmethod
    def _has_arrived(sources: set[Source]) -> bool:
        # A source that does not arrive by itself counts as arrived: this thread has time to wait for it.
        try:
            return all(source.ready() or not source.arrives for source in sources)
        except Exception:  # it never arrives: writing the record logs that
            return True

    def _write_oldest(self) -> None:
        record, _ = self._records[0]
        try:
            self._write(resolve_values(record))
        except Exception:
            logger.exception("A record with values from a device could not be written.")
        # Last: if the writing is interrupted, the record may come twice but is not lost.
        self._records.popleft()


def resolve_values(record: Record) -> Record:
    """Replace every value that was on its way by its number."""
    match record:
        case Metrics():
            items = dict.items(record.values)
            try:  # all at once: this thread competes with the training thread for the interpreter
                record.values = {
                    key: value.source.number(value.index) if type(value) is Deferred else value for key, value in items
                }
            except Exception:
                # One by one now, so that only the value that failed becomes None.
                record.values = {key: _number(key, value) for key, value in items}
        case Sample():
            record.rewards = {key: _number(key, value) for key, value in dict.items(record.rewards)}
            record.total, record.advantage = _number("total", record.total), _number("advantage", record.advantage)
            record.extra = {key: _number(key, value) for key, value in record.extra.items()}
        case Rewards():
            record.values = [_number(record.name, value) for value in record.values]
    return record


def _number(name: str, value: Any) -> Any:
    if type(value) is not Deferred:
        return value
    try:
        return value.source.number(value.index)
    except Exception as error:
        logger.warning("%r could not be fetched from its device and is recorded as None: %s", name, error)
        return None


def _sources(record: Record) -> set[Source]:
    """Return the sources of the values that are on their way."""
    values: Iterable[Any] = ()
    match record:
        case Metrics():
            values = dict.values(record.values)
        case Sample():
            values = [*dict.values(record.rewards), record.total, record.advantage, *record.extra.values()]
        case Rewards():
            values = record.values
    return {value.source for value in values if type(value) is Deferred}

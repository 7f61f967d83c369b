"""`Recorder`: the face of the journal that loops use.

`log` takes what people log: numbers, strings, arrays and tensors with one element, nested dicts. The
usual case (a dict of plain numbers) is encoded without looking at the values one by one: the encoder
itself finds what is not plain, and the line shows whether something needs a second look. A record with
values that are still on a device is written when they have arrived, with the time of its `log`.

Records whose values are still on their way from a device.

`Waiting` holds them. A thread of its own looks at the oldest every few milliseconds and writes what has
arrived; nobody wakes it, because waking a thread costs the one that does it. A value that cannot be
fetched (its array was deleted) is recorded as None, and said.
"""

import contextlib
import logging
import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

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

POLL_SECONDS = 0.05


class PendingRecords:
    """Records whose values are on their way, written in their order by a thread of its own.

    Args:
        write: Called with a record once all of its values are numbers.
        poll_seconds: How often the thread looks whether the oldest has arrived.
    """

    def __init__(self, write: Callable[[Record], None], *, poll_seconds: float = POLL_SECONDS) -> None:
        self._write = write
        self._poll_seconds = poll_seconds
        self._records: deque[tuple[Record, set[Source]]] = deque()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._process = os.getpid()

    def add(self, record: Record, sources: set[Source]) -> None:
        """Take a record and the sources of its values (`sources_of`); it is written when they have arrived."""
        if os.getpid() != self._process:  # forked: what waits is the parent's to write
            self._records, self._thread, self._process = deque(), None, os.getpid()
            self._writing, self._ended = threading.Lock(), threading.Event()
        self._records.append((record, sources))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="hookline-device-values", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: it is written by `flush`, or tried again
                thread.start()
                self._thread = thread

    def flush(self) -> None:
        """Write everything that waits, and wait for it."""
        if self._process != os.getpid():  # forked: the lock may be held for ever, and what waits is the parent's
            return
        with self._writing:
            while self._records:
                self._write_first()

    def close(self) -> None:
        """Write everything that waits, and end the thread."""
        self.flush()
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._poll_seconds):
            with self._writing:
                while self._records and self._has_arrived():
                    self._write_first()

    def _has_arrived(self) -> bool:
        """Whether the oldest can be written. What does not arrive by itself is waited for: this thread has time."""
        try:
            return all(source.ready() or not source.arrives for source in self._records[0][1])
        except Exception:  # it never arrives: writing it says so
            return True

    def _write_first(self) -> None:
        record, _ = self._records[0]
        try:
            self._write(resolve_values(record))
        except Exception:
            logger.exception("A record with values from a device could not be written.")
        self._records.popleft()


def sources_of(record: Record) -> set[Source]:
    """Where the values of a record that are on their way come from."""
    return {value.source for value in _values_of(record) if type(value) is Deferred}


def resolve_values(record: Record) -> Record:
    """The record with every value that was on its way as a number."""
    match record:
        case Metrics():
            items = dict.items(record.values)
            try:  # all at once: this thread takes its time from the training thread's
                record.values = {
                    key: value.source.number(value.index) if type(value) is Deferred else value for key, value in items
                }
            except Exception:
                record.values = {key: _number(key, value) for key, value in items}
        case Sample():
            record.rewards = {key: _number(key, value) for key, value in dict.items(record.rewards)}
            record.total, record.advantage = _number("total", record.total), _number("advantage", record.advantage)
            record.extra = {key: _number(key, value) for key, value in record.extra.items()}
        case Rewards():
            record.values = [_number(record.name, value) for value in record.values]
    return record


def _values_of(record: Record) -> Iterable[Any]:
    match record:
        case Metrics():
            return dict.values(record.values)
        case Sample():
            return [*dict.values(record.rewards), record.total, record.advantage, *record.extra.values()]
        case Rewards():
            return record.values
    return ()


def _number(name: str, value: Any) -> Any:
    if type(value) is not Deferred:
        return value
    try:
        return value.source.number(value.index)
    except Exception as error:
        logger.warning("%r could not be fetched from its device and is recorded as None: %s", name, error)
        return None


TEXT_BYTES = 64 << 10
"""How many bytes of one text are kept."""

_SAMPLE_FIELDS = tuple(name for name in Sample.__struct_fields__ if name not in ("time", "truncated", "axis"))
_TEXT_FIELDS = ("prompt", "completion", "expected", "reasoning", "answer")
_NUMBERS = frozenset({float, int}).issuperset
_USUAL = dict.fromkeys((*_TEXT_FIELDS, "group", "lesson", "axis"), (str,)) | {
    "step": (int,),
    "total": (float, int),
    "advantage": (float, int),
    "rewards": (dict,),
}
"""The types that the fields of a sample usually have: such a sample is encoded as it is."""


class Recorder:
    """Writes records to the journal of one writer of a run.

    Args:
        run_dir: The run's directory.
        name: The writer's name, ``main`` or e.g. ``rank1``.
        text_bytes: How much of a text is kept; the rest is cut off and its length noted.
        redact: Called with every text of a sample, and what it returns is recorded.
        durability: See `Journal`.
        clock: Seconds since 1970.
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
        if text_bytes < 1:
            raise OptionError(f"text_bytes={text_bytes!r}: give a number of bytes above 0.")
        directory = Path(run_dir) / JOURNAL
        self.journal = Journal(directory, name=name, durability=durability, on_gap=self._note_gap, **journal)
        self._append_line = self.journal.append  # bound once: this is the hot path
        self._text_bytes = text_bytes
        self._surely_short = text_bytes // 4  # characters: however they are encoded, it is not too long
        self._redact = redact
        self._clock = clock
        self._waiting = PendingRecords(self._append_fetched)

    def log(self, *args: Any, step: int = 0, axis: str = "train", **values: Any) -> None:
        """Record metrics: ``log({...}, step=3)`` or ``log(loss=0.5, step=3)``."""
        self.metrics(collect(args, values, defer, defer_uniform), step, axis)

    def metrics(self, values: dict[str, Any], step: int, axis: str = "train") -> None:
        """Record flat, plain values, as `collect` gives them."""
        record = Metrics(
            time=self._clock(), step=step if type(step) is int else checked_step(step), values=values, axis=axis
        )
        try:
            line = encode(record)
            if line.rfind(b"null") < 0:  # neither None nor a number that JSON has no word for; faster than `in`
                self._append_line(line)
                return
        except (TypeError, ValueError, OverflowError):  # a lone surrogate, a subclass of a plain type, ...
            pass
        self._append(record)

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int = 0, axis: str = "train") -> None:
        """Record samples, one mapping each; keys that `Sample` does not have are kept in its ``extra``.

        Raises:
            OptionError: One of them cannot be recorded. Then none is.
        """
        lines: list[bytes] = []
        slow: list[Sample] = []
        step, axis = checked_step(step), _axis(axis)
        for row in rows:
            line = self._plain_sample(row, step, axis) if not slow else None
            if line is None:
                slow.append(self._sample(row, step, axis))
            else:
                lines.append(line)
        if slow:
            _fetch(slow)
        for line in lines:  # from here on nothing can be refused: all of them are recorded, or none
            self.journal.append(line)
        for sample in slow:
            self._append(sample)

    def _plain_sample(self, row: Any, step: int, axis: str) -> bytes | None:
        """The line of a sample of plain values within the limits; None where something needs a closer look."""
        if type(row) is not dict or self._redact is not None:
            return None
        for name, value in row.items():
            kind = type(value)
            if kind not in _USUAL.get(name, ()) or (kind is str and len(value) > self._surely_short):
                return None
        numbers = [*row.get("rewards", {}).values(), row.get("total", 0.0), row.get("advantage", 0.0)]
        fields: dict[str, Any] = {"time": self._clock(), "step": step, "axis": axis} | row
        try:
            return encode(Sample(**fields)) if _NUMBERS(map(type, numbers)) and all(map(isfinite, numbers)) else None
        except (TypeError, ValueError, OverflowError):
            return None

    def rewards(self, name: str, values: Sequence[Any], samples: Sequence[str] = (), *, step: int = 0) -> None:
        """Record the values that a reward function gave."""
        given = {str(index): value for index, value in enumerate(values)}
        plain = list(dict.values(collect((given,), {}, defer)))
        self._append(Rewards(time=self._clock(), step=step, name=name, values=plain, samples=[str(s) for s in samples]))

    def status(self, status: str, /, message: str = "", *, step: int | None = None, **data: Any) -> None:
        """Record where the run is."""
        self._append(Status(time=self._clock(), status=status, message=message, step=step, data=data))

    def event(self, name: str, /, *, step: int | None = None, **data: Any) -> None:
        """Record something that happened."""
        self._append(Event(time=self._clock(), name=name, step=step, data=data))

    def line(self, level: str, logger: str, message: str, *, step: int | None = None) -> None:
        """Record a line of logging."""
        message = self._cut(message)[0]
        self._append(LogLine(time=self._clock(), level=level, logger=logger, message=message, step=step))

    def resume(self, step: int | None = None, **steps: int) -> None:
        """Mark that this session takes up every axis, or those given, after a step: ``resume(400)``.

        With a full disk the mark is written when there is room, before any row: without it they would be there twice.
        """
        data = {"steps": steps if step is None else {EVERY_AXIS: step, **steps}}
        mark = cleaned(Event(time=self._clock(), name="resume", step=None, data=data))
        self.journal.append_surely(encode(mark))

    def flush(self) -> None:
        """Wait until everything recorded so far is in the journal: what comes from a device takes a moment."""
        self._waiting.flush()

    def close(self) -> None:
        """Finish the journal. May be called again."""
        self._waiting.close()
        self.journal.close()

    def _append(self, record: Record) -> None:
        if sources := sources_of(record):
            if isinstance(record, Metrics):
                record.values = dict(dict.items(record.values))  # whoever gave it may go on changing it
            self._waiting.add(record, sources)
        else:
            self._append_now(record)

    def _append_fetched(self, record: Record) -> None:
        """Append a record whose values have arrived; as in `metrics`, numbers need no second look."""
        if type(record) is Metrics:
            with suppress(TypeError, ValueError, OverflowError):
                line = encode(record)
                if line.rfind(b"null") < 0:
                    self.journal.append(line)
                    return
        self._append_now(record)

    def _append_now(self, record: Record) -> None:
        self.journal.append(encode(cleaned(record)))

    def _note_gap(self, lost: int) -> None:
        self.event("records_lost", count=lost)

    def _sample(self, row: Mapping[str, Any], step: int, axis: str) -> Sample:
        if not isinstance(row, Mapping):
            raise OptionError(f"log_samples(): {row!r} is not a mapping; give a dict per sample.")
        known = {name: row[name] for name in _SAMPLE_FIELDS if name in row and name != "extra"}
        extra = _extra(row) | {key: row[key] for key in row if key not in (*_SAMPLE_FIELDS, "axis")}
        axis = _axis(row.get("axis", axis))
        own: dict[str, Any] = {"time": self._clock(), "step": step, "axis": axis, "extra": extra}
        sample = Sample(**own | known)
        sample.step = checked_step(sample.step)
        sample.group, sample.lesson = (None if v is None else str(v) for v in (sample.group, sample.lesson))
        _check_values(sample)
        self._cut_texts(sample)
        sample.rewards = copied(collect((sample.rewards,), {}, _leave))
        return sample

    def _cut_texts(self, sample: Sample) -> None:
        cut: dict[str, int] = {}
        for name in _TEXT_FIELDS:
            value = getattr(sample, name)
            if value is not None:
                kept, length = self._cut(value if isinstance(value, str) else str(value))
                setattr(sample, name, kept)
                cut |= {name: length} if length else {}
        sample.extra = self._cut_inside(sample.extra, "extra", cut)
        sample.truncated = cut

    def _cut_inside(self, value: Any, path: str, cut: dict[str, int]) -> Any:
        """Every text in a nested value as it is kept."""
        if isinstance(value, str):
            kept, length = self._cut(value)
            cut |= {path: length} if length else {}
            return kept
        if isinstance(value, Mapping):
            return {key: self._cut_inside(item, f"{path}.{key}", cut) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cut_inside(item, f"{path}[{i}]", cut) for i, item in enumerate(value)]
        return value

    def _cut(self, value: str) -> tuple[str, int]:
        """A text as it is kept, and its length in bytes if something was cut off."""
        value = self._redact(value) if self._redact is not None else value
        encoded = value.encode("utf-8", "replace")
        if len(encoded) <= self._text_bytes:
            return valid_text(value), 0
        return encoded[: self._text_bytes].decode("utf-8", "ignore"), len(encoded)


def _axis(axis: Any) -> str:
    if not isinstance(axis, str):
        raise OptionError(f"log_samples(): axis={axis!r}; give a text.")
    return axis


def _extra(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = row.get("extra") or {}
    if not isinstance(extra, Mapping):
        raise OptionError(f"log_samples(): extra={extra!r}; give a dict.")
    return dict(extra)


def _check_values(sample: Sample) -> None:
    for name in ("prompt", "completion"):
        if getattr(sample, name) is None:
            raise OptionError(f"log_samples(): {name}=None; give a text, or leave {name!r} out.")
    for name in ("total", "advantage"):
        if isinstance(value := getattr(sample, name), Mapping):
            raise OptionError(f"log_samples(): {name}={value!r}; give a number.")
    if not isinstance(sample.rewards, Mapping):
        raise OptionError(f"log_samples(): rewards={sample.rewards!r}; give a dict of numbers by function.")


def _fetch(samples: list[Sample]) -> None:
    """Make the numbers of samples plain; those on a device are fetched for all together, later."""
    numbers = [
        dict(collect(({"total": sample.total, "advantage": sample.advantage},), {}, _leave)) for sample in samples
    ]
    others = [{k: v for k, v in sample.extra.items() if is_on_device(v) and size_of(v) == 1} for sample in samples]
    defer(*(sample.rewards for sample in samples), *numbers, *others)
    for sample, own, other in zip(samples, numbers, others, strict=True):
        sample.extra |= other
        sample.total, sample.advantage = own["total"], own["advantage"]


def _leave(values: dict[str, Any]) -> None:
    """Leave what is on a device for later: all samples are fetched together."""


def checked_step(step: Any) -> int:
    """A step as a Python int.

    Raises:
        OptionError: It is not a whole number, or one that no record can hold.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise OptionError(f"step={step!r}: give a whole number.") from None
    if clean(number) != number:
        raise OptionError(f"step: a number of {number.bit_length()} bits cannot be recorded; give a smaller one.")
    return number


def cleaned(record: Record) -> Record:
    """A record with every field in a form that JSON can hold."""
    for name in record.__struct_fields__:
        setattr(record, name, clean(getattr(record, name)))
    return record

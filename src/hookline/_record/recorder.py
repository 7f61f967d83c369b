"""`Recorder`: the interface of the journal that loops use.

`log` accepts what people log: numbers, strings, arrays and tensors with one element, nested dicts. The usual case, a
dict of plain numbers, is encoded without a look at each value: the encoder itself finds what is not plain, and the line
shows whether something needs a second look.

A record with values on a device is written when they have arrived, with the time of its `log`, by a thread of
`PendingRecords`. A value that cannot be fetched (its array was deleted) is recorded as None and logged.
"""

import contextlib
import functools
import itertools
import logging
import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, MetricsRow, Source, collect, copied, is_numbers, is_on_device, size_of
from hookline._record.device import defer, defer_uniform
from hookline._record.journal import Durability, Journal
from hookline._record.media import invalid
from hookline._record.media_table import RECORD_BYTES, ROWS_AT_ONCE, Table, table_records
from hookline._record.reader import EVERY_AXIS, JOURNAL
from hookline._record.records import (
    Event,
    LogLine,
    Metrics,
    Record,
    Rewards,
    Sample,
    SampleUse,
    Status,
    TableRows,
    clean,
    encode,
    valid_text,
)
from hookline._record.redaction import Redact, Redactor, as_redactor
from hookline._record.samples import BlobFacts, CapturedSample, sample_fields

if TYPE_CHECKING:
    from hookline._record.artifact_saving import ArtifactSave, ArtifactSaver
    from hookline._record.artifacts import Artifact
    from hookline._record.media_writer import MediaWriter
    from hookline._record.tokens import Tokens

logger = logging.getLogger("hookline")

TEXT_BYTES = 64 << 10
"""How many bytes of one text are kept by default."""

_TEXT_FIELDS = ("prompt", "completion", "expected", "reasoning", "answer")
_USUAL_STEPS = 1 << 62
_NUMBERS = frozenset({float, int}).issuperset
_TEXTS = frozenset({str}).issuperset
_DICTS = frozenset({dict}).issuperset
_BEHIND_KIND = len(b'{"kind":"metrics"')
_USUAL = (
    dict.fromkeys((*_TEXT_FIELDS, "group", "lesson", "axis", "finish", "rollout", "parent", "episode"), (str,))
    | dict.fromkeys(("step", "version", "length", "prompt_length", "last_version"), (int,))
    | dict.fromkeys(("total", "advantage"), (float, int))
    | dict.fromkeys(("rewards", "timings"), (dict,))
)
"""The usual types of a sample's fields, and of ``extra["episode"]``: such a sample is encoded without conversion."""
_encode_fields: Callable[[dict[str, Any]], bytes] = msgspec.json.Encoder().encode


class Recorder:
    """Writes records to the journal of one writer of a run.

    Args:
        run_dir: The run's directory.
        name: The writer's name, ``main`` or e.g. ``rank1``.
        text_bytes: How many bytes of a text are kept; longer ones are truncated, and their length is recorded.
        redact: A function that is called with every text and returns what is recorded, a regular expression, or a list
            of these; see `Redactor`. Well-known secrets are redacted in any case, unless it is False.
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
        redact: Redact | Redactor = None,
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
        self.redactor = as_redactor(redact)
        self._clock = clock
        self._pending = PendingRecords(self._append_resolved)
        self._run_dir = Path(run_dir)
        self._media: MediaWriter | None = None
        self._is_closed = False
        self._artifacts: ArtifactSaver | None = None

    def log(self, *args: Any, step: int = 0, axis: str = "train", **values: Any) -> None:
        """Record metrics: ``log({...}, step=3)`` or ``log(loss=0.5, step=3)``."""
        # The usual case: one check of all types shows that there is nothing to convert and nothing to redact.
        given = values if not args else args[0] if len(args) == 1 and not values else None
        if type(given) is dict and is_numbers(given):
            self.metrics(given, step, axis, has_texts=False)
            return
        metrics = collect(args, values, defer, defer_uniform)
        if isinstance(metrics, MetricsRow) and (media := metrics.take_media()):
            self.media(media, step, axis)
            if not metrics:
                return
        self.metrics(metrics, step, axis)

    def metrics(self, values: dict[str, Any], step: int, axis: str = "train", *, has_texts: bool = True) -> None:
        """Record flat, plain values, as `collect` returns them.

        Args:
            has_texts: Whether a value may be a text, which has to be redacted.
        """
        record = Metrics(
            time=self._clock(), step=step if type(step) is int else checked_step(step), values=values, axis=axis
        )
        try:
            line = encode(record)
            # No None and no NaN, which the encoder writes as null; faster than `in`. No text either: only then is there
            # a quote after a colon, except for the kind and an axis.
            if line.rfind(b"null") < 0 and (
                not has_texts or line.rfind(b':"', _BEHIND_KIND) < 0 or not self._has_texts(values)
            ):
                self._append_line(line)
                return
        except (TypeError, ValueError, OverflowError):  # a lone surrogate, a subclass of a plain type, ...
            pass
        self._append(record)

    def metrics_at(self, time: float, values: dict[str, Any], step: int, axis: str = "train") -> None:
        """Record flat, plain values as of a time in seconds since 1970."""
        self._append(Metrics(time=time, step=checked_step(step), values=values, axis=axis))

    def _has_texts(self, values: dict[str, Any]) -> bool:
        return self.redactor.is_active and any(isinstance(value, str) for value in dict.values(values))

    def media(
        self,
        media: Mapping[str, Sequence[Any]],
        step: int,
        axis: str = "train",
        *,
        step_now: Callable[[], int] | None = None,
        time: float | None = None,
    ) -> None:
        """Record captured media, as `collect` returns them; encoded and written off this thread.

        Args:
            step_now: Returns the step of rows that are added to a table later; ``step`` by default.
            time: Seconds since 1970; now by default.
        """
        stamp = (self._clock() if time is None else time, checked_step(step), axis)
        for name, values in media.items():
            others = [value for value in values if not isinstance(value, Table)]
            for table in values if len(others) < len(values) else ():
                if isinstance(table, Table):
                    record = functools.partial(self._add_rows, name, axis, step_now or (lambda: step))
                    try:
                        table.bind((str(self._run_dir), name), record)
                    except OptionError as error:  # recorded under another name, where it stays
                        others.append(invalid("table", name, error))
                    else:
                        self._table_rows(name, table, stamp)
            if others:
                self._media_writer().submit(name, others, stamp)

    def _add_rows(self, name: str, axis: str, step_now: Callable[[], int], table: Table) -> None:
        """Record rows that were added to a table after it was logged."""
        if self._is_closed:
            logger.warning("The run of the table %r has ended: rows added to it now are not recorded.", name)
            table.unbind()
            return
        self._table_rows(name, table, (self._clock(), checked_step(step_now()), axis))

    def _table_rows(self, name: str, table: Table, stamp: tuple[float, int, str]) -> None:
        new = table.take_new()
        if new.start and not new.rows:  # logged again, with nothing new
            return
        if new.has_media or len(new.rows) > ROWS_AT_ONCE or new.nbytes > RECORD_BYTES:
            self._media_writer().submit(name, [new], stamp)
            return
        # Few plain rows are written here: they are in the journal when this returns, as numbers are.
        for record in table_records(new, name, stamp):
            self._append_media(record)

    def _append_media(self, record: Record) -> bool:
        # Redacted before; values on a device are waited for on the writer's thread.
        if isinstance(record, Sample | SampleUse):
            return self.journal.append(encode(cleaned(resolve_values(record))))
        return self.journal.append(_encoded_media(record, self.redactor))

    def _append_surely(self, record: Record) -> None:
        self.redactor.record(record)
        self.journal.append_surely(encode(cleaned(record)))

    def _media_writer(self) -> "MediaWriter":
        if self._media is None:
            from hookline._record.media_writer import MediaWriter

            made = MediaWriter(
                self._run_dir, self._append_media, append_surely=self._append_surely, redactor=self.redactor
            )
            # One statement: of two threads that log the first image, both get the same writer.
            self._media = self.__dict__.setdefault("_made_media_writer", made)
        return self._media

    def save_artifact(
        self,
        name: str,
        files: Any,
        *,
        kind: str = "artifact",
        aliases: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        reference: bool = False,
        link: bool = False,
        step: int | None = None,
    ) -> "ArtifactSave":
        """Save a version of an artifact, off this thread; see `Loop.save_artifact`."""
        if isinstance(metadata, Mapping):
            metadata = self.redactor.settings(dict(metadata))
        options: dict[str, Any] = {"kind": kind, "aliases": aliases, "metadata": metadata, "step": step}
        return self._artifact_saver().save(name, files, reference=reference, link=link, **options)

    def use_artifact(self, reference: str, *, root: str | Path | None = None, step: int | None = None) -> "Artifact":
        """Find a version of an artifact, and record that this run uses it; see `Loop.use_artifact`."""
        from hookline._record.artifact_saving import ARTIFACT_USED
        from hookline._record.artifacts import artifact

        saver = self._artifact_saver()
        found = artifact(reference, root=saver.root if root is None else root, project=saver.project)
        facts = {"version": found.version, "kind": found.kind, "digest": found.digest, "reference": str(reference)}
        self.event(ARTIFACT_USED, step=step, artifact=f"{found.project}/{found.name}", **facts)
        saver.note_use(found)
        return found

    def _artifact_saver(self) -> "ArtifactSaver":
        if self._artifacts is None:
            from hookline._record.artifact_saving import ArtifactSaver

            self._artifacts = ArtifactSaver(self._run_dir, self.event)
        return self._artifacts

    def finish_artifacts(self) -> None:
        """Wait until all artifacts are saved. `flush` does not: they are no part of a checkpoint's record."""
        if self._artifacts is not None:
            self._artifacts.flush()

    def samples(self, rows: Iterable[Mapping[str, Any]], step: int = 0, axis: str = "train") -> None:
        """Record samples, one mapping each; keys that are not fields of `Sample` go to its ``extra``.

        Raises:
            OptionError: One of them cannot be recorded. Then none is.
        """
        step, axis, rows = checked_step(step), _check_axis(axis), list(rows)
        slow: list[tuple[Sample, list[Any]]] = []
        lines = self._plain_samples(rows, step, axis)
        if lines is None:
            lines = []
            for row in rows:
                # From the first slow one on, all are slow: rows that were encoded are written first, and the order must
                # not change.
                encoded = self._plain_samples([row], step, axis) if not slow else None
                if encoded is None:
                    slow.append(self._sample(row, step, axis))
                else:
                    lines += encoded
        if slow:
            _defer_values([sample for sample, _ in slow])
        for line in lines:  # nothing can be refused from here on: all are recorded, or none was
            self._append_line(line)
        for sample, blobs in slow:
            if blobs:
                self._media_writer().submit("samples", [CapturedSample(sample, blobs)], (sample.time, step, axis))
            else:
                self._append(sample)

    def _plain_samples(self, rows: Sequence[Any], step: int, axis: str) -> list[bytes] | None:
        """Encode samples that have the same fields, with plain values; None if something needs a closer look.

        A rollout step has hundreds of samples. Their fields are checked by column, with built-in functions, in a third
        of the time that a check of each value takes.
        """
        if not rows or not _DICTS(map(type, rows)) or self.redactor.has_functions:
            return None
        names = tuple(rows[0])
        if len(names) < 2 or any(map(len(names).__ne__, map(len, rows))):
            return None
        try:
            columns = dict(zip(names, zip(*map(operator.itemgetter(*names), rows), strict=True), strict=True))
            if not self._are_plain(columns):
                return None
            clock = self._clock
            fields = [{"kind": "sample", "time": clock(), "step": step, "axis": axis, **row} for row in rows]
            if "episode" in columns:
                for each in fields:
                    each["extra"] = {"episode": each.pop("episode")}
            return list(map(_encode_fields, fields))
        except (KeyError, TypeError, ValueError, OverflowError):  # another field, a lone surrogate, a huge integer, ...
            return None

    def _are_plain(self, columns: Mapping[str, Sequence[Any]]) -> bool:
        """Return whether fields of samples have their usual types, finite numbers, and short texts without secrets."""
        numbers: list[Any] = []
        texts: set[str] = set()  # most occur in several samples, and are searched for secrets once
        for name, values in columns.items():
            kinds = set(map(type, values))
            if not kinds.issubset(_USUAL.get(name, ())):
                return False
            if str in kinds:
                texts.update(values)
            elif dict in kinds:
                numbers += itertools.chain.from_iterable(map(dict.values, values))
            elif float in kinds:
                numbers += values
        texts.update(*columns.get("timings", ()))
        if not _NUMBERS(map(type, numbers)) or not all(map(isfinite, numbers)) or not _TEXTS(map(type, texts)):
            return False
        # A secret in one text is found in all of them together; what only looks like one gets a closer look.
        return max(map(len, texts), default=0) <= self._short and self.redactor.would_keep("\n".join(texts))

    def sample_use(
        self,
        rollouts: Iterable[str],
        step: int = 0,
        outcome: str = "learnt",
        *,
        tokens: Mapping[str, "Tokens"] | None = None,
    ) -> None:
        """Record how a training step used samples.

        Args:
            rollouts: The samples, by their field ``rollout``.
            step: The number of the step.
            outcome: ``learnt``, or why nothing was learnt from them.
            tokens: What the step computed for each token of some of them.
        """
        names = list(map(str, rollouts))
        if not self.redactor.would_keep("\n".join(names)):
            names = [self.redactor(name) for name in names]
        use = SampleUse(time=self._clock(), step=checked_step(step), rollouts=names, outcome=str(outcome))
        blobs: list[tuple[BlobFacts, Any]] = []
        for name, value in (tokens or {}).items():
            facts = use.tokens[self.redactor(str(name))] = BlobFacts()
            blobs.append((facts, value.capture(self.redactor)))
        if blobs:
            self._media_writer().submit("samples", [CapturedSample(use, blobs)], (use.time, use.step, use.axis))
            return
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # e.g. a lone surrogate
            line = encode(use)  # the names were redacted above, and are texts: no second look
            self._append_line(line)
            return
        self._append(use)

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
        """Wait until everything recorded so far is in the journal: values from a device and media take a moment."""
        self._pending.flush()
        if self._media is not None:
            self._media.flush()

    def close(self) -> None:
        """Finish the journal. May be called again."""
        # First: their records still have to be written to the journal. Each step runs even if another is interrupted.
        with contextlib.ExitStack() as steps:
            steps.callback(self.journal.close)
            if self._media is not None:
                steps.callback(self._media.close)
            if self._artifacts is not None:
                steps.callback(self._artifacts.close)
            self._is_closed = True
            self._pending.close()

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
                if line.rfind(b"null") < 0 and not self._has_texts(record.values):
                    self.journal.append(line)
                    return
        self._append_now(record)

    def _append_now(self, record: Record) -> None:
        record = cleaned(record)
        if self.redactor.is_active:
            self.redactor.record(record)
        self.journal.append(encode(record))

    def _record_gap(self, lost: int) -> None:
        # Called by the journal in the middle of an `append`, which may therefore be re-entered.
        self.event("records_lost", count=lost)

    def _sample(self, row: Mapping[str, Any], step: int, axis: str) -> tuple[Sample, list[Any]]:
        """Return a sample, and the tokens and images in it that are written to blobs first."""
        if not isinstance(row, Mapping):
            raise _samples_error(f"{row!r} is not a mapping; give a dict per sample.")
        extra = row.get("extra") or {}
        if not isinstance(extra, Mapping):
            raise _samples_error(f"extra={extra!r}; give a dict.")
        known, others, blobs = sample_fields(row, self.redactor)
        extra = dict(extra) | others
        axis = _check_axis(row.get("axis", axis))
        own: dict[str, Any] = {"time": self._clock(), "step": step, "axis": axis, "extra": extra}
        sample = Sample(**own | known)
        sample.step = checked_step(sample.step)
        sample.group, sample.lesson = (None if v is None else str(v) for v in (sample.group, sample.lesson))
        _check_sample(sample)
        self._truncate_texts(sample)
        # Left on the device here: one transfer for all samples follows in `_defer_values`.
        sample.rewards = copied(collect((sample.rewards,), {}, _keep_on_device))
        return sample, blobs

    def _truncate_texts(self, sample: Sample) -> None:
        cut: dict[str, int] = {}
        for name in _TEXT_FIELDS:
            value = getattr(sample, name)
            if value is not None:
                kept, length = self._truncate(value if isinstance(value, str) else str(value))
                setattr(sample, name, kept)
                cut |= {name: length} if length else {}
        sample.extra = self._truncate_inside(sample.extra, "extra", cut)
        for name in ("finish", "rollout", "parent"):
            if (value := getattr(sample, name)) is not None:
                setattr(sample, name, self._truncate(value)[0])
        for name in ("prompt_messages", "completion_messages"):
            setattr(sample, name, self._truncate_inside(getattr(sample, name), name, cut))
        sample.truncated = cut

    def _truncate_inside(self, value: Any, path: str, cut: dict[str, int]) -> Any:
        """Truncate every text in a nested value; notes the original lengths in ``cut``."""
        if isinstance(value, str):
            kept, length = self._truncate(value)
            cut |= {path: length} if length else {}
            return kept
        if isinstance(value, BlobFacts):  # filled in when the blob is written
            return value
        if isinstance(value, Mapping):
            return {key: self._truncate_inside(item, f"{path}.{key}", cut) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._truncate_inside(item, f"{path}[{i}]", cut) for i, item in enumerate(value)]
        return value

    def _truncate(self, value: str) -> tuple[str, int]:
        """Redact and truncate a text; returns it with its original length in bytes, or 0 if it was short enough."""
        value = self.redactor(value)
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
    # Nearly always, and on the way of every row: without a call.
    if type(step) is int and -_USUAL_STEPS < step < _USUAL_STEPS:
        return step
    try:
        number = operator.index(step)
    except TypeError:
        raise OptionError(f"step={step!r}: give a whole number.") from None
    # `clean` makes infinite what a record cannot hold.
    if clean(number) != number:
        raise OptionError(f"step: a number of {number.bit_length()} bits cannot be recorded; give a smaller one.")
    return number


def _encoded_media(record: Record, redactor: Redactor) -> bytes:
    """Encode a record of media or rows, whose cells are plain or were cleaned when they were added."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):  # a lone surrogate, an integer that is too large
        line = encode(record)
        # The whole line at once, since a look at each cell costs much more. Not with escapes, which change where words
        # begin.
        if line.find(b"\\") >= 0 or not redactor.would_keep(line.decode()):
            redactor.record(record)
            line = encode(record)
        if line.rfind(b"null") < 0:
            return line
        if isinstance(record, TableRows):  # None, or NaN, which the encoder writes as null
            record.rows = [
                [cell if type(cell) is not float or isfinite(cell) else clean(cell) for cell in row]
                for row in record.rows
            ]
            return encode(record)
    record = cleaned(record)
    redactor.record(record)
    return encode(record)


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

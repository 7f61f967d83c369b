"""A run at W&B: how it is begun without a question to anybody, written to for certain, and ended in time.

`write` returns when wandb's own process has the rows in its file on disk: from there ``wandb sync`` can
send them whatever dies. That process is started by wandb, outside of the terminal's group, so Ctrl-C
does not reach it; if it was killed, the next open starts another one.

Reads the file in which wandb's own process writes down a run before it sends it anywhere.

The ``.wandb`` file is a log in LevelDB's format: blocks of 32 KiB with chunks of records, each record
one of wandb's protocol buffers. What stands in it survives the death of every process, and
``wandb sync`` sends it.

Records as rows of a W&B run, and the numbers that the rows go by.

W&B takes rows with rising numbers only, and drops one with a number that it has. So a batch that
comes again has to give each record the number that it had: which ones a batch was begun with is noted
in a file before the first is sent.
"""

import contextlib
import errno
import json
import logging
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from wandb.errors import AuthenticationError, CommError, UsageError
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]
from wandb.sdk.lib import wbauth
from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

from hookline._engine.errors import RefusedError
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.records import HYPERPARAMETERS, NOTES, Event, Metrics, Rewards, Sample, parse_nonfinite
from hookline.sinks.rows import finite, histogram, mean

_BLOCK = 32768
_BEGINNING = 7
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbFile:
    """Follows a ``.wandb`` file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = _BEGINNING

    def new(self) -> Iterator[Record]:
        """The records since the last time, without one that is not complete yet."""
        for data, end in _records(self.path, self._offset):
            self._offset = end
            yield Record.FromString(data)

    def new_rows(self) -> Iterator[int]:
        """The numbers of the rows since the last time."""
        return (record.history.step.num for record in self.new() if record.HasField("history"))


def _records(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """The records from an offset on, each with the offset behind it."""
    record = b""
    with path.open("rb") as file:
        file.seek(offset)
        while True:
            left = _BLOCK - file.tell() % _BLOCK
            if left < _CHUNK.size:  # the rest of a block that is too small for a chunk
                file.seek(left, 1)
            header = file.read(_CHUNK.size)
            _, size, kind = _CHUNK.unpack(header) if len(header) == _CHUNK.size else (0, 0, 0)
            chunk = file.read(size)
            if not kind or len(chunk) < size:
                return
            record = chunk if kind in (_FULL, _FIRST) else record + chunk
            if kind in (_FULL, _LAST):
                yield record, file.tell()


logger = logging.getLogger("hookline")

INIT_SECONDS = 30.0
FINISH_SECONDS = 10.0
WRITTEN_SECONDS = 30.0
_FLUSH_SECONDS = 0.1
_POLL_SECONDS = 0.02
_REFUSALS = re.compile(r"returned error 4(?!08|29)\d\d")
_QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",  # what the training prints is its own affair
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "label_disable": True,
    "x_disable_meta": True,  # the run's facts are in its configuration, also when it is delivered from elsewhere
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": _FLUSH_SECONDS,
    "init_timeout": INIT_SECONDS,
    "finish_timeout": FINISH_SECONDS,
    "finish_timeout_raises": True,
}


class WandbRun:
    """An open run.

    Args:
        directory: Where wandb keeps its files, in a folder ``wandb``.
        system_metrics: Whether wandb measures the machine.
        options: What else `wandb.init` is given, with the ``id`` and the ``mode``.

    Raises:
        RefusedError: There is no API key, or W&B does not accept what it was given.
    """

    def __init__(self, directory: Path, *, system_metrics: bool, options: Mapping[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)  # wandb would take another one
        _require_room(directory)
        settings = wandb.Settings(**_QUIET, x_disable_stats=not system_metrics)
        with _process_left_alone(), _refusals_told():
            _require_credentials(options["mode"])
            with _nothing_left_behind(options["id"]):
                self.run = wandb.init(dir=directory, settings=settings, reinit="create_new", **options)
        self.following = 0 if self.run.disabled else self.run.starting_step  # what the server has, it is not sent again
        self._file = None if self.run.disabled else WandbFile(Path(self.run.settings.sync_file))
        self._defined: set[str] = set()

    def write(self, rows: Sequence[tuple[int, str, Mapping[str, Any]]]) -> None:
        """Write rows with rising numbers, each with the name that its step goes by, and see them on disk."""
        for number, step, values in rows:
            if number >= self.following:
                self._define(step, values)
                self.run.log(dict(values), step=number, commit=True)
        if rows and rows[-1][0] >= self.following:
            self._see_written(rows[-1][0])
            self.following = rows[-1][0] + 1

    def describe(self, event: Event) -> None:
        """Take over notes, settings or parts of the summary that were set while the run was open."""
        values = event.data.get("values")
        if event.name == NOTES:
            self.run.notes = str(event.data.get("text"))
        elif event.name == HYPERPARAMETERS and isinstance(values, Mapping):
            self.run.config.update(dict(values), allow_val_change=True)  # type: ignore[no-untyped-call]
        elif isinstance(values, Mapping):
            summary = {name: parse_nonfinite(value) for name, value in values.items()}
            self.run.summary.update(summary)

    def finish(self, *, failed: bool) -> None:
        """End the run, within a time; what is not sent by then stays in its directory."""
        try:
            self.run.finish(exit_code=1 if failed else 0)
        except TimeoutError:
            place = self.run.settings.sync_dir
            logger.warning("W&B has not got all of the run yet. What is missing is sent by: wandb sync %s", place)
        except Exception:
            _forget_process()

    def _define(self, step: str, values: Mapping[str, Any]) -> None:
        """Tell W&B on which steps a value is shown, when it comes for the first time."""
        for name in sorted(values, key=lambda name: name != step):
            if name in self._defined or not name or "*" in name or name.startswith("_"):
                continue
            self._defined.add(name)
            if name == step:
                self.run.define_metric(name, hidden=True)
            else:
                self.run.define_metric(name, step_metric=step)

    def _see_written(self, number: int) -> None:
        if self._file is None:
            return
        deadline = time.monotonic() + WRITTEN_SECONDS
        while number not in self._file.new_rows():
            if time.monotonic() > deadline:
                raise TimeoutError(f"wandb has not written row {number} to {self._file.path}")
            threading.Event().wait(_POLL_SECONDS)
            _require_room(self._file.path)
            _ = self.run.step  # raises when wandb's process is gone


_HOW_TO_LOG_IN = "Run `wandb login`, set WANDB_API_KEY, or give mode='offline'."


def _require_credentials(mode: str | None) -> None:
    """Find a key as wandb would, but never ask for one at the terminal."""
    settings = wandb.setup().settings
    if (mode or settings.mode) in ("offline", "dryrun", "disabled"):
        return
    known = wbauth.authenticate_session(host=settings.base_url, source="hookline", prompt=False, update_session=False)
    if known is None:
        raise RefusedError(f"W&B: there is no API key for {settings.base_url}. {_HOW_TO_LOG_IN}")


def _require_room(path: Path) -> None:
    """Raise what wandb does not say: that it cannot write."""
    if os.statvfs(path).f_bavail == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextlib.contextmanager
def _process_left_alone() -> Iterator[None]:
    """Undo what wandb does to the ways in which a process ends; how the run ended is in the record."""
    leave, report = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = leave, report


@contextlib.contextmanager
def _refusals_told() -> Iterator[None]:
    """Tell what W&B will not accept, now or later, from a fault."""
    try:
        yield
    except AuthenticationError as error:
        raise RefusedError(f"W&B: {_sentence(error)} {_HOW_TO_LOG_IN}") from error
    except (UsageError, ValueError) as error:
        raise RefusedError(f"W&B: {_sentence(error)} Change the sink's settings.") from error
    except CommError as error:
        if not _REFUSALS.search(str(error)):
            raise
        raise RefusedError(f"W&B: {_sentence(error)} Check the project and entity. {_HOW_TO_LOG_IN}") from error


@contextlib.contextmanager
def _nothing_left_behind(run_id: str) -> Iterator[None]:
    """After a failure make it possible to begin again with the same id."""
    try:
        yield
    except (ConnectionError, HandleAbandonedError, MailboxClosedError):
        _forget_process()
        raise
    except (AuthenticationError, CommError):
        with contextlib.suppress(Exception):
            service = wandb.setup().ensure_service()
            service.inform_attach(run_id)[1].deliver_exit(1).wait_or(timeout=FINISH_SECONDS)
            service.inform_finish(run_id)
        raise


def _forget_process() -> None:
    """Make wandb start a new process of its own the next time."""
    with contextlib.suppress(Exception):
        wandb.teardown()


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."


STEP = "train/step"
_OWN_STEPS = ("train", "eval")
"""The axes whose steps are those of the training."""
_COLUMNS = ("step", "lesson", "group", "prompt", "reasoning", "completion", "answer", "expected")


class Numbers:
    """Gives rows their numbers, and a batch that comes again the same ones.

    Args:
        path: Where the numbers of the batch that was begun last are noted.
        following: The number behind the last row that counts as delivered.
    """

    def __init__(self, path: Path, following: int) -> None:
        self.path, self.following = path, following
        self._begun = {record: number for record, number in _noted(path).items() if number >= following}

    def give(self, entries: Sequence[JournalEntry]) -> list[tuple[int, list[JournalEntry]]]:
        """The rows of a batch by number; the samples of a writer and axis share one."""
        rows: dict[int, list[JournalEntry]] = {}
        new: dict[Any, int] = {}
        first = max([self.following, *(number + 1 for number in self._begun.values())])
        for entry in entries:
            number = self._begun.get(entry.id, -1)
            if number < self.following:
                number = new.setdefault(_row_of(entry), first + len(new))
            rows.setdefault(number, []).append(entry)
        self._note({entry.id: number for number, row in rows.items() for entry in row})
        return sorted(rows.items())

    def _note(self, numbers: Mapping[str, int]) -> None:
        aside = self.path.with_suffix(".partial")
        aside.write_text(json.dumps(numbers), encoding="utf-8")
        aside.replace(self.path)


def row(entries: Sequence[JournalEntry], samples_per_step: int) -> tuple[str, dict[str, Any]]:
    """The name that a row's step goes by, and its values by name."""
    entry = entries[-1]
    record = entry.record
    axis = getattr(record, "axis", "train")
    step = STEP if axis in _OWN_STEPS else f"{axis}/step"
    prefix = "" if entry.file.name == MAIN else f"{entry.file.name}/"
    values: dict[str, Any] = {}
    if isinstance(record, Metrics):
        own = "" if axis in _OWN_STEPS else f"{axis}/"
        values = {own * (not name.startswith(own)) + name: _plain(value) for name, value in record.values.items()}
    elif isinstance(record, Rewards):
        values = _rewards(record)
    elif isinstance(record, Sample):
        values = {f"samples/{axis}": _table([each.record for each in entries], samples_per_step)}
    values = {prefix + name: value for name, value in values.items() if value is not None}
    return step, values | {step: record.step, "_timestamp": record.time} if values else {}


def _row_of(entry: JournalEntry) -> Any:
    return (entry.file.name, entry.record.axis) if isinstance(entry.record, Sample) else entry.id


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | float):
        return value
    return int(value) if isinstance(value, int) else str(value)


def _rewards(record: Rewards) -> dict[str, Any]:
    values = finite(record.values)
    if not values:
        return {}
    shape: Any = histogram(values)
    return {
        f"rewards/{record.name}": mean(values),  # rewards/<name>/mean is a name of rows of metrics
        f"rewards/{record.name}/histogram": wandb.Histogram(np_histogram=shape),
    }


def _table(samples: Sequence[Any], samples_per_step: int) -> wandb.Table:
    """So many samples of each step, in columns; those that all of them leave empty are not there."""
    shown: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        of_step = shown.setdefault(sample.step, [])
        if len(of_step) < samples_per_step:
            of_step.append(_cells(sample))
    cells = [cell for of_step in shown.values() for cell in of_step]
    columns: list[Any] = list(dict.fromkeys(name for cell in cells for name in cell))
    data = [[cell.get(column) for column in columns] for cell in cells]
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def _cells(sample: Sample) -> dict[str, Any]:
    cells = {name: getattr(sample, name) for name in _COLUMNS}
    cells |= {f"rewards/{name}": value for name, value in sample.rewards.items()}
    cells |= {"total": sample.total, "advantage": sample.advantage}
    return {name: value for name, value in cells.items() if value is not None}


def _noted(path: Path) -> dict[str, int]:
    try:
        numbers: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return numbers

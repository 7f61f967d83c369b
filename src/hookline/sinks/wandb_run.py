"""`WandbRun`: opens a W&B run without prompting, writes rows durably, and closes it within a time limit.

`WandbRun.write` returns when wandb's own process has the rows in its ``.wandb`` file on disk: from there ``wandb sync``
can send them, whatever dies. That file is a log in LevelDB's format: blocks of 32 KiB with chunks of records, each
record one of wandb's protocol buffers. wandb starts its process outside of the terminal's process group, so Ctrl-C does
not reach it; if it was killed, the next open starts another one.

W&B accepts only rows with increasing numbers, and drops a row whose number it has. So a repeated batch must give each
record the same number as before: `RowNumbers` writes the numbers of a batch to a file before the first row is sent.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from wandb.errors import AuthenticationError, CommError, UsageError
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]
from wandb.sdk.lib import wbauth
from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

from hookline._engine.errors import RefusedError
from hookline._record.files import write_atomically
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.records import (
    HYPERPARAMETERS,
    NOTES,
    Event,
    Media,
    Metrics,
    Rewards,
    Sample,
    TableRows,
    parse_nonfinite,
)
from hookline.sinks.media import safe_name
from hookline.sinks.run_progress import finite, histogram, mean
from hookline.sinks.wandb_media import WandbMedia

logger = logging.getLogger("hookline")

STEP = "train/step"
INIT_SECONDS = 30.0
FINISH_SECONDS = 10.0
WRITTEN_SECONDS = 30.0
_FLUSH_SECONDS = 0.1
_POLL_SECONDS = 0.02
_BLOCK = 32768
_FILE_HEADER = 7
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_REFUSALS = re.compile(r"returned error 4(?!08|29)\d\d")
_HOW_TO_LOG_IN = "Run `wandb login`, set WANDB_API_KEY, or give mode='offline'."
_TRAINING_AXES = ("train", "eval")
_COLUMNS = ("step", "lesson", "group", "prompt", "reasoning", "completion", "answer", "expected")
_QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "label_disable": True,
    "x_disable_meta": True,  # the run's metadata is in its configuration, also when it is delivered from elsewhere
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": _FLUSH_SECONDS,
    "init_timeout": INIT_SECONDS,
    "finish_timeout": FINISH_SECONDS,
    "finish_timeout_raises": True,
}


class WandbFile:
    """Follows a ``.wandb`` file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = _FILE_HEADER

    def new(self) -> Iterator[Record]:
        """The complete records since the last call."""
        for data, end in _records(self.path, self._offset):
            self._offset = end
            yield Record.FromString(data)


def _records(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """The records from an offset, each with its end offset."""
    record = b""
    with path.open("rb") as file:
        file.seek(offset)
        while True:
            left = _BLOCK - file.tell() % _BLOCK
            if left < _CHUNK.size:  # padding at the end of a block
                file.seek(left, 1)
            header = file.read(_CHUNK.size)
            _, size, kind = _CHUNK.unpack(header) if len(header) == _CHUNK.size else (0, 0, 0)
            chunk = file.read(size)
            if not kind or len(chunk) < size:
                return
            record = chunk if kind in (_FULL, _FIRST) else record + chunk
            if kind in (_FULL, _LAST):
                yield record, file.tell()


class WandbRun:
    """An open run.

    Args:
        directory: Where wandb creates its folder ``wandb``.
        system_metrics: Whether wandb measures the machine.
        options: Further options of `wandb.init`, including ``id`` and ``mode``.

    Raises:
        RefusedError: There is no API key, or W&B rejects the options.
    """

    def __init__(self, directory: Path, *, system_metrics: bool, options: Mapping[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)  # otherwise wandb would use another one
        _require_disk_space(directory)
        settings = wandb.Settings(**_QUIET, x_disable_stats=not system_metrics)
        with _exit_hooks_restored(), _refusals_translated():
            _require_credentials(options["mode"])
            with _abandoned_on_failure(options["id"]):
                self.run = wandb.init(dir=directory, settings=settings, reinit="create_new", **options)
        self.next = 0 if self.run.disabled else self.run.starting_step  # the server has the rows before
        self._file = None if self.run.disabled else WandbFile(Path(self.run.settings.sync_file))
        self._defined: set[str] = set()

    def write(self, rows: Iterable[tuple[int, str, Mapping[str, Any]]]) -> None:
        """Write rows of (number, name of the step metric, values), and wait until they are on disk."""
        last = -1
        for number, step, values in rows:
            if number >= self.next and values:
                self._define(step, values)
                self.run.log(dict(values), step=number, commit=True)
                last = number
        if last >= 0:
            self._wait_until_written(
                f"row {last}", lambda record: record.HasField("history") and record.history.step.num == last
            )
            self.next = last + 1

    def save_artifact(self, artifact: wandb.Artifact, aliases: Sequence[str], *, is_used: bool = False) -> None:
        """Save an artifact with the run, and wait until wandb has its description on disk.

        Args:
            is_used: Whether it is an input of the run. W&B knows it by its content: what it has is not sent again.
        """
        interface = self.run._interface
        if self.run.disabled or interface is None:
            return
        # `log_artifact` would do the same offline, and online send a request that wandb does not write down. So would
        # `use_artifact` of an artifact that has not been logged; offline it refuses to.
        names = [] if is_used else ["latest", *aliases]
        interface.publish_artifact(self.run, artifact, names, is_user_created=is_used, use_after_commit=is_used)
        known = artifact._client_id
        self._wait_until_written(f"artifact {artifact.name}", lambda record: record.artifact.client_id == known)

    def describe(self, event: Event) -> None:
        """Update notes, configuration or summary after a change in the run."""
        values = event.data.get("values")
        if event.name == NOTES:
            self.run.notes = str(event.data.get("text"))
        elif event.name == HYPERPARAMETERS and isinstance(values, Mapping):
            self.run.config.update(dict(values), allow_val_change=True)  # type: ignore[no-untyped-call]
        elif isinstance(values, Mapping):
            summary = {name: parse_nonfinite(value) for name, value in values.items()}
            self.run.summary.update(summary)

    def finish(self, *, failed: bool) -> None:
        """End the run within a time limit; unsent data stays in its directory."""
        try:
            self.run.finish(exit_code=1 if failed else 0)
        except TimeoutError:
            directory = self.run.settings.sync_dir
            logger.warning("W&B has not received all of the run yet. To send the rest: wandb sync %s", directory)
        except Exception:
            _reset_wandb_process()

    def _define(self, step: str, values: Mapping[str, Any]) -> None:
        """Define the step metric of values that appear for the first time."""
        for name in sorted(values, key=lambda name: name != step):
            if name in self._defined or not name or "*" in name or name.startswith("_"):
                continue
            self._defined.add(name)
            if name == step:
                self.run.define_metric(name, hidden=True)
            else:
                self.run.define_metric(name, step_metric=step)

    def _wait_until_written(self, what: str, is_it: Callable[[Record], bool]) -> None:
        if self._file is None:
            return
        deadline = time.monotonic() + WRITTEN_SECONDS
        while not any(map(is_it, self._file.new())):
            if time.monotonic() > deadline:
                raise TimeoutError(f"wandb has not written {what} to {self._file.path}")
            threading.Event().wait(_POLL_SECONDS)
            _require_disk_space(self._file.path)
            _ = self.run.step  # raises if wandb's process is gone


def _require_credentials(mode: str | None) -> None:
    """Find a key as wandb does, but without a prompt at the terminal."""
    settings = wandb.setup().settings
    if (mode or settings.mode) in ("offline", "dryrun", "disabled"):
        return
    known = wbauth.authenticate_session(host=settings.base_url, source="hookline", prompt=False, update_session=False)
    if known is None:
        raise RefusedError(f"W&B: there is no API key for {settings.base_url}. {_HOW_TO_LOG_IN}")


def _require_disk_space(path: Path) -> None:
    """Raise an error for a full disk, which wandb does not report."""
    if os.statvfs(path).f_bavail == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextlib.contextmanager
def _exit_hooks_restored() -> Iterator[None]:
    """Undo wandb's changes to `sys.exit` and `sys.excepthook`: the record has how the run ended."""
    leave, report = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = leave, report


@contextlib.contextmanager
def _refusals_translated() -> Iterator[None]:
    """Raise permanent rejections by W&B as `RefusedError`."""
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
def _abandoned_on_failure(run_id: str) -> Iterator[None]:
    """After a failure, clean up so that a run with the same id can be started."""
    try:
        yield
    except (ConnectionError, HandleAbandonedError, MailboxClosedError):
        _reset_wandb_process()
        raise
    except (AuthenticationError, CommError):
        with contextlib.suppress(Exception):
            service = wandb.setup().ensure_service()
            service.inform_attach(run_id)[1].deliver_exit(1).wait_or(timeout=FINISH_SECONDS)
            service.inform_finish(run_id)
        raise


def _reset_wandb_process() -> None:
    """Make wandb start a new process next time."""
    with contextlib.suppress(Exception):
        wandb.teardown()


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."


class RowNumbers:
    """Assigns numbers to rows, and the same ones to a repeated batch.

    Args:
        path: The file with the numbers of the last batch that was started.
        following: The number after the last delivered row.
    """

    def __init__(self, path: Path, following: int) -> None:
        self.path, self.next = path, following
        self._started: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            saved = json.loads(path.read_text(encoding="utf-8"))
            self._started = {record: number for record, number in saved.items() if number >= following}

    def assign(self, entries: Sequence[JournalEntry]) -> list[tuple[int, list[JournalEntry]]]:
        """The rows of a batch by number.

        The samples of a writer and axis share a row, so do the rows of a table, and the media of a step.
        """
        rows: dict[int, list[JournalEntry]] = {}
        new: dict[Any, int] = {}
        first = max([self.next, *(number + 1 for number in self._started.values())])
        for entry in entries:
            number = self._started.get(entry.id, -1)
            if number < self.next:
                number = new.setdefault(_row_key(entry), first + len(new))
            rows.setdefault(number, []).append(entry)
        numbers = {entry.id: number for number, row in rows.items() for entry in row}
        write_atomically(self.path, json.dumps(numbers).encode(), sync=False)
        return sorted(rows.items())


def _row_key(entry: JournalEntry) -> Any:
    record = entry.record
    match record:
        case Sample():
            return entry.file.name, record.axis
        case TableRows():
            return entry.file.name, record.axis, record.name, record.table
        case Media():
            return entry.file.name, record.axis, record.step
    return entry.id


def row(entries: Sequence[JournalEntry], samples_per_step: int, media: WandbMedia) -> tuple[str, dict[str, Any]]:
    """The name of a row's step metric, and its values by name."""
    entry = entries[-1]
    record = entry.record
    axis = getattr(record, "axis", "train")
    step = STEP if axis in _TRAINING_AXES else f"{axis}/step"
    prefix = "" if entry.file.name == MAIN else f"{entry.file.name}/"
    values: dict[str, Any] = {}
    if isinstance(record, Metrics):
        values = {name: _plain(value) for name, value in record.values.items()}
    elif isinstance(record, Rewards):
        rewards = finite(record.values)
        if rewards:
            shape: Any = histogram(rewards)
            values = {
                f"rewards/{record.name}": mean(rewards),  # not rewards/<name>/mean, which rows of metrics use
                f"rewards/{record.name}/histogram": wandb.Histogram(np_histogram=shape),
            }
    elif isinstance(record, Sample):
        values = {f"samples/{axis}": _table([each.record for each in entries], samples_per_step)}
    elif isinstance(record, Media):
        values = media.values([each.record for each in entries if isinstance(each.record, Media)])
    elif isinstance(record, TableRows):
        table = media.table([each.record for each in entries if isinstance(each.record, TableRows)])
        values = {safe_name(record.name): table}
    own = "" if axis in _TRAINING_AXES or isinstance(record, Rewards | Sample) else f"{axis}/"
    values = {own * (not name.startswith(own)) + name: value for name, value in values.items()}
    values = {prefix + name: value for name, value in values.items() if value is not None}
    return step, values | {step: record.step, "_timestamp": record.time} if values else {}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | float):
        return value
    return int(value) if isinstance(value, int) else str(value)


def _table(samples: Sequence[Any], samples_per_step: int) -> wandb.Table:
    """A table with a limited number of samples per step, without columns that are empty for all of them."""
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

"""Joins the rewards of several functions for one batch into rows, and writes the rows to their destination.

`BatchCollector` writes a batch when all functions have scored it, when one of them raised an exception that reached
its caller, when another batch begins, or at `flush`; never while a function is still scoring it. Functions that were
wrapped together are known from the start. Functions that were decorated one by one are learnt from earlier batches. A
function that scores a batch after it was written makes new rows. All of this is thread-safe.

Rows go to a function's own ``recorder=``, else to the destination of `record_to`, else to the topics of
`hookline.logging`, if they have listeners or logging was initialized with a run; otherwise they are dropped. A
destination that fails never stops training: the failure is logged and counted in `lost_rows`.
"""

import atexit
import functools
import logging
import threading
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from hookline._engine.errors import OptionError
from hookline.logging import payloads
from hookline.logging.functions import current, log_model_output, log_reward
from hookline.rl.rewards.batch import RewardBatch, RewardCall, Values

logger = logging.getLogger("hookline")

_destination: Any = None
_lost = 0
_failures = 0


def should_log(count: int) -> bool:
    """Return whether to log the ``count``-th occurrence: the first three, then each power of ten."""
    return count <= 3 or str(count).rstrip("0") == "1"


def current_destination() -> Any:
    """Return the destination set by `record_to`, or None."""
    return _destination


def set_destination(destination: Any) -> None:
    """Replace the destination, without a check."""
    global _destination
    _destination = destination


def checked_destination(destination: Any) -> Any:
    """Return a destination, or None.

    Raises:
        OptionError: It cannot record samples.
    """
    if destination is None or any(callable(getattr(destination, name, None)) for name in ("log_samples", "samples")):
        return destination
    raise OptionError(
        f"{destination!r:.200} cannot record rewards: give a run, a Recorder, or an object with log_samples()."
    )


def lost_rows() -> int:
    """Return the number of sample rows that destinations failed to record."""
    return _lost


def _write(destination: Any, batch: RewardBatch, weights: Mapping[str, float]) -> None:
    """Write the rows of a batch; never raises."""
    global _lost, _failures
    destination = _destination if destination is None else destination
    try:
        if destination is None:
            _log(batch)
            return
        rows = batch.rows(weights)
        if callable(getattr(destination, "log_samples", None)):
            destination.log_samples(rows)
        else:
            destination.samples(rows)
        event: Any = getattr(getattr(destination, "recorder", None) or destination, "event", None)
        for name, error in batch.errors.items() if callable(event) else ():
            event("reward_error", step=batch.step, function=name, error=error, completions=len(rows))
    except Exception as error:
        count = len(batch.call.completions)
        _lost, _failures = _lost + count, _failures + 1
        if should_log(_failures):
            logger.warning("%d samples with their rewards could not be recorded: %r", count, error)


def _log(batch: RewardBatch) -> None:
    """Write a batch to the topics of `hookline.logging`."""
    is_recorded = current().run is not None
    if is_recorded or payloads.get_model_logger().isEnabledFor(logging.INFO):
        for row in batch.rows({}):
            log_model_output(
                row["prompt"],
                row.get("expected"),
                row["completion"],
                step=row["step"],
                rewards=row["rewards"],
                group=row["group"],
                axis=row["axis"],
            )
    if is_recorded or payloads.get_reward_logger().isEnabledFor(logging.INFO):
        for name, values in batch.values.items():
            log_reward(name, values, batch.ids, step=batch.step)


_collectors: "weakref.WeakSet[BatchCollector]" = weakref.WeakSet()
_waiting: "set[BatchCollector]" = set()
"""The collectors with unwritten batches. Strong references, so that these outlive their functions."""


class BatchCollector:
    """Keeps batches until all functions have scored them.

    Args:
        destination: Where rows go; None for the destination of `record_to` when they are written.
        members: The names of the functions that score each batch; None to learn them.
        weights: The weight of each function in a sample's total; 1 by default.
    """

    def __init__(
        self, destination: Any = None, members: Iterable[str] | None = None, weights: Mapping[str, float] | None = None
    ) -> None:
        self.destination = destination
        self.is_shared = members is None
        self._members = set(members or ())
        self._weights = dict(weights or {})
        self._open: list[RewardBatch] = []
        self._count = 0
        self._lock = threading.Lock()
        _collectors.add(self)

    def begin(self, name: str, call: RewardCall) -> RewardBatch:
        """Return the batch that a function begins to score."""
        _flush_at_exit()
        done: list[RewardBatch] = []
        with self._lock:
            batch = next((each for each in self._open if each.accepts(name, call)), None)
            if batch is None:
                done = self._take_idle()
                self._count += 1
                batch = RewardBatch(call, self._count)
                self._open.append(batch)
                _waiting.add(self)
            batch.begin(name, call)
        self._write(done)
        return batch

    def end(
        self, batch: RewardBatch, name: str, values: Values | None, *, error: str | None = None, failed: bool = False
    ) -> None:
        """Note that a function has scored a batch.

        Args:
            error: Why it has no values.
            failed: Whether its exception reaches the caller, so that other functions may not be called.
        """
        with self._lock:
            batch.running -= 1
            batch.failed |= failed
            batch.values |= {} if values is None else {name: values}
            batch.errors |= {} if error is None else {name: error}
            done = [batch] if batch.is_complete(self._members) else []
            self._close(done)
        self._write(done)

    def flush(self) -> None:
        """Write every batch that no function is scoring now."""
        with self._lock:
            done = self._take_idle()
        self._write(done)

    def _take_idle(self) -> list[RewardBatch]:
        idle = [each for each in self._open if not each.running]
        self._close(idle)
        return idle

    def _close(self, batches: list[RewardBatch]) -> None:
        """Stop waiting for functions, and learn the functions of a batch from batches without a failure."""
        self._open = [each for each in self._open if each not in batches]
        if not self._open:
            _waiting.discard(self)
        if self.is_shared:
            self._members.update(*(each.names for each in batches if not each.failed))

    def _write(self, batches: Iterable[RewardBatch]) -> None:  # without the lock: a destination may be slow
        for batch in batches:
            _write(self.destination, batch, self._weights)

    def __reduce__(self) -> Any:
        """Pickle as a collector of the same functions, which records to the destination of its own process."""
        return (
            (shared_collector, ()) if self.is_shared else (BatchCollector, (None, sorted(self._members), self._weights))
        )


_default_collector = BatchCollector()


def shared_collector(destination: Any = None) -> BatchCollector:
    """Return the collector of all functions that were decorated one by one and have the same destination."""
    if destination is None:
        return _default_collector
    shared = (each for each in list(_collectors) if each.is_shared and each.destination is destination)
    return next(shared, None) or BatchCollector(destination)


def flush() -> None:
    """Write batches that wait for further functions, such as the last one if not all functions scored it.

    `record_to` flushes at the end of its ``with`` block, and so does the end of the program.
    """
    for collector in list(_waiting):
        collector.flush()


@functools.cache
def _flush_at_exit() -> None:
    """Flush when the program ends; registered with the first batch, so that it runs before runs end."""
    atexit.register(flush)


class RecordTo:
    """Sets the destination until its ``with`` block ends, or for good if it is not used in one."""

    def __init__(self, run: Any) -> None:
        destination = checked_destination(run)
        flush()
        self._previous = _destination
        set_destination(destination)

    def __enter__(self) -> Any:
        return _destination

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flush()
        set_destination(self._previous)


def record_to(run: Any) -> RecordTo:
    """Record the rows of all reward functions in this process that have no recorder of their own to a run.

        with hl.run("grpo") as run, rewards.record_to(run):
            trainer.train()

    Unfinished batches are written to the previous destination first, and at the end of a ``with`` block.

    Args:
        run: A run, a loop, a `Recorder`, or an object with ``log_samples(rows)``; None for no destination.
    """
    return RecordTo(run)

"""`Join`: puts what several reward functions give for one batch together, and has it written once.

A batch is written when all functions have scored it, when one of them raised into training, when another batch
begins, or at `flush`; never while a function is still at it. Functions that were wrapped together are known from the
start; of those that were decorated one by one, the ones that took part in earlier batches are waited for. A function
that scores a batch after it was written makes rows of its own. Safe to call from several threads.

When something that happens again and again is worth saying.

Where the rows of reward functions go.

A function's own ``recorder=`` comes first, then what `record_to` set, then the topics of `hookline.logging`: an
output of the model for each sample, and the values of each function, where somebody listens to them or logging was
initialized with a run. Where there is none of these, rows are kept nowhere; statistics are always kept.

A destination that fails never stops training: it is said, and counted in `lost_rows`.

`record_to`: says where all reward functions record to that were not told.
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
from hookline.rl.rewards.batch import Batch, Call, Values


def should_log(count: int) -> bool:
    """Whether to say it this time: the first three times, then each time that the count has a digit more."""
    return count <= 3 or str(count).rstrip("0") == "1"


logger = logging.getLogger("hookline")

_present: Any = None
_lost = 0
_failures = 0


def present() -> Any:
    """What `record_to` set."""
    return _present


def replace(target: Any) -> None:
    """Make another destination the present one."""
    global _present
    _present = target


def checked(target: Any) -> Any:
    """A destination, or None.

    Raises:
        OptionError: It cannot take samples.
    """
    if target is None or callable(getattr(target, "log_samples", None)) or callable(getattr(target, "samples", None)):
        return target
    raise OptionError(
        f"{target!r:.200} cannot record rewards: give a run, a Recorder, or an object with log_samples()."
    )


def lost_rows() -> int:
    """How many rows of samples a destination failed to take."""
    return _lost


def deliver(target: Any, batch: Batch, weights: Mapping[str, float]) -> None:
    """Write the rows of a batch; never raises."""
    global _lost, _failures
    target = _present if target is None else target
    try:
        if target is None:
            _log(batch)
        else:
            _record(target, batch, weights)
    except Exception as error:
        count = len(batch.call.completions)
        _lost, _failures = _lost + count, _failures + 1
        if should_log(_failures):
            logger.warning("%d samples with their rewards could not be recorded: %r", count, error)


def _record(target: Any, batch: Batch, weights: Mapping[str, float]) -> None:
    rows = batch.rows(weights)
    if callable(getattr(target, "log_samples", None)):
        target.log_samples(rows)
    else:
        target.samples(rows)
    event: Any = getattr(getattr(target, "recorder", None) or target, "event", None)
    for name, error in batch.errors.items() if callable(event) else ():
        event("reward_error", step=batch.step, function=name, error=error, completions=len(rows))


def _log(batch: Batch) -> None:
    """Give the topics of logging what they take."""
    recorded = current().run is not None
    if recorded or payloads.get_model_logger().isEnabledFor(logging.INFO):
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
    if recorded or payloads.get_reward_logger().isEnabledFor(logging.INFO):
        for name, values in batch.values.items():
            log_reward(name, values, batch.ids, step=batch.step)


_joins: "weakref.WeakSet[Join]" = weakref.WeakSet()
_waiting: "set[Join]" = set()
"""Those with batches that are not written: they outlive their functions."""


class Join:
    """The batches that are waiting for functions.

    Args:
        target: Where rows go; None for what `record_to` says when they are written.
        members: The names of the functions that score each batch; None to learn them.
        weights: What each counts for in a sample's total; 1 for those not given.
    """

    def __init__(
        self, target: Any = None, members: Iterable[str] | None = None, weights: Mapping[str, float] | None = None
    ) -> None:
        self.target = target
        self.is_shared = members is None
        self._members = set(members or ())
        self._weights = dict(weights or {})
        self._open: list[Batch] = []
        self._batches = 0
        self._lock = threading.Lock()
        _joins.add(self)

    def begin(self, name: str, call: Call) -> Batch:
        """A function begins to score samples; the batch that they make up."""
        _flush_at_exit()
        done: list[Batch] = []
        with self._lock:
            batch = next((each for each in self._open if each.takes(name, call)), None)
            if batch is None:
                done = self._take_idle()
                self._batches += 1
                batch = Batch(call, self._batches)
                self._open.append(batch)
                _waiting.add(self)
            batch.begin(name, call)
        self._deliver(done)
        return batch

    def end(
        self, batch: Batch, name: str, values: Values | None, *, error: str | None = None, failed: bool = False
    ) -> None:
        """A function is done with a batch.

        Args:
            error: Why it gave no values.
            failed: Whether its exception goes on to whoever called it, so that other functions may not be called.
        """
        with self._lock:
            batch.running -= 1
            batch.failed |= failed
            batch.values |= {} if values is None else {name: values}
            batch.errors |= {} if error is None else {name: error}
            done = [batch] if batch.is_complete(self._members) else []
            self._keep([each for each in self._open if each not in done])
            self._learn(done)
        self._deliver(done)

    def flush(self) -> None:
        """Write every batch that no function is at."""
        with self._lock:
            done = self._take_idle()
        self._deliver(done)

    def _take_idle(self) -> list[Batch]:
        idle = [each for each in self._open if not each.running]
        self._keep([each for each in self._open if each.running])
        self._learn(idle)
        return idle

    def _learn(self, batches: Iterable[Batch]) -> None:
        """Know the functions that score a batch from batches that all could score."""
        if self.is_shared:
            self._members.update(*(each.names for each in batches if not each.failed))

    def _keep(self, batches: list[Batch]) -> None:
        self._open = batches
        if not batches:
            _waiting.discard(self)

    def _deliver(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            deliver(self.target, batch, self._weights)

    def __reduce__(self) -> Any:
        """A copy in another process: it has the same functions, and records to what is set there."""
        return (shared, ()) if self.is_shared else (Join, (None, sorted(self._members), self._weights))


_common = Join()


def shared(target: Any = None) -> Join:
    """The join of all functions that were decorated one by one and record to the same target."""
    if target is None:
        return _common
    return next((each for each in list(_joins) if each.is_shared and each.target is target), None) or Join(target)


def flush() -> None:
    """Write what waits for more functions: the last batch, where not all of them scored it.

    `record_to` does it at the end of its ``with`` block, and so does the end of the program.
    """
    for join in list(_waiting):
        join.flush()


@functools.cache
def _flush_at_exit() -> None:
    """Write what is left when the program ends; asked for by the first batch, so that it comes before runs end."""
    atexit.register(flush)


class RecordTo:
    """Names the destination until its ``with`` block ends, or for good where it is not used as one."""

    def __init__(self, run: Any) -> None:
        target = checked(run)
        flush()
        self._before = present()
        replace(target)

    def __enter__(self) -> Any:
        return present()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flush()
        replace(self._before)


def record_to(run: Any) -> RecordTo:
    """Record the rows of all reward functions in this process that were not given a recorder to a run.

        with hl.run("grpo") as run, rewards.record_to(run):
            trainer.train()

    What waits for more functions is written to the destination before, and at the end of a ``with`` block.

    Args:
        run: A run, a loop, a `Recorder`, or anything with ``log_samples(rows)``; None for none.
    """
    return RecordTo(run)

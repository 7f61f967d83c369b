"""`Join`: puts what several reward functions give for one batch together, and has it written once.

A batch is written when all functions have scored it, when one of them raised into training, when another batch
begins, or at `flush`; never while a function is still at it. Functions that were wrapped together are known from the
start; of those that were decorated one by one, the ones that took part in earlier batches are waited for. A function
that scores a batch after it was written makes rows of its own. Safe to call from several threads.
"""

import atexit
import functools
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from hookline.rl.rewards.batch import Batch
from hookline.rl.rewards.call import Call
from hookline.rl.rewards.destination import deliver
from hookline.rl.rewards.values import Values

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

"""Who this process is among those that train together, and how they agree to stop.

hookline runs no collective that nobody asked for, with two exceptions. The processes of a run agree on
its directory when it begins, and at each step boundary on whether to stop, so that all stop at the
same step. What they logged is exchanged there as well (`RankMeans`). They do so only where
torch.distributed is already in use by more than one process, over a CPU group of its own, so that no
device is waited for. And the processes of a Trainer add up the tokens of their batches (`ProcessShares`).
"""

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from hookline.loops.reductions import Reductions, reduced


def rank() -> int:
    """This process's index: torch.distributed's where it is in use, otherwise the launcher's."""
    distributed = _distributed()
    return int(distributed.get_rank()) if distributed else _environment("RANK", 0)


def world_size() -> int:
    """How many processes train together."""
    distributed = _distributed()
    return int(distributed.get_world_size()) if distributed else _environment("WORLD_SIZE", 1)


class Agreed(NamedTuple):
    """What the processes of a run settled at a step boundary; the same on all of them, but for who asked."""

    stop_reason: str | None
    reduced: dict[str, Any]
    wishes: tuple[bool, ...]


class Agreement:
    """Settles stop requests across processes; alone, it takes a request as it is."""

    def __init__(self) -> None:
        self._group: Any = None
        self._askers: dict[str, tuple[int, str]] = {}
        self.reductions = Reductions()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks; alone, just this one's."""
        distributed = _connected()
        if distributed is None:
            return [value]
        values: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(values, value, group=self._gloo(distributed))
        return values

    def share(self, value: Any) -> Any:
        """Rank zero's value on all ranks, where they are connected; otherwise each keeps its own."""
        distributed = _connected()
        if distributed is None:
            return value
        held = [value]
        distributed.broadcast_object_list(held, src=0, group=self._gloo(distributed))
        return held[0]

    def from_rank_zero(self, function: Callable[[], Any]) -> Any:
        """What a function returns on rank zero, on all ranks; it is not called on the others. So is its exception."""
        outcome: Any = None
        if rank() == 0:
            try:
                outcome = function()
            except Exception as error:
                outcome = error
        outcome = self.share(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def all_do(self, function: Callable[[], object]) -> None:
        """Call a function on every rank, and go on when all have; an exception of one of them is raised on all."""
        failure: Exception | None = None
        try:
            function()
        except Exception as error:
            failure = error
        failures = [error for error in self.gather(failure) if error is not None]
        if failures:
            raise failure or failures[0]

    def agree(self, reason: str | None, *wishes: bool) -> "Agreed":
        """What all ranks do now: whether to stop, and why; what was reduced; and which wishes some rank has."""
        distributed = _connected()
        if distributed is None:
            return Agreed(reason, {}, wishes)
        torch = sys.modules["torch"]
        asked = torch.tensor([reason is not None, bool(self.reductions), *wishes], dtype=torch.int32)
        distributed.all_reduce(asked, op=distributed.ReduceOp.MAX, group=self._gloo(distributed))
        stop, reduce, *granted = map(bool, asked.tolist())
        values = reduced(self.gather(self.reductions.take())) if reduce else {}
        return Agreed(self._first_reason(reason) if stop else None, values, tuple(granted))

    def _first_reason(self, reason: str | None) -> str:
        """The lowest rank's reason, and who had it first: a reason that was settled before is still that rank's."""
        own = None if reason is None else self._askers.get(reason, (rank(), reason))
        asker, given = next(asked for asked in self.gather(own) if asked is not None)
        settled = given if asker == rank() else f"{given} (asked by rank {asker})"
        self._askers = {settled: (asker, given)}
        return settled

    def is_connected(self) -> bool:
        """Whether torch.distributed connects this process with others."""
        return _connected() is not None

    def size(self) -> int:
        """How many processes are connected."""
        distributed = _connected()
        return 1 if distributed is None else int(distributed.get_world_size())

    def add_up(self, numbers: list[float]) -> list[float]:
        """The sums over all ranks of numbers that each has; alone, just these."""
        distributed = _connected()
        if distributed is None:
            return numbers
        torch = sys.modules["torch"]
        total = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        distributed.all_reduce(total, group=self._gloo(distributed))
        sums: list[float] = total.tolist()
        return sums

    def group(self) -> Any:
        """The CPU group of the processes, where they are connected; made at the first call, by all of them."""
        distributed = _connected()
        return None if distributed is None else self._gloo(distributed)

    def close(self) -> None:
        """Leave the group: others that wait for this process in it are told so."""
        group, self._group = self._group, None
        distributed = _distributed()
        if group is not None and distributed is not None:
            distributed.destroy_process_group(group)

    def _gloo(self, distributed: Any) -> Any:
        if self._group is None:
            self._group = distributed.new_group(backend="gloo")
        return self._group


def _connected() -> Any:
    """torch.distributed, where it connects this process with others."""
    distributed = _distributed()
    return distributed if distributed is not None and distributed.get_world_size() > 1 else None


def _distributed() -> Any:
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None


def _environment(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default

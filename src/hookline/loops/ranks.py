"""Who this process is among those that train together, and how they agree to stop.

hookline runs no collective that nobody asked for, with one exception: the processes of a run agree on
its directory when it begins, and at each step boundary on whether to stop, so that all stop at the
same step. They do so only where torch.distributed is already in use by more than one process, over a
CPU group of its own, so that no device is waited for.
"""

import os
import sys
from typing import Any


def rank() -> int:
    """This process's index: torch.distributed's where it is in use, otherwise the launcher's."""
    distributed = _distributed()
    return int(distributed.get_rank()) if distributed else _environment("RANK", 0)


def world_size() -> int:
    """How many processes train together."""
    distributed = _distributed()
    return int(distributed.get_world_size()) if distributed else _environment("WORLD_SIZE", 1)


class Agreement:
    """Settles stop requests across processes; alone, it takes a request as it is."""

    def __init__(self) -> None:
        self._group: Any = None

    def share(self, value: Any) -> Any:
        """Rank zero's value on all ranks, where they are connected; otherwise each keeps its own."""
        distributed = _distributed()
        if distributed is None or distributed.get_world_size() == 1:
            return value
        held = [value]
        distributed.broadcast_object_list(held, src=0, group=self._gloo(distributed))
        return held[0]

    def agree(self, reason: str | None) -> str | None:
        """The reason to stop now, the same on all ranks: the lowest rank's that has one; None to go on."""
        distributed = _distributed()
        if distributed is None or distributed.get_world_size() == 1:
            return reason
        torch = sys.modules["torch"]
        group = self._gloo(distributed)
        asked = torch.tensor([reason is not None], dtype=torch.int32)
        distributed.all_reduce(asked, op=distributed.ReduceOp.MAX, group=group)
        if not asked.item():
            return None
        reasons: list[str | None] = [None] * distributed.get_world_size()
        distributed.all_gather_object(reasons, reason, group=group)
        return next(
            given if index == distributed.get_rank() else f"{given} (asked by rank {index})"
            for index, given in enumerate(reasons)
            if given is not None
        )

    def _gloo(self, distributed: Any) -> Any:
        if self._group is None:
            self._group = distributed.new_group(backend="gloo")
        return self._group


def _distributed() -> Any:
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None


def _environment(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default

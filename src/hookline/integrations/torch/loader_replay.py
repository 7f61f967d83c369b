"""`LoaderReplay`: data loaders of torch in the order that they had.

Besides the random states, an order comes from the generators that a loader and its samplers hold. Batches that are done
are skipped in the sampler, where that is all it takes. A loader that saves its own place is put back there.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from hookline.integrations.replay import Replay
from hookline.loops.batches import Batches


class FabricBatches(Batches):
    """The batches of a loader that Fabric has set up.

    It counts how often it was iterated over, and the count is the epoch that its sampler shuffles by.
    """

    def state(self) -> list[Any]:
        """The states of the generators, and the count."""
        return [*super().state(), self.data._num_iter_calls]

    def load_state(self, state: list[Any]) -> None:
        """Put them back to how they were when an epoch began."""
        if state and isinstance(state[-1], int):
            *state, self.data._num_iter_calls = state
        super().load_state(state)


def _is_of_fabric(data: Any) -> bool:
    return hasattr(data, "_num_iter_calls") and isinstance(getattr(data, "_dataloader", None), DataLoader)


class LoaderReplay(Replay):
    """Opens the epochs of data loaders, and of other data."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: Batches | None = None

    def made_of(self, loader: Any) -> Batches:
        """The batches of a data loader."""
        kind = Batches if isinstance(loader, DataLoader) else FabricBatches
        return kind(loader, what="The data loader")

    def _look_at(self, data: Iterable[Any]) -> None:
        if not isinstance(data, DataLoader) and not _is_of_fabric(data):
            self._batches = None
        elif self._batches is None or self._batches.data is not data:
            self._batches = self.made_of(data)

    def _put_in_place(self) -> None:
        if self._batches is not None and self._now is not None:
            self._batches.load_place(self._now["place"])

    def _open(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        if self._batches is None:
            return super()._open(data, number, done)
        return self._batches.epoch(number, done=done)

    def _states(self) -> dict[str, Any]:
        drawn, batches = super()._states(), self._batches  # before the place: to tell it, a loader may begin to draw
        order, place = ([], None) if batches is None else (batches.state(), copy.deepcopy(batches.place()))
        return {**drawn, "order": order, "place": place}

    def _restore(self, states: dict[str, Any]) -> None:
        super()._restore(states)
        if self._batches is not None:
            self._batches.load_state(states["order"])

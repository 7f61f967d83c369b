"""`Batches`: a process's share of the batches of each epoch; `LoaderOrder`: torch data in the same order again.

The order of an epoch comes from the random states and from the generators that a loader and its samplers hold. With
those set again, the completed batches are skipped: in the sampler where that suffices, otherwise by loading them once
more. Data that saves its own position (``state_dict()`` and ``load_state_dict()``) is put back there instead.

Several processes take turns: the first batch is rank zero's, the second rank one's. An incomplete last round is left
out of training; in a validation some process then gets a batch twice, which does not count. For that, all processes
draw one and the same order when an epoch begins, and then each continues with random states of its own.
"""

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Literal, TypeVar

import torch
from torch import Generator
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from hookline._engine.errors import OptionError
from hookline.loops import rng
from hookline.loops.data_position import ReplayedOrder, length_of

T = TypeVar("T")
LastRound = Literal["left out", "filled up"]


class Batches:
    """The batches of a data set, a loader, or anything that can be iterated over again and again.

    Args:
        data: A torch or Hugging Face data set of samples, a `DataLoader`, or an iterable of batches.
        what: Its name in messages.
        batch_size: For data sets.
        shuffle: For data sets.
        workers: Processes that load the data, for data sets.
        last_round: What several processes do with batches that are too few for all of them.
    """

    def __init__(
        self,
        data: Any,
        *,
        what: str,
        batch_size: int = 1,
        shuffle: bool = False,
        workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        last_round: LastRound = "left out",
    ) -> None:
        self.what = what
        self.data: Any = _loader(data, what, batch_size, shuffle, workers)
        self._rank = rank
        # Shared out twice, each process would get a part of its part, and the rest would never be trained on.
        self._shares = 1 if _is_shared_out(self.data) else world_size
        self._last_round = last_round
        self._taken = 0
        self.counts = True
        """Whether the latest batch counts; one that only fills up a round does not."""
        if self.length == 0:
            raise OptionError(
                f"{what} is empty: {_described(data)} gives no batch"
                + (f" for each of {self._shares} processes." if self._shares > 1 else ".")
            )

    @property
    def length(self) -> int | None:
        """The number of batches that this process has in an epoch, where it is known."""
        total = length_of(self.data)
        if total is None:
            return None
        return total // self._shares if self._last_round == "left out" else -(-total // self._shares)

    @property
    def is_iterator(self) -> bool:
        """Whether one epoch uses it up."""
        return isinstance(self.data, Iterator)

    @property
    def advice(self) -> str:
        """A hint for data that yields no batch, where there is one."""
        return " It is an iterator, which is exhausted: give a list or a loader." if self.is_iterator else ""

    def state(self) -> list[Any]:
        """Return the states of the generators that the data draws its order from."""
        return [generator.get_state() for generator in self._generators()]

    def load_state(self, state: list[Any]) -> None:
        """Set the states of the generators."""
        for generator, own in zip(self._generators(), state, strict=False):
            generator.set_state(own)

    @property
    def saves_position(self) -> bool:
        """Whether the data itself saves its position, with ``state_dict()`` and ``load_state_dict()``."""
        has_both = all(callable(getattr(self.data, name, None)) for name in ("state_dict", "load_state_dict"))
        return has_both and self._shares == 1

    def position(self) -> Any:
        """Return the position that the data itself saves; None where it does not."""
        return self.data.state_dict() if self.saves_position else None

    def load_position(self, position: Any) -> None:
        """Restore the position that `position` returned."""
        if position is not None and self.saves_position:
            self.data.load_state_dict(position)

    def epoch(self, number: int, *, done: int = 0) -> Iterator[Any]:
        """Return the batches of an epoch after those that are done, which are skipped before this returns."""
        self.counts = True
        parts = [getattr(self.data, name, None) for name in ("dataset", "sampler", "batch_sampler")]
        for part in (self.data, *parts):  # those that want to know which epoch begins
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(number)
        if self.saves_position:
            # It stands at its own position already: skipping would skip the batches twice.
            return self._counted(iter(self.data))
        if not self._is_positioned_by_sampler(done):
            if getattr(self.data, "_iterator", None) is not None:
                # Workers that persist do not draw the seed that new ones would. A resume starts new ones.
                torch.empty((), dtype=torch.int64).random_(generator=self.data.generator)
            source = self._counted(self.data if self._shares == 1 else self._share_of(self.data))
            _skip(source, done - self._already_drawn(done))
            return source
        indices = self._share_of(self.data.batch_sampler)
        batches = iter(_with_sampler(self.data, _Rest(indices)))  # draws a seed; the sampler draws its order after that
        by_loading = self.data.num_workers > 0  # repeats what the workers draw themselves
        _skip(batches if by_loading else indices, done)
        return self._counted(batches)

    def _already_drawn(self, done: int) -> int:
        """Return how many of the completed batches were already drawn from an iterator."""
        if not done or not isinstance(self.data, Iterator):
            return 0
        if self._taken > done:
            raise OptionError(
                f"{self.what} is an iterator that has yielded {self._taken} batches, and training continues after the "
                f"first {done} of them. Give a list or a loader, or a fresh iterator."
            )
        return self._taken

    def _counted(self, source: Iterable[Any]) -> Iterator[Any]:
        repeated: int | None = None  # the index of a batch that only fills up a round
        if self._last_round == "filled up" and self._shares > 1 and self.length is not None:
            repeated = self.length - 1 if 0 < len(self.data) % self._shares <= self._rank else -1
        for index, batch in enumerate(source):
            if repeated is not None:
                self.counts = index != repeated
            self._taken += 1
            yield batch

    def _is_positioned_by_sampler(self, done: int) -> bool:
        """Whether batches can be skipped in the sampler, before they are loaded."""
        loader = self.data
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return False
        if type(loader).__iter__ is not DataLoader.__iter__:  # it may change or reorder its batches
            return False
        # Several processes go through the sampler from the first batch on, so each loads its own batches only.
        return loader.batch_sampler is not None and (self._shares > 1 or done > 0)

    def _share_of(self, items: Iterable[T]) -> Iterator[T]:
        """Yield every n-th item; in an incomplete last round, none or the first one again."""
        if self._shares == 1:
            for item in items:  # noqa: UP028 - "yield from" would close an iterator that the program may continue
                yield item
            return
        rest = iter(items)
        # The whole round, also what belongs to others: only then is it known whether the round is complete. From a
        # sampler these are indices, which cost little.
        while round_ := list(itertools.islice(rest, self._shares)):
            if self._rank < len(round_):
                if len(round_) == self._shares or self._last_round == "filled up":
                    yield round_[self._rank]
            elif self._last_round == "filled up":
                self.counts = False
                yield round_[0]

    def _generators(self) -> list[Generator]:
        batch_sampler = getattr(self.data, "batch_sampler", None)
        holders = (
            self.data,
            getattr(self.data, "sampler", None),
            batch_sampler,
            getattr(batch_sampler, "sampler", None),
        )
        found = {id(g): g for g in (getattr(holder, "generator", None) for holder in holders)}
        return [generator for generator in found.values() if isinstance(generator, Generator)]


def evaluation_sets(data: Any, what: str, **options: Any) -> dict[str, Batches]:
    """Return the batches of evaluation data by the names of its sets; a single set has the empty name.

    Args:
        data: The data, or a mapping of data by name; None for none.
        what: Its name in messages.
        options: As for `Batches`.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        return {"": Batches(data, what=what, last_round="filled up", **options)}
    if not data:
        raise OptionError(f"{what}={data!r} is empty: give data, or a dict of data by name.")
    for name in data:
        if not isinstance(name, str) or not name or name != name.strip("/"):
            raise OptionError(f"{what}: {name!r} is not a name for a set. Give a text such as 'easy'.")
    return {
        name: Batches(each, what=f"{what}[{name!r}]", last_round="filled up", **options) for name, each in data.items()
    }


class FabricBatches(Batches):
    """The batches of a loader that Fabric has set up.

    Fabric's loader counts how often it was iterated over; the count is the epoch that its sampler shuffles by.
    """

    def state(self) -> list[Any]:
        """Return the states of the generators, and the count."""
        return [*super().state(), self.data._num_iter_calls]

    def load_state(self, state: list[Any]) -> None:
        """Set the states of the generators, and the count."""
        if state and isinstance(state[-1], int):
            *state, self.data._num_iter_calls = state
        super().load_state(state)


class LoaderOrder(ReplayedOrder):
    """Opens the epochs of data loaders, and of other data, in the order that they had."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: Batches | None = None
        self._position: Any = None  # that the data itself saved, until it is restored

    def batches_of(self, loader: Any) -> Batches:
        """Return the batches of a data loader."""
        kind = Batches if isinstance(loader, DataLoader) else FabricBatches
        return kind(loader, what="The data loader")

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint with the next epoch that is opened."""
        super().load_state(state)
        self._position = state["now"].get("place")

    def _prepare(self, data: Iterable[Any]) -> None:
        is_of_fabric = hasattr(data, "_num_iter_calls") and isinstance(getattr(data, "_dataloader", None), DataLoader)
        if not isinstance(data, DataLoader) and not is_of_fabric:
            self._batches = None
        elif self._batches is None or self._batches.data is not data:
            self._batches = self.batches_of(data)
        self._restore_position()

    def _restore_position(self) -> None:
        if self._batches is not None:
            self._batches.load_position(self._position)
        self._position = None

    def _open(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        return super()._open(data, number, done) if self._batches is None else self._batches.epoch(number, done=done)

    def _states(self) -> dict[str, Any]:
        drawn, batches = super()._states(), self._batches  # before the position: to save it, a loader may begin to draw
        # Copied: data may return its live state, which keeps changing.
        order, position = ([], None) if batches is None else (batches.state(), copy.deepcopy(batches.position()))
        return {**drawn, "order": order, "place": position}

    def _restore(self, states: dict[str, Any]) -> None:
        super()._restore(states)
        if self._batches is not None:
            self._batches.load_state(states["order"])


class SharedOrder(LoaderOrder):
    """Opens the epochs of a Trainer's data, which its processes share.

    Args:
        batches: The data, this process's share of it.
        seed: Where several processes share the data, they draw one order from this.
    """

    def __init__(self, batches: Batches, *, seed: int, rank: int, world_size: int) -> None:
        super().__init__()
        self._batches = batches
        self._seed, self._rank, self._world_size = seed, rank, world_size

    def open(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        """Open an epoch and draw its order."""
        if done:
            return super().open(data, number, done)
        # Now, so that the open() below does not set a checkpoint's states over the seed.
        self.proceed()
        if self._world_size > 1:
            rng.seed(_mixed(self._seed, number))
        source = super().open(data, number, done)
        first = list(itertools.islice(source, 1))  # draws the order, before a subscriber draws something else
        if self._world_size > 1:
            # One order for all, and then random numbers of its own for each process: not the same dropout on all of
            # them.
            rng.seed(_mixed(self._seed, number, self._rank + 1))
        return itertools.chain(first, source)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; data that saves its own position is put there at once."""
        super().load_state(state)
        self._position = state.get("place", self._position)  # where version 0.1 saved it
        self._restore_position()

    def state(self, *, nothing_done: bool = False) -> dict[str, Any]:
        """Return its state for a checkpoint, with the current position of the data even after `pause`."""
        state = super().state(nothing_done=nothing_done)
        if self._now is not None and state["now"] is self._now and self._batches is not None:
            state["now"] = {**self._now, "place": self._batches.position()}
        return state

    def _prepare(self, data: Iterable[Any]) -> None:
        pass  # the data is known already


def _mixed(*numbers: int) -> int:
    """Mix several numbers into one seed; near numbers give distant seeds."""
    mixed = 0
    for number in numbers:
        mixed = ((mixed ^ number) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**63
    return mixed


class _Rest:
    """The remaining indices of a batch sampler, as a batch sampler."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices


def _skip(items: Iterator[Any], count: int) -> None:
    next(itertools.islice(items, count, count), None)


def is_data_set(data: Any) -> bool:
    """Whether data holds samples, as torch's and Hugging Face's data sets do, rather than batches."""
    return isinstance(data, Dataset) or hasattr(data, "column_names")


def _loader(data: Any, what: str, batch_size: int, shuffle: bool, workers: int) -> Any:
    if isinstance(data, DataLoader):
        return data
    if is_data_set(data):
        if isinstance(data, Sized) and len(data) == 0:
            raise OptionError(f"{what} is empty: {_described(data)} has no samples.")
        if not isinstance(data, IterableDataset | Sized):
            raise OptionError(f"{what}={data!r} has no length: give it __len__(), or make it an IterableDataset.")
        in_order = isinstance(data, IterableDataset) or not shuffle
        return DataLoader(data, batch_size=batch_size, shuffle=None if in_order else True, num_workers=workers)
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise OptionError(
            f"{what}={data!r}: give a data set (torch's or Hugging Face's), a DataLoader, or an iterable of batches."
        )
    return data


def _with_sampler(loader: Any, sampler: Any) -> Any:
    """The same loader with another batch sampler."""
    kept = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    options = {name: getattr(loader, name) for name in (*kept, "generator", "prefetch_factor", "persistent_workers")}
    return DataLoader(loader.dataset, batch_sampler=sampler, **options)


def _is_shared_out(data: Any) -> bool:
    """Whether it already gives each process its share: by its own sampler, or because it says so."""
    samplers = (getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None))
    return getattr(data, "is_shared_out", False) is True or any(
        isinstance(sampler, DistributedSampler) for sampler in samplers
    )


def _described(data: Any) -> str:
    size = f" of length {len(data)}" if isinstance(data, Sized) and not isinstance(data, DataLoader) else ""
    return f"a {type(data).__name__}{size}"

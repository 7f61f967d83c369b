"""`Batches`: a process's share of the batches of each epoch, in an order that a resume can repeat.

The order comes from what the data itself draws when an epoch begins: from the random states and from the
generators it holds. Given those again, the batches that were done already are skipped: in the sampler where
that is all it takes, otherwise by loading them once more. Data that keeps its own place (``state_dict()`` and
``load_state_dict()``) is put back there instead. Several processes take turns: the first batch is
rank zero's, the second rank one's. A last round that does not go round is left out of training; in a
validation some process then has a batch twice, which does not count.
"""

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Literal, TypeVar

import torch
from torch import Generator
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from hookline._engine.errors import OptionError
from hookline.loops.data_position import length_of

T = TypeVar("T")
LastRound = Literal["left out", "filled up"]


class Batches:
    """The batches of a data set, a loader, or anything that can be iterated over again and again.

    Args:
        data: A torch or Hugging Face data set of samples, a `DataLoader`, or an iterable of batches.
        what: What it is called in messages.
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
        self._shares = 1 if _is_shared_out(self.data) else world_size
        self._last_round = last_round
        self._taken = 0
        self.counts = True
        """Whether the batch that was last given out counts; one that fills up a round does not."""
        if self.length == 0:
            raise OptionError(
                f"{what} is empty: {_described(data)} gives no batch"
                + (f" for each of {self._shares} processes." if self._shares > 1 else ".")
            )

    @property
    def length(self) -> int | None:
        """How many batches this process has in an epoch, where that is known."""
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
        """What to do where it gives no batch, as far as that is known."""
        return " It is an iterator, which is used up: give a list or a loader." if self.is_iterator else ""

    def state(self) -> list[Any]:
        """The states of the generators that the data draws its order from."""
        return [generator.get_state() for generator in self._generators()]

    def load_state(self, state: list[Any]) -> None:
        """Put them back to how they were when an epoch began."""
        for generator, own in zip(self._generators(), state, strict=False):
            generator.set_state(own)

    @property
    def keeps_its_place(self) -> bool:
        """Whether the data itself saves where it is, with ``state_dict()`` and ``load_state_dict()``."""
        has_both = all(callable(getattr(self.data, name, None)) for name in ("state_dict", "load_state_dict"))
        return has_both and self._shares == 1

    def place(self) -> Any:
        """Where the data is by itself; None where it does not keep its place."""
        return self.data.state_dict() if self.keeps_its_place else None

    def load_place(self, place: Any) -> None:
        """Put it back there."""
        if place is not None and self.keeps_its_place:
            self.data.load_state_dict(place)

    def epoch(self, number: int, *, done: int = 0) -> Iterator[Any]:
        """The batches of an epoch behind those that are done, which are skipped before this returns."""
        self.counts = True
        self._announce(number)
        if self.keeps_its_place:
            return self._counted(iter(self.data))
        if not self._is_positioned_by_sampler(done):
            self._draw_seed()
            source = self._counted(self._share_of(self.data))
            _skip(source, done - self._given_out(done))
            return source
        indices = self._share_of(self.data.batch_sampler)
        batches = iter(_with_sampler(self.data, _Rest(indices)))  # draws a seed, and the sampler its order after that
        by_loading = self.data.num_workers > 0  # what workers draw themselves is only repeated that way
        _skip(batches if by_loading else indices, done)
        return self._counted(batches)

    def _draw_seed(self) -> None:
        """Draw what a loader draws for its workers when they start, also where they go on: a resume starts them."""
        if getattr(self.data, "_iterator", None) is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self.data.generator)

    def _given_out(self, done: int) -> int:
        """How many of the batches that are done an iterator has behind it."""
        if not done or not isinstance(self.data, Iterator):
            return 0
        if self._taken > done:
            raise OptionError(
                f"{self.what} is an iterator that has given {self._taken} batches, and training goes on behind the "
                f"first {done} of them. Give a list or a loader, or an iterator that begins anew."
            )
        return self._taken

    def _counted(self, source: Iterable[Any]) -> Iterator[Any]:
        repeated = self._repeated_at()
        for index, batch in enumerate(source):
            if repeated is not None:
                self.counts = index != repeated
            self._taken += 1
            yield batch

    def _repeated_at(self) -> int | None:
        """The place of the batch that this process has only to fill up a round; None where the length is unknown."""
        if self.length is None or self._shares == 1 or self._last_round == "left out":
            return None
        over = len(self.data) % self._shares
        return self.length - 1 if 0 < over <= self._rank else -1

    def _is_positioned_by_sampler(self, done: int) -> bool:
        """Whether what this process does not need can be left out before it is loaded."""
        loader = self.data
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return False
        if type(loader).__iter__ is not DataLoader.__iter__:  # a loader that makes something else of its batches
            return False
        return loader.batch_sampler is not None and (self._shares > 1 or done > 0)

    def _share_of(self, items: Iterable[T]) -> Iterator[T]:
        """Every n-th item; in a last round that is not full, none or the first once more."""
        if self._shares == 1:
            for item in items:  # noqa: UP028 - "yield from" would close what others may go on with
                yield item
            return
        rest = iter(items)
        while round_ := list(itertools.islice(rest, self._shares)):
            if self._rank < len(round_):
                if len(round_) == self._shares or self._last_round == "filled up":
                    yield round_[self._rank]
            elif self._last_round == "filled up":
                self.counts = False
                yield round_[0]

    def _announce(self, epoch: int) -> None:
        """Tell samplers and data sets that want to know which epoch begins."""
        parts = [getattr(self.data, name, None) for name in ("dataset", "sampler", "batch_sampler")]
        for part in (self.data, *parts):
            announce = getattr(part, "set_epoch", None)
            if callable(announce):
                announce(epoch)

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


class _Rest:
    """The rest of a batch sampler's indices, as a batch sampler."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices


def _skip(items: Iterator[Any], count: int) -> None:
    next(itertools.islice(items, count, count), None)


def is_data_set(data: Any) -> bool:
    """Whether it holds samples, as torch's and Hugging Face's do, rather than batches."""
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
            f"{what}={data!r}: give a data set (torch's or Hugging Face's), a DataLoader, "
            "or something to iterate over that gives batches."
        )
    return data


def _with_sampler(loader: Any, sampler: Any) -> Any:
    """The same loader with another batch sampler."""
    kept = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    options = {name: getattr(loader, name) for name in (*kept, "generator", "prefetch_factor", "persistent_workers")}
    return DataLoader(loader.dataset, batch_sampler=sampler, **options)


def _is_shared_out(data: Any) -> bool:
    """Whether its own sampler already gives each process its share."""
    samplers = (getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None))
    return any(isinstance(sampler, DistributedSampler) for sampler in samplers)


def _described(data: Any) -> str:
    size = f" of length {len(data)}" if isinstance(data, Sized) and not isinstance(data, DataLoader) else ""
    return f"a {type(data).__name__}{size}"

"""`PrefixCache`: keeps the keys and values of finished rows, for prompts that begin with their tokens.

The next turn of an episode begins with the tokens of all turns before it. With their keys and values at hand, only the
tokens that are new are processed. A prompt is matched by its token ids alone: whatever shares its longest beginning is
used, be it the turn before, another branch of the episode or another episode with the same first messages.

What is kept is valid for the weights that computed it. `WeightsWatch` notices that they have changed.
"""

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from hookline.rl.policies.decoding import Decoder

SAMPLED_NUMBERS = 16
"""How many numbers of each parameter are compared."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Block:
    """The keys and values of rows that were kept together, for each layer.

    It does not know its prefixes: memory of a device has to be free at once, not when cycles are collected.
    """

    layers: list[tuple[Tensor, Tensor]]
    used: int

    @property
    def rows(self) -> int:
        """The number of rows that take memory, those of dropped prefixes included."""
        return len(self.layers[0][0])


@dataclass(slots=True, eq=False)
class Prefix:
    """The tokens of a finished row, and where their keys and values are.

    Attributes:
        row, start: The row in the block, and its column of the first token.
    """

    tokens: list[int]
    block: _Block
    row: int
    start: int


class PrefixCache:
    """The keys and values of finished rows; not more rows than the caller allows, so it calls `shrink`.

    Those that were used are dropped first, because a longer row continues them; then the oldest.
    """

    def __init__(self) -> None:
        self._ordered: list[Prefix] = []  # by tokens, so that the neighbours of a prompt share most with it
        self._oldest: dict[Prefix, None] = {}
        self._used: dict[Prefix, None] = {}
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return len(self._ordered)

    @property
    def rows(self) -> int:
        """The number of rows that take memory."""
        return sum(block.rows for block in self._blocks)

    def add(self, decoder: Decoder, rows: Sequence[tuple[int, list[int]]]) -> None:
        """Keep rows of a decoder, given their indices and tokens; the last tokens may not be processed yet."""
        pads, entries = decoder.pads.tolist(), []
        block = _Block([], 0)
        for index, tokens in rows:
            # After its last token, a finished row has others, until it is removed from the batch.
            entry = Prefix(tokens[: decoder.length - pads[index]], block, index, pads[index])
            place = self._place(entry.tokens)
            if place == len(self._ordered) or self._ordered[place].tokens != entry.tokens:
                self._ordered.insert(place, entry)
                entries.append(entry)
        if not entries:
            return
        first = min(entry.start for entry in entries)
        last = max(entry.start + len(entry.tokens) for entry in entries)
        indices = torch.tensor([entry.row for entry in entries], device=decoder.pads.device)
        for layer in decoder.cache.layers:
            block.layers.append((layer.keys[indices, :, first:last], layer.values[indices, :, first:last]))
        for row, entry in enumerate(entries):
            entry.row, entry.start = row, entry.start - first
            self._oldest[entry] = None
        block.used = len(entries)
        self._blocks.append(block)

    def find(self, prompt: list[int]) -> tuple[Prefix | None, int]:
        """Return what shares most tokens with the beginning of a prompt, and how many."""
        place = self._place(prompt)
        found: tuple[Prefix | None, int] = None, 0
        for entry in self._ordered[max(0, place - 1) : place + 1]:
            common = _common(entry.tokens, prompt)
            if common > found[1]:
                found = entry, common
        return found

    def gather(self, rows: Sequence[tuple[Prefix | None, int]], columns: int) -> Cache:
        """Return a new cache of so many columns.

        Args:
            rows: What each row is copied from, and its number of columns of padding; None if it has nothing else.
        """
        by_block: dict[_Block, list[int]] = defaultdict(list)
        for number, (entry, _) in enumerate(rows):
            if entry is not None:
                by_block[entry.block].append(number)
                self._oldest.pop(entry, None)
                self._used[entry] = None
        device = self._blocks[0].layers[0][0].device
        sources = []
        for block, numbers in by_block.items():
            chosen = [rows[number] for number in numbers]
            indices = torch.tensor([entry.row for entry, _ in chosen if entry is not None], device=device)
            shifts = torch.tensor([entry.start - pad for entry, pad in chosen if entry is not None], device=device)
            # The columns of padding are masked, so they may have the keys of any token.
            places = (torch.arange(columns, device=device) + shifts[:, None]).clamp(0)
            sources.append((block, torch.tensor(numbers, device=device), indices[:, None, None], places[:, None]))
        layers = []
        for number in range(len(self._blocks[0].layers)):
            both = []
            for which in (0, 1):
                like = self._blocks[0].layers[number][which]
                heads = torch.arange(like.shape[1], device=device)[:, None]
                made = like.new_zeros(len(rows), like.shape[1], columns, like.shape[3])
                for block, numbers_in, indices, places in sources:
                    made[numbers_in] = block.layers[number][which][indices, heads, places]
                both.append(made)
            layer = DynamicLayer()
            layer.lazy_initialization(*both)
            layer.keys, layer.values = both
            layers.append(layer)
        return Cache(layers=layers)

    def shrink(self, rows: int) -> None:
        """Drop prefixes until no more than these rows take memory."""
        while len(self) > max(0, rows):
            self._drop(next(iter(self._used or self._oldest)))
        for block in sorted(self._blocks, key=lambda each: each.used - each.rows):
            if self.rows <= rows:
                break
            self._compact(block)

    def clear(self) -> None:
        """Drop everything."""
        self._ordered, self._oldest, self._used, self._blocks = [], {}, {}, []

    def _place(self, tokens: list[int]) -> int:
        return bisect_left(self._ordered, tokens, key=lambda entry: entry.tokens)

    def _drop(self, entry: Prefix) -> None:
        del self._ordered[self._place(entry.tokens)]
        self._oldest.pop(entry, None)
        self._used.pop(entry, None)
        entry.block.used -= 1
        if not entry.block.used:
            self._blocks.remove(entry.block)

    def _compact(self, block: _Block) -> None:
        """Free the rows of dropped prefixes."""
        entries = [entry for entry in self._ordered if entry.block is block]
        indices = torch.tensor([entry.row for entry in entries], device=block.layers[0][0].device)
        block.layers = [(keys[indices], values[indices]) for keys, values in block.layers]
        for row, entry in enumerate(entries):
            entry.row = row


def _common(one: list[int], other: list[int]) -> int:
    """Return the number of equal tokens at the beginning, in a few comparisons of lists."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


class WeightsWatch:
    """Counts the changes of a model's weights between two looks at them.

    PyTorch counts the changes of a tensor, but not those by ``parameter.data``, which some optimizers and PEFT's
    merging use: some numbers of each parameter are compared as well.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._seen: tuple[list[Any], list[Tensor]] | None = None
        self.changes = 0
        """How many changes were noticed."""

    def look(self, version: int) -> int:
        """Compare the weights with those of the last look, given their version; returns the number of changes."""
        facts: list[Any] = [version]
        numbers: dict[Any, list[Tensor]] = defaultdict(list)
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            facts.append((tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version))
            some = tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLED_NUMBERS)]
            numbers[tensor.device, tensor.dtype].append(some)
        if "peft" in sys.modules:
            for module in self._model.modules():
                if hasattr(module, "merged_adapters"):  # a layer with adapters
                    facts.append((module.disable_adapters, [*module.active_adapters], [*module.merged_adapters]))
                    facts.append(dict(getattr(module, "scaling", {})))
        sampled = [torch.cat(each) for each in numbers.values()]
        if self._seen is not None and (
            facts != self._seen[0] or not all(map(torch.equal, sampled, self._seen[1]))  # NaN counts as a change
        ):
            self.changes += 1
        self._seen = facts, sampled
        return self.changes

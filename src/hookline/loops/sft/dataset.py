"""The examples of supervised fine-tuning as a map-style dataset, one by one or packed into rows."""

import copy
import logging
from array import array
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline.loops.sft.data import FORMATS, IGNORED, Row, RowEncoder, SFTOptions, Tokens, template_text

logger = logging.getLogger("hookline")

Item = dict[str, list[int]]


class SFTDataset:
    """Rows as ``{"input_ids": [...], "labels": [...]}``.

    They are tokenized when the dataset is made: a wrong row is an error before training rather than hours into it,
    examples without trained tokens are left out, which the length must reflect, and packing needs the lengths. Ids are
    32-bit numbers: eight bytes per token with its label.

    Attributes:
        cut: How many examples were longer than ``max_length`` and lost a part.
        dropped: How many were left out: too long, or without any token to train on.

    Raises:
        OptionError: There are no rows, one does not fit, or nothing is left to train on.
    """

    def __init__(self, rows: Iterable[Row], tokenizer: Any, options: SFTOptions | None = None) -> None:
        self.options = SFTOptions() if options is None else options
        self.cut = self.dropped = 0
        self._longest = self._empty = 0
        self._examples: list[tuple[array[int], array[int]]] = []
        if self.options.chat_template is not None:
            tokenizer = copy.copy(tokenizer)  # the caller's is not changed
            tokenizer.chat_template = template_text(self.options.chat_template)
        encoder = RowEncoder(tokenizer, train_on_prompt=self.options.train_on_prompt)
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            hint = " Read a file with read_rows(path)." if isinstance(rows, str) else ""
            raise OptionError(f"rows={rows!r}: give a list of rows: {FORMATS}.{hint}")
        count = 0
        for index, row in enumerate(rows):
            self._add(encoder.encode(row, index), index)
            count += 1
        self._report(count)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Item:
        ids, labels = self._examples[index]
        return {"input_ids": ids.tolist(), "labels": labels.tolist()}

    def lengths(self) -> list[int]:
        """Return the number of tokens of each example."""
        return [len(ids) for ids, _ in self._examples]

    def _add(self, tokens: Tokens, index: int) -> None:
        length, most, truncate = len(tokens.ids), self.options.max_length, self.options.truncate
        if length > most:
            if truncate == "error":
                raise OptionError(
                    f"row {index}: has {length} tokens, max_length={most}: give a larger max_length, "
                    "or truncate='right', 'left' or 'drop'."
                )
            self.cut += truncate != "drop"
            self._longest = max(self._longest, length)
        kept = _cut(tokens, most, truncate)
        labels = kept.labels()
        if all(label == IGNORED for label in labels):
            self.dropped += 1
            self._empty += length <= most or truncate != "drop"
        else:
            self._examples.append((array("i", kept.ids), array("i", labels)))

    def _report(self, count: int) -> None:
        most = self.options.max_length
        if not count:
            raise OptionError(f"rows is empty: give at least one row: {FORMATS}.")
        if not self._examples:
            raise OptionError(
                f"None of the {count} rows has a token to train on within max_length={most}: give completions, turns "
                "of the assistant or text, a larger max_length, or truncate='left', which keeps the end."
            )
        if self.cut:
            side = "end" if self.options.truncate == "right" else "beginning"
            logger.warning(
                "%d of %d examples are longer than max_length=%d (the longest has %d tokens) and lost their %s.",
                self.cut, count, most, self._longest, side,
            )  # fmt: skip
        if long := self.dropped - self._empty:
            logger.warning("%d of %d examples are longer than max_length=%d and were left out.", long, count, most)
        if self._empty:
            logger.warning(
                "%d of %d examples have no token to train on within max_length=%d and were left out.",
                self._empty, count, most,
            )  # fmt: skip


class PackedDataset:
    """The examples of a dataset concatenated into rows of at most ``max_length`` tokens.

    An item also has ``position_ids``, which restart at 0 with each example; they keep examples apart, see
    `hookline.loops.sft`. Rows are filled by best fit, longest examples first, so few tokens are padding;
    the same examples always give the same rows, in the order of each row's first example.

    Raises:
        OptionError: An example is longer than ``max_length``.
    """

    def __init__(self, dataset: SFTDataset, max_length: int | None = None) -> None:
        self.dataset = dataset
        given = dataset.options.max_length if max_length is None else max_length
        self.max_length = require_integer("max_length", given, minimum=2)
        lengths = dataset.lengths()
        if lengths and max(lengths) > self.max_length:
            raise OptionError(
                f"max_length={self.max_length}: an example has {max(lengths)} tokens. Give at least that, "
                "or cut examples with SFTOptions(max_length=...)."
            )
        self.rows = pack(lengths, self.max_length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Item:
        item: Item = {"input_ids": [], "labels": [], "position_ids": []}
        for example in map(self.dataset.__getitem__, self.rows[index]):
            item["input_ids"] += example["input_ids"]
            item["labels"] += example["labels"]
            item["position_ids"] += range(len(example["input_ids"]))
        return item


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Return the indices of lengths in rows that each sum up to at most ``room``.

    >>> pack([3, 5, 4, 2, 1], 6)
    [[0], [1, 4], [2, 3]]
    """
    rows: list[list[int]] = []
    with_room: defaultdict[int, list[int]] = defaultdict(list)  # room left -> rows with just that
    rooms: list[int] = []  # the keys of those that are not empty, sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        at = bisect_left(rooms, lengths[index])
        if at == len(rooms):
            rows.append([])
            row, left = len(rows) - 1, room
        else:
            left = rooms[at]
            row = with_room[left].pop()
            if not with_room[left]:
                del rooms[at]
        rows[row].append(index)
        left -= lengths[index]
        if not with_room[left]:
            insort(rooms, left)
        with_room[left].append(row)
    return sorted(sorted(row) for row in rows)


def _cut(tokens: Tokens, most: int, truncate: str) -> Tokens:
    if len(tokens.ids) <= most:
        return tokens
    if truncate == "drop":
        return Tokens([], [])
    part = slice(-most, None) if truncate == "left" else slice(most)
    return Tokens(tokens.ids[part], tokens.trained[part])

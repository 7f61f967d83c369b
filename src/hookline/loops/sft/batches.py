"""Examples as padded tensors, and how many tokens are in them.

Counts are taken where the batch is made, on the CPU, and travel with it as plain numbers under ``"counts"``: nobody
has to ask a device for them. What moves tensors to a device leaves them alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hookline.core.errors import OptionError
from hookline.loops.sft.dataset import Item, PackedDataset, SFTDataset
from hookline.loops.sft.examples import IGNORED
from hookline.loops.sft.options import SFTOptions, require_length
from hookline.loops.sft.rows import Row

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What is in a batch.

    Attributes:
        trained: Tokens with a label.
        tokens: All tokens without padding.
        padded: The size of the tensors: tokens with padding.
        examples: How many examples; more than there are rows where they are packed.
    """

    trained: int
    tokens: int
    padded: int
    examples: int


class PaddingCollator:
    """Makes a batch of examples or of packed rows, padded on the right to the longest.

    The batch has ``input_ids``, ``labels`` (-100 on padding) and ``counts``; with examples ``attention_mask``, with
    packed rows ``position_ids`` instead, in which the padding of a row is a sequence of its own.

    Args:
        tokenizer: Its pad token is used; without one EOS, which is as good, as padding is never looked at.
        pad_to_multiple_of: Make the length a multiple of this.
    """

    def __init__(self, tokenizer: Any, *, pad_to_multiple_of: int | None = None) -> None:
        if pad_to_multiple_of is not None:
            require_length("pad_to_multiple_of", pad_to_multiple_of, least=1)
        ids = (getattr(tokenizer, "pad_token_id", None), getattr(tokenizer, "eos_token_id", None), 0)
        self.pad_id: int = next(token for token in ids if token is not None)
        self.multiple = pad_to_multiple_of or 1

    def __call__(self, items: Sequence[Item]) -> Batch:
        packed = {"position_ids" in item for item in items}
        if len(packed) != 1:
            raise OptionError(f"{len(items)} items were given: give at least one, all packed or all not.")
        lengths = [len(item["input_ids"]) for item in items]
        width = -(-max(lengths) // self.multiple) * self.multiple
        batch: Batch = {
            "input_ids": _padded([item["input_ids"] for item in items], width, self.pad_id),
            "labels": _padded([item["labels"] for item in items], width, IGNORED),
        }
        if packed == {True}:
            batch["position_ids"] = torch.tensor(
                [[*item["position_ids"], *range(width - length)] for item, length in zip(items, lengths, strict=True)]
            )
        else:
            batch["attention_mask"] = _padded([[1] * length for length in lengths], width, 0)
        return {**batch, "counts": _counts(items, width)}


def _padded(rows: Sequence[list[int]], width: int, value: int) -> torch.Tensor:
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def _counts(items: Sequence[Item], width: int) -> TokenCounts:
    return TokenCounts(
        trained=sum(len(item["labels"]) - item["labels"].count(IGNORED) for item in items),
        tokens=sum(len(item["input_ids"]) for item in items),
        padded=len(items) * width,
        examples=sum(item["position_ids"].count(0) if "position_ids" in item else 1 for item in items),
    )


def token_counts(batch: Mapping[str, Any]) -> TokenCounts:
    """What is in a batch: what its collator counted, or else what its tensors show.

    Looking at tensors waits for the device that they are on; batches of a `PaddingCollator` never need it.
    """
    if isinstance(counts := batch.get("counts"), TokenCounts):
        return counts
    ids, mask, positions = batch["input_ids"], batch.get("attention_mask"), batch.get("position_ids")
    return TokenCounts(
        trained=int((batch["labels"][:, 1:] != IGNORED).sum()),
        tokens=ids.numel() if mask is None else int(mask.sum()),
        padded=ids.numel(),
        examples=len(ids) if positions is None or mask is not None else int(positions.eq(0).sum()),
    )


def prepare(
    rows: Iterable[Row], tokenizer: Any, options: SFTOptions | None = None
) -> tuple[SFTDataset | PackedDataset, PaddingCollator]:
    """A map-style dataset of the rows, packed where the options say so, and what makes batches of it."""
    options = SFTOptions() if options is None else options
    dataset = SFTDataset(rows, tokenizer, options)
    collator = PaddingCollator(tokenizer, pad_to_multiple_of=options.pad_to_multiple_of)
    return (PackedDataset(dataset) if options.packing else dataset), collator

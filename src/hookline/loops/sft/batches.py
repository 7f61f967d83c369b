"""Batches of examples as padded tensors, with their token counts and their loss, and a check of packing.

Counts are taken where the batch is made, on the CPU, and travel with it as plain numbers under ``"counts"``: nothing
has to read them from a device.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import functional

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.torch_models import unwrapped
from hookline.loops.sft.data import IGNORED, Row, SFTOptions
from hookline.loops.sft.dataset import Item, PackedDataset, SFTDataset
from hookline.loops.training_step import set_to_evaluate

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The counts of a batch.

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
    """Collates examples or packed rows into a batch, padded on the right to the longest.

    The batch has ``input_ids``, ``labels`` (-100 on padding) and ``counts``; with examples ``attention_mask``, with
    packed rows ``position_ids`` instead, in which the padding of a row is a sequence of its own.

    Args:
        tokenizer: Its pad token is used, or EOS where it has none: padding is never attended to.
        pad_to_multiple_of: Make the length a multiple of this.
    """

    def __init__(self, tokenizer: Any, *, pad_to_multiple_of: int | None = None) -> None:
        self.multiple = require_integer("pad_to_multiple_of", pad_to_multiple_of, optional=True) or 1
        ids = (getattr(tokenizer, "pad_token_id", None), getattr(tokenizer, "eos_token_id", None), 0)
        self.pad_id: int = next(token for token in ids if token is not None)

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
    """Return the counts of a batch: those of its collator, or else those of its tensors.

    Reading tensors waits for their device; batches of a `PaddingCollator` never need it.
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
    """Return a map-style dataset of the rows, packed where the options say so, and its collator."""
    options = SFTOptions() if options is None else options
    dataset = SFTDataset(rows, tokenizer, options)
    collator = PaddingCollator(tokenizer, pad_to_multiple_of=options.pad_to_multiple_of)
    return (PackedDataset(dataset) if options.packing else dataset), collator


_KEPT_APART: "WeakSet[torch.nn.Module]" = WeakSet()
_PREFIX = 8


def model_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's inputs of a batch.

    Flash attention finds the borders of sequences in a single row only, so packed rows are joined for it. That changes
    nothing else: each row begins with an example, and so at position 0.
    """
    names = ("input_ids", "attention_mask", "position_ids")
    inputs = {name: batch[name] for name in names if batch.get(name) is not None}
    if is_packed(batch) and "flash" in _attention_of(model):
        return {name: values.reshape(1, -1) for name, values in inputs.items()}
    return inputs


def is_packed(batch: Mapping[str, Any]) -> bool:
    """Whether rows of the batch may hold several examples."""
    return batch.get("attention_mask") is None and batch.get("position_ids") is not None


def check_packing(model: torch.nn.Module) -> None:
    """Check that this model does not attend from one packed example to another.

    It gets two rows that end with the same example after different ones; its logits for that example must be equal.
    `training_step` does this once for each model, with its first packed batch, and waits for the device then.

    Raises:
        OptionError: The model mixes packed examples.
    """
    if model in _KEPT_APART:
        return
    if not _takes_positions(model) or not _keeps_apart(model):
        raise OptionError(
            f"packing: {type(unwrapped(model)).__name__} (attention {_attention_of(model) or 'unknown'}) lets packed "
            "examples see each other, because it ignores position_ids: set packing to false, or load the model with "
            "attn_implementation='sdpa' or 'eager' where it has them."
        )
    _KEPT_APART.add(model)


def _keeps_apart(model: torch.nn.Module) -> bool:
    device = next(model.parameters()).device
    same = [1, 2]
    ids = torch.tensor([[0, 1] * (_PREFIX // 2) + same, [2, 3] * (_PREFIX // 2) + same], device=device)
    positions = torch.tensor([[*range(_PREFIX), *range(len(same))]] * 2, device=device)
    inputs = model_inputs(model, {"input_ids": ids, "position_ids": positions})
    with set_to_evaluate(model), torch.no_grad():
        logits = model(**inputs, use_cache=False).logits
    first, second = logits.view(*ids.shape, -1)[:, _PREFIX:].float()
    tolerance = max(1e-5, 8 * torch.finfo(logits.dtype).eps)
    return bool((first - second).abs().max() <= tolerance * first.std())


def _takes_positions(model: Any) -> bool:
    parameters = inspect.signature(unwrapped(model).forward).parameters
    return "position_ids" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _attention_of(model: Any) -> str:
    return str(getattr(getattr(unwrapped(model), "config", None), "_attn_implementation", None) or "")


def causal_lm_loss(logits: torch.Tensor, labels: torch.Tensor, *, tokens: int | None = None) -> torch.Tensor:
    """Return the mean cross entropy of each label given the tokens before it; labels of -100 are left out.

    Without any label it is 0, and still has a graph.

    Args:
        tokens: The number of labels, where it is known; or another divisor, e.g. the tokens of all batches of a step.
    """
    targets = labels[:, 1:].reshape(-1).to(logits.device)
    scores = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
    total = functional.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
    return total / (max(tokens, 1) if tokens is not None else (targets != IGNORED).sum().clamp(min=1))


def training_step(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"loss": tensor, "tokens": trained tokens}`` of a batch; for training and validation."""
    if is_packed(batch):
        check_packing(model)
    counts = token_counts(batch)
    logits = model(**model_inputs(model, batch), use_cache=False).logits
    labels = batch["labels"].reshape(logits.shape[:2])
    return {"loss": causal_lm_loss(logits, labels, tokens=counts.trained), "tokens": counts.trained}

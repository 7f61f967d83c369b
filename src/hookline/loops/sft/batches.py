"""Examples as padded tensors, and how many tokens are in them.

Counts are taken where the batch is made, on the CPU, and travel with it as plain numbers under ``"counts"``: nobody
has to ask a device for them. What moves tensors to a device leaves them alone.

Whether a model keeps the examples of a packed row apart, found out by asking it.

The loss of a batch of examples.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import functional

from hookline._engine.errors import OptionError
from hookline._engine.torch_models import unwrapped
from hookline.loops.sft.data import IGNORED, Row, SFTOptions, require_length
from hookline.loops.sft.dataset import Item, PackedDataset, SFTDataset
from hookline.loops.training_step import set_to_evaluate

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


_KEPT_APART: "WeakSet[torch.nn.Module]" = WeakSet()
_PREFIX = 8


def model_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What of a batch goes into the model.

    Flash attention finds the borders of sequences in a single row only, so packed rows are laid end to end for it;
    this changes nothing else, as each row begins with an example and so at position 0.
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
    """Make sure that no attention goes from one packed example to another in this model.

    Two rows are given that end with the same example after different ones; what the model says about it must be the
    same. `training_step` does this once for each model, with its first packed batch, and waits for the device then.

    Raises:
        OptionError: It is not: the model mixes packed examples.
    """
    if model in _KEPT_APART:
        return
    if not _takes_positions(model) or not _keeps_apart(model):
        raise OptionError(
            f"packing: {type(unwrapped(model)).__name__} (attention {_attention_of(model) or 'unknown'}) lets packed "
            "examples see each other, as it does not heed position_ids: set packing to false, or load the model with "
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
    """The mean cross entropy of each label given what comes before it; labels of -100 are left out.

    Without any label it is 0 and still has a graph.

    Args:
        tokens: How many labels there are, where it is known; or what else to divide the sum by, e.g. the tokens of
            all the batches of a step.
    """
    targets = labels[:, 1:].reshape(-1).to(logits.device)
    scores = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
    total = functional.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
    return total / (max(tokens, 1) if tokens is not None else (targets != IGNORED).sum().clamp(min=1))


def training_step(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The loss of a batch, ``{"loss": tensor, "tokens": how many are trained on}``; for training and validation."""
    if is_packed(batch):
        check_packing(model)
    counts = token_counts(batch)
    logits = model(**model_inputs(model, batch), use_cache=False).logits
    labels = batch["labels"].reshape(logits.shape[:2])
    return {"loss": causal_lm_loss(logits, labels, tokens=counts.trained), "tokens": counts.trained}

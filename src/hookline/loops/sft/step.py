"""The loss of a batch of examples."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from hookline.loops.sft.batches import token_counts
from hookline.loops.sft.examples import IGNORED
from hookline.loops.sft.isolation import check_packing, is_packed, model_inputs


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

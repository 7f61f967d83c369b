"""Supervised fine-tuning of any Hugging Face causal language model, with any Hugging Face tokenizer.

    options = SFTOptions(max_length=1024, packing=True)
    data, collate = prepare(read_rows("train.jsonl"), tokenizer, options)
    loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
    for batch in loader:
        training_step(model, batch)["loss"].backward()

The loss is the mean over the trained tokens, or 0 (with a graph) if a batch has none. Labels are exact to the token
(see `hookline.loops.sft.data`), and truncated or skipped examples are reported.

**Packing changes only the speed**: the loss and the gradients of packed rows equal those of the same examples padded.
``position_ids`` restart at zero for each example of a row and are passed without an attention mask and without a
cache. Transformers then builds the mask itself, so it is correct for every attention implementation (eager, SDPA,
flex, flash), for each layer's sliding windows and chunks, in every data type, and for any number of rows. A prepared
four-dimensional block-diagonal mask would be used unchanged: it would lack a layer's sliding window, flash attention
would ignore it, and its values are added by one implementation and used as conditions by another. A model that
ignores positions (a recurrent one, or one with ALiBi) would mix examples: `check_packing` tests the model and refuses
it.
"""

from typing import TYPE_CHECKING, Any

from hookline._engine.optional import load_lazy
from hookline.loops.sft.data import SFTOptions, read_rows
from hookline.loops.sft.dataset import PackedDataset, SFTDataset

if TYPE_CHECKING:
    from hookline.loops.sft.batches import (
        PaddingCollator,
        TokenCounts,
        causal_lm_loss,
        check_packing,
        prepare,
        token_counts,
        training_step,
    )

__all__ = [
    "PackedDataset",
    "PaddingCollator",
    "SFTDataset",
    "SFTOptions",
    "TokenCounts",
    "causal_lm_loss",
    "check_packing",
    "prepare",
    "read_rows",
    "token_counts",
    "training_step",
]

# Imported on first use: configurations, and with them every command of the program, need `SFTOptions` without torch.
_BATCHES = frozenset(__all__) - set(globals())


def __getattr__(name: str) -> Any:
    if name not in _BATCHES:
        raise AttributeError(f"module 'hookline.loops.sft' has no attribute {name!r}")
    value = globals()[name] = load_lazy(f"hookline.sft.{name}", f"hookline.loops.sft.batches:{name}")
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

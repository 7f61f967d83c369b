"""Supervised fine-tuning of any Hugging Face causal language model, with any Hugging Face tokenizer.

    options = SFTOptions(max_length=1024, packing=True)
    data, collate = prepare(read_rows("train.jsonl"), tokenizer, options)
    loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
    for batch in loader:
        training_step(model, batch)["loss"].backward()

The loss is the mean over the tokens that are trained on, and 0 with a graph where a batch has none. Labels are exact
to the token (see `hookline.loops.sft.data`), and what was cut or left out is said.

**Packing changes the speed and nothing else**: the loss and the gradients of packed rows are those of the same
examples padded. The examples of a row are told apart by ``position_ids`` that start anew, given without an attention
mask and without a cache: transformers then makes the mask itself, and so it is right for each kind of attention
(eager, SDPA, flex, flash), for sliding windows and chunks of each layer, in each data type, and for any number of
rows. A ready block-diagonal mask of four dimensions would be taken as it is: without a layer's sliding window, not at
all by flash attention, and with values that are added by one kind of attention and are conditions for another. A
model that does not heed the positions (a recurrent one, or one with ALiBi) would mix examples: `check_packing`
asks the model itself, and refuses it.
"""

from hookline.loops.sft.batches import (
    PaddingCollator,
    TokenCounts,
    causal_lm_loss,
    check_packing,
    prepare,
    token_counts,
    training_step,
)
from hookline.loops.sft.data import SFTOptions, read_rows
from hookline.loops.sft.dataset import PackedDataset, SFTDataset

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

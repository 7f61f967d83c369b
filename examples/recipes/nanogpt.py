"""A loop in the shape of nanoGPT's ``train.py``: accumulation, a schedule, an evaluation every so many iterations.

The lines for hookline are marked with "hookline".
"""

import math

import torch
from torch import nn
from torch.nn import functional

from hookline.callbacks import CheckpointCallback, EarlyStoppingCallback  # hookline
from hookline.integrations.torch import run  # hookline

BLOCK_SIZE, BATCH_SIZE, GRADIENT_ACCUMULATION_STEPS = 16, 8, 2
MAX_ITERS, WARMUP_ITERS, EVAL_INTERVAL, EVAL_ITERS = 120, 10, 20, 4
LEARNING_RATE, MIN_LR, GRAD_CLIP = 3e-2, 3e-3, 1.0

TEXT = "to be or not to be that is the question " * 40
CHARS = sorted(set(TEXT))
DATA = torch.tensor([CHARS.index(char) for char in TEXT])


class GPT(nn.Module):  # type: ignore[misc]
    """One block of attention over characters."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(len(CHARS), width), nn.Embedding(BLOCK_SIZE, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, len(CHARS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BLOCK_SIZE), persistent=False)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.token(idx) + self.position(torch.arange(BLOCK_SIZE))
        logits = self.head(self.block(x, src_mask=self.mask, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a batch of one part of the text."""
    data = DATA[:1200] if split == "train" else DATA[1200:]
    starts = torch.randint(len(data) - BLOCK_SIZE, (BATCH_SIZE,)).tolist()
    x, y = (torch.stack([data[i + shift : i + shift + BLOCK_SIZE] for i in starts]) for shift in (0, 1))
    return x, y


def get_lr(it: int) -> float:
    """Warm up, and decay by a cosine."""
    if it < WARMUP_ITERS:
        return LEARNING_RATE * (it + 1) / WARMUP_ITERS
    ratio = (it - WARMUP_ITERS) / (MAX_ITERS - WARMUP_ITERS)
    return MIN_LR + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (LEARNING_RATE - MIN_LR)


def main() -> None:
    """Learn a line by heart."""
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    rules = [CheckpointCallback(monitor="val/loss", save_top_k=1), EarlyStoppingCallback("val/loss", patience=2)]
    with run(model, optimizer, name="nanogpt", resume="auto", callbacks=rules) as loop:  # hookline
        for iter_num in loop.steps(MAX_ITERS):  # hookline
            for param_group in optimizer.param_groups:
                param_group["lr"] = get_lr(iter_num)
            if iter_num % EVAL_INTERVAL == 0:
                model.eval()
                with loop.validate() as val, torch.no_grad():  # hookline
                    for _ in range(EVAL_ITERS):
                        val.log(loss=model(*get_batch("val")))  # hookline
                model.train()
            for _ in range(GRADIENT_ACCUMULATION_STEPS):
                loss = model(*get_batch("train")) / GRADIENT_ACCUMULATION_STEPS
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loop.log(loss=loss * GRADIENT_ACCUMULATION_STEPS, lr=get_lr(iter_num))  # hookline
    best = min(row.metrics["val/loss"] for row in loop.history if "val/loss" in row.metrics)
    print(f"{loop.step} iterations, best validation loss {best:.2f}, {len(loop.checkpoints)} checkpoints")


if __name__ == "__main__":
    main()

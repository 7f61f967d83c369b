"""A recipe in the shape of torchtune's: a class with ``setup`` and ``train``, losses weighted by tokens, accumulation.

The lines for hookline are marked with "hookline".
"""

from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from hookline.integrations.torch import run  # hookline
from hookline.testing import character_tokenizer, tiny_causal_lm

CONFIG = {"seed": 7, "epochs": 3, "batch_size": 4, "gradient_accumulation_steps": 2, "lr": 5e-3, "clip_grad_norm": 1.0}
CROSS_ENTROPY_IGNORE_IDX = -100


class FullFinetuneRecipeSingleDevice:
    """Fine-tunes all weights on one device."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        self.cfg = cfg

    def setup(self) -> None:
        """Make the model, the optimizer and the data."""
        torch.manual_seed(self.cfg["seed"])
        self._tokenizer = character_tokenizer()
        self._model = tiny_causal_lm(self._tokenizer, hidden_size=32, heads=2)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=self.cfg["lr"])
        texts = [f"{a}+{b}={a + b}" for a in range(8) for b in range(8)]
        data: Any = [self._tokenizer(text)["input_ids"] for text in texts]
        self._dataloader = DataLoader(data, self.cfg["batch_size"], shuffle=True, collate_fn=self._collate)

    def _collate(self, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        longest = max(map(len, rows))
        tokens, labels = (
            torch.tensor([row + [fill] * (longest - len(row)) for row in rows])
            for fill in (self._tokenizer.pad_token_id or 0, CROSS_ENTROPY_IGNORE_IDX)
        )
        return {"tokens": tokens, "labels": labels}

    def _loss_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self._model(input_ids=batch["tokens"]).logits[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    def train(self) -> None:
        """Train for all epochs."""
        accumulation = self.cfg["gradient_accumulation_steps"]
        running_loss, num_tokens = torch.zeros(()), 0
        options: Any = {"accumulation": accumulation, "config": self.cfg, "callbacks": ["gradient_monitor"]}  # hookline
        with run(self._model, self._optimizer, name="sums", **options) as loop:  # hookline
            for idx, batch in enumerate(loop.steps(self._dataloader, epochs=self.cfg["epochs"])):  # hookline
                current_num_tokens = int((batch["labels"] != CROSS_ENTROPY_IGNORE_IDX).sum())
                num_tokens += current_num_tokens
                current_loss = self._loss_step(batch) * current_num_tokens
                running_loss += current_loss.detach()
                current_loss.backward()
                if (idx + 1) % accumulation == 0:
                    for parameter in self._model.parameters():
                        parameter.grad /= num_tokens
                    torch.nn.utils.clip_grad_norm_(self._model.parameters(), self.cfg["clip_grad_norm"])
                    self._optimizer.step()
                    self._optimizer.zero_grad(set_to_none=True)
                    loop.log(loss=running_loss / num_tokens, tokens=num_tokens)  # hookline
                    running_loss, num_tokens = torch.zeros(()), 0
        losses = [row.metrics["loss"] for row in loop.history if "loss" in row.metrics]
        print(f"{loop.step} steps of {accumulation} batches: loss {losses[0]:.2f} -> {losses[-1]:.2f}")


def main() -> None:
    """Fine-tune on sums."""
    torch.set_num_threads(1)
    recipe = FullFinetuneRecipeSingleDevice(CONFIG)
    recipe.setup()
    recipe.train()


if __name__ == "__main__":
    main()

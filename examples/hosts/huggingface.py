"""A Hugging Face `Trainer`; the lines for hookline are marked with "hookline"."""

from typing import Any

import torch
from one_callback import GoodEnough  # hookline
from transformers import Trainer, TrainingArguments

from hookline.integrations.transformers import attach  # hookline
from hookline.testing import character_tokenizer, tiny_causal_lm


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of rows."""
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def main() -> None:
    """Train a tiny language model on sums."""
    torch.set_num_threads(1)
    tokenizer = character_tokenizer()
    texts = [tokenizer(f"{number}+{number}={2 * number}")["input_ids"] for number in range(10, 50)]
    trainer = Trainer(
        tiny_causal_lm(tokenizer, hidden_size=32),
        TrainingArguments(
            "checkpoints",
            max_steps=100,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": ids, "labels": ids} for ids in texts],
        data_collator=collate,
    )
    attach(trainer, [GoodEnough(loss=2.0)], name="sums")  # hookline
    trainer.train()


if __name__ == "__main__":
    main()

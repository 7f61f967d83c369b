"""A TRL `GRPOTrainer`; the lines for hookline are marked with "hookline"."""

from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

from hookline.integrations.transformers import attach  # hookline
from hookline.testing import character_tokenizer, tiny_causal_lm


def evenness(completions: list[str], **columns: Any) -> list[float]:
    """Reward even digits."""
    return [sum(character in "02468" for character in text) / 8 for text in completions]


def main() -> None:
    """Teach a tiny language model to write even digits."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = character_tokenizer("0123456789=")
    trainer = GRPOTrainer(
        tiny_causal_lm(tokenizer, hidden_size=32),
        args=GRPOConfig(
            "checkpoints",
            max_steps=8,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        reward_funcs=[evenness],
        train_dataset=Dataset.from_list([{"prompt": f"{number}="} for number in range(10)]),
        processing_class=tokenizer,
    )
    attach(trainer, ["print_progress", "early_stopping"], name="even", samples=2)  # hookline
    trainer.train()


if __name__ == "__main__":
    main()

"""GRPO with TRL and logged rewards: a table of every output, TensorBoard and a log file, off the training thread.

A dict configures `hookline.logging`; a YAML file works too. The wrapped reward functions log each reward with its
sample; a callback logs the rest. Prints the accuracy, which counts correct answers, and
the number of outputs in the table. For a recorded run and its page in the browser, see hosts/trl_grpo.py.
"""

import csv
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

import hookline.logging
from hookline import rewards
from hookline.integrations.transformers import OptimizedLoggingCallback
from hookline.testing import character_tokenizer, tiny_causal_lm

LOGGING = {
    "version": 1,
    "loggers": {
        "hookline.training": {"level": "INFO", "handlers": ["file", "tensorboard"], "propagate": False},
        "hookline.model": {"level": "INFO", "handlers": ["csv"], "propagate": False},
        "hookline.reward": {"level": "INFO", "handlers": ["file"], "propagate": False},
        "hookline.metrics": {"level": "INFO", "handlers": ["tensorboard"], "propagate": False},
    },
    "handlers": {
        "file": {"class": "logging.FileHandler", "filename": "training.log"},
        "csv": {
            "class": "hookline.logging.CSVHandler",
            "filename": "model_outputs.csv",
            "columns": ["timestamp", "question", "answer", "llm_reasoning", "llm_answer"],
        },
        "tensorboard": {"class": "hookline.logging.TensorBoardHandler", "log_dir": "tensorboard"},
    },
    "metrics": {"logging_frequency": 2},
}


def correctness(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """Reward the right digit with 2 and a wrong one with -0.5."""
    return [2.0 if right in text else -0.5 for right, text in zip(answer, completions, strict=True)]


def brevity(completions: list[str], **columns: Any) -> list[float]:
    """Reward short completions."""
    return [-len(text) / 100 for text in completions]


def main() -> None:
    """Train for a few steps, and print what was logged."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hookline.logging.initialize(LOGGING)
    tokenizer = character_tokenizer("0123456789+=")
    callback = OptimizedLoggingCallback()
    trainer = GRPOTrainer(
        tiny_causal_lm(tokenizer, hidden_size=16, heads=2),
        args=GRPOConfig(
            "checkpoints",
            max_steps=5,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        reward_funcs=rewards.wrap([correctness, brevity]),
        train_dataset=Dataset.from_list([{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(9)]),
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)  # it prints the same metrics
    trainer.train()
    hookline.logging.shutdown()
    print(f"{callback.correct_answers} of {callback.total_answers} answers were right: {callback.accuracy:.1f}%")
    with Path("model_outputs.csv").open(newline="", encoding="utf-8") as file:
        print(f"{len(list(csv.DictReader(file)))} outputs in the table")
    print(f"rewards: {sorted(rewards.statistics())}")


if __name__ == "__main__":
    main()

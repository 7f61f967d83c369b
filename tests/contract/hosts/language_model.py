"""The model and the texts of hosts that only train language models: a tiny one, and sums of digits."""

from typing import Any

import torch
from datasets import Dataset

from hookline.testing import character_tokenizer, tiny_causal_lm

TOKENIZER = character_tokenizer("0123456789+=")
SETTINGS: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "eval_strategy": "epoch",
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "bf16": False,
}
"""Those of all trainers made from that of Hugging Face: what the matrix says of them holds for these."""


def tiny() -> Any:
    """The model as it is before a training."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2)


def sums(count: int) -> Dataset:
    """Tasks with their answers, and both as one text."""
    rows = [(f"{n}+1=", str(n + 1)) for n in range(count)]
    return Dataset.from_list([{"prompt": task, "answer": answer, "text": task + answer} for task, answer in rows])


def evenness(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A reward that even a model that knows nothing gets different amounts of."""
    return [sum(character in "02468" for character in text) / 4 for text in completions]

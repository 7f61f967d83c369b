"""GRPO with TRL: a reward function of completions."""

import json

import torch
from datasets import Dataset
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from hookline.testing import character_tokenizer, tiny_causal_lm

set_seed(19)
torch.set_num_threads(1)
tokenizer = character_tokenizer("0123456789+=")


def brevity(completions, **columns):
    return [-len(text) / 10 for text in completions]


def ends(completions, answer, **columns):
    return [1.0 if right in text else 0.0 for right, text in zip(answer, completions, strict=True)]


trainer = GRPOTrainer(
    tiny_causal_lm(tokenizer, hidden_size=16, heads=2),
    args=GRPOConfig(
        "grpo",
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    ),
    reward_funcs=[brevity, ends],
    train_dataset=Dataset.from_list([{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]),
    processing_class=tokenizer,
)
trainer.train()
rows = [entry for entry in trainer.state.log_history if "reward" in entry]
print("RESULT", json.dumps([[row["loss"], row["reward"], row["reward_std"]] for row in rows]))

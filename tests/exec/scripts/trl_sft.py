"""Supervised fine-tuning with TRL's SFTTrainer."""

import json

import torch
from datasets import Dataset
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from hookline.testing import character_tokenizer, tiny_causal_lm

set_seed(17)
torch.set_num_threads(1)
tokenizer = character_tokenizer("0123456789+=")
data = Dataset.from_list([{"text": f"{a}+{b}={a + b}"} for a in range(5) for b in range(4)])
trainer = SFTTrainer(
    tiny_causal_lm(tokenizer, hidden_size=16, heads=2),
    args=SFTConfig(
        "sft",
        max_steps=4,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        max_length=16,
    ),
    train_dataset=data,
    processing_class=tokenizer,
)
trainer.train()
print("RESULT", json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))

"""A trainer of transformers on two processes, which trains and then evaluates."""

import json
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(7)
torch.set_num_threads(1)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (16, 8))]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2))
args = TrainingArguments(
    "checkpoints",
    max_steps=2,
    per_device_train_batch_size=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    ddp_backend="gloo",
    ddp_find_unused_parameters=False,
    disable_tqdm=True,
)
trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows[:4])
trainer.train()
trainer.evaluate()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if os.environ["RANK"] == "0":
    print("RESULT", json.dumps([trainer.args.world_size, *losses]))

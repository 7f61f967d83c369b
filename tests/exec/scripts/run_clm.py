"""A causal language model with Hugging Face's Trainer, as in run_clm.py, which also logs to TensorBoard."""

import json

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(7)
torch.set_num_threads(1)
ids = torch.randint(0, 64, (24, 16))
rows = [{"input_ids": row, "labels": row} for row in ids]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
args = TrainingArguments(
    "checkpoints",
    max_steps=6,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-2,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=3,
    save_steps=3,
    report_to="tensorboard",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows[:8])
trainer.train()
metrics = trainer.evaluate()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print("RESULT", json.dumps([*losses, metrics["eval_loss"], torch.rand(1).item()]))

"""A trainer of transformers beside a SummaryWriter and wandb of the script's own."""

import json

import torch
import wandb
from torch.utils.tensorboard import SummaryWriter
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(43)
torch.set_num_threads(1)
ids, labels = torch.randint(0, 32, (16, 8)), torch.randint(0, 2, (16,))
rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
args = TrainingArguments(
    "bert", max_steps=4, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True
)
wandb.init(project="bert", config={"size": 16})
writer = SummaryWriter("logs")
trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=rows)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
for step, loss in enumerate(losses):
    writer.add_scalar("loss", loss, step)
    wandb.log({"mine/loss": loss})
writer.close()
wandb.finish()
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))

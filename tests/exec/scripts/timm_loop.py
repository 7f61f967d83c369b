"""timm's training loop: a model with EMA, a cosine schedule, and a summary in CSV and wandb."""

import copy
import csv
import json
import math
from pathlib import Path

import torch
import wandb

torch.manual_seed(23)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
ema = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
images, labels = torch.randn(32, 1, 4, 4), torch.randint(0, 4, (32,))
wandb.init(project="train", config={"lr": 0.1, "model": "mlp"})
losses = []
with Path("summary.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, ["epoch", "train_loss", "eval_loss", "lr"])
    writer.writeheader()
    for epoch in range(3):
        lr = 0.05 * (1 + math.cos(math.pi * epoch / 3))
        optimizer.param_groups[0]["lr"] = lr
        total = 0.0
        for index in torch.randperm(32).split(8):
            loss = torch.nn.functional.cross_entropy(model(images[index]), labels[index], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for averaged, parameter in zip(ema.parameters(), model.parameters(), strict=True):
                averaged.data.lerp_(parameter.data, 0.1)
            total += loss.item()
        with torch.no_grad():
            evaluated = torch.nn.functional.cross_entropy(ema(images), labels).item()
        row = {"epoch": epoch, "train_loss": total / 4, "eval_loss": evaluated, "lr": lr}
        writer.writerow(row)
        wandb.log(row)
        losses += [total / 4, evaluated]
wandb.finish()
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))

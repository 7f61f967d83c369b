"""A training loop in the shape of nanoGPT's: settings as globals, evaluation every so often, `wandb.log` at it."""

import math

import torch
from torch import nn

out_dir = "out"
eval_interval, eval_iters, max_iters = 4, 2, 12
wandb_log, wandb_project, wandb_run_name = True, "owt", "gpt-mini"
batch_size, block_size, vocab_size, n_embd = 4, 8, 32, 16
learning_rate, min_lr, warmup_iters, lr_decay_iters, grad_clip = 1e-2, 1e-3, 2, 12, 1.0
master_process = True
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, int | float | bool | str)]
config = {k: globals()[k] for k in config_keys}

torch.manual_seed(1337)
torch.set_num_threads(1)
data = torch.randint(vocab_size, (512,))


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


model = nn.Sequential(
    nn.Embedding(vocab_size, n_embd), nn.Linear(n_embd, n_embd), nn.GELU(), nn.Linear(n_embd, vocab_size)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)


def loss_of(x, y):
    return nn.functional.cross_entropy(model(x).view(-1, vocab_size), y.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: torch.stack([loss_of(*get_batch()) for _ in range(eval_iters)]).mean() for split in ("train", "val")}
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


if wandb_log and master_process:
    import wandb

    wandb.init(project=wandb_project, name=wandb_run_name, config=config)

iter_num, running_mfu = 0, -1.0
while True:
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        if wandb_log:
            wandb.log(
                {
                    "iter": iter_num,
                    "train/loss": losses["train"],
                    "val/loss": losses["val"],
                    "lr": lr,
                    "mfu": running_mfu * 100,
                }
            )
    loss = loss_of(*get_batch())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
print("final loss", loss.item())

"""nanoGPT's loop: settings as globals, estimates of the loss, gradient accumulation, wandb."""

import json
import math

import torch
import wandb

out_dir, eval_interval, max_iters, accumulation = "out", 3, 6, 2
block_size, vocab_size, n_embd, learning_rate = 8, 32, 16, 1e-2
config = {
    name: value for name, value in list(globals().items()) if isinstance(value, int | float | str) and name[0] != "_"
}
torch.manual_seed(1337)
torch.set_num_threads(1)
data = torch.randint(vocab_size, (256,))
model = torch.nn.Sequential(
    torch.nn.Embedding(vocab_size, n_embd), torch.nn.GELU(), torch.nn.Linear(n_embd, vocab_size)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))


def get_batch():
    starts = torch.randint(len(data) - block_size, (4,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    return x, torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])


def loss_of(x, y):
    return torch.nn.functional.cross_entropy(model(x).view(-1, vocab_size), y.view(-1))


wandb.init(project="owt", name="gpt-mini", config=config)
losses = []
for iter_num in range(max_iters):
    lr = learning_rate * 0.5 * (1 + math.cos(math.pi * iter_num / max_iters))
    for group in optimizer.param_groups:
        group["lr"] = lr
    for _ in range(accumulation):
        loss = loss_of(*get_batch()) / accumulation
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item() * accumulation)
    wandb.log({"iter": iter_num, "train/loss": losses[-1], "lr": lr}, step=iter_num)
wandb.finish()
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))

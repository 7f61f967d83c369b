"""A loop of word embeddings with nothing to log: prints its loss."""

import json

import torch

torch.manual_seed(31)
torch.set_num_threads(1)
table = torch.nn.Embedding(16, 4)
pairs = torch.randint(0, 16, (64, 2))
losses = []
for batch in pairs.split(16):
    scores = (table(batch[:, 0]) * table(batch[:, 1])).sum(1)
    loss = torch.nn.functional.softplus(-scores).mean()
    (gradient,) = torch.autograd.grad(loss, table.weight)
    table.weight.data -= 0.1 * gradient
    losses.append(loss.item())
    print(f"loss {loss.item():.4f}")
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))

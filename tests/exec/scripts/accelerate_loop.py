"""A loop over Accelerate, as in its examples: trackers by name, gradient accumulation."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

set_seed(11)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="logs", gradient_accumulation_steps=2)
accelerator.init_trackers("example", config={"lr": 0.05, "batch_size": 8})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8, shuffle=True))
losses, step = [], 0
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        losses.append(loss.item())
        accelerator.log({"train_loss": loss.item()}, step=step)
accelerator.end_training()
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))

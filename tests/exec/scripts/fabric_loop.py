"""A loop over Fabric, which logs with `fabric.log`."""

import json

import torch
from lightning.fabric import Fabric

torch.set_num_threads(1)
fabric = Fabric(accelerator="cpu", devices=1)
fabric.seed_everything(13)
fabric.launch()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.randn(32, 4), 8, shuffle=True))
losses = []
for epoch in range(2):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        fabric.log("loss", loss.item(), step=epoch * len(loader) + step)
print("RESULT", json.dumps([*losses, torch.rand(1).item()]))

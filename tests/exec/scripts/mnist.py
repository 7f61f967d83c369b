"""Digits with a small convolution, as in PyTorch's examples: a loop of its own, and a SummaryWriter."""

import argparse
import json
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.dropout = torch.nn.Dropout(0.25)
        self.fc = torch.nn.Linear(4 * 36, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(self.dropout(torch.flatten(F.relu(self.conv(x)), 1))), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(1)
    random.seed(1)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(48, 1, 8, 8), torch.randint(0, 10, (48,)))
    loader, test = DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=48)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    writer = SummaryWriter("logs")
    writer.add_hparams({"lr": args.lr}, {})
    losses, step = [], 0
    for epoch in range(1, args.epochs + 1):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            writer.add_scalar("train/loss", loss.item(), step)
        model.eval()
        with torch.no_grad():
            val = sum(F.nll_loss(model(x), y).item() for x, y in test)
        writer.add_scalar("val/loss", val, epoch)
    writer.close()
    print("RESULT", json.dumps([*losses, val, torch.rand(1).item(), random.random()]))


if __name__ == "__main__":
    main()

"""A loop in the shape of timm's ``train.py``: ``train_one_epoch`` and ``validate``, an average of the weights.

The lines for hookline are marked with "hookline".
"""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import EMA, CheckpointCallback  # hookline
from hookline.integrations.torch import run  # hookline

EPOCHS, LR = 4, 0.02


def stripes(count: int, seed: int) -> TensorDataset:
    """Images of horizontal and vertical stripes in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    lines = ((torch.arange(8) // 2) % 2).float()
    images = torch.stack([lines.expand(8, 8) if label else lines.expand(8, 8).T for label in labels.tolist()])
    return TensorDataset((images + 0.7 * torch.randn(images.shape, generator=generator))[:, None], labels)


def create_model() -> nn.Module:
    """A small network of convolutions."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2)),
    )


def train_one_epoch(loop: Any, model: nn.Module, loader: Any, optimizer: Any, loss_fn: nn.Module) -> None:
    """Train on all batches once."""
    model.train()
    for images, target in loop.steps(loader):  # hookline
        loss = loss_fn(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.log(loss=loss)  # hookline


def validate(loop: Any, model: nn.Module, loader: Any, loss_fn: nn.Module) -> float:
    """Return the accuracy on held-out images."""
    model.eval()
    with loop.validate() as val, torch.no_grad():  # hookline
        for images, target in loader:
            output = model(images)
            val.log(loss=loss_fn(output, target), top1=100.0 * (output.argmax(1) == target).float().mean())  # hookline
    return float(loop.get_metric("val/top1"))  # hookline


def main() -> None:
    """Tell stripes apart."""
    torch.set_num_threads(1)
    torch.manual_seed(42)
    model = create_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    loader_train = DataLoader(stripes(256, seed=0), batch_size=16, shuffle=True)
    loader_eval = DataLoader(stripes(64, seed=1), batch_size=32)
    saver = CheckpointCallback(monitor="val/top1", mode="max", save_top_k=2)  # hookline
    with run(model, optimizer, scheduler, name="timm", resume="auto", callbacks=[EMA(0.9), saver]) as loop:  # hookline
        for epoch in loop.epochs(EPOCHS):  # hookline
            train_one_epoch(loop, model, loader_train, optimizer, nn.CrossEntropyLoss())
            top1 = validate(loop, model, loader_eval, nn.CrossEntropyLoss())
            scheduler.step()
            print(f"epoch {epoch}: top-1 {top1:.1f}")


if __name__ == "__main__":
    main()

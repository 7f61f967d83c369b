"""A PyTorch training that writes to TensorBoard, in the shape of the MNIST example; only the import is hookline's.

Two writers, for training and validation, are one run: their values are called ``train/loss`` and ``val/loss``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from hookline.compat.tensorboard import SummaryWriter  # from torch.utils.tensorboard import SummaryWriter


def accuracy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The share of digits that are recognized."""
    return (logits.argmax(dim=1) == targets).float().mean()


def main() -> None:
    """Learn to read small digits."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target))
    train_set, val_set = random_split(data, [1500, 297])
    train_loader, val_loader = DataLoader(train_set, batch_size=64, shuffle=True), DataLoader(val_set, batch_size=297)

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train_writer, val_writer = SummaryWriter("logs/mnist/train"), SummaryWriter("logs/mnist/val")
    images, _ = next(iter(train_loader))
    train_writer.add_images("digits", images[:16], 0)
    train_writer.add_graph(model, images)

    step, score = 0, torch.tensor(0.0)
    for epoch in range(6):
        for images, targets in train_loader:
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_writer.add_scalar("loss", loss, step)
            train_writer.add_scalar("accuracy", accuracy(logits, targets), step)
            step += 1
        with torch.no_grad():
            images, targets = next(iter(val_loader))
            logits = model(images)
        score = accuracy(logits, targets)
        val_writer.add_scalar("loss", nn.functional.cross_entropy(logits, targets), step)
        val_writer.add_scalar("accuracy", score, step)
        val_writer.add_pr_curve("is it a three", targets == 3, logits.softmax(dim=1)[:, 3], step)
        for name, weights in model.named_parameters():
            train_writer.add_histogram(name.replace(".", "/"), weights, epoch)

    train_writer.add_hparams({"lr": 0.01, "batch_size": 64}, {"hparam/accuracy": score.item()}, run_name=".")
    train_writer.close()
    val_writer.close()
    print(f"{step} steps, {score:.0%} of the digits recognized")


if __name__ == "__main__":
    main()

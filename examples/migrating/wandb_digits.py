"""A PyTorch training that logs to W&B, in the shape of its quickstarts; only the import is hookline's.

It logs metrics, a table of wrong answers with their images, a confusion matrix and the model. The second part reads the
runs back with `wandb.Api`.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline.compat.wandb as wandb  # import wandb


def train(learning_rate: float) -> None:
    """Learn to read small digits, in a run of its own."""
    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train_set, val_set = random_split(data, [1500, 297])
    train_loader, (images, targets) = DataLoader(train_set, batch_size=64, shuffle=True), val_set[:]

    config = {"learning_rate": learning_rate, "epochs": 4, "architecture": "MLP"}
    with wandb.init(project="digits", group="rates", job_type="train", config=config) as run:
        wandb.define_metric("val/accuracy", summary="max")
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=run.config.learning_rate)
        run.watch(model, log="gradients", log_freq=50)

        for epoch in range(run.config.epochs):
            for batch, answers in train_loader:
                loss = nn.functional.cross_entropy(model(batch), answers)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                wandb.log({"train/loss": loss, "epoch": epoch})
            with torch.no_grad():
                guesses = model(images).argmax(dim=1)
            wandb.log({"val/accuracy": (guesses == targets).float().mean()})

        mistakes = wandb.Table(columns=["image", "guess", "target"])
        for index in (guesses != targets).nonzero().flatten()[:8].tolist():
            mistakes.add_data(wandb.Image(images[index]), guesses[index].item(), targets[index].item())
        labels = [str(digit) for digit in range(10)]
        matrix = wandb.plot.confusion_matrix(y_true=targets.tolist(), preds=guesses.tolist(), class_names=labels)
        run.log({"mistakes": mistakes, "confusion": matrix})

        artifact = wandb.Artifact("digits-mlp", type="model", metadata=dict(run.config))
        with artifact.new_file("model.pt", mode="wb") as file:
            torch.save(model.state_dict(), file)
        run.log_artifact(artifact)


def main() -> None:
    """Train with three learning rates, and compare the runs."""
    torch.set_num_threads(1)
    for learning_rate in (0.0001, 0.001, 0.01):
        train(learning_rate)

    api = wandb.Api()
    best, *others = api.runs("digits", filters={"group": "rates"}, order="-summary_metrics.val/accuracy.max")
    steps = len(list(best.scan_history(keys=["train/loss"])))
    print(f"{1 + len(others)} runs, the best with {best.config['learning_rate']}: {steps} steps")
    print(f"accuracy {best.summary['val/accuracy']['max']:.0%}, {api.artifact('digits/digits-mlp:latest').name}")


if __name__ == "__main__":
    main()

"""A Ray Train trainer; the lines for hookline are marked with "hookline".

Without it, the two lines before the body are ``for epoch in range(10):`` and ``for inputs, targets in data:``, and the
last one of the body is ``ray.train.report({"loss": loss.item()})``, which `ReportCallback` replaces.
"""

from pathlib import Path
from typing import Any

import ray.train
import torch
from one_callback import GoodEnough  # hookline
from ray.train.torch import TorchTrainer, prepare_model
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl  # hookline
from hookline.integrations.ray import ReportCallback  # hookline


def train(config: dict[str, Any]) -> None:
    """Fit a line in each worker until it is good enough."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 2)
    data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    model = prepare_model(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hl.run("line", root=config["root"], callbacks=[GoodEnough(loss=0.01), ReportCallback(8)]) as loop:  # hookline
        for inputs, targets in loop.steps(data, epochs=10):  # hookline
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)  # hookline


def main() -> None:
    """Train in this process with Ray's local mode; the code is the same with more workers."""
    result = TorchTrainer(
        train,
        train_loop_config={"root": str(Path.cwd() / "runs")},
        scaling_config=ray.train.ScalingConfig(num_workers=0),
        run_config=ray.train.RunConfig(storage_path=str(Path.cwd() / "storage")),
    ).fit()
    print(f"reported to Ray: step {(result.metrics or {})['step']}")


if __name__ == "__main__":
    main()

"""A loop over an engine of DeepSpeed; the lines for hookline are marked with "hookline".

Without it, the two lines before the body are ``for epoch in range(10):`` and ``for inputs, targets in loader:``.
"""

import deepspeed
import torch
from one_callback import GoodEnough  # hookline
from torch.utils.data import DataLoader, TensorDataset

from hookline.integrations.deepspeed import run  # hookline

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
}


def main() -> None:
    """Fit a line until it is good enough."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 2)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(2, 1), config=CONFIG)
    with run(engine, "line", callbacks=[GoodEnough(loss=0.01)]) as loop:  # hookline
        for inputs, targets in loop.steps(loader, epochs=10):  # hookline
            loss = torch.nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            loop.log(loss=loss)  # hookline


if __name__ == "__main__":
    main()

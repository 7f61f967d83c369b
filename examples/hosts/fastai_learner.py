"""A learner of fastai; the lines for hookline are marked with "hookline"."""

import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import SGD
from one_callback import GoodEnough  # hookline
from torch.utils.data import DataLoader, TensorDataset

from hookline.integrations.fastai import HooklineCallback  # hookline


def main() -> None:
    """Fit a line until it is good enough."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(64, 2)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    learn = Learner(
        DataLoaders(loader, loader, device=torch.device("cpu")),
        torch.nn.Linear(2, 1),
        loss_func=torch.nn.MSELoss(),
        opt_func=SGD,
        cbs=HooklineCallback([GoodEnough(loss=0.01)], name="line"),  # hookline
    )
    with learn.no_bar(), learn.no_logging():
        learn.fit(10, 0.1)


if __name__ == "__main__":
    main()

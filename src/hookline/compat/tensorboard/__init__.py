"""TensorBoard's `SummaryWriter`, recording into hookline runs, and `sync`, which also records other writers' events.

    from hookline.compat.tensorboard import SummaryWriter  # instead of torch.utils.tensorboard or tensorboardX

A program keeps its import, and its event files, with `sync`::

    with hl.run("mnist") as run, hookline.compat.tensorboard.sync(run):
        train()  # events of every SummaryWriter are also recorded in the run

Neither torch nor TensorBoard is needed for the writer.
"""

from hookline.compat.tensorboard.sync import sync
from hookline.compat.tensorboard.writer import SummaryWriter

__all__ = ["SummaryWriter", "sync"]

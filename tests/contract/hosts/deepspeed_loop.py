"""A loop over an engine of DeepSpeed, on the CPU. ``python -m hosts.deepspeed_loop SCRIPT`` runs a program with one."""

import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from hookline.integrations.deepspeed import run
from hosts.bare_loop import validate
from hosts.base import EPOCHS, Host
from hosts.isolated import load
from hosts.regression import LEARNING_RATE, TRAIN, line, loader, loss_of

os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed = load("deepspeed")

SETTINGS = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "SGD", "params": {"lr": LEARNING_RATE}},
}


class DeepSpeed(Host):
    """The engine of `deepspeed.initialize`."""

    name = "deepspeed"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        with alone():
            engine = engine_of(line())
            self.loop = run(engine, self.name, callbacks=callbacks, resume=resume, **self.options)
            with self.loop as loop:
                for _ in loop.epochs(EPOCHS):
                    for inputs, targets in loop.steps(loader(TRAIN)):
                        loss = loss_of(engine, inputs, targets)
                        engine.backward(loss)
                        engine.step()
                        loop.log(loss=loss)
                    if not loop.stop_requested:
                        validate(loop, engine)


def engine_of(model: torch.nn.Module, **settings: Any) -> Any:
    """An engine on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return deepspeed.initialize(model=model, config={**SETTINGS, **settings})[0]


@contextmanager
def alone() -> Iterator[None]:
    """This process as a group by itself, which DeepSpeed needs, over the loopback."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as place, patch.dict(os.environ, alone):
        store = torch.distributed.FileStore(f"{place}/store", 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for half a minute
        deepspeed.init_distributed("gloo", verbose=False)
        try:
            yield
        finally:
            deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    with alone():
        runpy.run_path(sys.argv[1], run_name="__main__")

"""What the processes of `test_torch_bridge` do: ``ddp.py RANK DIRECTORY``, connected over gloo on loopback."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hookline.callbacks import GradientMonitor
from hookline.integrations.torch import run
from hookline.testing import RecordingCallback

torch.set_num_threads(1)
RANK, ROOT = int(sys.argv[1]), Path(sys.argv[2])


def data(count=16):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    samples = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    return DataLoader(samples, batch_size=2, sampler=DistributedSampler(samples, shuffle=True))


def train(name, *, callbacks=(), seed=3, until=None, **options):
    """Train for two epochs of four steps; returns the run and what this process's losses were."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(seed + RANK)
    losses = []
    options = {"root": ROOT / "runs", "summary": False, "strict": True} | options
    with run(model, optimizer, name=name, callbacks=callbacks, **options) as loop:
        for inputs, targets in loop.steps(data(), epochs=2):
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            loop.log(mean=loss, reduce="mean")
            loop.log(loss=loss)
            if RANK == 1 and loop.step + 1 == until:
                loop.request_checkpoint()
                loop.request_stop("one has enough")
    assert loop.model is net
    return loop, losses


def train_in_fabric(name, *, seed=3, until=None, **options):
    """Two epochs of four steps in Fabric, whose sampler shuffles by a count of its own."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.05))
    inputs = torch.arange(64.0).reshape(16, 4) / 64
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(inputs), batch_size=2, shuffle=True))
    seen = []
    options = {
        "root": ROOT / "runs",
        "summary": False,
        "strict": True,
        "callbacks": [GradientMonitor(every=1)],
    } | options
    with run(model, optimizer, name=name, **options) as loop:
        for (batch,) in loop.steps(loader, epochs=2):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            seen.append((batch[:, 0].tolist(), float(loss.detach())))
            loop.log(loss=loss)
            if loop.step + 1 == until:
                loop.request_checkpoint()
                loop.request_stop("for now")
    return loop, seen


def fabric():
    straight, whole = train_in_fabric("in-fabric")
    stopped, first = train_in_fabric("halved-in-fabric", until=6)
    _, second = train_in_fabric("halved-in-fabric", seed=9, resume="last")
    saved = torch.load(stopped.checkpoints[-1].path / "model.pt", weights_only=True)
    return {
        "world_size": straight.world_size,
        "seen": [whole, first + second],
        "monitored": sorted(name for name in straight.metrics if "/" in name),
        "saved": sorted(saved),
    }


def weights(loop):
    return [float(value) for parameter in loop.model.parameters() for value in parameter.flatten()]


def main():
    seen = RecordingCallback()
    straight, whole = train("straight", callbacks=[seen])
    stopped, first = train("halved", until=3)
    resumed, second = train("halved", seed=9, resume="last")
    found = {
        "ranks": [straight.rank, straight.world_size],
        "moments": seen.names(),
        "stopped": [stopped.step, stopped.state, stopped.stop_reason],
        "saved": [(row.step, str(row.path)) for row in stopped.checkpoints],
        "losses": [whole, first + second],
        "weights": [weights(straight), weights(resumed)],
        "directories": [str(each.dir) for each in (straight, stopped, resumed)],
    }
    if find_spec("lightning") is not None:
        # Without a launcher, Fabric knows from these that it need not start processes.
        os.environ.update({"LOCAL_RANK": str(RANK), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
        found["fabric"] = fabric()
    (ROOT / f"found-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{ROOT / 'store'}", rank=RANK, world_size=2)
    main()
    dist.destroy_process_group()

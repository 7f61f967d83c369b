"""What the processes of `test_torch_bridge` do: ``ddp.py RANK DIRECTORY``, connected over gloo on loopback."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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
    (ROOT / f"found-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{ROOT / 'store'}", rank=RANK, world_size=2)
    main()
    dist.destroy_process_group()

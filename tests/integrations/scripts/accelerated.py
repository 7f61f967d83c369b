"""What the processes of `test_accelerate_bridge` do: ``accelerated.py DIRECTORY``, connected over gloo on loopback."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
RANK, ROOT = int(os.environ["RANK"]), Path(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{ROOT / 'store'}", rank=RANK, world_size=2)

from accelerate import Accelerator  # noqa: E402 - which looks at what is connected
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import hookline as hl  # noqa: E402
from hookline.integrations.accelerate import HooklineTracker, run  # noqa: E402


def prepared(accelerator, seed=3):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=2, shuffle=True)
    found = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.05), data)
    torch.manual_seed(seed + RANK)
    return found


def steps(accelerator, loop, model, optimizer, data, *, until=None, losses):
    for inputs, targets in loop.steps(data, epochs=2):
        with accelerator.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
        loop.log(loss=loss)
        loop.log(mean=loss, reduce="mean")
        if RANK == 1 and loop.step + 1 == until and accelerator.sync_gradients:
            loop.request_checkpoint()
            loop.request_stop("one has enough")


def plain():
    """A bare `hl.run` around a loop of Accelerate."""
    accelerator, losses = Accelerator(cpu=True), []
    model, optimizer, data = prepared(accelerator)
    with hl.run("plain", root=ROOT / "runs", summary=False, strict=True) as loop:
        steps(accelerator, loop, model, optimizer, data, until=3, losses=losses)
    return loop, losses


def train(name, *, seed=3, until=None, **options):
    """Two epochs of eight batches, two of them a step."""
    accelerator, losses = Accelerator(cpu=True, gradient_accumulation_steps=2), []
    model, optimizer, data = prepared(accelerator, seed)
    with run(accelerator, name, root=ROOT / "runs", summary=False, strict=True, **options) as loop:
        steps(accelerator, loop, model, optimizer, data, until=until, losses=losses)
    return loop, losses


def tracked():
    """What both processes log, the main one records."""
    accelerator = Accelerator(cpu=True, log_with=HooklineTracker("tracked", root=ROOT / "runs", summary=False))
    accelerator.init_trackers("project", config={"lr": 0.1})
    tracker = accelerator.get_tracker("hookline", unwrap=True)
    for step in range(3):
        accelerator.log({"loss": torch.tensor(float(step)), "rank": RANK}, step=step)
    for each in accelerator.trackers:
        each.finish()  # end_training() also leaves the process group
    return str(tracker.dir) if RANK == 0 else type(tracker).__name__


def weights(loop):
    return [float(value) for parameter in loop.model.parameters() for value in parameter.flatten()]


def facts(loop, losses):
    found = {"ranks": [loop.rank, loop.world_size], "step": loop.step, "state": loop.state, "losses": losses}
    found |= {"reason": loop.stop_reason, "directory": str(loop.dir), "num_steps": loop.num_steps}
    return found | {"saved": [(row.step, str(row.path)) for row in loop.checkpoints]}


straight, whole = train("straight")
halved, first = train("halved", until=3)
resumed, second = train("halved", seed=9, resume="last")
found = {
    "plain": facts(*plain()),
    "straight": facts(straight, whole),
    "halved": facts(halved, first),
    "resumed": facts(resumed, second),
    "weights": [weights(straight), weights(resumed)],
    "tracked": tracked(),
}
(ROOT / f"found-{RANK}.json").write_text(json.dumps(found))
dist.destroy_process_group()

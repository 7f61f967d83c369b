"""What the processes of `test_fsdp` do: ``fsdp.py RANK DIRECTORY``, connected over gloo on loopback."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hookline as hl
from hookline.callbacks import EMA, GradientMonitor, NaNGuard
from hookline.integrations.torch import run

torch.set_num_threads(1)
RANK, ROOT = int(sys.argv[1]), Path(sys.argv[2])
BAD = 3
"""The step whose gradient is not finite in the shard of rank zero alone."""


def samples(count=16):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def model(seed=3, *, sharded=True):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.BatchNorm1d(7), torch.nn.Dropout(0.5))
    net.append(torch.nn.Linear(7, 1))
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    return net


def whole(tensors):
    parts = [tensor.full_tensor() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return [float(value) for part in parts for value in part.flatten()]


def loader():
    return DataLoader(samples(), batch_size=2, sampler=DistributedSampler(samples(), shuffle=True))


def train(name, *, seed=3, until=None, net=None, callbacks=None, **options):
    """Train for two epochs of four steps; returns the run and what this process's losses were."""
    net = net or model(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    torch.manual_seed(seed + RANK)
    losses, norms, ema = [], [], EMA(0.5)
    callbacks = [GradientMonitor(every=1), ema] if callbacks is None else callbacks
    options = {"root": ROOT / "runs", "summary": False, "strict": True} | options
    with run(net, optimizer, scheduler, name=name, callbacks=callbacks, **options) as loop:
        for inputs, targets in loop.steps(loader(), epochs=2):
            loss = (net(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9).full_tensor()))
            optimizer.step()
            scheduler.step()
            losses.append(float(loss.detach()))
            loop.log(loss=loss)
            if RANK == 1 and loop.step + 1 == until:
                loop.request_checkpoint()
                loop.request_stop("one has enough")
            if loop.step == 5:  # leaves the root's parameters whole until the next backward
                with torch.no_grad(), loop.validate() as validation:
                    validation.log(loss=(net(inputs) - targets).square().mean())
    return loop, {"losses": losses, "norms": norms, "ema": whole(ema.averages.values()), "weights": weights(loop)}


def weights(loop):
    buffers = {name for name, _ in loop.model.named_buffers()}
    return whole(tensor for name, tensor in loop.model.state_dict().items() if name not in buffers)


def bare():
    straight, all_of_it = train("straight")
    stopped, first = train("halved", until=3)
    resumed, second = train("halved", seed=9, resume="last")
    return {
        "ranks": [straight.rank, straight.world_size],
        "stopped": [stopped.step, stopped.state],
        "saved": [str(row.path) for row in stopped.checkpoints],
        "straight": all_of_it,
        "halves": [first, second],
        "recorded": [row.metrics["grad_norm"] for row in straight.history if "grad_norm" in row.metrics],
        "names": sorted(name for name in straight.metrics if name.startswith("grad_norm/")),
        "resumed": [resumed.step, resumed.state],
    }


def guarded():
    """A gradient that is not finite in one process's shard."""
    net = model()

    def spoil(loop, optimizer):
        if loop.step == BAD - 1 and RANK == 0:
            net[0].weight.grad.to_local().fill_(float("nan"))

    seen = []
    note = hl.on("step_end", lambda loop: seen.append(weights(loop)), name="note")
    callbacks = [hl.on("before_optimizer_step", spoil, priority=100), NaNGuard("skip"), note]
    loop, _ = train("guarded", net=net, callbacks=callbacks)
    monitor, guard = GradientMonitor(every=1), NaNGuard()
    monitor.ranks = guard.ranks = "zero"
    on_zero, _ = train("on-zero", callbacks=[monitor, guard], strict=False)
    failures = [str(failure.error) for failure in on_zero.callbacks.failures]
    return {"world_size": loop.world_size, "weights": seen, "failures": failures, "step": on_zero.step}


def trainer(name, *, seed=3, callbacks=(), sharded=True, **given):
    defaults = {"batch_size": 2, "optimizer": "adamw", "learning_rate": 0.05, "summary": False, "strict": True}
    defaults |= {"gradient_clip_norm": 1.0, "accumulation": 2, "epochs": 3, "schedule": "cosine"}
    return hl.Trainer(
        model(seed, sharded=sharded),
        samples(),
        samples(6),
        config=hl.TrainerConfig(name=name, output_dir=str(ROOT / "trainer"), **defaults | given),
        loss=torch.nn.functional.mse_loss,
        callbacks=callbacks,
    )


def fitted():
    averages = [EMA(0.5), EMA(0.5), EMA(0.5)]
    straight = trainer("straight", callbacks=averages[:1])
    straight.fit()
    whole_one = trainer("whole", callbacks=averages[1:2], sharded=False)
    whole_one.fit()
    stop = hl.on("step_end", lambda loop: loop.request_stop("for now") if loop.step == 3 else None)
    halved = trainer("halved", callbacks=[EMA(0.5), stop])
    halved.fit()
    resumed = trainer("halved", seed=9, callbacks=averages[2:])
    resumed.resume("last")
    into_whole = trainer("halved", seed=9, callbacks=[EMA(0.5)], sharded=False)
    into_whole.load_checkpoint(halved.checkpoints[-1].path)
    into_sharded = trainer("whole", seed=9, callbacks=[EMA(0.5)])
    into_sharded.load_checkpoint(whole_one.checkpoints[-1].path)
    return {
        "world_size": straight.world_size,
        "state": [straight.state, halved.state, resumed.state],
        "weights": [weights(straight), weights(resumed)],
        "averages": [whole(each.averages.values()) for each in averages],
        "whole": [weights(whole_one), weights(into_sharded)],
        "halved": [weights(halved), weights(into_whole)],
        "norms": [
            [row.metrics["grad_norm"] for row in each.history if "grad_norm" in row.metrics]
            for each in (straight, whole_one)
        ],
        "checkpoint": str(halved.checkpoints[-1].path),
    }


def refused():
    """What is refused before anything begins."""

    def reported(make):
        try:
            make()
        except hl.HooklineError as error:
            return f"{type(error).__name__}: {error}"
        return None

    net = model(sharded=False)
    early = torch.optim.SGD(net.parameters(), lr=0.1)
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    old = FullyShardedDataParallel(model(sharded=False), device_id=torch.device("cpu"))
    loss = torch.nn.functional.mse_loss
    config = hl.TrainerConfig(epochs=1, output_dir=str(ROOT / "refused"))
    return {
        "early": [
            reported(lambda: run(net, early)),
            reported(lambda: hl.Trainer(net, samples(), config=config, loss=loss, optimizer=early)),
        ],
        "fsdp1": [
            reported(lambda: run(old, torch.optim.SGD(old.parameters(), lr=0.1))),
            reported(lambda: hl.Trainer(old, samples(), config=config, loss=loss)),
        ],
    }


def main():
    found = {each.__name__: each() for each in (bare, guarded, fitted, refused)}
    (ROOT / f"found-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{ROOT / 'store'}", rank=RANK, world_size=2)
    main()
    dist.destroy_process_group()

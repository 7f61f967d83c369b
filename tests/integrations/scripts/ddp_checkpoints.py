"""What the processes of `test_torch_checkpoints` do: ``ddp_checkpoints.py RANK DIRECTORY``, over gloo on loopback.

Only rank zero validates, inside the body of the step, as many scripts do. So only rank zero sees the monitored metric.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hookline as hl
from hookline.callbacks import CheckpointCallback
from hookline.integrations.torch import run

torch.set_num_threads(1)
RANK, ROOT = int(sys.argv[1]), Path(sys.argv[2])
VALUES = {2: 0.9, 4: 0.5, 6: 0.7}
SYNCED: list[str] = []
"""The names of the writers whose journals were synced since the last checkpoint."""


def note_syncs():
    sync = os.fdatasync

    def noted(descriptor):
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        SYNCED.extend([file.name.split("-")[0]] if file.suffix == ".jsonl" else [])
        sync(descriptor)

    os.fdatasync = noted


def synced_at_checkpoints():
    """The journals that were synced for each of two checkpoints, when it is complete."""
    seen = []

    def look(loop, row):
        seen.append(sorted(set(SYNCED)))
        SYNCED.clear()

    callbacks = [hl.on("checkpoint", look)]
    with run(torch.nn.Linear(1, 1), _optimizer(), name="synced", callbacks=callbacks, root=ROOT, summary=False) as loop:
        for _ in loop.steps(5):
            loop.log(loss=1.0)
            SYNCED.clear()
            if loop.step in (1, 3):
                loop.request_checkpoint()
    return seen[:2]


def fails_on_one():
    """What saving raises where the disk of rank one fails."""

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    with run(torch.nn.Linear(1, 1), _optimizer(), name="fails", root=ROOT, summary=False) as loop:
        for _ in loop.steps(1):
            loop.log(loss=1.0)
        sync = os.fdatasync
        os.fdatasync = fail if RANK == 1 else sync
        try:
            loop.save_checkpoint()
        except hl.CheckpointError as error:
            return str(error)
        finally:
            os.fdatasync = sync
    return "nothing"


def batches(count):
    return list(torch.randn(count, 2, 4, generator=torch.Generator().manual_seed(RANK)))


def train(name, *, validate, steps=6, epochs=1, stop_at=None, checkpoint=None, **options):
    """Train; ``validate`` is called in the body, before or after the update, with the loop and the evaluated step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = CheckpointCallback(**{"monitor": "val/loss"} | (checkpoint or {}))
    weights = {0: model.module.weight.tolist()}
    options = {"root": ROOT / "runs", "summary": False, "strict": True} | options
    with run(model, optimizer, name=name, callbacks=[rule], **options) as loop:
        for batch in loop.steps(batches(steps), epochs=epochs):
            validate(loop, loop.step, before=True)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            weights[loop.step + 1] = model.module.weight.tolist()
            validate(loop, loop.step + 1, before=False)
            if RANK == 0 and loop.step + 1 == stop_at:
                loop.request_stop("rank zero has enough")
    return loop, rule, weights


def on_rank_zero(*, before):
    """A validation on rank zero only, before the update or after it."""
    here = before

    def validate(loop, step, *, before):
        if RANK == 0 and before is here and step in VALUES:
            with loop.validate() as validation:
                validation.log(loss=VALUES[step])

    return validate


def saved(loop, rule, weights):
    """The checkpoints that are left, whether each holds the weights of its step, and the best."""
    paths = sorted(loop.dir.glob("checkpoints/step-*"))
    steps = [int(path.name.removeprefix("step-")) for path in paths]
    same = [
        torch.load(path / "model.pt")["weight"].tolist() == weights[step]
        for path, step in zip(paths, steps, strict=True)
    ]
    return {"steps": steps, "same": same, "best": [rule.best_path.name, rule.best_value], "state": loop.state}


def requested_on_one():
    """Rank one asks for a validation; rank zero makes it for both."""
    seen = []
    with run(torch.nn.Linear(1, 1), _optimizer(), name="asked", root=None, summary=False) as loop:
        for _ in loop.steps(5):
            seen.append(loop.validation_requested)
            if RANK == 1 and loop.step == 1:
                loop.request_validation()
            if RANK == 0 and loop.validation_requested:
                with loop.validate() as validation:
                    validation.log(loss=1.0)
    return seen


def _optimizer():
    return torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)


def main():
    after, before = on_rank_zero(before=False), on_rank_zero(before=True)
    runs = {
        "the epoch ends at the validated step": train("ends", validate=after, steps=6),
        "it stops at the validated step": train("stops", validate=after, stop_at=4),
        "only the best is kept": train("best", validate=after, checkpoint={"save_last": False}),
        "by steps, stopped at the validated step": train(
            "steps", validate=after, stop_at=4, checkpoint={"every_n_steps": 2}
        ),
        "validated before the update": train("before", validate=before),
    }
    note_syncs()
    found = {"world_size": dist.get_world_size(), "asked": requested_on_one(), "synced": synced_at_checkpoints()}
    found |= {name: saved(*of_run) for name, of_run in runs.items()}
    found |= {"fails on one": fails_on_one()}
    (ROOT / f"found-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{ROOT / 'store'}", rank=RANK, world_size=2)
    main()
    dist.destroy_process_group()

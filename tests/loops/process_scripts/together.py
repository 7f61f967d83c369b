"""What the processes of `test_processes` do: ``together.py RANK WORLD_SIZE DIRECTORY SCENARIO...``.

The processes are connected over gloo, on loopback and a file store. Each runs the scenarios, which are functions of
this module, one after the other, and writes what they return to ``<scenario>-<rank>.json`` in the directory.
"""

import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.utils.data import Dataset, TensorDataset

import hookline as hl
from hookline.loops import distributed
from hookline.loops.trainer_config import CheckpointRules

torch.set_num_threads(1)

RANK = 0
ROOT = Path()
WARNINGS: list[str] = []


class Keep(logging.Handler):
    """Keeps what hookline says."""

    def emit(self, record):
        WARNINGS.append(record.getMessage())


def samples(count, *, seed=0):
    """Inputs of four numbers, and targets that are a sum of them."""
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


class Indices(Dataset):
    """Samples that are their own index."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        return torch.tensor([float(index)])


def model(*, dropout=0.0, seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1))


def settings(where, **given):
    defaults = {"batch_size": 2, "optimizer": "sgd", "learning_rate": 0.1, "summary": False, "strict": True}
    return hl.TrainerConfig(name=where, output_dir=str(ROOT / where), **defaults | given)


def trainer(where, train=None, val=None, *, net=None, callbacks=(), hook_fns=None, logger_fns=None, **given):
    return hl.Trainer(
        net or model(),
        samples(16) if train is None else train,
        val,
        config=settings(where, **given),
        loss=torch.nn.functional.mse_loss,
        callbacks=callbacks,
        hook_fns=hook_fns,
        custom_logger_fns=logger_fns,
    )


def weights(made):
    """All weights; those of a sharded model are put together."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in made.model.parameters()]
    return [float(value) for parameter in whole for value in parameter.flatten()]


class Losses(hl.Callback):
    """The losses of this process as they are."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, loop, outputs, batch, batch_idx):
        self.seen.append(float(outputs["loss"]))


def facts(made):
    return {"rank": made.rank, "world_size": made.world_size, "step": made.step, "state": made.state}


def record():
    """One training: who is called, and what is recorded."""
    everywhere, on_zero, logged = [], [], []
    callbacks = [
        hl.on("step_end", lambda loop: everywhere.append(loop.step), name="everywhere"),
        hl.on("step_end", lambda loop: on_zero.append(loop.step), name="on_zero", ranks="zero"),
    ]

    def log(report_data, step):
        logged.append((step, sorted(report_data)))

    made = trainer("record", val=samples(4, seed=1), callbacks=callbacks, logger_fns=[log], epochs=2)
    result = made.fit()
    dist.barrier()
    return facts(made) | {
        "everywhere": everywhere,
        "on_zero": on_zero,
        "logged": logged,
        "directory": str(made.output_dir),
        "history": [(row.step, dict(row.metrics)) for row in made.history],
        "checkpoints": [str(row.path) for row in result.checkpoints],
    }


def weights_after():
    """What is learnt, with and without accumulation; a single process takes batches of twice the size."""
    size = 4 if dist.get_world_size() == 1 else 2
    found = {}
    for name, accumulation in (("plain", 1), ("accumulated", 2), ("unequal", 3)):
        made = trainer(
            f"weights-{name}",
            batch_size=size,
            epochs=2,
            accumulation=accumulation,
            gradient_clip_norm=0.5,
            shuffle=False,
            net=model(seed=RANK),  # rank zero's weights are everybody's
        )
        made.fit()
        found[name] = weights(made)
    return found


def weights_by_tokens():
    """What is learnt of batches of very different lengths, two of them a step; alone those are accumulated."""
    lengths = (2, 9, 8, 1, 0, 3, 4, 4)
    texts = [torch.randn(length, 4, generator=torch.Generator().manual_seed(length)) for length in lengths]
    batches = [{"inputs": text, "counts": Counts(len(text))} for text in texts]

    def step(net, batch):
        return {"loss": (net(batch["inputs"]) - 1).square().sum() / max(1, batch["counts"].trained)}

    accumulation = 2 // dist.get_world_size()
    config = settings("by-tokens", epochs=2, accumulation=accumulation)
    made = hl.Trainer(model(), batches, config=config, training_step=step)
    made.fit()
    return {"step": made.step, "weights": weights(made)}


@dataclass
class Counts:
    """How many tokens of a batch are trained on."""

    trained: int


def data():
    """Which samples each process is given: 7 batches in training and 5 in a validation, for two processes."""
    seen, seen_in_validation = [], []

    class Seen(hl.Callback):
        def on_train_epoch_start(self, loop):
            seen.append([])

        def on_train_batch_start(self, loop, batch, batch_idx):
            seen[-1].append([int(value) for value in batch.flatten()])

        def on_validation_batch_start(self, loop, batch, batch_idx):
            seen_in_validation.append([int(value) for value in batch.flatten()])

    made = hl.Trainer(
        torch.nn.Linear(1, 1),
        Indices(14),
        Indices(9),
        config=settings("data", epochs=2, learning_rate=1e-30, validate_every_epochs=2),
        training_step=lambda net, batch: {"loss": (0 * net(batch) + batch).mean(), "samples": len(batch)},
        callbacks=[Seen()],
    )
    made.fit()
    validated, validation = list(seen_in_validation), dict(made.validation_metrics)
    return {
        "seen": seen,
        "validated": validated,
        "num_steps": made.num_steps,
        "validation": validation,
        "tested": made.test({"all": Indices(9), "few": Indices(3)}),
        "predicted": [len(batch) for batch in made.predict(Indices(5))],
        "directory": str(made.dir),
        "world_size": made.world_size,
    }


def reductions():
    """Names that differ between processes and steps."""
    rows = []
    with hl.run("reductions", root=ROOT / "reductions", strict=True, summary=False) as run:
        run.callbacks.add(hl.on("log", lambda loop, step, metrics: rows.append((step, dict(metrics)))))
        for index in run.steps(3):
            run.log(mean=float(RANK), reduce="mean")
            run.log({"sum": RANK + 1, "sums/deep": torch.tensor(2.0)}, reduce="sum")
            if index == 1:
                run.log("low", 5 - RANK, reduce="min")
            if RANK == 1 and index == 2:
                run.log(only_there=7.0, reduce="max")
        try:
            run.log(x=1, reduce="median")
        except hl.HooklineError as error:
            refused = f"{type(error).__name__}: {error}"
    return {"rows": rows, "refused": refused, "latest": dict(run.metrics)}


def on_its_way(number):
    """A value that is fetched later, where JAX is installed: its arrays are on a device, also without one."""
    if find_spec("jax") is None:
        return number
    import jax.numpy as jnp

    return jnp.float32(number)


def means():
    """What is recorded of values that differ between processes, and what subscribers are given."""
    given, received = [], []

    class Late(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            given.append(metrics.get("loss"))
            loop.log(late=10.0 * (RANK + 1))

        def on_log(self, loop, step, metrics):
            received.append([step, *sorted(metrics)])
            loop.log(received=len(received), reduce="none")

    early = hl.callbacks.EarlyStoppingCallback("val/loss", patience=9)
    with hl.run("means", root=ROOT / "means", callbacks=[Late(), early], strict=True, summary=False) as run:
        for index in run.steps(3):
            run.log(loss=1.0 + 2 * RANK, tokens=128, share=0.1, word=f"of rank {RANK}")
            run.log(device=on_its_way(4.0 * RANK), is_good=RANK == 0)
            run.log(own=RANK, reduce="none")
            if RANK == 1 and index == 1:
                run.log(only_there=7.0)
            if RANK == 0 and index == 1:  # on one rank only, as many scripts do
                with run.validate() as validation:
                    validation.log(loss=5.0)
        run.log(loose=float(RANK))
        for _ in run.steps(1):
            run.log(loss=2.0)
        with run.validate("test") as validation:
            validation.log(loss=float(RANK))
        for _ in run.steps(1):
            pass
    return facts(run) | {"given": given, "received": received, "directory": str(run.dir), "warnings": list(WARNINGS)}


def stops():
    """Several ways to stop; what is asked for on one rank holds for all."""
    found = {}

    def stop_on_one(loop, step_idx):
        if loop.rank == 1 and loop.step == 3:
            loop.request_stop("enough")

    def signalled(loop, step_idx):
        if loop.rank == 1 and loop.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    early = hl.callbacks.EarlyStoppingCallback("loss", stopping_threshold=0.0 if RANK == 0 else 1e9)
    cases = {
        "asked": [hl.on("step_end", stop_on_one)],
        "early": [early],
        "signal": [hl.on("step_end", signalled)],
    }
    for name, callbacks in cases.items():
        made = trainer(f"stops-{name}", callbacks=callbacks, epochs=10, save_at_end=False)
        artifacts = made.fit()
        found[name] = facts(made) | {
            "reason": artifacts.stop_reason,
            "checkpoints": [(row.step, row.kind, str(row.path)) for row in artifacts.checkpoints],
        }
    return found


def requests():
    """A checkpoint and a validation that one rank asks for."""
    validated = []

    def ask(loop, step_idx):
        if loop.rank == 1 and loop.step == 2:
            loop.request_checkpoint()
        if loop.rank == 1 and loop.step == 3:
            loop.request_validation()

    first = hl.on("train_start", lambda loop: loop.request_validation() if loop.rank == 1 else None, name="first")
    watch = hl.on("eval", lambda loop: validated.append(loop.step), name="watch")
    made = trainer(
        "requests",
        val=samples(6, seed=1),
        callbacks=[first, hl.on("step_end", ask), watch],
        epochs=2,
        validate_at_end=False,
        validate_every_epochs=9,
        save_at_end=False,
    )
    artifacts = made.fit()
    written = []
    with hl.run("bare", root=ROOT / "requests", save=lambda path: written.append(path.name), summary=False) as run:
        for index in run.steps(4):
            if RANK == 1 and index == 1:
                run.request_checkpoint()
    return {
        "validated": validated,
        "saved": [row.step for row in artifacts.checkpoints],
        "bare": [row.step for row in run.checkpoints],
        "written": written,
    }


def resumed():
    """A training that is stopped in its second epoch and resumed, and one that is not."""
    given = {"epochs": 3, "train": samples(16), "val": samples(6, seed=1), "optimizer": "adamw"}
    given |= {"learning_rate": 0.01, "schedule": "cosine"}
    whole, first, second = Losses(), Losses(), Losses()
    straight = trainer("straight", net=model(dropout=0.5), callbacks=[whole], **given)
    straight.fit()
    stop = hl.on("step_end", lambda loop: loop.request_stop("for now") if loop.step == 6 else None)
    halved = trainer("halved", net=model(dropout=0.5), callbacks=[first, stop], **given)
    halved.fit()
    continued = trainer("halved", net=model(dropout=0.5, seed=9), callbacks=[second], **given)
    torch.randn(7)  # whatever was drawn before does not matter
    continued.resume("last")
    dist.barrier()
    return {
        "straight": whole.seen,
        "halved": first.seen + second.seen,
        "steps": [len(first.seen), len(second.seen)],
        "weights": [weights(straight), weights(continued)],
        "directory": str(continued.output_dir),
        "same": halved.output_dir == continued.output_dir,
        "history": [row.step for row in continued.history if "loss" in row.metrics],
    }


def saved():
    """Two steps, and a checkpoint of them."""
    made = trainer("saved", max_steps=2, optimizer="adamw")
    made.fit()
    return facts(made) | {"weights": weights(made), "moments": moments(made)}


def continued():
    """Go on with the checkpoints that others saved, on another number of processes or not sharded."""
    found = {}
    for saved in sorted(ROOT.parent.glob("*/saved/default/*/checkpoints/step-00000002")):
        by = saved.parents[4].name
        if by == ROOT.name:
            continue
        WARNINGS.clear()
        loaded = {}
        keep = hl.on("train_start", lambda loop, to=loaded: to.update(weights=weights(loop), moments=moments(loop)))
        made = trainer(f"after-{by}", callbacks=[keep], epochs=1, optimizer="adamw")
        made.resume(saved)
        found[by] = facts(made) | loaded | {"said": [text for text in WARNINGS if "world_size" in text]}
    return found


def moments(made):
    """What the optimizer remembers of each parameter, whole."""
    states = [made.optimizer.state[p] for group in made.optimizer.param_groups for p in group["params"]]
    kept = [state["exp_avg_sq"] for state in states]
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in kept]
    return [float(value) for each in whole for value in each.flatten()]


def hooks():
    """The report of each hook function, in order."""
    calls = []

    def hook(name):
        return lambda worker, report_data: calls.append((name, dict(report_data), worker is made))

    made = trainer(
        "hooks",
        train=samples(4),
        val=samples(6, seed=1),
        hook_fns={name: hook(name) for name in hl.functions.HOOK_FUNCTIONS},
        epochs=1,
    )
    made.fit()
    return {"calls": calls}


def half():
    """Mixed precision, of processes that the Trainer itself connects; another one is refused afterwards."""
    kinds, net = [], model()
    net[0].register_forward_hook(lambda layer, inputs, output: kinds.append(str(output.dtype)))
    made = trainer("half", net=net, epochs=1, precision="bf16")
    made.fit()
    try:
        trainer("full", epochs=1)
    except hl.HooklineError as error:
        refused = f"{type(error).__name__}: {error}"
    return facts(made) | {"weights": weights(made), "kinds": kinds, "refused": refused}


def sharded():
    """FSDP2, which Accelerate uses on devices only: here it takes these processes for ones that have some."""
    unsharded = trainer("unsharded", epochs=1)
    unsharded.fit()
    said = [text for text in WARNINGS if "shards no model" in text]
    AcceleratorState._reset_state()
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    found = resumed()
    made = trainer("parts", epochs=1)
    made.fit()
    parts = [type(parameter).__name__ for parameter in made.model.parameters()]
    return facts(made) | found | {"said": said, "parts": parts, "saved": saved()}


def fails_in_a_step(where="fails_in_a_step"):
    hl.Trainer(model(), samples(16), config=settings(where, epochs=9), training_step=BadBatch()).fit()


class BadBatch:
    """A step that fails on rank one, at the third batch."""

    def __init__(self):
        self.batches = 0

    def __call__(self, net, batch):
        self.batches += 1
        if RANK == 1 and self.batches == 3:
            raise ValueError("a bad batch")
        return {"loss": net(batch[0]).square().mean()}


def fails_in_turn():
    """One failure after the other, each with a connection of its own; no process ends for good before the last."""
    distributed.PATIENCE_SECONDS = 120.0
    reported = []
    for scenario in (fails_in_a_bare_run, fails_in_validation, fails_to_save):
        try:
            scenario()
        except Exception as error:
            reported.append(type(error).__name__)
        dist.destroy_process_group()
        connect(f"store-after-{scenario.__name__}", 2)
    raise RuntimeError(f"failed with {', '.join(reported)}")


def fails_in_a_bare_run():
    with hl.run(root=ROOT / "fails_in_a_bare_run", summary=False) as run:
        for index in run.steps(100):
            if RANK == 1 and index == 2:
                raise ValueError("a bad batch")


def fails_and_stays():
    """Rank one catches its exception and lives on, until rank zero has ended."""
    distributed.PATIENCE_SECONDS = 1.0
    try:
        fails_in_a_step("fails_and_stays")
    except ValueError:
        sys.stdin.read()
        raise


def fails_in_validation():
    def fail(loop, batch, batch_idx):
        if loop.rank == 1 and batch_idx == 1:
            raise ValueError("a bad sample")

    callbacks = [hl.on("validation_batch_start", fail)]
    trainer("fails_in_validation", val=samples(8, seed=1), validate_every_steps=2, callbacks=callbacks, epochs=9).fit()


def fails_to_save():
    """The disk of rank zero fails while it writes the third checkpoint."""
    write = torch.save

    def save(values, path, *args, **kwargs):
        if RANK == 0 and "step-00000003" in str(path):
            raise OSError(28, "No space left on device")
        return write(values, path, *args, **kwargs)

    torch.save = save
    trainer("fails_to_save", checkpoint=CheckpointRules(every_n_steps=1, save_top_k=-1), epochs=9).fit()


def connect(store, size):
    dist.init_process_group("gloo", init_method=f"file://{ROOT / store}", rank=RANK, world_size=size)


def main():
    global RANK, ROOT
    rank, world_size, directory, *scenarios = sys.argv[1:]
    RANK, ROOT = int(rank), Path(directory)
    logging.getLogger("hookline").addHandler(Keep())
    if "MASTER_ADDR" not in os.environ:  # otherwise the Trainer connects them, as under a launcher
        connect("store", int(world_size))
    for scenario in scenarios:
        found = globals()[scenario]()
        (ROOT / f"{scenario}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

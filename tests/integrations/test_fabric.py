"""Loops over what Lightning Fabric has set up, beyond what the contract suite compares."""

import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    from lightning.fabric import Fabric

from hosts.regression import TRAIN, line, loss_of, optimizer_of

import hookline as hl
from hookline._engine.errors import CheckpointError, OptionError
from hookline.integrations.fabric import run
from hookline.testing import RecordingCallback


def parts(precision="32-true", seed=0):
    torch.manual_seed(seed)
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    model = line()
    model, optimizer = fabric.setup(model, optimizer_of(model.parameters()))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*TRAIN), batch_size=2, shuffle=True)
    return fabric, model, optimizer, fabric.setup_dataloaders(data)


def train(fabric, model, optimizer, data, *, until=None, every=1, scheduler=None, **options):
    losses = []
    with run(fabric, model, optimizer, scheduler, accumulation=every, **options) as loop:
        for number, (inputs, targets) in enumerate(loop.steps(data, epochs=2), 1):
            loss = loss_of(model, inputs, targets)
            fabric.backward(loss)
            if number % every == 0:
                optimizer.step()
                optimizer.zero_grad()
                if scheduler is not None:
                    scheduler.step()
            losses.append(loss.item())
            loop.log(loss=loss)
            if loop.step + 1 == until:
                loop.request_checkpoint()
                loop.request_stop("for now")
    return loop, losses


@pytest.mark.parametrize("until", [2, 4, 6])
def test_resume_is_exact_in_the_middle_of_a_shuffled_epoch(options, until):
    _, whole = train(*parts(), name="whole", **options)
    halved, first = train(*parts(), name="halved", until=until, **options)
    resumed, second = train(*parts(seed=5), name="halved", resume="last", **options)
    assert (halved.step, resumed.dir) == (until, halved.dir)
    assert first + second == pytest.approx(whole)


def test_checkpoint_holds_the_schedule_and_what_fabric_saves(options):
    fabric, model, optimizer, data = parts(precision="bf16-mixed")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loop, _ = train(fabric, model, optimizer, data, until=4, scheduler=scheduler, **options)
    saved = torch.load(loop.checkpoints[0].path / "fabric" / "state.ckpt", weights_only=True)
    assert set(saved) == {"model", "optimizer", "scheduler", "precision"}
    assert saved["scheduler"]["last_epoch"] == 4
    assert loop.native is fabric
    assert loop.model is model.module


def test_accumulated_batches_make_a_step(options):
    seen = RecordingCallback()
    loop, _ = train(*parts(), every=2, callbacks=[seen, "gradient_monitor"], **options)
    assert (loop.step, seen.names().count("on_before_optimizer_step")) == (4, 4)
    assert seen.names().count("on_train_batch_end") == 8


def test_checkpoint_of_another_kind_of_run_is_refused(options):
    with hl.run("plain", save=lambda directory: None, **options) as plain:
        for _ in plain.steps(1):
            plain.request_checkpoint()
    with pytest.raises(CheckpointError, match="saved by another kind of run"):
        train(*parts(), resume=plain.dir, **options)


def test_checkpoint_of_another_model_is_refused(options):
    loop, _ = train(*parts(), until=2, **options)
    fabric = Fabric(accelerator="cpu", devices=1)
    other = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(other, optimizer_of(other.parameters()))
    with pytest.raises(CheckpointError, match="Fabric cannot load"):
        train(fabric, model, optimizer, [], resume=loop.dir, **options)


@pytest.mark.parametrize("wrong", ["fabric", "model", "optimizer"])
def test_run_refuses_what_fabric_has_not_set_up(wrong):
    fabric, model, optimizer, _ = parts()
    given = {"fabric": fabric, "model": model, "optimizer": optimizer}
    plain = {"fabric": object(), "model": line(), "optimizer": optimizer_of(line().parameters())}
    with pytest.raises(OptionError, match=f"^{wrong}="):
        run(**{**given, wrong: plain[wrong]}, root=None)


def test_run_refuses_an_accumulation_that_is_no_number():
    fabric, model, optimizer, _ = parts()
    with pytest.raises(OptionError, match="accumulation=0"):
        run(fabric, model, optimizer, accumulation=0, root=None)

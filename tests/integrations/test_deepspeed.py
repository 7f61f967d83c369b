"""Loops over DeepSpeed's own engine on the CPU, beyond what the contract suite compares."""

import pytest

pytest.importorskip("torch")

import hosts
import torch

if not (hosts.ISOLATED / "deepspeed").is_dir():
    pytest.skip("deepspeed is not installed", allow_module_level=True)

from hosts.deepspeed_loop import alone, engine_of
from hosts.regression import TRAIN, line, loss_of

from hookline._engine.errors import CheckpointError, OptionError
from hookline.callbacks import EMA, GradientMonitor, NaNGuard
from hookline.integrations.deepspeed import run
from hookline.testing import RecordingCallback


@pytest.fixture(autouse=True)
def _alone():
    with alone():
        yield


def batches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    data = torch.utils.data.TensorDataset(*TRAIN)
    return torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, generator=generator)


def train(engine, *, until=None, spoil=None, **options):
    losses = []
    with run(engine, **options) as loop:
        for inputs, targets in loop.steps(batches(), epochs=2):
            loss = loss_of(engine, inputs, targets)
            engine.backward(loss)
            if loop.step == spoil:
                engine.module.weight.grad.fill_(float("nan"))
            engine.step()
            losses.append(loss.item())
            loop.log(loss=loss)
            if loop.step + 1 == until:
                loop.request_checkpoint()
                loop.request_stop("for now")
    return loop, losses


@pytest.mark.parametrize("stage", [0, 2])
def test_resume_is_exact_in_every_stage(options, stage):
    given = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    _, whole = train(engine_of(line(), **given), name="whole", **options)
    halved, first = train(engine_of(line(), **given), name="halved", until=3, **options)
    resumed, second = train(engine_of(line(), **given), name="halved", resume="last", **options)
    assert (halved.step, resumed.dir) == (3, halved.dir)
    assert first + second == pytest.approx(whole)
    assert (halved.checkpoints[0].path / "deepspeed" / "engine").is_dir()


def test_accumulated_batches_make_a_step_and_the_engine_is_as_before_afterwards(options):
    seen, engine = RecordingCallback(), engine_of(line(), gradient_accumulation_steps=2)
    loop, _ = train(engine, callbacks=[seen], **options)
    assert (loop.step, engine.global_steps) == (4, 4)
    assert seen.names().count("on_before_optimizer_step") == 4
    assert ("step" in vars(engine), loop.native, loop.model) == (False, engine, engine.module)


def test_loader_of_the_engine_begins_again_with_each_epoch(options):
    engine = engine_of(line())
    data = torch.utils.data.TensorDataset(*TRAIN)
    loader = engine.deepspeed_io(data, pin_memory=False, num_local_io_workers=0)
    with run(engine, **options) as loop:
        for inputs, targets in loop.steps(loader, epochs=2):
            engine.backward(loss_of(engine, inputs, targets))
            engine.step()
    assert (loop.step, loop.num_steps, loop.epoch) == (8, 8, 1)


def test_guard_skips_an_update_although_deepspeed_clips(options, caplog):
    engine = engine_of(line(), gradient_clipping=1.0)
    loop, _ = train(engine, spoil=2, callbacks=[NaNGuard("skip"), GradientMonitor(every=1)], **options)
    assert loop.step == 8
    assert bool(torch.isfinite(engine.module.weight).all())
    assert "nan_guard: at step 3 the gradient of weight is not finite. The update was skipped." in caplog.text


def test_zero_has_no_gradients_to_see_and_says_so(options, caplog):
    given = {"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}
    train(engine_of(line(), **given), callbacks=[GradientMonitor(every=1), EMA(0.5)], **options)
    assert "gradient_monitor logs nothing: DeepSpeed's ZeRO and bf16 optimizers keep" in caplog.text


def test_averages_of_parameters_that_zero_3_partitions_are_refused():
    model, ema = line(), EMA(0.5)
    for parameter in model.parameters():
        parameter.ds_id = 0  # what DeepSpeed marks them with
    ema.load_state_dict({"updates": 1, "averages": {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}})
    with pytest.raises(OptionError, match="partitioned by DeepSpeed"), ema.applied(model):
        pass


def test_checkpoint_that_the_engine_cannot_load_is_refused(options):
    loop, _ = train(engine_of(line()), until=2, **options)
    with pytest.raises(CheckpointError, match="DeepSpeed cannot load"):
        train(engine_of(torch.nn.Linear(3, 1)), resume=loop.dir, **options)


def test_something_else_than_an_engine_is_refused():
    with pytest.raises(OptionError, match=r"deepspeed.initialize\(\) returned"):
        run(line())

"""NaNGuard: what each action does about a loss or a gradient that is not finite."""

import math

import pytest

import hookline as hl
from hookline._engine.metrics import Deferred, MetricsRow
from hookline._record.reader import read
from hookline._record.records import Event
from hookline.callbacks import NaNGuard
from hookline.testing import FakeLoop


def trained(torch, guard, losses, *, fires=True, root=None):
    """A bare loop that moves one weight of a layer by 1 a step; a loss that is not finite spoils its gradient."""
    model = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
    with hl.run(root=root, callbacks=[guard], strict=True, summary=False) as run:
        run.model, run.optimizer = model, optimizer
        if fires:
            optimizer.register_step_pre_hook(lambda *_: run.callbacks.on_before_optimizer_step(run, optimizer))
        for loss in run.steps(losses):
            model.bias.grad = torch.zeros(1)
            model.weight.grad = torch.ones(1, 1) * loss
            optimizer.step()
            run.log(loss=loss)
    return run, model


def test_nan_guard_stop_ends_training_with_the_weights_as_they_were(torch):
    run, model = trained(torch, NaNGuard(), [1.0, math.nan, 1.0])
    assert (run.step, run.stop_reason) == (2, "nan_guard: the gradient of weight is not finite")
    assert model.weight.item() == -1.0


def test_nan_guard_skip_continues_as_if_the_step_had_not_happened(torch, caplog):
    _, spoilt = trained(torch, NaNGuard("skip"), [1.0, math.inf, 1.0])
    _, clean = trained(torch, NaNGuard("skip"), [1.0, 1.0])
    assert spoilt.weight.item() == clean.weight.item()
    assert [record.getMessage() for record in caplog.records] == [
        "nan_guard: at step 2 the gradient of weight is not finite. The update was skipped."
    ]


def test_nan_guard_skip_stops_after_too_many_in_a_row(torch):
    losses = [math.nan, 1.0, math.nan, math.nan, math.nan]
    run, _ = trained(torch, NaNGuard("skip", max_skips=2), losses)
    assert (run.step, run.stop_reason) == (4, "nan_guard: the gradient of weight is not finite, for 2 steps in a row")


def test_nan_guard_skip_where_the_moment_never_fires_says_that_the_update_was_made(torch, caplog):
    run, _ = trained(torch, NaNGuard("skip"), [1.0, math.nan, 1.0], fires=False)
    assert run.step == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("nan_guard: at step 2 loss is nan; the first parameter that is not finite is weight. ")
    assert message.endswith("The update was made: skipping it takes a loop that fires on_before_optimizer_step.")


def test_nan_guard_warn_says_it_once_and_leaves_the_update(torch, caplog):
    run, model = trained(torch, NaNGuard("warn"), [1.0, math.nan, math.nan])
    assert (run.step, run.stop_reason) == (3, None)
    assert math.isnan(model.weight.item())
    assert [record.getMessage() for record in caplog.records] == [
        "nan_guard: at step 2 the gradient of weight is not finite."
    ]


def test_nan_guard_event_names_the_step_and_the_parameter(torch, tmp_path):
    run, _ = trained(torch, NaNGuard(), [1.0, math.nan], root=tmp_path)
    events = [record for record in read(run.dir) if isinstance(record, Event) and record.name == "not_finite"]
    assert [(event.step, event.data) for event in events] == [
        (2, {"action": "stop", "reason": "the gradient of weight is not finite", "parameter": "weight"})
    ]


@pytest.mark.parametrize("loss", [math.nan, -math.inf])
def test_nan_guard_without_a_model_stops_on_the_loss(loss):
    loop = FakeLoop(callbacks=[NaNGuard(monitor="train_loss")])
    loop.run_steps(5, lambda step_idx: {"train/loss": loss if step_idx == 2 else 1.0})
    assert (loop.step, loop.stop_reason) == (3, f"nan_guard: train_loss is {loss}")


def test_nan_guard_warn_reads_a_device_value_only_once_it_has_arrived(caplog):
    class Source:
        arrives, there, reads = True, False, 0

        def ready(self):
            return self.there

        def number(self, index):
            self.reads += 1
            return math.nan

    source = Source()
    loop = FakeLoop(callbacks=[NaNGuard("warn")])
    row = MetricsRow(loss=Deferred(source))
    loop.callbacks.on_step_end(loop, 0, None, row)
    assert (source.reads, len(caplog.records)) == (0, 0)
    source.there = True
    loop.run_steps(1, lambda step_idx: {"loss": 1.0})
    assert [record.getMessage() for record in caplog.records] == ["nan_guard: at step 1 loss is nan."]


def test_nan_guard_of_two_optimizers_takes_away_the_gradients_of_the_one_that_moves(torch):
    model = torch.nn.ModuleDict({"actor": torch.nn.Linear(1, 1), "critic": torch.nn.Linear(1, 1)})
    actor, critic = (torch.optim.SGD(part.parameters(), lr=0.1) for part in model.values())
    for name, parameter in model.named_parameters():
        parameter.grad = torch.full_like(parameter, math.nan if name == "critic.bias" else 1.0)
    loop = FakeLoop(model=model, callbacks=[NaNGuard("skip")])
    loop.callbacks.on_before_optimizer_step(loop, actor)
    loop.callbacks.on_before_optimizer_step(loop, critic)
    left = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert left == ["actor.weight", "actor.bias"]


def test_nan_guard_half_precision_and_huge_gradients_are_finite(torch):
    parameters = [torch.nn.Parameter(torch.zeros(9, dtype=dtype)) for dtype in (torch.float16, torch.float32)]
    for parameter, value in zip(parameters, (60000.0, 1e38), strict=True):
        parameter.grad = torch.full_like(parameter, value)
    loop = FakeLoop(callbacks=[NaNGuard()], optimizer=torch.optim.SGD(parameters, lr=0.1))
    loop.callbacks.on_before_optimizer_step(loop, loop.optimizer)
    assert loop.stop_reason is None
    parameters[1].grad[3] = math.nan
    loop.callbacks.on_before_optimizer_step(loop, loop.optimizer)
    assert loop.stop_reason == "nan_guard: the gradient of parameter 1 is not finite"


@pytest.mark.parametrize(
    ("arguments", "message"), [({"action": "halt"}, "action='halt'"), ({"max_skips": 0}, "max_skips=0")]
)
def test_nan_guard_refuses_what_it_does_not_know(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        NaNGuard(**arguments)

"""GradientMonitor: norms of the whole and of layers."""

import math

import pytest

import hookline as hl
from hookline.callbacks import GradientMonitor
from hookline.testing import FakeLoop


def two_layers(torch):
    """A model with gradients 3 and 4 in its first layer, 12 in its second, and a frozen parameter."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    first, second = model
    first.weight.grad, first.bias.grad = torch.full((1, 1), 3.0), torch.full((1,), -4.0)
    second.weight.grad = torch.full((1, 1), 12.0)
    second.bias.requires_grad_(False)
    return model


def logged(*, model=None, optimizer=None, **arguments):
    loop = FakeLoop(model=model, optimizer=optimizer, callbacks=[GradientMonitor(every=1, **arguments)])
    loop.callbacks.on_before_optimizer_step(loop, optimizer)
    return dict(loop.metrics)


def test_gradient_monitor_logs_the_norm_of_the_whole_and_of_each_layer(torch):
    assert logged(model=two_layers(torch)) == {"grad_norm": 13.0, "grad_norm/0": 5.0, "grad_norm/1": 12.0}


@pytest.mark.parametrize(("arguments", "norm"), [({}, 13.0), ({"norm_type": 1}, 19.0), ({"norm_type": math.inf}, 12.0)])
def test_gradient_monitor_norm_type_chooses_the_norm(torch, arguments, norm):
    assert logged(model=two_layers(torch), by_layer=False, **arguments) == {"grad_norm": norm}


def test_gradient_monitor_without_a_model_takes_the_optimizers_parameters(torch):
    optimizer = torch.optim.SGD(two_layers(torch).parameters(), lr=0.1)
    assert logged(optimizer=optimizer) == {"grad_norm": 13.0}


def of_two_optimizers(torch, callback, *, with_model, steps=2):
    """What is logged at each step where one optimizer moves the weights, twice, and another the biases."""
    model = two_layers(torch)
    weights = torch.optim.SGD([model[0].weight, model[1].weight], lr=0.0)
    biases = torch.optim.SGD([model[0].bias], lr=0.0)
    with hl.run(root=None, callbacks=[callback], strict=True, summary=False) as run:
        run.model = model if with_model else None
        run.optimizer = weights
        for _ in run.steps(steps):
            for optimizer in (weights, biases, weights):
                run.callbacks.on_before_optimizer_step(run, optimizer)
    return [row.metrics for row in run.history]


@pytest.mark.parametrize("with_model", [True, False], ids=["model", "no model"])
def test_gradient_monitor_covers_all_optimizers_of_a_step(torch, with_model):
    layers = {"grad_norm/0": 5.0, "grad_norm/1": 12.0} if with_model else {}
    rows = of_two_optimizers(torch, GradientMonitor(every=1), with_model=with_model)
    assert rows == [{"grad_norm": 13.0, **layers}] * 2


def test_logger_gradient_norm_covers_all_optimizers_of_a_step(torch):
    callback = hl.callbacks.LoggerCallback(log_gradients=True, log_metrics=False)
    rows = of_two_optimizers(torch, callback, with_model=True)
    assert [row["gradients/norm"] for row in rows] == [13.0, 13.0]


def test_gradient_monitor_empty_sparse_and_half_gradients_are_taken(torch):
    embedding = torch.nn.Embedding(9, 1, sparse=True)
    embedding(torch.tensor([2, 2])).sum().backward()
    model = torch.nn.ModuleDict({"table": embedding, "narrow": torch.nn.Linear(4, 1, bias=False).half()})
    embedding.nothing = torch.nn.Parameter(torch.zeros(0))
    embedding.nothing.grad = torch.zeros(0)
    model["narrow"].weight.grad = torch.full((1, 4), 60000.0).half()
    rounded = {name: round(value) for name, value in logged(model=model).items()}
    assert rounded == {"grad_norm": 120000, "grad_norm/table": 2, "grad_norm/narrow": 120000}


def test_gradient_monitor_under_a_bare_loop_logs_into_the_steps_row_when_due(torch):
    model = two_layers(torch)
    with hl.run(root=None, callbacks=[GradientMonitor(every=2)], strict=True, summary=False) as run:
        run.model, run.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
        run.optimizer.register_step_pre_hook(lambda *_: run.callbacks.on_before_optimizer_step(run, run.optimizer))
        for step in run.steps(4):
            run.optimizer.step()
            run.log(loss=step)
    assert [(row.step, row.metrics.get("grad_norm"), row.metrics["loss"]) for row in run.history] == [
        (1, None, 0),
        (2, 13.0, 1),
        (3, None, 2),
        (4, 13.0, 3),
    ]


def test_gradient_monitor_that_saw_nothing_says_what_to_call(torch, caplog):
    with hl.run(root=None, callbacks=["gradient_monitor"], strict=True, summary=False) as run:
        run.model = two_layers(torch)
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
        for _ in run.steps(20):
            run.optimizer.step()
    (message,) = [record.getMessage() for record in caplog.records]
    assert "call run.callbacks.on_before_optimizer_step(run, optimizer) before optimizer.step()" in message


@pytest.mark.parametrize(
    ("arguments", "message"), [({"every": 0}, "every"), ({"norm_type": 0}, "norm_type=0: give a number above 0")]
)
def test_gradient_monitor_refuses_what_makes_no_sense(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        GradientMonitor(**arguments)

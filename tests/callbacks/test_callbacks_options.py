"""Options of callbacks that their own tests leave at the default: each changes what the callback does."""

import math
import threading

import hookline as hl
from hookline.callbacks import NaNGuard, ResourceMonitor
from hookline.testing import FakeLoop


def spoilt_gradient(torch):
    """A parameter that is fine, with a gradient that is not, and its optimizer."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.full((1,), math.nan)
    return torch.optim.SGD([parameter], lr=0.1)


def stopped_by(torch, **options):
    """Why a guard stops a step whose gradient is spoilt and whose loss is fine."""
    optimizer = spoilt_gradient(torch)
    loop = FakeLoop(callbacks=[NaNGuard(**options)], optimizer=optimizer)
    loop.callbacks.on_before_optimizer_step(loop, optimizer)
    loop.run_steps(1, lambda step_idx: {"loss": 1.0})
    return loop.stop_reason


def test_nan_guard_check_gradients_false_looks_at_the_loss_only(torch):
    assert stopped_by(torch) == "nan_guard: the gradient of parameter 0 is not finite"
    assert stopped_by(torch, check_gradients=False) is None


def reason_with_a_spoilt_parameter(torch, **options):
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, math.nan)
    loop = FakeLoop(callbacks=[NaNGuard(**options)], model=model)
    loop.run_steps(1, lambda step_idx: {"loss": math.nan})
    return loop.stop_reason


def test_nan_guard_check_parameters_false_names_the_loss_and_no_parameter(torch):
    named = "nan_guard: loss is nan; the first parameter that is not finite is weight"
    assert reason_with_a_spoilt_parameter(torch) == named
    assert reason_with_a_spoilt_parameter(torch, check_parameters=False) == "nan_guard: loss is nan"


def test_resource_monitor_every_seconds_is_how_long_its_thread_waits(monkeypatch):
    waits, wait = [], threading.Event.wait

    def noted(event, timeout=None):
        if threading.current_thread().name == "hookline-resource_monitor":
            waits.append(timeout)
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", noted)
    with hl.run(root=None, callbacks=[ResourceMonitor(every_seconds=3600)], strict=True, summary=False):
        pass
    assert waits == [3600]

"""LearningRateMonitor under a bare loop and a fake one."""

import pytest

import hookline as hl
from hookline.callbacks import LearningRateMonitor
from hookline.testing import FakeLoop


def optimizer_of(torch, *groups, kind="SGD", **arguments):
    groups = groups or ({},)
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], **group} for group in groups]  # type: ignore[assignment]
    return getattr(torch.optim, kind)(groups, lr=0.1, **arguments)


def logged(optimizer, *, steps=2, **arguments):
    loop = FakeLoop(optimizer=optimizer, callbacks=[LearningRateMonitor(**arguments)])
    loop.callbacks.on_train_start(loop)
    loop.run_steps(steps)
    return [row.metrics for row in loop.history]


def test_learning_rate_monitor_one_group_logs_lr_with_every_step(torch):
    assert logged(optimizer_of(torch)) == [{"lr": 0.1}, {"lr": 0.1}]


@pytest.mark.parametrize(
    ("groups", "row"),
    [
        ([{}, {"lr": 0.5}], {"lr/0": 0.1, "lr/1": 0.5}),
        ([{"name": "body"}, {"name": "head", "lr": 0.5}], {"lr/body": 0.1, "lr/head": 0.5}),
        ([{"name": "body"}, {"lr": 0.5}], {"lr/body": 0.1, "lr/1": 0.5}),
        ([{"name": "same"}, {"name": "same", "lr": 0.5}], {"lr/0": 0.1, "lr/1": 0.5}),
    ],
)
def test_learning_rate_monitor_several_groups_are_distinguished_by_name_or_index(torch, groups, row):
    assert logged(optimizer_of(torch, *groups), steps=1) == [row]


@pytest.mark.parametrize(
    ("kind", "arguments", "momentum"),
    [
        ("SGD", {"momentum": 0.9}, {"momentum": 0.9}),
        ("Adam", {"betas": (0.8, 0.9)}, {"momentum": 0.8}),
        ("Adagrad", {}, {}),
    ],
)
def test_learning_rate_monitor_log_momentum_takes_momentum_or_the_first_beta(torch, kind, arguments, momentum):
    rows = logged(optimizer_of(torch, kind=kind, **arguments), steps=1, log_momentum=True)
    assert rows == [{"lr": 0.1} | momentum]


def test_learning_rate_monitor_lr_as_a_tensor_is_a_number(torch):
    assert logged(optimizer_of(torch, {"lr": torch.tensor(0.25)}, kind="Adam"), steps=1) == [{"lr": 0.25}]


def trained(torch, *, scheduler, fires=False, by_hand=False, **arguments):
    """A bare loop whose learning rate is 1, 2, 3, 4 in its four steps of two epochs."""
    with hl.run(root=None, callbacks=[LearningRateMonitor(**arguments)], strict=True, summary=False) as run:
        run.optimizer = optimizer = optimizer_of(torch, {"lr": 1.0})
        run.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 + n) if scheduler else None
        for step in run.steps(2, epochs=2):
            if by_hand:
                optimizer.param_groups[0]["lr"] = 1.0 + run.step
            if fires:
                run.callbacks.on_before_optimizer_step(run, optimizer)
            optimizer.step()
            if scheduler:
                run.scheduler.step()
            run.log(batch=step)
    return [(row.step, row.metrics.get("lr")) for row in run.history]


@pytest.mark.parametrize(
    "how", [{"scheduler": True}, {"scheduler": True, "fires": True}, {"scheduler": False, "by_hand": True}]
)
def test_learning_rate_monitor_logs_the_rate_that_the_step_was_made_with(torch, how):
    assert trained(torch, **how) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_learning_rate_monitor_by_epoch_logs_when_an_epoch_starts(torch):
    rows = trained(torch, scheduler=True, logging_interval="epoch")
    assert rows == [(0, 1.0), (1, None), (2, None), (2, 3.0), (3, None), (4, None)]


def test_learning_rate_monitor_without_an_interval_logs_changes_only(torch):
    assert trained(torch, scheduler=True, logging_interval=None) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert trained(torch, scheduler=False, logging_interval=None) == [(1, 1.0), (2, None), (3, None), (4, None)]


def test_learning_rate_monitor_without_an_optimizer_says_what_to_set(caplog):
    assert logged(None) == [{}, {}]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("learning_rate_monitor logs nothing: the loop has no optimizer.")
    assert message.endswith("run.optimizer = optimizer.")


def test_learning_rate_monitor_refuses_an_unknown_interval():
    with pytest.raises(hl.OptionError, match="logging_interval='batch': give 'step', 'epoch' or None"):
        LearningRateMonitor("batch")

"""EMA: the average of the weights, in validations, checkpoints and at the end."""

import pytest

import hookline as hl
from hookline.callbacks import EMA
from hookline.testing import FakeLoop


def model_at(torch, weight=0.0, dtype=None):
    model = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    return set_to(torch, model, weight)


def set_to(torch, model, weight):
    with torch.no_grad():
        model.weight.fill_(weight)
    return model


def trained(torch, ema, weights, **arguments):
    """A run whose model has these weights after its steps."""
    with hl.run(root=None, callbacks=[ema], strict=True, summary=False, **arguments) as run:
        run.model = model_at(torch)
        for weight in run.steps(weights):
            set_to(torch, run.model, weight)
    return run


def average(ema):
    return ema.averages["weight"].item()


def test_ema_starts_as_a_copy_and_then_moves_slowly(torch):
    ema = EMA(decay=0.5)
    run = trained(torch, ema, [8.0, 4.0, 0.0])
    assert (average(ema), ema.updates, run.model.weight.item()) == (3.0, 3, 0.0)


def test_ema_every_and_start_choose_the_steps(torch):
    ema = EMA(decay=0.5)
    trained(torch, ema.configure(every=2, start=2), [9.0, 9.0, 9.0, 4.0, 9.0, 8.0])
    assert (average(ema), ema.updates) == (6.0, 2)


def test_ema_warmup_lets_the_first_updates_count_more(torch):
    ema = EMA(decay=0.999, warmup=True)
    trained(torch, ema, [0.0, 11.0])
    assert average(ema) == pytest.approx(9.0)


def test_ema_stands_in_the_model_during_a_validation_only(torch):
    seen = []
    with hl.run(root=None, callbacks=[EMA(decay=0.5)], strict=True, summary=False) as run:
        run.model = model_at(torch)
        for weight in run.steps([8.0, 4.0, 0.0]):
            set_to(torch, run.model, weight)
            with run.validate():
                seen.append(run.model.weight.item())
            seen.append(run.model.weight.item())
    assert seen == [8.0, 8.0, 8.0, 4.0, 6.0, 0.0]


def test_ema_after_a_validation_that_failed_training_has_its_weights_back(torch):
    ema = EMA(decay=0.5)
    with hl.run(root=None, callbacks=[ema], strict=True, summary=False) as run:
        run.model = model_at(torch)
        for step in run.steps(2):
            set_to(torch, run.model, 8.0 - 4.0 * step)
        with pytest.raises(ZeroDivisionError), run.validate():
            assert run.model.weight.item() == 6.0
            _ = 1 / 0
        for _ in run.steps(1):
            assert run.model.weight.item() == 4.0


def test_ema_when_a_validation_ends_the_run_the_model_has_its_weights(torch):
    with pytest.raises(ZeroDivisionError), hl.run(root=None, callbacks=[EMA(0.5)], summary=False) as run:
        run.model = model_at(torch)
        for step in run.steps(2):
            set_to(torch, run.model, 8.0 - 4.0 * step)
        with run.validate():
            _ = 1 / 0
    assert run.model.weight.item() == 4.0


def test_ema_continues_from_a_checkpoint(torch, tmp_path):
    def run_to(total, resume=None):
        ema = EMA(decay=0.5)
        with hl.run("r", root=tmp_path, callbacks=[ema], resume=resume, strict=True, summary=False) as run:
            run.model = model_at(torch)
            for weight in run.steps([8.0, 4.0, 0.0], total=total):
                set_to(torch, run.model, weight)
                run.request_checkpoint()
        return run, run.callbacks["ema"]

    run, _ = run_to(2)
    _, resumed = run_to(3, resume=run.dir)
    assert (average(resumed), resumed.updates) == (3.0, 3)


def test_ema_use_at_end_leaves_the_averages_in_the_model(torch):
    assert trained(torch, EMA(decay=0.5, use_at_end=True), [8.0, 4.0]).model.weight.item() == 6.0


def test_ema_applied_puts_the_averages_in_for_a_while(torch):
    ema = EMA(decay=0.5)
    model = trained(torch, ema, [8.0, 4.0]).model
    with ema.applied(model):
        assert model.weight.item() == 6.0
    assert model.weight.item() == 4.0


def test_ema_applied_before_anything_is_averaged_is_refused(torch):
    with pytest.raises(hl.OptionError, match="there is no average yet"), EMA().applied(model_at(torch)):
        pass


def test_ema_of_half_precision_keeps_small_changes(torch):
    ema = EMA(decay=0.999)
    loop = FakeLoop(model=model_at(torch, 1.0, torch.bfloat16), callbacks=[ema])
    loop.callbacks.on_train_start(loop)
    loop.run_steps(1)
    set_to(torch, loop.model, 2.0)
    loop.run_steps(1)
    loop.callbacks.on_validation_start(loop)
    assert average(ema) == pytest.approx(1.001)
    assert loop.model.weight.dtype == torch.bfloat16


def test_ema_frozen_parameters_are_left_alone(torch):
    ema = EMA()
    loop = FakeLoop(model=torch.nn.Linear(1, 1), callbacks=[ema])
    loop.model.bias.requires_grad_(False)
    loop.callbacks.on_train_start(loop)
    loop.run_steps(2)
    assert list(ema.averages) == ["weight"]


def test_ema_state_of_another_model_is_refused_by_name(torch):
    ema, other = EMA(), EMA()
    trained(torch, ema, [1.0])
    other.load_state_dict(ema.state_dict())
    loop = FakeLoop(model=torch.nn.Linear(2, 1, bias=False), callbacks=[other])
    with pytest.raises(hl.OptionError, match="belong to another model: 'weight' does not match"):
        loop.callbacks.on_train_start(loop)


def test_ema_of_a_model_whose_parameters_were_renamed_goes_by_their_order(torch, caplog):
    ema, other = EMA(), EMA()
    trained(torch, ema, [1.0])
    other.load_state_dict(ema.state_dict())
    renamed = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    loop = FakeLoop(model=renamed, callbacks=[other])
    loop.callbacks.on_train_start(loop)
    assert list(other.averages) == ["0.weight"]
    assert "matching them by position" in caplog.text


def test_ema_without_a_model_says_what_to_set(caplog):
    loop = FakeLoop(callbacks=[EMA()])
    loop.callbacks.on_train_start(loop)
    loop.run_steps(2)
    assert [record.getMessage() for record in caplog.records] == [
        "ema averages nothing: the loop has no model. Set one before the first step: run.model = model."
    ]


@pytest.mark.parametrize("decay", [1.0, -0.1, "0.9", True])
def test_ema_refuses_a_decay_outside_of_its_range(decay):
    with pytest.raises(hl.OptionError, match="at least 0 and below 1"):
        EMA(decay)

"""Options of a loop of one's own, and settings of a Trainer, that other tests leave at the default."""

import pytest

import hookline as hl
from hookline.loops import Loop
from hookline.testing import RecordingCallback


class Broken(hl.Callback):
    def on_train_start(self, loop):
        raise ValueError("broken")


class OwnLoop(Loop):
    """The least that a loop is: it tells its start."""

    def save_checkpoint(self, path=None):
        raise NotImplementedError

    def go(self):
        self.callbacks.on_train_start(self)


def test_loop_callbacks_hear_its_moments():
    recording = RecordingCallback()
    OwnLoop(callbacks=[recording]).go()
    assert recording.names() == ["on_train_start"]


def test_loop_strict_lets_exceptions_propagate():
    OwnLoop(callbacks=[Broken()]).go()
    with pytest.raises(ValueError, match="broken"):
        OwnLoop(callbacks=[Broken()], strict=True).go()


def test_loop_ctx_is_the_context_that_subscribers_see():
    ctx = hl.LogContext(group_name="arm-a")
    assert OwnLoop(ctx=ctx).ctx is ctx


def train(torch, **settings):
    """Train one step an epoch; the validations have losses that are given."""

    class Validated(hl.Trainer):
        def validation_step(self, model, batch):
            return {"loss": (1.0, 3.0, 2.0, 2.5)[self.step - 1]}

    data = [(torch.ones(2, 1), torch.ones(2, 1))]
    config = hl.TrainerConfig(epochs=4, device="cpu", strict=True, summary=False, **settings)
    trainer = Validated(torch.nn.Linear(1, 1), data, data, config=config, loss=torch.nn.functional.mse_loss)
    trainer.fit()
    return trainer


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"every_n_epochs": 2, "save_top_k": -1}, [2, 4]),
        ({"monitor": "val/loss"}, [1, 4]),
        ({"monitor": "val/loss", "save_last": False}, [1]),
        ({"monitor": "val/loss", "mode": "max"}, [2, 4]),
    ],
)
def test_checkpoint_rules_decide_which_checkpoints_are_kept(torch, rules, kept):
    trainer = train(torch, checkpoint=rules, save_at_end=False)
    folders = sorted(path.name for path in (trainer.dir / "checkpoints").iterdir() if path.is_dir())
    assert folders == [f"step-{step:08}" for step in kept]


def test_trainer_config_project_sinks_and_summary_say_where_the_run_is_seen(torch, capsys):
    trainer = train(torch, project="mine", sinks=["csv"])
    assert trainer.dir.parent.name == "mine"
    assert [(state.name, state.status) for state in trainer.sinks()] == [("csv", "ok")]
    assert list(trainer.dir.glob("*.csv"))
    assert capsys.readouterr().err == ""


def test_trainer_config_device_stands_above_a_gpu_that_is_there(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = hl.TrainerConfig(epochs=1, device="cpu", output_dir=None)
    assert hl.Trainer(torch.nn.Linear(1, 1), [1], config=config).device.type == "cpu"

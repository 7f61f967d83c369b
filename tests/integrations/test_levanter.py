"""The bridge of Levanter with a stand-in of its trainer, beyond what the contract suite compares."""

import pytest

pytest.importorskip("jax")

import jax
from host_runs import At, end_of, values
from hosts.stand_ins.levanter import CompositeTracker, Trainer, TrainerConfig, held_out, installed, training_data

from hookline._engine.errors import OptionError
from hookline.integrations.levanter import attach
from hookline.testing import RecordingCallback


@pytest.fixture(autouse=True)
def _levanter():
    with installed():
        yield


def train(trainer):
    with trainer:
        return trainer.train(trainer.initial_state(), training_data())


def test_what_levanter_logs_is_in_the_rows_of_its_steps(options):
    trainer = Trainer(TrainerConfig(num_train_steps=3))
    loop = attach(trainer, **options).loop
    info = train(trainer)
    assert values(loop, "train/loss") == values(loop, "loss")
    assert loop.history[0].metrics.keys() == {
        *("loss", "train/loss", "global_step", "run_progress", "throughput/hook_time")
    }
    assert [step for step, _ in values(loop, "throughput/loading_time")] == [1, 2, 3]
    assert (loop.num_steps, loop.native, loop.model) == (3, trainer, info.state.model)


def test_evaluations_are_named_by_their_data_sets(options):
    trainer = Trainer(TrainerConfig(num_train_steps=2))
    loop = attach(trainer, **options).loop
    trainer.add_eval_hook(held_out())  # after attach()
    trainer.add_eval_hook(held_out(), name="wiki")
    train(trainer)
    assert [step for step, _ in values(loop, "val/loss")] == [1, 2]
    assert values(loop, "val/loss") == values(loop, "eval/loss") == values(loop, "wiki/loss")
    assert values(loop, "eval/wiki/timing/load_time") == [(1, 0.0), (2, 0.0)]


def test_evaluation_of_the_last_step_is_recorded_where_it_was_not_due_before(options):
    seen, trainer = RecordingCallback(), Trainer(TrainerConfig(num_train_steps=3, steps_per_eval=2))
    loop = attach(trainer, [seen], **options).loop
    trainer.add_eval_hook(held_out())
    train(trainer)
    assert [step for step, _ in values(loop, "val/loss")] == [2, 3]
    assert seen.names().count("on_eval") == 2


class Lonely:
    """A tracker that is no composite."""

    def __init__(self):
        self.seen = []

    def log(self, metrics, *, step, commit=None):
        self.seen.append(step)


def test_other_tracker_still_gets_everything(options):
    lonely = Lonely()
    trainer = Trainer(TrainerConfig(num_train_steps=1), tracker=lonely)
    attached = attach(trainer, **options)
    train(trainer)
    assert isinstance(trainer.tracker, CompositeTracker)
    assert lonely.seen == [0, 0, 0, 0]  # Levanter logs the last step twice
    assert attached.loop.step == 1


def test_hyperparameters_and_summaries_are_facts_of_the_run(options):
    trainer = Trainer(TrainerConfig(num_train_steps=1))
    loop = attach(trainer, [At(1, lambda loop: trainer.tracker.log_summary({"parameter_count": 3}))], **options).loop
    trainer.tracker.log_hyperparameters({"rate": 0.05})
    train(trainer)
    trainer.tracker.finish()
    assert (dict(loop.config), dict(loop.summary)) == ({"rate": 0.05}, {"parameter_count": 3})


def test_stop_ends_the_training_and_gives_the_configuration_back(options):
    trainer = Trainer(TrainerConfig(num_train_steps=6))
    loop = attach(trainer, [At(2, lambda loop: loop.request_stop("enough"))], **options).loop
    info = train(trainer)
    assert (info.next_step, loop.step, end_of(loop)) == (2, 2, ["stopped", "enough"])
    assert trainer.config.num_train_steps == 6


def test_steps_that_the_program_iterates_over_are_one_run(options):
    seen, trainer = RecordingCallback(), Trainer(TrainerConfig(num_train_steps=3))
    loop = attach(trainer, [seen], **options).loop
    with trainer:
        for _ in trainer.training_steps(trainer.initial_state(), training_data()):
            assert loop.is_running
    assert (loop.state, seen.names()[-1]) == ("completed", "on_train_end")


@pytest.mark.parametrize("how", ["train", "steps", "program"])
def test_error_ends_the_run_as_failed(options, how):
    trainer = Trainer(TrainerConfig(num_train_steps=3), breaks_at=None if how == "program" else 1)
    loop = attach(trainer, **options).loop
    with pytest.raises(RuntimeError, match="NaN"), trainer:
        if how == "train":
            trainer.train(trainer.initial_state(), training_data())
        for _ in trainer.training_steps(trainer.initial_state(), training_data()):
            if how == "program":
                raise RuntimeError("the program found NaN")
    assert end_of(loop)[0] == "failed"
    assert "NaN" in end_of(loop)[1]


def test_first_of_several_processes_records_and_can_stop_nothing(options, monkeypatch, caplog):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    ask = At(1, lambda loop: (loop.request_stop("enough"), loop.request_checkpoint()))
    trainer = Trainer(TrainerConfig(num_train_steps=3))
    loop = attach(trainer, [ask], **options).loop
    train(trainer)
    assert (loop.step, [step for step, _ in values(loop, "loss")]) == (3, [1, 2, 3])
    expected = "4 processes of JAX train together, and callbacks run on the first one alone."
    assert caplog.text.count(expected) == 1
    assert [loop.command_refusal(name) for name in ("stop", "checkpoint", "hooks.add")] == [expected, expected, None]


def test_other_processes_record_nothing(options, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    seen, trainer = RecordingCallback(), Trainer(TrainerConfig(num_train_steps=2))
    loop = attach(trainer, [seen], **options).loop
    train(trainer)
    assert (loop.step, loop.dir, seen.events) == (2, None, [])


def test_something_else_than_a_trainer_is_refused():
    with pytest.raises(OptionError, match="give a levanter.trainer.Trainer"):
        attach(object())

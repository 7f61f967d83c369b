"""The bridge of verl with a stand-in of its trainer, beyond what the contract suite compares."""

import pytest
from host_runs import At, end_of, values
from hosts.stand_ins.verl import PPOTrainer, settings

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.records import Sample
from hookline.callbacks import SampleLogger
from hookline.integrations.verl import attach
from hookline.testing import RecordingCallback


def test_rows_are_what_verl_tracks_and_evaluations_have_hooklines_names(options, tmp_path):
    trainer = PPOTrainer(settings(tmp_path / "out", test_freq=2), steps=4)
    loop = attach(trainer, **options).loop
    trainer.fit()
    assert values(loop, "loss") == values(loop, "actor/pg_loss")
    assert [step for step, _ in values(loop, "critic/score/mean")] == [1, 2, 3, 4]
    assert [step for step, _ in values(loop, "val/sums/acc/mean@1")] == [2, 4]
    assert values(loop, "val-core/sums/acc/mean@1") == values(loop, "val/sums/acc/mean@1")
    assert "val/sums/acc/mean@1" not in loop.history[1].metrics
    assert (loop.num_steps, loop.native, loop.config.trainer.test_freq) == (4, trainer, 2)


def test_validation_before_the_training_is_one_of_no_step(options, tmp_path):
    seen, trainer = RecordingCallback(), PPOTrainer(settings(tmp_path / "out", val_before_train=True), steps=1)
    loop = attach(trainer, [seen], **options).loop
    trainer.fit()
    assert [step for step, _ in values(loop, "val/sums/acc/mean@1")] == [0, 1]
    assert seen.names().index("on_eval") < seen.names().index("on_step_start")


@pytest.mark.parametrize("dumps", [False, True])
def test_rollouts_are_those_that_verl_writes(options, tmp_path, dumps):
    folder = str(tmp_path / "rollouts") if dumps else None
    given = settings(tmp_path / "out", rollout_data_dir=folder, validation_data_dir=str(tmp_path / "validation"))
    trainer, seen = PPOTrainer(given, steps=2), RecordingCallback()
    loop = attach(trainer, [seen, SampleLogger(n=4)], **options).loop
    trainer.fit()
    found = [event.arguments for event in seen.events if event.moment == "on_rollout_end"]
    assert [(step, [rollout.total for rollout in rollouts]) for step, rollouts in found] == [
        (0, [1.0, 0.0] if dumps else []),
        (1, [1.0, 0.0] if dumps else []),
    ]
    samples = [record for record in hl.read(loop.dir) if isinstance(record, Sample)]
    assert [sample.completion for sample in samples] == (["3", "4", "3", "4"] if dumps else [])
    assert {(sample.group, sample.expected) for sample in samples} == ({("a", "3")} if dumps else set())


def test_validations_have_the_rollouts_in_their_outputs(options, tmp_path):
    seen, trainer = RecordingCallback(), PPOTrainer(settings(tmp_path / "out"), steps=1)
    attach(trainer, [seen], **options)
    trainer.fit()
    (outputs,) = [event.arguments[0] for event in seen.events if event.moment == "on_validation_batch_end"]
    assert [(rollout.completion.text, rollout.success) for rollout in outputs["rollouts"]] == [
        ("2", True),
        ("5", False),
    ]


def test_stop_ends_the_training_in_verls_own_way(options, tmp_path):
    trainer = PPOTrainer(settings(tmp_path / "out"), steps=6)
    loop = attach(trainer, [At(2, lambda loop: loop.request_stop("enough"))], **options).loop
    trainer.fit()
    assert trainer.events == ["train_begin", "step 1", "step 2", "train_end"]
    assert (end_of(loop), trainer.total_training_steps) == (["stopped", "enough"], 6)


def test_checkpoints_of_verl_hold_the_states_and_a_resumed_training_continues_the_run(options, tmp_path):
    stop = At(3, lambda loop: loop.request_stop("for now"))
    trainer = PPOTrainer(settings(tmp_path / "out", save_freq=3), steps=6)
    first = attach(trainer, [stop], **options).loop
    trainer.fit()
    folder = tmp_path / "out" / "global_step_3"
    assert [(row.step, row.path) for row in first.checkpoints] == [(3, folder)]
    again = PPOTrainer(settings(tmp_path / "out"), steps=6)
    second = attach(again, **options).loop
    again.init()
    again.fit()
    assert (second.dir, second.step) == (first.dir, 6)
    assert [step for step, _ in values(second, "loss")] == [*range(1, 7)]


def test_resume_from_a_path_takes_the_states_there(options, tmp_path):
    trainer = PPOTrainer(settings(tmp_path / "out", save_freq=2), steps=2)
    first = attach(trainer, **options).loop
    trainer.fit()
    given = settings(tmp_path, resume_mode="resume_path", resume_from_path=str(tmp_path / "out" / "global_step_2"))
    again = PPOTrainer(given, steps=4)
    again.global_steps = 2
    second = attach(again, **options).loop
    again.fit()
    assert (second.dir, second.step) == (first.dir, 4)


def test_requested_checkpoint_and_validation_are_verls_own(options, tmp_path):
    ask = At(2, lambda loop: (loop.request_checkpoint(), loop.request_validation()))
    trainer = PPOTrainer(settings(tmp_path / "out", test_freq=-1), steps=3)
    loop = attach(trainer, [ask], **options).loop
    trainer.fit()
    assert [step for step, _ in values(loop, "val/sums/acc/mean@1")] == [2]
    assert [row.path.name for row in loop.checkpoints] == ["global_step_2"]


def test_error_ends_the_run_as_failed(options, tmp_path):
    trainer = PPOTrainer(settings(tmp_path / "out"), breaks_at=2)
    loop = attach(trainer, **options).loop
    with pytest.raises(RuntimeError, match="gone"):
        trainer.fit()
    assert end_of(loop) == ["failed", "RuntimeError: the rollouts are gone"]


def test_detached_trainer_fires_nothing(options, tmp_path):
    seen, trainer = RecordingCallback(), PPOTrainer(settings(tmp_path / "out"), steps=1)
    attach(trainer, [seen], **options).detach()
    trainer.fit()
    assert (seen.events, "fit" in vars(trainer)) == ([], False)


def test_something_else_than_a_trainer_is_refused():
    with pytest.raises(OptionError, match="give a PPOTrainer"):
        attach(object())

"""A real Hugging Face `Trainer`, with a tiny model, observed and controlled by hookline's callbacks."""

import csv
import logging
import math
import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import Trainer, TrainerCallback, TrainingArguments

import hookline as hl
from hookline._engine.errors import DuplicateError, OptionError
from hookline._record.records import Event, Metrics, Sample, Status
from hookline.callbacks import CheckpointCallback, EarlyStoppingCallback, NaNGuard, SampleLogger, Timer
from hookline.integrations.transformers import HooklineCallback, attach
from hookline.testing import RecordingCallback, character_tokenizer, tiny_causal_lm

TOKENIZER = character_tokenizer()
STEP = [
    "on_step_start",
    *2 * ["on_train_batch_start", "on_train_batch_end"],
    "on_before_optimizer_step",
    "on_step_end",
    "on_log",
]
VALIDATION = [
    *("on_validation_start", "on_validation_epoch_start"),
    *2 * ["on_validation_batch_start", "on_validation_batch_end"],
    *("on_log", "on_validation_epoch_end", "on_validation_end", "on_eval"),
]


class Speak(hl.Callback):
    """Runs an action at a moment of a step."""

    def __init__(self, action, moment="on_step_end", at=1):
        self.action, self.moment, self.at = action, moment, at
        if moment != "on_step_end":
            setattr(self, moment, lambda loop, *rest: action(loop))

    def on_step_end(self, loop, step_idx, batch, metrics):
        if self.moment == "on_step_end" and step_idx == self.at:
            self.action(loop)


class Tally(hl.Callback):
    def __init__(self):
        self.losses = []

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.losses.append(round(metrics["loss"], 5))
        return {"sum": sum(self.losses)}

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = list(state["losses"])


def rows(count=16):
    texts = [TOKENIZER(f"{i}+{i}={2 * i}")["input_ids"] for i in range(10, 10 + count)]
    return [{"input_ids": ids[:7], "labels": ids[:7]} for ids in texts]


def make(torch, tmp_path, *, eval_dataset=None, callbacks=None, trainer=Trainer, **settings):
    torch.manual_seed(0)
    settings = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **settings,
    }
    return trainer(
        tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        TrainingArguments(str(tmp_path / "out"), **settings),
        train_dataset=rows(),
        eval_dataset=rows(8) if eval_dataset is None else eval_dataset or None,
        data_collator=lambda batch: {key: torch.tensor([row[key] for row in batch]) for key in batch[0]},
        callbacks=callbacks,
    )


def hooked(trainer, *callbacks, **options):
    return attach(trainer, callbacks, name="hosted", summary=False, **options).loop


def metrics_of(loop, axis="train"):
    return [(r.step, r.values) for r in hl.read(loop.dir) if isinstance(r, Metrics) and r.axis == axis]


def weights(trainer):
    return {name: value.tolist() for name, value in trainer.model.state_dict().items()}


def last_status(loop):
    return [r for r in hl.read(loop.dir) if isinstance(r, Status)][-1]


def test_trainer_fires_every_moment_in_order(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(
        torch, tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2
    )
    hooked(trainer, seen, strict=True)
    trainer.train()
    assert seen.names() == [
        *("on_train_start", "on_train_epoch_start"),
        *STEP,
        *STEP,
        *VALIDATION,
        *("on_checkpoint", "on_train_epoch_end", "on_log", "on_train_end"),
    ]


def test_trainer_reports_indices_batches_and_outputs(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, max_steps=5)
    hooked(trainer, seen, strict=True)
    trainer.train()
    fired = {name: [e.arguments for e in seen.events if e.moment == name] for name in seen.names()}
    assert [index for _, index in fired["on_train_batch_start"]] == [*range(8), 0, 1]
    assert (
        [index for (index,) in fired["on_step_start"]] == [index for index, _, _ in fired["on_step_end"]] == [*range(5)]
    )
    assert all(batch["input_ids"].shape == (2, 7) for batch, _ in fired["on_train_batch_start"])
    shares = [outputs["loss"].item() for outputs, _, _ in fired["on_train_batch_end"]]
    losses = [metrics["loss"] for _, _, metrics in fired["on_step_end"]]
    assert losses == pytest.approx([sum(shares[i : i + 2]) for i in range(0, 10, 2)])


def test_loop_exposes_the_trainers_parts(torch, tmp_path):
    shown = {}

    def look(loop):
        names = ("native", "model", "optimizer", "scheduler", "step", "num_steps", "epoch", "num_epochs", "rank")
        shown.update({name: getattr(loop, name) for name in (*names, "world_size")})

    trainer = make(torch, tmp_path, max_steps=6)
    loop = hooked(trainer, Speak(look, at=4), strict=True)
    trainer.train()
    assert shown == {
        "native": trainer,
        "model": trainer.model,
        "optimizer": trainer.optimizer,
        "scheduler": trainer.lr_scheduler,
        "step": 5,
        "num_steps": 6,
        "epoch": 1,
        "num_epochs": 2,
        "rank": 0,
        "world_size": 1,
    }
    assert loop.config["max_steps"] == 6


def test_step_end_has_the_logged_loss_and_derived_values_are_in_its_row(torch, tmp_path):
    trainer = make(torch, tmp_path)
    loop = hooked(trainer, Tally(), strict=True)
    trainer.train()
    logged = [log for log in trainer.state.log_history if "loss" in log]
    *steps, summary = metrics_of(loop)
    assert [(at, {key: row[key] for key in ("loss", "grad_norm", "learning_rate")}) for at, row in steps] == [
        (log["step"], {key: log[key] for key in ("loss", "grad_norm", "learning_rate")}) for log in logged
    ]
    assert [row["tally/sum"] for _, row in steps] == pytest.approx(
        [sum(log["loss"] for log in logged[: n + 1]) for n in range(4)], abs=1e-3
    )
    assert (summary[0], "train_runtime" in summary[1]) == (4, True)


def test_steps_that_are_not_logged_have_their_own_loss_and_logs_of_several_a_mean(torch, tmp_path):
    tally = Tally()
    trainer = make(torch, tmp_path, logging_steps=2)
    loop = hooked(trainer, tally, strict=True)
    trainer.train()
    steps = dict(metrics_of(loop)[:4])
    assert [("loss_mean" in steps[at], "grad_norm" in steps[at]) for at in range(1, 5)] == 2 * [
        (False, False),
        (True, True),
    ]
    assert steps[2]["loss_mean"] == pytest.approx((steps[1]["loss"] + steps[2]["loss"]) / 2)
    assert tally.losses == pytest.approx([steps[at]["loss"] for at in range(1, 5)], abs=1e-4)


def test_logs_of_a_whole_epoch_are_a_row_with_the_mean(torch, tmp_path):
    trainer = make(torch, tmp_path, logging_strategy="epoch")
    loop = hooked(trainer, Tally(), strict=True)
    trainer.train()
    *steps, epoch, _ = metrics_of(loop)
    assert [at for at, row in steps if "loss" in row] == [1, 2, 3, 4]
    assert epoch == (4, {**epoch[1], "loss_mean": pytest.approx(sum(row["loss"] for _, row in steps) / 4)})


class Exploding(Trainer):
    """Has a NaN loss in the third step."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) * (float("nan") if self.state.global_step == 2 else 1)


def test_non_finite_loss_is_recorded_though_hugging_face_replaces_it(torch, tmp_path):
    trainer = make(torch, tmp_path, trainer=Exploding)
    loop = hooked(trainer, NaNGuard("stop"))
    trainer.train()
    assert [(at, math.isfinite(row["loss"])) for at, row in metrics_of(loop)[:3]] == [(1, True), (2, True), (3, False)]
    assert trainer.state.log_history[2]["loss"] == pytest.approx(0)
    assert loop.stop_reason.startswith("nan_guard: the gradient of")
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_update_skipped_by_a_callback_keeps_the_model_intact(torch, tmp_path):
    trainer = make(torch, tmp_path, trainer=Exploding)
    hooked(trainer, NaNGuard("skip"))
    trainer.train()
    assert trainer.state.global_step == 4
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_evaluation_is_recorded_on_its_axis_under_both_names(torch, tmp_path):
    trainer = make(torch, tmp_path, eval_strategy="steps", eval_steps=2)
    loop = hooked(trainer)
    trainer.train()
    reported = [(at, row["eval_loss"], row["val/loss"]) for at, row in metrics_of(loop, "eval")]
    assert reported == [
        (log["step"], log["eval_loss"], log["eval_loss"]) for log in trainer.state.log_history if "eval_loss" in log
    ]
    assert len(reported) == 2


def test_evaluations_of_several_data_sets_have_separate_names(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, eval_dataset={"few": rows(4), "more": rows(8)})
    hooked(trainer, seen, strict=True)
    trainer.evaluate()
    reported = [
        (e.arguments[1], sorted(name for name in e.arguments[2] if "loss" in name))
        for e in seen.events
        if e.moment == "on_eval"
    ]
    assert reported == [
        ("val/few", ["eval_few_loss", "val/few/loss"]),
        ("val/more", ["eval_more_loss", "val/more/loss"]),
    ]


def test_evaluation_with_another_prefix_is_named_after_it(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path)
    hooked(trainer, seen, strict=True)
    trainer.evaluate(metric_key_prefix="test")
    (evaluation,) = [event.arguments for event in seen.events if event.moment == "on_eval"]
    assert evaluation[1] == "test"
    assert sorted(name for name in evaluation[2] if "loss" in name) == ["test/loss", "test_loss"]


def test_evaluation_outputs_are_whole_without_compute_metrics(torch, tmp_path):
    seen = []
    look = hl.on("validation_batch_end", lambda loop, outputs: seen.append(outputs))
    trainer = make(torch, tmp_path)
    compute_loss = trainer.compute_loss
    hooked(trainer, look, strict=True)
    trainer.evaluate()
    vocabulary = trainer.model.config.vocab_size
    assert [tuple(outputs["logits"].shape) for outputs in seen] == [(4, 7, vocabulary)] * 2
    assert trainer.compute_loss == compute_loss  # the trainer's own, as before


def test_migration_page_example_works_in_a_real_training(torch, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "migrating" / "huggingface.md").read_text(encoding="utf-8")
    namespace = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], namespace)  # type: ignore[index]
    best, seen = namespace["SaveOnBest"](), RecordingCallback()
    trainer = make(torch, tmp_path, eval_strategy="steps", eval_steps=2)
    hooked(trainer, best, seen, strict=True)
    trainer.train()
    losses = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    assert losses == sorted(losses, reverse=True)  # each is the best so far
    assert best.best == losses[-1]
    assert [event.arguments[0].step for event in seen.events if event.moment == "on_checkpoint"] == [2, 4]


def test_stop_request_ends_the_training_at_that_step(torch, tmp_path):
    trainer = make(torch, tmp_path)
    loop = hooked(trainer, Speak(lambda loop: loop.request_stop("enough")))
    trainer.train()
    assert (trainer.state.global_step, loop.state, last_status(loop).message) == (2, "stopped", "enough")


def test_stop_request_at_an_unlogged_step_ends_the_training(torch, tmp_path):
    trainer = make(torch, tmp_path, logging_steps=100)
    hooked(trainer, Speak(lambda loop: loop.request_stop("enough")))
    trainer.train()
    assert trainer.state.global_step == 2


def test_signal_ends_the_training_at_the_next_step(torch, tmp_path):
    trainer = make(torch, tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    loop = hooked(trainer, Speak(lambda loop: os.kill(os.getpid(), signal.SIGTERM), at=2))
    trainer.train()
    assert (trainer.state.global_step, loop.stop_reason) == (3, "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is before


def test_checkpoint_and_validation_requests_are_met_at_that_step(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path)
    hooked(trainer, seen, Speak(lambda loop: (loop.request_checkpoint(), loop.request_validation())))
    trainer.train()
    assert [(e.arguments[0].step, e.arguments[0].path) for e in seen.events if e.moment == "on_checkpoint"] == [
        (2, tmp_path / "out" / "checkpoint-2")
    ]
    assert [e.arguments[:2] for e in seen.events if e.moment == "on_eval"] == [(1, "val")]


def test_validation_request_without_data_warns_and_continues(torch, tmp_path, caplog):
    trainer = make(torch, tmp_path, eval_dataset=False)
    hooked(trainer, Speak(lambda loop: loop.request_validation()))
    trainer.train()
    assert trainer.state.global_step == 4
    assert "has no eval_dataset" in caplog.text


def test_save_checkpoint_saves_through_the_trainer_and_copies_to_the_path(torch, tmp_path):
    reported = []
    trainer = make(torch, tmp_path)
    save = Speak(lambda loop: reported.append(loop.save_checkpoint(tmp_path / "mine")))
    loop = hooked(trainer, save)
    trainer.train()
    (row,) = reported
    assert (row.step, row.path) == (2, tmp_path / "mine")
    assert [(row.step, row.path.name, row.bytes > 0) for row in loop.checkpoints] == [
        (2, "checkpoint-2", True),
        (2, "mine", True),
    ]
    assert (tmp_path / "mine" / "trainer_state.json").exists()


def test_checkpoint_callback_saves_at_its_cadence_and_at_the_end(torch, tmp_path):
    trainer = make(torch, tmp_path, max_steps=3)
    loop = hooked(trainer, CheckpointCallback(every_n_steps=2, save_top_k=-1))
    trainer.train()
    assert [row.path.name for row in loop.checkpoints] == ["checkpoint-2", "checkpoint-3"]
    assert (tmp_path / "out" / "checkpoint-3" / "optimizer.pt").exists()


class Counting(Trainer):
    """Collects the steps it saved."""

    def _save_checkpoint(self, model, trial):
        self.saves = [*getattr(self, "saves", []), self.state.global_step]
        super()._save_checkpoint(model, trial)


def test_checkpoint_callback_shares_what_the_trainer_saves_at_the_same_step(torch, tmp_path):
    trainer = make(torch, tmp_path, trainer=Counting, save_strategy="steps", save_steps=2)
    keeper = CheckpointCallback()
    loop = hooked(trainer, keeper)
    trainer.train()
    assert trainer.saves == [2, 4]
    assert keeper.last_path == loop.checkpoints[-1].path == tmp_path / "out" / "checkpoint-4"


def test_checkpoint_request_for_a_saved_step_saves_nothing(torch, tmp_path):
    trainer = make(torch, tmp_path, trainer=Counting, save_strategy="steps", save_steps=2)
    hooked(trainer, Speak(lambda loop: loop.request_checkpoint(), "on_train_epoch_end"))
    trainer.train()
    assert trainer.saves == [2, 4]


def test_save_checkpoint_before_the_first_step_returns_its_future_path(torch, tmp_path):
    reported = []
    trainer = make(torch, tmp_path, max_steps=2)
    loop = hooked(trainer, Speak(lambda loop: reported.append(loop.save_checkpoint()), "on_train_start"))
    trainer.train()
    assert [(row.step, row.path) for row in reported] == [(row.step, row.path) for row in loop.checkpoints]
    assert reported[0].step == 1


def test_checkpoint_request_waits_a_step_if_only_the_best_are_saved(torch, tmp_path):
    best = {"save_strategy": "best", "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 2}
    trainer = make(torch, tmp_path, learning_rate=0.0, max_steps=8, **best)
    loop = hooked(trainer, Speak(lambda loop: loop.request_checkpoint(), at=5))
    trainer.train()
    assert [row.step for row in loop.checkpoints] == [2, 7]


def test_resumed_training_continues_its_run_exactly(torch, tmp_path):
    straight = make(torch, tmp_path / "straight")
    whole = hooked(straight, Tally())
    straight.train()

    killed = make(torch, tmp_path / "cut", save_strategy="steps", save_steps=2)
    first = hooked(killed, Tally(), Speak(lambda loop: 1 / 0, at=2).configure(critical=True))
    with pytest.raises(ZeroDivisionError):
        killed.train()

    seen, tally = RecordingCallback(), Tally()
    resumed = make(torch, tmp_path / "cut")
    again = hooked(resumed, tally, seen)
    resumed.train(resume_from_checkpoint=True)
    assert seen.names()[:3] == ["on_train_start", "on_checkpoint_load", "on_train_epoch_start"]
    assert [e.arguments[1] for e in seen.events if e.moment == "on_train_batch_start"] == [4, 5, 6, 7]
    assert again.dir == first.dir
    assert [(at, row["loss"]) for at, row in metrics_of(again)[:4]] == [
        (at, row["loss"]) for at, row in metrics_of(whole)[:4]
    ]
    assert tally.losses == whole.callbacks["tally"].losses
    assert weights(resumed) == weights(straight)


def test_resume_from_a_checkpoint_without_state_warns(torch, tmp_path, caplog):
    plain = make(torch, tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    plain.train()
    trainer = make(torch, tmp_path)
    loop = hooked(trainer, Tally())
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert [at for at, _ in metrics_of(loop)] == [3, 4, 4]
    assert "holds no state of callbacks" in caplog.text


class Failing(Trainer):
    def compute_loss(self, *args, **kwargs):
        if self.state.global_step == 2:
            raise ValueError("out of luck")
        return super().compute_loss(*args, **kwargs)


def test_failing_training_is_recorded_as_failed_and_closed(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, trainer=Failing)
    loop = hooked(trainer, seen)
    with pytest.raises(ValueError, match="out of luck"):
        trainer.train()
    assert seen.names()[-1] == "on_exception"
    assert (last_status(loop).status, last_status(loop).message) == ("failed", "ValueError: out of luck")
    assert [at for at, _ in metrics_of(loop)] == [1, 2]


def test_failing_callback_does_not_end_the_training(torch, tmp_path):
    trainer = make(torch, tmp_path)
    loop = hooked(trainer, Speak(lambda loop: 1 / 0))
    trainer.train()
    assert (trainer.state.global_step, loop.state) == (4, "completed")
    assert [failure.moment for failure in loop.callbacks.failures] == ["on_step_end"]


def test_failing_critical_callback_ends_the_training(torch, tmp_path):
    trainer = make(torch, tmp_path)
    loop = hooked(trainer, Speak(lambda loop: 1 / 0).configure(critical=True))
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert (trainer.state.global_step, loop.state) == (2, "failed")


def test_attach_does_not_change_the_training(torch, tmp_path):
    bare, observed = make(torch, tmp_path / "a"), make(torch, tmp_path / "b")
    hooked(observed, RecordingCallback(), "gradient_monitor", "throughput_monitor")
    bare.train()
    observed.train()
    assert weights(bare) == weights(observed)


def test_attach_twice_is_refused_until_detached(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, max_steps=1)
    callback = attach(trainer, [seen], summary=False)
    with pytest.raises(DuplicateError, match="already attached"):
        attach(trainer)
    callback.detach()
    trainer.train()
    assert (seen.names(), [name for name in vars(trainer) if name in ("train", "evaluate")]) == ([], [])
    attach(trainer, summary=False)


@pytest.mark.parametrize("given", [Trainer, None, "trainer"])
def test_attach_to_another_object_is_refused(given):
    with pytest.raises(OptionError, match="give a transformers.Trainer"):
        attach(given)


@pytest.mark.parametrize("samples", [-1, True, "all"])
def test_attach_with_an_invalid_number_of_samples_is_refused(torch, tmp_path, samples):
    with pytest.raises(OptionError, match="samples="):
        attach(make(torch, tmp_path), samples=samples)


def test_gradients_are_not_clipped_yet_before_the_optimizer_step(torch, tmp_path):
    norms = []

    def look(loop):
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in loop.model.parameters()]).item())

    trainer = make(torch, tmp_path, max_grad_norm=1e-3)
    hooked(trainer, Speak(look, "on_before_optimizer_step"))
    trainer.train()
    assert norms == pytest.approx([log["grad_norm"] for log in trainer.state.log_history if "loss" in log])


@pytest.mark.parametrize("clip", [1e-3, 0.0])
def test_hookline_callback_alone_never_mixes_clipped_and_unclipped_norms(torch, tmp_path, clip):
    callback = HooklineCallback([hl.callbacks.GradientMonitor(every=1, by_layer=False)], summary=False)
    trainer = make(torch, tmp_path, callbacks=[callback], max_grad_norm=clip, max_steps=4, logging_steps=2)
    trainer.train()
    found = {
        name: {row.step: row.metrics[name] for row in callback.loop.history if name in row.metrics}
        for name in ("grad_norm", "clipped_grad_norm")
    }
    logged = {log["step"]: pytest.approx(log["grad_norm"]) for log in trainer.state.log_history if "loss" in log}
    assert {step: found["grad_norm"][step] for step in (2, 4)} == logged
    clipped = dict.fromkeys(range(1, 5), pytest.approx(clip, rel=1e-2)) if clip else {}
    assert (sorted(found["grad_norm"]), found["clipped_grad_norm"]) == ([2, 4] if clip else [1, 2, 3, 4], clipped)


def test_training_twice_makes_two_runs(torch, tmp_path):
    trainer = make(torch, tmp_path, max_steps=2)
    loop = hooked(trainer)
    trainer.train()
    first = loop.dir
    trainer.train()
    assert loop.dir != first
    assert [at for at, _ in metrics_of(loop)] == [1, 2, 2]


def test_evaluation_without_training_is_a_run_without_train_moments(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path)
    loop = hooked(trainer, seen, strict=True)
    trainer.evaluate()
    assert seen.names() == VALIDATION
    assert [(at, "val/loss" in row) for at, row in metrics_of(loop, "eval")] == [(0, True)]
    assert last_status(loop).status == "finished"


def test_evaluation_after_training_is_in_its_run(torch, tmp_path):
    trainer = make(torch, tmp_path, max_steps=2)
    loop = hooked(trainer)
    trainer.train()
    trained = loop.dir
    trainer.evaluate()
    assert loop.dir == trained
    assert [at for at, _ in metrics_of(loop)] == [1, 2, 2]
    assert [at for at, _ in metrics_of(loop, "eval")] == [2]


def test_prediction_is_not_an_evaluation(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path)
    hooked(trainer, seen)
    trainer.predict(rows(4))
    assert seen.names() == []


def test_failing_evaluation_is_recorded_as_failed_and_the_next_training_is_not(torch, tmp_path):
    class Broken(Trainer):
        def prediction_step(self, *args, **kwargs):
            if self.state.global_step == 0:
                raise ValueError("no logits")
            return super().prediction_step(*args, **kwargs)

    trainer = make(torch, tmp_path, trainer=Broken, eval_strategy="steps", eval_steps=2)
    loop = hooked(trainer)
    with pytest.raises(ValueError, match="no logits"):
        trainer.evaluate()
    assert last_status(loop).message == "ValueError: no logits"
    trainer.train()
    assert (last_status(loop).status, [at for at, _ in metrics_of(loop)]) == ("finished", [1, 2, 3, 4, 4])


def test_early_stopping_callback_stops_the_trainer(torch, tmp_path):
    trainer = make(torch, tmp_path, max_steps=8, eval_strategy="steps", eval_steps=1, learning_rate=0.0)
    loop = hooked(trainer, EarlyStoppingCallback("eval_loss", patience=2))
    trainer.train()
    assert trainer.state.global_step == 3
    assert loop.stop_reason.startswith("early stopping: eval_loss has not improved")


def test_timer_stops_the_trainer_when_its_budget_is_used_up(torch, tmp_path):
    clock = iter(range(1000))
    trainer = make(torch, tmp_path)
    loop = hooked(trainer, Timer(seconds=2.0, clock=lambda: float(next(clock))))
    trainer.train()
    assert trainer.state.global_step < 4
    assert loop.stop_reason.startswith("timer:")


def test_csv_metrics_writes_a_line_for_each_row(torch, tmp_path):
    trainer = make(torch, tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2)
    loop = hooked(trainer, "csv_metrics")
    trainer.train()
    (path,) = loop.dir.glob("*.csv")
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["step"], bool(line["loss"]), bool(line["val/loss"])) for line in lines] == [
        ("1", True, False),
        ("2", True, False),
        ("2", False, True),
        ("2", False, False),
    ]


def test_sample_logger_records_samples_of_validations(torch, tmp_path):
    def texts(outputs, batch):
        return [{"prompt": TOKENIZER.decode(ids, skip_special_tokens=True)} for ids in batch["input_ids"]]

    trainer = make(torch, tmp_path)
    loop = hooked(trainer, SampleLogger(n=2, source="validation", make=texts))
    trainer.evaluate()
    assert [r.prompt for r in hl.read(loop.dir) if isinstance(r, Sample)] == ["10+10=", "11+11="]


def test_ranks_beyond_zero_record_nothing_of_the_host_and_skip_rank_zero_callbacks(
    torch, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(TrainingArguments, "process_index", property(lambda self: 1))
    everywhere, zero = RecordingCallback(), RecordingCallback().configure(name="zero", ranks="zero")
    trainer = make(torch, tmp_path, max_steps=2)
    loop = hooked(trainer, everywhere, zero)
    trainer.train()
    assert ("on_step_end" in everywhere.names(), zero.names(), loop.dir) == (True, [], None)
    assert "Rank 1 records nothing" in caplog.text


def test_callback_without_attach_fires_what_hugging_face_reports(torch, tmp_path):
    seen = RecordingCallback()
    callback = HooklineCallback([seen, Speak(lambda loop: loop.request_stop("enough"))], name="alone", summary=False)
    trainer = make(
        torch, tmp_path, callbacks=[callback], eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2
    )
    trainer.train()
    assert seen.names() == [
        *("on_train_start", "on_train_epoch_start"),
        *STEP,
        *STEP,
        *VALIDATION,
        *("on_checkpoint", "on_train_epoch_end", "on_log", "on_train_end"),
    ]
    assert (callback.loop.native, trainer.state.global_step) == (None, 2)
    assert [(at, "loss" in row) for at, row in metrics_of(callback.loop)] == [(1, True), (2, True), (2, False)]


def test_callback_without_attach_resumes_from_the_default_path(torch, tmp_path):
    first = HooklineCallback([Tally()], name="alone", summary=False)
    make(torch, tmp_path, callbacks=[first], max_steps=2, save_strategy="steps", save_steps=2).train()
    tally = Tally()
    again = HooklineCallback([tally], name="alone", summary=False)
    make(torch, tmp_path, callbacks=[again]).train(resume_from_checkpoint=True)
    assert (len(tally.losses), again.loop.dir) == (4, first.loop.dir)


def test_metrics_logged_during_a_step_are_in_its_row(torch, tmp_path):
    class Talking(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            self.log({"tokens": inputs["input_ids"].numel(), "odd": [1, 2]})
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = make(torch, tmp_path, trainer=Talking, max_steps=1)
    loop = hooked(trainer)
    trainer.train()
    at, row = metrics_of(loop)[0]
    assert (at, row["tokens"], row["odd"], "loss" in row) == (1, 14, "[1, 2]", True)


def test_trainer_that_logs_without_callbacks_ends_steps_before_the_next_event(torch, tmp_path):
    class Silent(Trainer):
        def log(self, logs, start_time=None):
            pass

    seen = RecordingCallback()
    trainer = make(torch, tmp_path, trainer=Silent, max_steps=2, eval_strategy="steps", eval_steps=1)
    hooked(trainer, seen, strict=True)
    trainer.train()
    assert seen.names() == [
        *("on_train_start", "on_train_epoch_start"),
        *2 * [*STEP, *VALIDATION],
        *("on_train_epoch_end", "on_train_end"),
    ]


def test_other_callbacks_of_the_trainer_see_the_requests(torch, tmp_path):
    flags = []

    class Watching(TrainerCallback):
        def on_log(self, args, state, control, **kwargs):
            flags.append(control.should_training_stop)

    trainer = make(torch, tmp_path)
    hooked(trainer, Speak(lambda loop: loop.request_stop("enough"), at=0))
    trainer.add_callback(Watching())
    trainer.train()
    assert flags[0] is True


def test_checkpoints_are_recorded_as_events(torch, tmp_path):
    trainer = make(torch, tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    loop = hooked(trainer)
    trainer.train()
    events = [
        (r.step, Path(r.data["path"]).name)
        for r in hl.read(loop.dir)
        if isinstance(r, Event) and r.name == "checkpoint"
    ]
    assert events == [(1, "checkpoint-1"), (2, "checkpoint-2")]


def test_nothing_is_written_without_a_root(torch, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    trainer = make(torch, tmp_path, max_steps=2)
    loop = hooked(trainer, Tally(), root=None)
    trainer.train()
    trainer.evaluate()
    assert [row.step for row in loop.history] == [1, 2, 2, 2]
    assert not (tmp_path / "runs").exists()


def streamed(torch, count):
    """Yields batches of two from a data set without a length."""

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[name-defined]
        def __iter__(self):
            return iter(rows(2 * count))

    return Stream()


class Mark(hl.Callback):
    """Logs each batch under its own name."""

    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, loop, outputs, batch, batch_idx):
        self.batches += 1
        loop.log({f"batch_{self.batches}": outputs["loss"]})


def test_leftover_batches_of_an_epoch_belong_to_the_next_step(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, max_steps=4, eval_strategy="epoch", save_strategy="epoch")
    trainer.train_dataset = streamed(torch, 5)
    loop = hooked(trainer, seen, Mark(), strict=True)
    trainer.train()
    fired = {name: [e.arguments for e in seen.events if e.moment == name] for name in seen.names()}
    assert (
        [index for (index,) in fired["on_step_start"]] == [index for index, *_ in fired["on_step_end"]] == [0, 1, 2, 3]
    )
    assert [(row.step, row.path.name) for (row,) in fired["on_checkpoint"]] == [
        (2, "checkpoint-2"),
        (4, "checkpoint-4"),
    ]
    assert [index for index, *_ in fired["on_eval"]] == [1, 3]
    steps = [row for _, row in metrics_of(loop) if "loss" in row]
    batches = [[row[name] for name in row if name.startswith("batch_")] for row in steps]
    assert [len(shares) for shares in batches] == [2, 2, 3, 2]
    assert [row["loss"] for row in steps] == pytest.approx([sum(shares) for shares in batches])


def test_resume_with_leftover_batches_has_each_step_once(torch, tmp_path):
    loops = []
    for resume in (None, str(tmp_path / "out" / "checkpoint-2")):
        trainer = make(torch, tmp_path, max_steps=4, save_strategy="epoch")
        trainer.train_dataset = streamed(torch, 5)
        loops.append(hooked(trainer, Mark(), strict=True))
        trainer.train(resume_from_checkpoint=resume)
    first, again = loops
    assert again.dir == first.dir
    assert [at for at, row in metrics_of(again) if "loss" in row] == [1, 2, 3, 4]


def test_leftover_batches_without_attach_start_and_end_once(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, max_steps=4, callbacks=[HooklineCallback([seen], summary=False, strict=True)])
    trainer.train_dataset = streamed(torch, 5)
    trainer.train()
    counts = {
        kind: [seen.names().count(f"on_{kind}_{part}") for part in ("start", "end")] for kind in ("step", "train_batch")
    }
    assert counts == {"step": [4, 4], "train_batch": [9, 9]}


def test_logs_of_an_epoch_with_leftover_batches_are_at_its_last_step(torch, tmp_path):
    trainer = make(torch, tmp_path, max_steps=4, logging_strategy="epoch")
    trainer.train_dataset = streamed(torch, 5)
    loop = hooked(trainer)
    trainer.train()
    assert [at for at, row in metrics_of(loop) if "loss_mean" in row] == [2, 4]


def test_resume_on_data_without_a_length_continues_the_run(torch, tmp_path):
    first = make(torch, tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    first.train_dataset = streamed(torch, 8)
    loop = hooked(first, Speak(lambda loop: loop.request_stop("for now"), at=1))
    first.train()
    seen = RecordingCallback()
    resumed = make(torch, tmp_path)
    resumed.train_dataset = streamed(torch, 8)
    again = hooked(resumed, seen)
    resumed.train(resume_from_checkpoint=True)
    assert again.dir == loop.dir
    assert [at for at, row in metrics_of(again) if "loss" in row] == [1, 2, 3, 4]
    assert [e.arguments[1] for e in seen.events if e.moment == "on_train_batch_start"] == [4, 5, 6, 7]


def test_validation_requested_at_a_checkpoint_follows_the_next_step(torch, tmp_path):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, max_steps=3, save_strategy="steps", save_steps=2)
    ask = Speak(lambda loop: loop.step == 2 and loop.request_validation(), "on_checkpoint")
    hooked(trainer, seen, ask, strict=True)
    trainer.train()
    assert [e.arguments[0] for e in seen.events if e.moment == "on_eval"] == [2]


def test_detach_keeps_methods_replaced_since(torch, tmp_path, caplog):
    seen = RecordingCallback()
    trainer = make(torch, tmp_path, max_steps=1)
    callback = attach(trainer, [seen], summary=False)
    around = trainer.training_step
    trainer.training_step = mine = lambda *args, **kwargs: around(*args, **kwargs)
    del trainer.evaluate
    callback.detach()
    assert trainer.training_step is mine
    assert {"train", "evaluate", "prediction_step"}.isdisjoint(vars(trainer))
    assert [name for name in ("train", "training_step", "evaluate") if f"trainer.{name} was" in caplog.text] == [
        "training_step",
        "evaluate",
    ]
    trainer.train()
    assert (trainer.state.global_step, seen.names()) == (1, [])


def test_wrapped_hugging_face_early_stopping_stops_an_attached_trainer(torch, tmp_path):
    from transformers import EarlyStoppingCallback as Theirs

    reported = []

    class Look(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics=None, **kwargs):
            reported.append(sorted(name for name in metrics if "loss" in name))

    trainer = make(torch, tmp_path, learning_rate=0.0, max_steps=8, eval_strategy="steps", eval_steps=1)
    loop = hooked(trainer, hl.wrap(Theirs(1)), hl.wrap(Look()), strict=True)
    trainer.train()
    assert (trainer.state.global_step, loop.state) == (2, "stopped")
    assert reported == [["eval_loss"], ["eval_loss"]]

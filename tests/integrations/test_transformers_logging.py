"""Seed 004's `EnhancedLoggingCallback` and `OptimizedLoggingCallback`, on a real GRPOTrainer with a tiny model."""

import csv
import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("trl")

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import hookline as hl
import hookline.logging as hookline_logging
from hookline import rewards
from hookline._engine.errors import OptionError
from hookline._record.records import Metrics, Rewards, Sample
from hookline.integrations.transformers import EnhancedLoggingCallback, OptimizedLoggingCallback, attach
from hookline.rl.rewards import recording
from hookline.testing import character_tokenizer, tiny_causal_lm

TOKENIZER = character_tokenizer()


def correctness_reward_func(prompts, completions, answer, **columns):
    """Wrong answers have negative rewards, so the mean is not a count."""
    return [2.0 if right in text else -0.5 for right, text in zip(answer, completions, strict=True)]


def anti_repetition_reward_func(completions, **columns):
    return [len(set(text)) / max(1, len(text)) for text in completions]


def grpo(torch, tmp_path, callback, functions, **settings):
    torch.manual_seed(0)
    data = Dataset.from_list([{"prompt": f"{i}+1=", "answer": str(i + 1)[0]} for i in range(8)])
    settings = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 12,
        "max_steps": 6,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        **settings,
    }
    return GRPOTrainer(
        tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        args=GRPOConfig(str(tmp_path / "out"), **settings),
        reward_funcs=functions,
        train_dataset=data,
        eval_dataset=data.select(range(2)),
        processing_class=TOKENIZER,
        callbacks=[callback],
    )


FUNCTIONS = [correctness_reward_func, anti_repetition_reward_func]


@pytest.fixture
def run():
    """A run that records the topics of logging."""
    with hl.run("grpo", summary=False) as run:
        hookline_logging.initialize(run=run)
        try:
            yield run
        finally:
            hookline_logging.shutdown()


def records(run):
    run.recorder.flush()
    found = list(hl.read(run.dir))
    rows = [(r.step, r.values) for r in found if isinstance(r, Metrics)]
    return rows, [r for r in found if isinstance(r, Sample)]


def named(rows, name):
    return [(step, values[name]) for step, values in rows if name in values]


def test_enhanced_logging_counts_correct_answers_one_by_one(torch, tmp_path, run):
    callback = EnhancedLoggingCallback()
    trainer = grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS))
    trainer.train()
    rows, samples = records(run)
    right = [sum(s.expected in s.completion for s in samples if s.step <= step) for step in range(1, 7)]
    assert (callback.log_counter, callback.total_answers, callback.correct_answers) == (6, 24, right[-1])
    assert right[-1] > 0
    assert named(rows, "correct_answers") == [*zip(range(1, 7), right, strict=True), (6, right[-1])]
    assert named(rows, "accuracy") == [(at, 100 * count / (4 * at)) for at, count in enumerate(right, 1)]
    assert named(rows, "progress_percent") == [(at, pytest.approx(100 * at / 6)) for at in range(1, 7)]
    assert named(rows, "final_accuracy") == [(6, 100 * right[-1] / 24)]
    assert named(rows, "training_complete") == [(6, True)]


def test_enhanced_logging_logs_outputs_rewards_and_generations(torch, tmp_path, run):
    trainer = grpo(torch, tmp_path, EnhancedLoggingCallback(), rewards.wrap(FUNCTIONS))
    trainer.train()
    rows, samples = records(run)
    assert [sample.step for sample in samples] == [step for step in range(1, 7) for _ in range(4)]
    assert all(sample.rewards.keys() == {f.__name__ for f in FUNCTIONS} for sample in samples)
    means = named(rows, "rewards/correctness_reward_func/mean")
    logged = [log["rewards/correctness_reward_func/mean"] for log in trainer.state.log_history if "loss" in log]
    assert means == [(step, pytest.approx(value)) for step, value in enumerate(logged, 1)]
    assert [step for step, _ in named(rows, "generation/count")] == [5]
    assert [step for step, _ in named(rows, "loss")] == [1, 2, 3, 4, 5, 6]
    assert [step for step, values in rows if any(name.startswith("memory/") for name in values)] == [0]


def test_enhanced_logging_counts_evaluations_separately(torch, tmp_path, run):
    callback = EnhancedLoggingCallback()
    trainer = grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS), max_steps=2, eval_strategy="steps", eval_steps=1)
    trainer.train()
    rows, samples = records(run)
    assert (callback.total_answers, len(samples)) == (8, 24)
    found = [(sample.step, sample.axis) for sample in samples]
    assert found == [
        (step, axis) for step in (1, 2) for axis, count in (("train", 4), ("eval", 8)) for _ in range(count)
    ]
    assert named(rows, "eval_total_answers") == [(1, 8), (2, 8)]
    assert [step for step, _ in named(rows, "eval_accuracy")] == [1, 2]


@pytest.mark.parametrize("make", [EnhancedLoggingCallback, OptimizedLoggingCallback])
def test_logging_callback_accepts_functions_decorated_one_by_one(torch, tmp_path, run, make):
    callback = make(correctness="right")
    functions = [rewards.logged("right")(correctness_reward_func), rewards.logged(anti_repetition_reward_func)]
    grpo(torch, tmp_path, callback, functions, max_steps=2).train()
    _, samples = records(run)
    assert (callback.total_answers, len(samples)) == (8, 8)
    assert all(len(sample.rewards) == 2 for sample in samples)


def test_enhanced_logging_forwards_samples_to_the_previous_destination(torch, tmp_path):
    with hl.run("other", summary=False) as other, rewards.record_to(other):
        grpo(torch, tmp_path, EnhancedLoggingCallback(), rewards.wrap(FUNCTIONS), max_steps=1).train()
    assert len([r for r in hl.read(other.dir) if isinstance(r, Sample)]) == 4


def test_enhanced_logging_without_wrapped_functions_warns(torch, tmp_path, caplog):
    grpo(torch, tmp_path, EnhancedLoggingCallback(), [correctness_reward_func], max_steps=1).train()
    assert "reward_funcs=hookline.rewards.wrap" in caplog.text


def test_enhanced_logging_beside_attached_hookline_counts_once(torch, tmp_path, run):
    callback = EnhancedLoggingCallback()
    trainer = grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS), max_steps=2)
    hosted = attach(trainer, name="hosted", summary=False).loop
    trainer.train()
    assert callback.total_answers == 8
    assert len([r for r in hl.read(hosted.dir) if isinstance(r, Sample)]) == 8


def test_enhanced_logging_writes_the_csv_of_a_configuration(torch, tmp_path):
    columns = ["timestamp", "question", "answer", "llm_reasoning", "llm_answer"]
    handler = {"class": "logging.custom.CSVHandler", "filename": str(tmp_path / "outputs.csv"), "columns": columns}
    loggers = {"logging.model": {"level": "INFO", "handlers": ["csv"], "propagate": False}}
    hookline_logging.initialize({"version": 1, "loggers": loggers, "handlers": {"csv": handler}})
    try:
        grpo(torch, tmp_path, OptimizedLoggingCallback(), rewards.wrap(FUNCTIONS), max_steps=2).train()
    finally:
        hookline_logging.shutdown()
    with (tmp_path / "outputs.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8
    assert all(line["question"].endswith("+1=") and line["answer"] for line in lines)


def test_optimized_logging_logs_at_a_lower_rate_and_loses_no_output(torch, tmp_path, run):
    callback = OptimizedLoggingCallback()
    trainer = grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS))
    trainer.train()
    rows, samples = records(run)
    assert [step for step, _ in named(rows, "progress_percent")] == [5, 6]
    assert (len(samples), callback.total_answers, named(rows, "generation/count")) == (24, 24, [])
    assert named(rows, "final_accuracy") == [(6, callback.accuracy)]


def test_optimized_logging_killed_in_a_step_has_recorded_every_completion_and_reward(torch_programs, tmp_path):
    killed = torch_programs.start(Path(__file__).parent / "scripts" / "killed_grpo.py", cwd=tmp_path)
    killed.communicate(300)
    (run_dir,) = (tmp_path / "runs").glob("*/*")
    found = list(hl.read(run_dir))
    assert killed.returncode == -signal.SIGKILL
    assert [r.step for r in found if isinstance(r, Sample)] == [step for step in (1, 2, 3) for _ in range(16)]
    assert [(r.step, len(r.values)) for r in found if isinstance(r, Rewards)] == [(1, 16), (2, 16), (3, 16)]


def test_optimized_logging_continues_counting_in_a_resumed_training(torch, tmp_path):
    kept = tmp_path / "counts"
    saving = {"save_strategy": "steps", "save_steps": 2}
    first = OptimizedLoggingCallback(kept)
    grpo(torch, tmp_path, first, rewards.wrap(FUNCTIONS), max_steps=3, **saving).train()
    again = OptimizedLoggingCallback(str(kept))
    trainer = grpo(torch, tmp_path, again, rewards.wrap(FUNCTIONS), max_steps=4, **saving)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert (first.total_answers, again.total_answers) == (12, 16)


def test_optimized_logging_keeps_the_counts_of_every_checkpoint(torch, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1}
    callback = OptimizedLoggingCallback(tmp_path)
    grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS), max_steps=3, **saving).train()
    counts = json.loads((tmp_path / "answers.json").read_text())
    assert {step: total for step, (_, total) in counts.items()} == {"1": 4, "2": 8, "3": 12}


def test_logging_callback_failure_is_logged_and_training_continues(torch, tmp_path, monkeypatch, caplog):
    from hookline.integrations.transformers import logging_callbacks

    monkeypatch.setattr(logging_callbacks, "log_model_output", lambda *args, **kwargs: 1 / 0)
    trainer = grpo(torch, tmp_path, EnhancedLoggingCallback(), rewards.wrap(FUNCTIONS), max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1
    assert "EnhancedLoggingCallback could not log" in caplog.text


def test_logging_callback_of_a_failed_training_receives_nothing_from_the_next(torch, tmp_path):
    def broken(completions, **columns):
        raise ValueError("no more")

    dead = OptimizedLoggingCallback()
    with pytest.raises(ValueError, match="no more"):
        grpo(torch, tmp_path, dead, [*rewards.wrap(FUNCTIONS), broken], max_steps=1).train()
    received = len(dead._pending)
    callback = EnhancedLoggingCallback()
    grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS), max_steps=1).train()
    assert (callback.total_answers, len(dead._pending)) == (4, received)
    assert recording.current_destination() is None


@pytest.mark.parametrize("second", [EnhancedLoggingCallback, OptimizedLoggingCallback])
def test_second_logging_callback_of_a_trainer_is_refused(torch, tmp_path, second):
    trainer = grpo(torch, tmp_path, EnhancedLoggingCallback(), rewards.wrap(FUNCTIONS), max_steps=1)
    trainer.add_callback(second())
    with pytest.raises(OptionError, match=f"{second.__name__} would both log this training: give the trainer one"):
        trainer.train()
    assert recording.current_destination() is None
    callback = EnhancedLoggingCallback()
    grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS), max_steps=1).train()
    assert callback.total_answers == 4


def test_logging_callback_restored_after_its_end_does_not_stop_the_next_training(torch, tmp_path):
    ended = EnhancedLoggingCallback()
    rewards.record_to(ended)
    callback = EnhancedLoggingCallback()
    grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS), max_steps=1).train()
    assert (callback.total_answers, ended.total_answers, recording.current_destination()) == (4, 0, None)


@pytest.mark.parametrize(
    ("correctness", "said"),
    [
        ("anti_repetition_reward_fnc", "has no rewards so far. Did you mean 'anti_repetition_reward_func'?"),
        (None, "Give correctness=: anti_repetition_reward_func."),
    ],
)
def test_logging_callback_with_unknown_accuracy_warns_once(torch, tmp_path, run, caplog, correctness, said):
    callback = EnhancedLoggingCallback(correctness=correctness)
    grpo(torch, tmp_path, callback, rewards.wrap(FUNCTIONS[1:]), max_steps=2).train()
    rows, _ = records(run)
    assert caplog.text.count("EnhancedLoggingCallback cannot compute the accuracy") == 1
    assert said in caplog.text
    assert named(rows, "accuracy") + named(rows, "final_accuracy") == []


@pytest.mark.parametrize("correctness", ["", 3])
def test_logging_callback_with_an_invalid_correctness_is_refused(correctness):
    with pytest.raises(OptionError, match="correctness="):
        EnhancedLoggingCallback(correctness=correctness)

"""Real TRL trainers with a tiny model: generations become rollouts; hookline observes and controls them."""

import math

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("trl")

from datasets import Dataset
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

import hookline as hl
from hookline import rewards
from hookline._record.records import Metrics, Sample
from hookline.callbacks import SampleLogger
from hookline.integrations import trl as hookline_trl
from hookline.integrations.transformers import attach
from hookline.rl.types import Rollout
from hookline.testing import Event, RecordingCallback, character_tokenizer, tiny_causal_lm

TOKENIZER = character_tokenizer()
SETTINGS = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
BATCH = ["on_train_batch_start", "on_train_batch_end"]
GENERATING = ["on_train_batch_start", "on_rollout_start", "on_rollout_end", "on_train_batch_end"]
STEP = ["on_step_start", *GENERATING, *BATCH, "on_before_optimizer_step", "on_step_end", "on_log"]
VALIDATION = [
    *("on_validation_start", "on_validation_epoch_start"),
    *2 * ["on_validation_batch_start", "on_validation_batch_end"],
    *("on_log", "on_validation_epoch_end", "on_validation_end", "on_eval"),
]


def correctness(prompts, completions, answer, **columns):
    return [2.0 if right in text else 0.0 for right, text in zip(answer, completions, strict=True)]


def brevity(completions, **columns):
    return [None if index == 0 else -len(text) / 10 for index, text in enumerate(completions)]


async def patience(completions, **columns):
    return [0.5 for _ in completions]


class Stop(hl.Callback):
    def on_rollout_end(self, loop, step_idx, rollouts):
        if step_idx == 1:
            loop.request_stop("seen enough")


def tasks(count=8, *, chat=False):
    prompts = [f"{i}+1=" for i in range(count)]
    asked = [[{"role": "user", "content": text}] for text in prompts] if chat else prompts
    return Dataset.from_list([{"prompt": p, "answer": str(i + 1)} for i, p in enumerate(asked)])


def grpo(torch, tmp_path, *functions, tokenizer=TOKENIZER, data=None, kind=(GRPOTrainer, GRPOConfig), **settings):
    torch.manual_seed(0)
    settings = {
        **SETTINGS,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "bf16": False,
        **settings,
    }
    trainer, config = kind
    return trainer(
        tiny_causal_lm(tokenizer, hidden_size=16, heads=2),
        args=config(str(tmp_path / "out"), **settings),
        reward_funcs=list(functions) or [correctness, brevity],
        train_dataset=data or tasks(),
        eval_dataset=data or tasks(2),
        processing_class=tokenizer,
    )


def hooked(trainer, *callbacks, **options):
    return attach(trainer, callbacks, name="hosted", summary=False, **options).loop


def samples(loop, axis="train"):
    return [r for r in hl.read(loop.dir) if isinstance(r, Sample) and r.axis == axis]


def rollouts_of(seen):
    return [e.arguments for e in seen.events if e.moment == "on_rollout_end"]


def test_grpo_fires_every_moment_in_order(torch, tmp_path):
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    hooked(trainer, seen, strict=True)
    trainer.train()
    assert seen.names() == [
        *("on_train_start", "on_train_epoch_start"),
        *STEP,
        *STEP,
        *VALIDATION,
        *("on_checkpoint", "on_train_epoch_end", "on_log", "on_train_end"),
    ]


def test_grpo_rollouts_hold_prompts_completions_rewards_and_advantages(torch, tmp_path):
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, correctness, brevity, patience, max_steps=1, reward_weights=[1.0, 2.0, 1.0])
    hooked(trainer, seen, strict=True)
    trainer.train()
    ((step_idx, rollouts),) = rollouts_of(seen)
    notes = trainer._logs
    assert (step_idx, len(rollouts), {type(each) for each in rollouts}) == (0, 8, {Rollout})
    assert [each.task.prompt for each in rollouts] == list(notes["prompt"])
    assert [each.completion.text for each in rollouts] == list(notes["completion"])
    assert [each.advantage for each in rollouts] == list(notes["advantages"])
    assert rollouts[0].rewards.keys() == {"correctness", "patience"}
    for each in rollouts[1:]:
        brief = -len(each.completion.text) / 10
        assert each.rewards == {"correctness": each.rewards["correctness"], "brevity": brief, "patience": 0.5}
        assert each.total == pytest.approx(each.rewards["correctness"] + 2 * brief + 0.5)
        assert each.success == (each.task.expected in each.completion.text)
        assert len(each.completion.token_ids) <= 6
    assert len({each.task.id for each in rollouts}) == 2


def test_grpo_advantages_agree_with_the_groups(torch, tmp_path):
    """Guards the private attribute of the installed TRL from which advantages are read."""
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, brevity, max_steps=2)
    hooked(trainer, seen, strict=True)
    trainer.train()
    for _, rollouts in rollouts_of(seen):
        for start in (0, 4):
            group = [each for each in rollouts[start : start + 4] if each.rewards]
            mean = sum(each.total for each in group) / len(group)
            spread = math.sqrt(sum((each.total - mean) ** 2 for each in group) / (len(group) - 1))
            expected = [(each.total - mean) / (spread + 1e-4) for each in group]
            assert [each.advantage for each in group] == pytest.approx(expected, abs=1e-3)


def test_grpo_without_advantages_in_trl_warns_once(torch, tmp_path, monkeypatch, caplog):
    def elsewhere(*given):
        raise AttributeError("_logs")

    monkeypatch.setattr(hookline_trl, "_logged_by_trl", elsewhere)
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path)
    hooked(trainer, seen, strict=True)
    trainer.train()
    assert {each.advantage for _, rollouts in rollouts_of(seen) for each in rollouts} == {None}
    assert caplog.text.count("advantages of rollouts are not known") == 1


def test_grpo_samples_are_recorded_at_their_step_on_separate_axes(torch, tmp_path):
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, eval_strategy="steps", eval_steps=1)
    loop = hooked(trainer, seen, strict=True)
    trainer.train()
    reported = [each for _, rollouts in rollouts_of(seen) for each in rollouts]
    recorded = samples(loop)
    assert [sample.step for sample in recorded] == 8 * [1] + 8 * [2]
    assert [(s.prompt, s.completion, s.total, s.advantage) for s in recorded] == [
        (each.task.prompt, each.completion.text, each.total, each.advantage) for each in reported
    ]
    assert [sample.step for sample in samples(loop, "eval")] == 8 * [1] + 8 * [2]
    outputs = [e.arguments[0] for e in seen.events if e.moment == "on_validation_batch_end"]
    assert [each.completion.text for output in outputs for each in output["rollouts"]] == [
        sample.completion for sample in samples(loop, "eval")
    ]


def test_grpo_generation_for_several_steps_is_reported_once(torch, tmp_path):
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, max_steps=4, steps_per_generation=4, gradient_accumulation_steps=2)
    hooked(trainer, seen, strict=True)
    trainer.train()
    assert [(step_idx, len(rollouts)) for step_idx, rollouts in rollouts_of(seen)] == [(0, 16), (2, 16)]
    assert [e.arguments[0] for e in seen.events if e.moment == "on_rollout_start"] == [0, 2]


def test_grpo_rollout_starts_before_the_completions_are_scored(torch, tmp_path):
    seen = RecordingCallback()

    def scored(completions, **columns):
        seen.events.append(Event("scored"))
        return [float(len(text)) for text in completions]

    trainer = grpo(torch, tmp_path, scored)
    hooked(trainer, seen, strict=True)
    trainer.train()
    reported = [name for name in seen.names() if "rollout" in name or name == "scored"]
    assert reported == 2 * ["on_rollout_start", "scored", "on_rollout_end"]


def test_grpo_attached_after_a_training_still_pairs_starts_and_ends(torch, tmp_path):
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, max_steps=1, steps_per_generation=4, gradient_accumulation_steps=2)
    trainer.train()
    hooked(trainer, seen, strict=True)
    trainer.train()
    trainer.train()
    rollout_moments = [name for name in seen.names() if "rollout" in name]
    assert rollout_moments == ["on_rollout_start", "on_rollout_end"]


def test_grpo_metrics_of_trl_are_in_the_row_of_their_step(torch, tmp_path):
    trainer = grpo(torch, tmp_path)
    loop = hooked(trainer, strict=True)
    trainer.train()
    metrics = {r.step: r.values for r in reversed(list(hl.read(loop.dir))) if isinstance(r, Metrics)}
    logged = [log for log in trainer.state.log_history if "reward" in log]
    assert [metrics[log["step"]]["rewards/correctness/mean"] for log in logged] == [
        log["rewards/correctness/mean"] for log in logged
    ]


def test_grpo_conversations_become_texts(torch, tmp_path):
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer = character_tokenizer(chat_template=template)

    def polite(completions, **columns):
        return [float("please" in completion[0]["content"]) for completion in completions]

    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, polite, tokenizer=tokenizer, data=tasks(chat=True), max_steps=1)
    hooked(trainer, seen, strict=True)
    trainer.train()
    ((_, rollouts),) = rollouts_of(seen)
    assert {each.task.prompt for each in rollouts} <= {f"{i}+1=" for i in range(8)}
    assert all(isinstance(each.completion.text, str) for each in rollouts)
    assert None not in {each.advantage for each in rollouts}


def test_grpo_records_the_given_number_of_samples(torch, tmp_path):
    trainer = grpo(torch, tmp_path)
    loop = hooked(trainer, samples=3)
    trainer.train()
    assert [sample.step for sample in samples(loop)] == [1, 1, 1, 2, 2, 2]


def test_grpo_stops_on_request(torch, tmp_path):
    trainer = grpo(torch, tmp_path, max_steps=4)
    loop = hooked(trainer, Stop())
    trainer.train()
    assert (trainer.state.global_step, loop.stop_reason) == (2, "seen enough")


def test_grpo_reward_function_that_raises_fails_the_run(torch, tmp_path):
    def broken(completions, **columns):
        raise ValueError("no reward")

    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, broken)
    loop = hooked(trainer, seen)
    with pytest.raises(ValueError, match="no reward"):
        trainer.train()
    assert (loop.state, seen.names()[-1]) == ("failed", "on_exception")


def test_grpo_with_unreadable_columns_warns_and_continues(torch, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(hookline_trl.RewardCall, "from_arguments", lambda arguments: 1 / 0)
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path)
    hooked(trainer, seen, strict=True)
    trainer.train()
    assert (trainer.state.global_step, rollouts_of(seen)) == (2, [])
    assert caplog.text.count("Rollouts cannot be made of the generated completions") == 1


def test_grpo_trains_identically_with_hookline_attached(torch, tmp_path):
    bare, observed = grpo(torch, tmp_path / "a"), grpo(torch, tmp_path / "b")
    hooked(observed, RecordingCallback(), "sample_logger")
    for trainer in (bare, observed):
        torch.manual_seed(1)
        trainer.train()
    assert [log["loss"] for log in bare.state.log_history if "loss" in log] == [
        log["loss"] for log in observed.state.log_history if "loss" in log
    ]
    assert torch.equal(bare.model.lm_head.weight, observed.model.lm_head.weight)


def test_grpo_detach_restores_the_reward_functions(torch, tmp_path):
    trainer = grpo(torch, tmp_path)
    callback = attach(trainer, name="hosted", summary=False)
    assert trainer.reward_funcs[0] is not correctness
    assert trainer.reward_funcs[0].__name__ == "correctness"
    callback.detach()
    assert trainer.reward_funcs == [correctness, brevity]


def test_grpo_wrapped_reward_functions_keep_their_own_destination(torch, tmp_path):
    kept = []

    class Keep:
        def log_samples(self, rows):
            kept.extend(rows)

    trainer = grpo(torch, tmp_path, *rewards.wrap([correctness, brevity], recorder=Keep()), max_steps=1)
    loop = hooked(trainer, strict=True)
    trainer.train()
    assert [row["completion"] for row in kept] == [sample.completion for sample in samples(loop)]


def test_sample_logger_records_rollouts_of_grpo(torch, tmp_path):
    def texts(rollouts):
        return [{"prompt": each.task.prompt, "completion": each.completion.text} for each in rollouts]

    trainer = grpo(torch, tmp_path)
    loop = hooked(trainer, SampleLogger(n=2, every=2, make=texts), samples=0)
    trainer.train()
    assert [sample.step for sample in samples(loop)] == [2, 2]


def test_rloo_trainer_reports_its_rollouts(torch, tmp_path):
    seen = RecordingCallback()
    trainer = grpo(torch, tmp_path, kind=(RLOOTrainer, RLOOConfig), max_steps=1, beta=0.0)
    hooked(trainer, seen, strict=True)
    trainer.train()
    ((step_idx, rollouts),) = rollouts_of(seen)
    assert (step_idx, len(rollouts)) == (0, 8)
    assert [each.advantage for each in rollouts] == list(trainer._logs["advantages"])


def test_sft_trainer_is_observed(torch, tmp_path):
    seen = RecordingCallback()
    trainer = SFTTrainer(
        tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        args=SFTConfig(str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=2, bf16=False, **SETTINGS),
        train_dataset=Dataset.from_list([{"text": f"{i}+1={i + 1}"} for i in range(8)]),
        processing_class=TOKENIZER,
    )
    loop = hooked(trainer, seen, strict=True)
    trainer.train()
    logged = [log["mean_token_accuracy"] for log in trainer.state.log_history if "loss" in log]
    rows = [r.values for r in hl.read(loop.dir) if isinstance(r, Metrics) and "loss" in r.values]
    assert [row["mean_token_accuracy"] for row in rows] == logged
    assert seen.names().count("on_train_batch_end") == seen.names().count("on_step_end") == 2


def test_dpo_trainer_is_observed(torch, tmp_path):
    seen = RecordingCallback()
    trainer = DPOTrainer(
        tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        ref_model=tiny_causal_lm(TOKENIZER, hidden_size=16, heads=2),
        args=DPOConfig(str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=2, bf16=False, **SETTINGS),
        train_dataset=Dataset.from_list(
            [{"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": str(i)} for i in range(8)]
        ),
        processing_class=TOKENIZER,
    )
    hooked(trainer, seen, strict=True)
    trainer.train()
    margins = [e.arguments[2]["rewards/margins"] for e in seen.events if e.moment == "on_step_end"]
    assert margins == [log["rewards/margins"] for log in trainer.state.log_history if "rewards/margins" in log]
    assert len(margins) == 2

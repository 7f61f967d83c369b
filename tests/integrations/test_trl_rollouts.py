"""Rollouts of TRL that its trainers do not sample themselves: of a rollout_func, of environments, of another process.

`AsyncGRPOTrainer` is TRL's own with a worker of the test (its own one needs a vLLM server) and without a loss, whose
attention needs a GPU.
"""

import queue
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("trl")

import numpy as np
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import hookline as hl
from hookline._record.records import Sample
from hookline.integrations.transformers import attach
from hookline.testing import RecordingCallback, character_tokenizer, chat_tokenizer, tiny_causal_lm

SETTINGS = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}


@pytest.fixture(autouse=True)
def silence(monkeypatch):
    """Of warnings that an interface of TRL may change."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def train(trainer, tmp_path):
    """What a callback and the record have of the rollouts of a training."""
    seen = RecordingCallback()
    loop = attach(trainer, [seen], name="rollouts", root=tmp_path / "runs", summary=False, strict=True).loop
    trainer.train()
    rollouts = [event.arguments[1] for event in seen.events if event.moment == "on_rollout_end"]
    return rollouts, [each for each in hl.read(loop.dir) if isinstance(each, Sample)], seen


def grpo(tmp_path, tokenizer, **options):
    settings = {"per_device_train_batch_size": 4, "num_generations": 2, "max_steps": 1, "bf16": False}
    config = GRPOConfig(str(tmp_path / "out"), max_completion_length=6, **settings, **SETTINGS)
    return GRPOTrainer(
        tiny_causal_lm(tokenizer, hidden_size=16, heads=2), args=config, processing_class=tokenizer, **options
    )


def test_grpo_rollout_func_is_observed_with_its_completions_and_extra_fields(tmp_path):
    tokenizer = character_tokenizer()

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def halves(prompts, trainer):
        answers = [ids(str(index % 2)) for index in range(len(prompts))]
        logprobs = [[-0.7] * len(each) for each in answers]
        judged = [float(index % 2) for index in range(len(prompts))]
        return {"prompt_ids": list(map(ids, prompts)), "completion_ids": answers, "logprobs": logprobs, "judge": judged}

    def judged(completions, judge, **columns):
        return judge

    data = Dataset.from_list([{"prompt": f"{number}+1="} for number in range(4)])
    trainer = grpo(tmp_path, tokenizer, reward_funcs=[judged], train_dataset=data, rollout_func=halves)
    (rollouts,), recorded, _ = train(trainer, tmp_path)
    assert [each.completion.text for each in rollouts] == ["0", "1", "0", "1"]
    assert [each.rewards for each in rollouts] == [{"judged": 0.0}, {"judged": 1.0}] * 2
    assert [(each.completion, each.rewards) for each in recorded] == [
        ("0", {"judged": 0.0}),
        ("1", {"judged": 1.0}),
    ] * 2


class Room:
    """An environment of TRL: a tool, and a reward of its own."""

    def reset(self, **row):
        return " now"

    def look(self, where: str) -> str:
        """Look somewhere.

        Args:
            where: The place.
        """
        return "nothing"

    def get_reward(self):
        return 0.25


def test_grpo_environments_that_own_the_reward_are_observed(tmp_path):
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": "look"}]}] * 4)
    trainer = grpo(tmp_path, chat_tokenizer(), reward_funcs=[], train_dataset=data, environment_factory=Room)
    (rollouts,), recorded, _ = train(trainer, tmp_path)
    assert [each.rewards for each in rollouts] == [{"Room": 0.25}] * 4
    assert "look now" in rollouts[0].task.prompt
    assert len(recorded) == 4


class Worker:
    """Sends samples of two groups for each step, as TRL's worker in another process does."""

    def __init__(self, sample, stale=()):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        for number in range(400):
            self.rollout_buffer.put_nowait(sample(number, -5 if number in stale else 0))

    def start(self):
        pass

    def stop(self):
        pass

    def update_model_version(self, version):
        pass

    def check_health(self, stale_after_s):
        pass


class NoTransfer:
    def init_weight_transfer(self):
        pass

    def pause(self):
        pass

    def send_weights(self, iterator):
        pass

    def resume(self):
        pass

    def destroy(self):
        pass


def test_async_grpo_samples_that_training_takes_are_its_rollouts(tmp_path, monkeypatch):
    import torch
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *arguments: "none")  # TRL asks for it anywhere
    tokenizer = chat_tokenizer()
    tiny_causal_lm(tokenizer, hidden_size=16, heads=2).save_pretrained(tmp_path / "model")

    class WithoutLoss(AsyncGRPOTrainer):
        def compute_loss(self, model, inputs, *arguments, **options):
            return model.lm_head.weight.sum() * 0.0

    def sample(number, version):
        right = float(number % 2)
        return RolloutSample(
            prompt=[{"role": "user", "content": "odd?"}],
            completion=[{"role": "assistant", "content": str(number)}],
            input_ids=np.array([5, 6, 7, tokenizer.eos_token_id]),
            completion_mask=np.array([0, 0, 1, 1]),
            old_log_probs=np.array([0.0, 0.0, -1.5, -0.5], dtype=np.float32),
            advantage=2 * right - 1,
            model_version=version,
            group_id=number // 2,
            metrics={"reward": right, "reward_std": 0.5, "rewards/right": right, "rewards/none": float("nan")},
            enqueued_at=time.time(),
        )

    trainer = WithoutLoss(
        str(tmp_path / "model"),
        args=AsyncGRPOConfig(
            str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=2, num_generations=2, token_budget=64,
            max_staleness=3, bf16=False, **SETTINGS,
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "odd?"}]}]),
        rollout_worker=Worker(sample, stale=(0,)),
        weight_transfer=NoTransfer(),
    )  # fmt: skip
    steps, recorded, seen = train(trainer, tmp_path)
    rollouts = [each for step in steps for each in step]
    numbers = [int(each.completion.text) for each in rollouts]
    assert numbers == list(range(1, len(numbers) + 1)), "the first one is too old"
    assert len(steps) >= 1
    assert seen.names().count("on_rollout_start") == len(steps)
    first = rollouts[0]
    assert (first.rewards, first.total, first.advantage, first.version) == ({"right": 1.0}, 1.0, 1.0, 0)
    assert (list(first.completion.prompt_ids), list(first.completion.token_ids)) == (
        [5, 6],
        [7, tokenizer.eos_token_id],
    )
    assert (list(first.completion.logprobs), first.completion.finish) == ([-1.5, -0.5], "stop")
    assert [(each.completion, each.group) for each in recorded] == [
        (each.completion.text, each.task.id) for each in rollouts
    ]

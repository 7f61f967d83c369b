"""SkyRL's generators, by a stand-in with the interface of SkyRL 0.3, whose own ones need vLLM."""

import asyncio
from dataclasses import dataclass

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._record.records import Metrics, Sample
from hookline.integrations.skyrl import ObservedGenerator
from hookline.testing import RecordingCallback


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int

    def to_string(self):
        return f"{self.instance_id}_{self.repetition_id}"


@dataclass
class BatchMetadata:
    global_step: int
    training_phase: str


class Generator:
    """Answers in letters: each token is one."""

    model_name = "policy"

    def __init__(self, **changes):
        self.changes = changes

    async def generate(self, input_batch):
        count = len(input_batch["prompts"])
        return {
            "prompt_token_ids": [[1, 2]] * count,
            "response_ids": [[97, 98, 99 + row] for row in range(count)],
            "rewards": [[0.0, 0.0, float(row)] for row in range(count)],
            "loss_masks": [[1, 0, 1]] * count,
            "stop_reasons": ["stop", "length"] * (count // 2),
            "rollout_metrics": {"generate/avg_num_tokens": 3.0},
            "rollout_logprobs": [[-0.5, 0.0, -0.25]] * count,
        } | self.changes


class Letters:
    def decode(self, ids, *, skip_special_tokens):
        return "".join(map(chr, ids))


def batch(step=1, phase="train", count=2):
    return {
        "prompts": [[{"role": "user", "content": "letters?"}]] * count,
        "env_classes": ["alphabet"] * count,
        "env_extras": [{"reward_model": {"ground_truth": "abc"}}] * count,
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID("first", copy) for copy in range(count)],
        "batch_metadata": BatchMetadata(step, phase),
    }


def observed(tmp_path, *callbacks, generator=None, **options):
    return ObservedGenerator(
        generator or Generator(), callbacks, name="sky", root=tmp_path, summary=False, tokenizer=Letters(), **options
    )


def test_skyrl_trajectories_are_rollouts_samples_and_metrics_of_their_step(tmp_path):
    seen = RecordingCallback()
    with observed(tmp_path, seen, strict=True) as generator:
        for step in (1, 2):
            output = asyncio.run(generator.generate(batch(step)))
        assert output["response_ids"] == [[97, 98, 99], [97, 98, 100]]
        assert generator.model_name == "policy"
    moments = ["on_train_start", *2 * ["on_rollout_start", "on_rollout_end", "on_log"], "on_train_end"]
    assert [name for name in seen.names() if name in moments] == moments
    ends = [event.arguments for event in seen.events if event.moment == "on_rollout_end"]
    assert [step for step, _ in ends] == [0, 1]
    first, second = ends[0][1]
    assert (first.completion.text, first.rewards, first.completion.finish) == ("abc", {"reward": 0.0}, "stop")
    assert (second.completion.finish, second.total, second.success) == ("length", 1.0, True)
    assert (list(first.completion.mask), first.completion.length) == ([1, 0, 1], 2)
    records = list(hl.read(generator.loop.dir))
    samples = [each for each in records if isinstance(each, Sample)]
    assert [(each.step, each.completion, each.total) for each in samples] == [
        (1, "abc", 0.0),
        (1, "abd", 1.0),
        (2, "abc", 0.0),
        (2, "abd", 1.0),
    ]
    assert (samples[0].group, samples[0].expected, samples[0].lesson) == ("first", "abc", "alphabet")
    rows = [each for each in records if isinstance(each, Metrics)]
    assert [(row.step, row.values["generate/avg_num_tokens"]) for row in rows if row.values] == [(1, 3.0), (2, 3.0)]


def test_skyrl_evaluation_is_recorded_apart_and_fires_no_rollouts(tmp_path):
    seen = RecordingCallback()
    with observed(tmp_path, seen) as generator:
        asyncio.run(generator.generate(batch(5, "eval")))
    assert "on_rollout_end" not in seen.names()
    samples = [each for each in hl.read(generator.loop.dir) if isinstance(each, Sample)]
    assert [(each.step, each.axis) for each in samples] == [(5, "eval"), (5, "eval")]


def test_skyrl_stepwise_output_has_a_rollout_for_each_trajectory(tmp_path):
    seen = RecordingCallback()
    rows = {
        "prompt_token_ids": [[1]] * 3,
        "response_ids": [[97], [98], [99]],
        "rewards": [0.0, 0.5, 1.0],
        "loss_masks": [[1]] * 3,
        "stop_reasons": None,
        "rollout_logprobs": None,
        "is_last_step": [False, True, True],
    }
    with observed(tmp_path, seen, generator=Generator(**rows), samples=1) as generator:
        asyncio.run(generator.generate(batch()))
    (rollouts,) = [event.arguments[1] for event in seen.events if event.moment == "on_rollout_end"]
    assert [(each.completion.text, each.total) for each in rollouts] == [("b", 0.5), ("c", 1.0)]
    assert len([each for each in hl.read(generator.loop.dir) if isinstance(each, Sample)]) == 1


def test_skyrl_what_is_no_generator_is_refused():
    with pytest.raises(OptionError, match=r"it has no generate\(\)"):
        ObservedGenerator(object())

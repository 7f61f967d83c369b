"""That GRPO learns: a tiny model sorts three digits, on tasks that it never had."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils.data import DataLoader  # noqa: E402

import hookline as hl  # noqa: E402
from hookline import rl  # noqa: E402
from hookline.loops import sft  # noqa: E402
from hookline.rl.environments import Sorting  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

ENVIRONMENT = Sorting(length=3, held_out_share=0.3)
TOKENIZER = character_tokenizer("0123456789>")
SETTINGS = {"output_dir": None, "save_at_end": False, "summary": False, "strict": True, "seed": 0}


def accuracy(model, temperature):
    tasks = ENVIRONMENT.held_out(256, random.Random(0))
    sampling = rl.Sampling(temperature=temperature, max_tokens=6, seed=0)
    written = rl.HFPolicy(model, TOKENIZER).generate([task.prompt for task in tasks], 1, sampling)
    return sum(text.text == task.expected for task, (text,) in zip(tasks, written, strict=True)) / len(tasks)


def grpo_config(steps, **rollout):
    return rl.RLConfig(
        curriculum=rl.CurriculumConfig(lessons=[rl.Lesson("sorting", ENVIRONMENT)], eval_frequency=20),
        rollout=rl.RolloutConfig(prompts=16, group_size=8, max_tokens=6, **rollout),
        train=hl.TrainerConfig(
            max_steps=steps, learning_rate=7e-4, schedule="linear", gradient_clip_norm=1.0, **SETTINGS
        ),
    )


@pytest.fixture(scope="module")
def beginner():
    """A model that was shown a few examples, and gets some answers right."""
    torch.set_num_threads(1)
    model = tiny_causal_lm(TOKENIZER, seed=1)
    tasks = ENVIRONMENT.sample(64 * 32, random.Random(0))
    rows = [{"prompt": task.prompt, "completion": task.expected} for task in tasks]
    data, collate = sft.prepare(rows, TOKENIZER, sft.SFTOptions(max_length=12))
    loader = DataLoader(data, batch_size=64, collate_fn=collate)
    config = hl.TrainerConfig(epochs=1, learning_rate=2e-3, **SETTINGS)
    hl.Trainer(model, loader, config=config, training_step=sft.training_step).fit()
    return model


def test_grpo_from_a_model_that_gets_some_right_gets_many_more_right_on_held_out_tasks(beginner):
    model = copy.deepcopy(beginner)
    before = accuracy(model, 1.0), accuracy(model, 0.0)

    done = rl.train(grpo_config(steps=80), model=model, tokenizer=TOKENIZER)

    assert 0.2 < before[0] < 0.45
    assert accuracy(model, 1.0) > before[0] + 0.2  # it was 0.32 -> 0.67
    assert accuracy(model, 0.0) > before[1] + 0.02  # not only surer of what it knew: 0.80 -> 0.90
    assert done.metrics["reward/mean"] > before[0] + 0.2
    assert (done.step, done.metrics["policy/version"]) == (80, 79)


def test_grpo_with_rewards_for_wrong_answers_gets_fewer_right(beginner):
    model = copy.deepcopy(beginner)
    before = accuracy(model, 1.0)
    config = grpo_config(steps=20, reward_weights={"correct": -1.0})

    rl.train(config, model=model, tokenizer=TOKENIZER)

    assert accuracy(model, 1.0) < before - 0.1

"""Seed 001's imports with nothing but their root changed: ``marin.rl`` is ``hookline.rl``."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hookline.hooks
from hookline import rl
from hookline.rl import hooks

BASIC_USAGE = """
from hookline.rl.rollout_worker import RolloutWorker
from hookline.rl.hooks import EvaluationHook, LoggingHook

# Create worker with config
worker = RolloutWorker(config)

# Register a custom evaluation hook
custom_eval = EvaluationHook(
    frequency=50,
    n_examples=32,
    eval_type="custom_eval"
)
worker.register_hook(custom_eval)

# Add logging
logging_hook = LoggingHook(frequency=100)
worker.register_hook(logging_hook)
"""


def test_basic_usage_block_as_it_stands_registers_its_hooks_behind_the_defaults(tmp_path):
    from hookline.testing import character_tokenizer, tiny_causal_lm

    tokenizer = character_tokenizer("0123456789>")
    config = rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig([rl.Lesson("sort", {"sorting": {"length": 2}})]),
        policy=rl.HFPolicy(tiny_causal_lm(tokenizer, hidden_size=8, layers=1, heads=2), tokenizer),
        output_dir=str(tmp_path),
    )
    names = {"config": config}
    exec(BASIC_USAGE, names)
    micro, full, *own = names["worker"].get_hooks()  # type: ignore[attr-defined]
    assert [(hook.eval_type, hook.frequency) for hook in (micro, full)] == [("micro_eval", 10), ("eval", 100)]
    assert own == [names["custom_eval"], names["logging_hook"]]
    assert (own[0].frequency, own[0].n_examples, own[0].eval_type) == (50, 32, "custom_eval")


@pytest.mark.parametrize("name", hooks.__all__)
def test_hooks_of_rl_are_those_of_the_hooks_namespace(name):
    assert getattr(hooks, name) is getattr(hookline.hooks, name)

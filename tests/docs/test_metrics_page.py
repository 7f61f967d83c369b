"""Every metric that hookline's own parts record stands on the metrics page."""

import re
from pathlib import Path

import pytest
import torch

import hookline as hl
import hookline.logging as log
from hookline import rl
from hookline._record.records import Metrics
from hookline.testing import character_tokenizer, tiny_causal_lm

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def documented():
    """The names in the first column of the tables, as patterns."""
    cells = re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return re.compile("|".join(re.sub(r"\\?<[^>]*>", ".+", re.escape(name)) for name in names))


def unexplained(run_dir):
    found = {name for record in hl.read(run_dir) if isinstance(record, Metrics) for name in record.values}
    assert found
    return sorted(name for name in found if not documented().fullmatch(name))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_metrics_of_a_training_with_all_monitors_are_explained():
    inputs = torch.randn(24, 4)
    batches = list(zip(inputs.split(4), inputs.sum(dim=1, keepdim=True).split(4), strict=True))
    resources = hl.callbacks.ResourceMonitor()
    monitors = [
        {"learning_rate_monitor": {"log_momentum": True}},
        hl.callbacks.GradientMonitor().configure(every=1),
        {"logger": {"log_gradients": True, "log_parameters": True, "log_every_n_steps": 2}},
        "throughput_monitor",
        resources,
        hl.on("step_start", lambda loop, step_idx: resources.sample()),
    ]
    config = hl.TrainerConfig(epochs=2, gradient_clip_norm=1.0, callbacks=monitors, summary=False)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    trainer = hl.Trainer(model, batches, batches[:1], config=config, loss=torch.nn.functional.mse_loss)
    trainer.fit()
    assert unexplained(trainer.dir) == []


def test_metrics_of_grpo_are_explained():
    tokenizer = character_tokenizer("0123456789>")
    lessons = [rl.Lesson("copy two", {"copying": {"length": 2}})]
    config = rl.RLConfig(
        curriculum=rl.CurriculumConfig(
            lessons=lessons, micro_eval_frequency=1, micro_eval_n_examples=2, eval_frequency=2
        ),
        rollout=rl.RolloutConfig(prompts=2, group_size=2, max_tokens=3),
        grpo=rl.GRPOConfig(beta=0.1),
        train=hl.TrainerConfig(max_steps=2, summary=False),
    )
    result = rl.train(config, model=tiny_causal_lm(tokenizer, hidden_size=16, heads=2), tokenizer=tokenizer)
    assert unexplained(result.output_dir) == []


def test_metrics_of_the_logging_functions_are_explained():
    with hl.run("logged", summary=False) as run:
        log.initialize(run=run)
        for step in run.steps(2):
            log.log_reward_metrics(step, {"exact": [1.0, 0.0, None]})
            log.log_generation_metrics(step, ["one two", "three"], token_counts=[2, 1], max_length=2)
            log.log_memory_usage(step=step)
        log.shutdown()
    assert unexplained(run.dir) == []

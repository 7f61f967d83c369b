"""Every example runs as it stands and prints what it promises; those that report to a monitor reach one."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from destinations.http_server import StatusServer

EXAMPLES = Path(__file__).parents[1] / "examples"
EXPECTED = {
    "async_hook.py": ["12 steps made, 0 answers", "scores by step: {4: 0.25, 8: 0.125, 12: 0.083}"],
    "bare_loop.py": ["step 100: loss", "y = 3.0", "early stopping: val/loss has not improved"],
    "callbacks_and_hooks.py": [
        "stopped at step 48: the loss is flat at 0.509",
        "rows sent: [10, 20, 30, 40]",
        "best loss 0.5091",
    ],
    "class_callbacks.py": [
        "step 4: the loss jumped to 3.0",
        "order: ['smooth', 'spikes']",
        "step 5: average 1.127",
        "step 7: average 1.026",
    ],
    "conditional_and_stateful_hooks.py": ["stopped at step 98: 0.97 in advanced", "9 looks, average reward 0.40"],
    "custom_loggers_and_hooks.py": [
        "sums: 19808 parameters, 20 steps",
        "step 4: validation loss",
        "step 5: loss",
        "ended after 16 steps: the loss is below 0.9",
    ],
    "custom_sink.py": ["loss: 100 rows, the last at step 100", "tokens: 100 rows, the last at step 100"],
    "early_stop_on_reward.py": ["step 75: reward 0.81", "stopped at step 98: early stopping: reward/mean reached"],
    "experiment_arms.py": [
        "exp-1/short/short-r0: 0.65",
        "exp-1/long/long-r2: 1.00",
        "| long | 1 ± 0 | 3",
        "best arm: long",
    ],
    "function_hooks.py": [
        "60 steps from step 0",
        "step 20: loss 0.387",
        "ended at step 60",
        "60 rows, largest loss 1.000",
    ],
    "grpo_logging.py": ["of 40 answers were right", "40 outputs in the table", "rewards: ['brevity', 'correctness']"],
    "hosts/accelerate_loop.py": ["Accelerator: ended after 13 steps: the loss is below 0.01"],
    "hosts/huggingface.py": ["Trainer: ended after", "the loss is below 2.0"],
    "hosts/keras_model.py": ["Sequential: ended after", "the loss is below 0.01"],
    "hosts/lightning_module.py": ["Trainer: ended after 13 steps: the loss is below 0.01"],
    "hosts/ray_train.py": ["Run: ended after 13 steps: the loss is below 0.01", "reported to Ray: step 13"],
    "hosts/trl_grpo.py": ["step 8/8"],
    "rollout_worker_hooks.py": ["step 4: success rate 0.00 in sort", "4 rollout steps, held-out success 0.00"],
    "tao_sft_example.py": ["trained 20 steps, validation loss 1."],
}
WITH_CONFIG = ("custom_loggers_and_hooks.py", "tao_sft_example.py")
"""Those that report to a monitor; each has a test of its own with one that listens."""
HOSTS = [name for name in EXPECTED if name.startswith("hosts/")]
SHARED = "hosts/one_callback.py"
PACKAGES = ("plugin",)
"""Directories of examples that are packages, with tests of their own."""
NOBODY = "http://127.0.0.1:9/status"
"""A port at which nobody listens."""


@pytest.fixture
def server():
    server = StatusServer()
    yield server
    server.close()


def run_example(name: str, endpoint: str = NOBODY) -> None:
    """Run it, and require that it prints what it promises."""
    arguments = ["--config", EXAMPLES / "sft.yaml"] if name in WITH_CONFIG else []
    one_thread_on_loopback = {"OMP_NUM_THREADS": "1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment = {**os.environ, **one_thread_on_loopback, "STATUS_ENDPOINT": endpoint}
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [text for text in EXPECTED[name] if text not in done.stdout] == [], done.stdout


def there(kind: str) -> set[str]:
    """The files of a kind, without those of packages."""
    names = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob(f"*.{kind}")}
    return {name for name in names if name.partition("/")[0] not in PACKAGES}


def test_examples_are_all_run():
    assert there("py") - {SHARED} == set(EXPECTED)


def test_examples_are_all_in_the_table_of_the_readme():
    linked = set(re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text()))
    assert linked - {name for name in linked if name.startswith(PACKAGES)} == there("py") | there("yaml") | there(
        "ipynb"
    )


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in WITH_CONFIG])
def test_example_runs_and_prints(name):
    run_example(name)


@pytest.mark.parametrize("name", HOSTS)
def test_host_example_has_at_most_three_lines_of_hookline_and_its_imports(name):
    marked = [line for line in (EXAMPLES / name).read_text().splitlines() if line.endswith("  # hookline")]
    added = [line for line in marked if not line.startswith(("import ", "from "))]
    assert 1 <= len(added) <= 3
    if not any("loop.steps(" in line for line in added):  # a trainer's: the imports count as well
        assert len(marked) <= 3


def test_experiment_example_compares_its_arms(tmp_path):
    program = Path(sysconfig.get_path("scripts")) / "hookline"
    command = [program, "run", EXAMPLES / "experiment.yaml", "base.sft.train.max_steps=10", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    runs = [(run["run"], run["status"]) for arm in document["arms"] for run in arm["runs"]]
    assert runs == [(f"{arm}-r{repeat}", "completed") for arm in ("low", "high") for repeat in range(2)]
    assert document["metric"] == "arithmetic/accuracy"
    assert (tmp_path / "runs" / "learning-rates" / "report.md").is_file()


def reported(server: StatusServer) -> list[dict[str, Any]]:
    """What the training told, without the heartbeats that a slow machine gets by the clock."""
    return [body for body in server.bodies if "phase" in body]


def by_epoch(*, heartbeats_at: tuple[int, ...], steps: int) -> list[tuple[str, int]]:
    """What is told of steps, four an epoch, and of the validations between them."""
    told = []
    for step in range(1, steps + 1):
        told += [("training_heartbeat", step)] if step in heartbeats_at else []
        told += [("metrics", step)]
        if step % 4 == 0:
            told += [("validation_starting", step), ("validation_complete", step), ("metrics", step)]
    return told


def test_tao_example_prints_and_reports_the_training_in_taos_format(server):
    run_example("tao_sft_example.py", server.url)
    bodies = reported(server)
    steps = by_epoch(heartbeats_at=(10, 20), steps=20)
    assert [(body["phase"], body["step"]) for body in bodies] == [
        ("training_starting", 0),
        *steps,
        ("training_complete", 20),
    ]
    assert [body["status"] for body in bodies] == ["STARTED", *["RUNNING"] * len(steps), "SUCCESS"]
    assert {(body["component"], body["max_step"], body["max_epoch"]) for body in bodies} == {
        ("sft-experiment-001", 20, 5)
    }
    metrics = [body for body in bodies if body["phase"] == "metrics"]
    assert {frozenset(body["graphical"]) for body in metrics if "graphical" in body} == {
        frozenset({"loss", "tokens", "learning_rate"})
    }
    losses = [body["kpi"]["val/loss"] for body in metrics if "kpi" in body]
    assert losses == sorted(losses, reverse=True)
    assert bodies[-1]["data"]["final_val_loss"] == losses[-1]


def test_custom_loggers_and_hooks_example_prints_and_reports_until_its_own_hook_stops_it(server):
    run_example("custom_loggers_and_hooks.py", server.url)
    bodies = reported(server)
    steps = by_epoch(heartbeats_at=(5, 10, 15), steps=16)[:-3]  # a training that is stopped does not validate
    assert [(body["phase"], body["step"]) for body in bodies] == [
        ("training_starting", 0),
        *steps,
        ("training_stopped", 16),
    ]
    assert bodies[-1]["message"] == "the loss is below 0.9"
    components = {body["phase"].partition("_")[0]: body["component"] for body in bodies}
    assert components == {"training": "Training", "metrics": "Training Monitor", "validation": "Validation"}
    losses = [body["metrics"]["loss"] for body in bodies if "loss" in body.get("metrics", {})]
    assert losses[-1] < 0.9 < min(losses[:-1])

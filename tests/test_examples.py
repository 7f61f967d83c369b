"""Every example runs as it stands and prints what it promises; those that report to a monitor reach one."""

import json
import re
import sysconfig
from pathlib import Path
from typing import Any

import hosts
import pytest
from destinations.http_server import StatusServer

import hookline as hl

EXAMPLES = Path(__file__).parents[1] / "examples"
EXPECTED = {
    "async_hook.py": ["12 steps made, 0 answers", "scores by step: {4: 0.25, 8: 0.125, 12: 0.083}"],
    "attention_image.py": ["10 images of 2 heads, the last at step 200", "attention at the first position: 1.00"],
    "bare_loop.py": ["step 100: loss", "y = 3.0", "early stopping: val/loss has not improved"],
    "best_samples.py": ["7 of 96 completions in the table, recorded once each", "'reward': 1.0}"],
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
    "confusion_matrix.py": ["step 20: 120 of 160 right, ['left', 'middle', 'right']", "step 60: 136 of 160 right"],
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
    "gradient_histograms.py": ["16 histograms of 4 parameters at steps [10, 20, 30, 40]", "gradients/2.bias: 1 values"],
    "grpo_logging.py": ["of 40 answers were right", "40 outputs in the table", "rewards: ['brevity', 'correctness']"],
    "hosts/accelerate_loop.py": ["Accelerator: ended after 13 steps: the loss is below 0.01"],
    "hosts/catboost_model.py": ["CatBoostRegressor: ended after", "the loss is below 0.5"],
    "hosts/composer_model.py": ["State: ended after 13 steps: the loss is below 0.01"],
    "hosts/deepspeed_engine.py": ["ended after 23 steps: the loss is below 0.01"],
    "hosts/fabric_loop.py": ["Fabric: ended after 13 steps: the loss is below 0.01"],
    "hosts/fastai_learner.py": ["Learner: ended after 13 steps: the loss is below 0.01"],
    "hosts/flax_loop.py": ["JaxRun: ended after", "the loss is below 0.01"],
    "hosts/huggingface.py": ["Trainer: ended after", "the loss is below 2.0"],
    "hosts/ignite_engine.py": ["Engine: ended after 13 steps: the loss is below 0.01"],
    "hosts/keras_model.py": ["Sequential: ended after", "the loss is below 0.01"],
    "hosts/levanter_trainer.py": ["Trainer: ended after", "the loss is below 0.01"],
    "hosts/lightgbm_leaves.py": ["Booster: ended after", "the loss is below 0.5"],
    "hosts/lightning_module.py": ["Trainer: ended after 13 steps: the loss is below 0.01"],
    "hosts/maxtext_pretrain.py": ["ended after", "the loss is below 0.5"],
    "hosts/prime_rl_monitor.py": ["step 8/8", "sums/avg@1 0.875"],
    "hosts/ray_train.py": ["Run: ended after 13 steps: the loss is below 0.01", "reported to Ray: step 13"],
    "hosts/sentence_embeddings.py": ["SentenceTransformerTrainer: ended after", "the loss is below 0.1"],
    "hosts/sklearn_model.py": ["LogisticRegression: ended after", "the loss is below 0.35"],
    "hosts/stable_baselines3_ppo.py": ["step 8/8", "val/mean_reward"],
    "hosts/trl_grpo.py": ["step 8/8"],
    "hosts/tunix_trainer.py": ["PeftTrainer: ended after", "the loss is below 0.01"],
    "hosts/ultralytics_yolo.py": ["BaseTrainer: ended after", "the loss is below 0.5"],
    "hosts/verl_ppo.py": ["PPOTrainer: ended after 4 steps: the loss is below 0.3"],
    "hosts/xgboost_trees.py": ["Booster: ended after", "the loss is below 0.5"],
    "search.py": ["valley-t0: optimizer.lr=0.000106, momentum=0: complete", "pruned after step 10", "best: valley-t10"],
    "launchers/train.py": ["step 40/40", "completed after 40 steps"],
    "migrating/wandb_digits.py": ["3 runs, the best with 0.01: 96 steps", "accuracy 9", "digits-mlp:v2"],
    "migrating/mlflow_quickstart.py": ["2 runs above 80%, the best with C=10.0: 100%"],
    "migrating/tensorboard_mnist.py": ["144 steps,", "of the digits recognized"],
    "migrating/tensorboard_ppo.py": ["9728 steps,", "episodes, return"],
    "profiler_artifact.py": ["default/trace:v0: 1 file, steps 5 to 7", "6 calls of a linear layer in the trace"],
    "recipes/cleanrl_ppo.py": ["step 12/12", "12 iterations, episodes of"],
    "recipes/nanogpt.py": ["120 iterations, best validation loss 0.", "7 checkpoints"],
    "recipes/timm_images.py": ["epoch 3: top-1 100.0"],
    "recipes/torchtune_finetune.py": ["24 steps of 2 batches: loss 4."],
    "rollout_worker_hooks.py": ["step 4: success rate 0.00 in sort", "4 rollout steps, held-out success 0.00"],
    "tao_sft_example.py": ["trained 20 steps, validation loss 1."],
}
WITH_CONFIG = ("custom_loggers_and_hooks.py", "tao_sft_example.py")
"""Those that report to a monitor; each has a test of its own with one that listens."""
WITH_SERVER = ("migrating/mlflow_quickstart.py",)
"""Those that log to a server; each has a test of its own with one."""
ARGUMENTS = {
    **dict.fromkeys(WITH_CONFIG, ("--config", EXAMPLES / "sft.yaml")),
    "hosts/maxtext_pretrain.py": ("base.yml", "steps=8"),
}
"""What some of them are started with."""
RUNNERS = {
    **dict.fromkeys(
        (
            *("hosts/composer_model.py", "hosts/levanter_trainer.py", "hosts/maxtext_pretrain.py"),
            *("hosts/ultralytics_yolo.py", "hosts/verl_ppo.py"),
        ),
        "hosts.stand_ins.everything",
    ),
    "hosts/deepspeed_engine.py": "hosts.deepspeed_loop",
}
"""The modules that run those whose package is not installed, or is installed apart from the others."""
HOSTS = [name for name in EXPECTED if name.startswith("hosts/")]
SHARED = "hosts/one_callback.py"
PACKAGES = ("plugin",)
"""Directories of examples that are packages, with tests of their own."""
WRITE_TOKEN = "write-token-of-a-test"
TIMEOUT_SECONDS = 200
NOBODY = "http://127.0.0.1:9/status"
"""A port at which nobody listens."""


@pytest.fixture
def server():
    server = StatusServer()
    yield server
    server.close()


@pytest.fixture
def check_example(torch_programs):
    """Runs an example, and requires that it prints what it promises."""

    def check(name: str, endpoint: str = NOBODY, **more: str) -> None:
        runner = RUNNERS.get(name)
        if runner == "hosts.deepspeed_loop" and not (hosts.ISOLATED / "deepspeed").is_dir():
            pytest.skip("deepspeed is not installed")
        environment = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "STATUS_ENDPOINT": endpoint, **more}
        command = [EXAMPLES / name, *ARGUMENTS.get(name, [])]
        if runner is not None:
            environment["PYTHONPATH"] = str(Path(hosts.__file__).parents[1])
            command[:0] = ["-c", f"import runpy; runpy.run_module({runner!r}, run_name='__main__')"]
        program = torch_programs.start(*command, env=environment, merge=False)
        out, err = program.communicate(TIMEOUT_SECONDS)
        assert program.returncode == 0, err
        assert [text for text in EXPECTED[name] if text not in out] == [], out

    return check


def there(kind: str) -> set[str]:
    """The files of a kind, without those of packages."""
    names = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob(f"*.{kind}")}
    return {name for name in names if name.partition("/")[0] not in PACKAGES}


def test_examples_are_all_run():
    assert there("py") - {SHARED} == set(EXPECTED)


def test_examples_are_all_in_the_table_of_the_readme():
    linked = set(re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text()))
    assert linked - {name for name in linked if name.startswith(PACKAGES)} == set().union(
        *map(there, ("py", "yaml", "ipynb", "sh"))
    )


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in (*WITH_CONFIG, *WITH_SERVER)])
def test_example_runs_and_prints(check_example, name):
    check_example(name)


def test_mlflow_example_logs_to_a_server_unchanged(check_example, tmp_path):
    from hookline.server import Tokens, WebServer

    (tmp_path / "runs").mkdir()
    with WebServer(tmp_path / "runs", tokens=Tokens(WRITE_TOKEN)) as server:
        settings = {"MLFLOW_TRACKING_URI": server.url.rstrip("/"), "MLFLOW_TRACKING_TOKEN": WRITE_TOKEN}
        check_example(WITH_SERVER[0], **settings)
    runs = hl.runs(tmp_path / "runs")
    assert {(run.name, run.group, run.status) for run in runs} == {
        ("search", None, "finished"),
        *((f"C={strength}", "search", "finished") for strength in ("0.001", "0.1", "10")),
    }
    assert {run.config.get("C") for run in runs if run.config} == {0.001, 0.1, 10}
    assert hl.artifact("MLflow Quickstart/iris_model", root=tmp_path / "runs").kind == "model"


@pytest.mark.parametrize("name", HOSTS)
def test_host_example_has_at_most_three_lines_of_hookline_and_its_imports(name):
    marked = [line for line in (EXAMPLES / name).read_text().splitlines() if line.endswith("  # hookline")]
    added = [line for line in marked if not line.startswith(("import ", "from "))]
    assert 1 <= len(added) <= 3
    if not any("loop.steps(" in line for line in added):  # a trainer's: the imports count as well
        assert len(marked) <= 3


def test_experiment_example_compares_its_arms(torch_programs, tmp_path):
    script = Path(sysconfig.get_path("scripts")) / "hookline"
    command = [script, "run", EXAMPLES / "experiment.yaml", "base.sft.train.max_steps=4", "--json"]
    program = torch_programs.start(*command, cwd=tmp_path, merge=False)
    out, err = program.communicate(TIMEOUT_SECONDS)
    assert program.returncode == 0, err
    document = json.loads(out)
    runs = [(run["run"], run["status"]) for arm in document["arms"] for run in arm["runs"]]
    assert runs == [(f"{arm}-r{repeat}", "completed") for arm in ("low", "high") for repeat in range(2)]
    assert document["metric"] == "arithmetic/accuracy"
    assert (tmp_path / "runs" / "learning-rates" / "report.md").is_file()


def reported(server: StatusServer) -> list[dict[str, Any]]:
    """What the training reported, without the heartbeats that a slow machine gets by the clock."""
    return [body for body in server.bodies if "phase" in body]


def by_epoch(*, heartbeats_at: tuple[int, ...], steps: int) -> list[tuple[str, int]]:
    """What is reported of steps, four an epoch, and of the validations between them."""
    expected = []
    for step in range(1, steps + 1):
        expected += [("training_heartbeat", step)] if step in heartbeats_at else []
        expected += [("metrics", step)]
        if step % 4 == 0:
            expected += [("validation_starting", step), ("validation_complete", step), ("metrics", step)]
    return expected


def test_tao_example_prints_and_reports_the_training_in_taos_format(check_example, server):
    check_example("tao_sft_example.py", server.url)
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


def test_custom_loggers_and_hooks_example_prints_and_reports_until_its_own_hook_stops_it(check_example, server):
    check_example("custom_loggers_and_hooks.py", server.url)
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

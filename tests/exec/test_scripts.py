"""Twenty scripts in the shape of public ones: plain, attached and under `hookline exec`, with equal results.

All of them run once: the plain and the attached ones in a process each, before the first test, those under
`hookline exec` in processes of their own. `make test` runs one script for each tracker and trainer under
`hookline exec`, and `make soak` the others.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.console_reader import read_console
from hookline._record.records import Metrics

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
AS_WANDB = ("multi_tracker", "nanogpt")
TRAINER = ("trainer.train()", "import hookline as hl\nhl.integrations.transformers.attach(trainer)\ntrainer.train()")
CALLBACK = "from hookline.integrations.lightning import HooklineCallback\ntrainer.callbacks.append(HooklineCallback())"
LIGHTNING = ("trainer.fit(", f"{CALLBACK}\ntrainer.fit(")
WRITER = ("from torch.utils.tensorboard import", "from hookline.compat.tensorboard import")
TENSORBOARDX = ("from tensorboardX import", "from hookline.compat.tensorboard import")
WANDB = ("import wandb", "import hookline.compat.wandb as wandb")
PRINTING = [
    ("import json", "import json\nimport hookline as hl\nrun = hl.start()"),
    ("    losses.append(", "    run.log(loss=loss.item()); losses.append("),
]
ATTACHED = {
    "accelerate_loop": [
        ("import json", "import json\nimport hookline.integrations.accelerate"),
        ('log_with="tensorboard"', 'log_with="hookline"'),
    ],
    "dqn": [WRITER],
    "embeddings": PRINTING,
    "fabric_loop": [
        ("import json", "import json\nfrom hookline.integrations.lightning import HooklineLogger"),
        ("devices=1)", "devices=1, loggers=HooklineLogger())"),
    ],
    "flax_loop": [TENSORBOARDX],
    "keras_mlp": [
        ("import json", "import json\nfrom hookline.integrations.keras import HooklineCallback"),
        ("validation_split=0.25,", "validation_split=0.25, callbacks=[HooklineCallback()],"),
    ],
    "lightning_classifier": [LIGHTNING],
    "lightning_gan": [LIGHTNING],
    "mnist": [WRITER],
    "multi_tracker": [TRAINER],
    "nanogpt": [WANDB],
    "reinforce": PRINTING,
    "rnn_lm": [TENSORBOARDX],
    "run_clm": [TRAINER],
    "sklearn_fit": [
        ("import json", "import json\nimport hookline as hl; from hookline.compat.mlflow import sync"),
        ("with mlflow.start_run():", "with hl.run() as run, sync(run), mlflow.start_run():"),
    ],
    "timm_loop": [WANDB],
    "trl_grpo": [TRAINER],
    "trl_sft": [TRAINER],
    "vae": [WRITER],
    "xgboost_trees": [
        ("import json", "import json\nfrom hookline.integrations.xgboost import HooklineCallback"),
        ("verbose_eval=False,", "verbose_eval=False, callbacks=[HooklineCallback()],"),
    ],
}
"""What changes in a script, as replacements."""
SERIES: dict[str, tuple[str, slice | int]] = {
    "accelerate_loop": ("train_loss", slice(-1)),
    "dqn": ("losses/td_loss", slice(-2)),
    "fabric_loop": ("loss", slice(-1)),
    "flax_loop": ("loss", slice(None)),
    "keras_mlp": ("loss", 6),
    "lightning_classifier": ("train_loss", slice(-2)),
    "lightning_gan": ("d_loss", slice(-1)),
    "mnist": ("train/loss", slice(-3)),
    "multi_tracker": ("loss", 4),
    "nanogpt": ("train/loss", slice(-1)),
    "rnn_lm": ("loss", slice(-1)),
    "run_clm": ("loss", 6),
    "sklearn_fit": ("loss", slice(None)),
    "timm_loop": ("train_loss", slice(0, -1, 2)),
    "trl_grpo": ("reward", 2),
    "trl_sft": ("loss", 4),
    "vae": ("loss", slice(-1)),
    "xgboost_trees": ("val/rmse", slice(-4)),
}
"""A metric of each script that logs, and which of its results these are, or how many where a log has fewer digits."""


SIMILAR = {
    "flax_loop": "rnn_lm",
    "lightning_gan": "lightning_classifier",
    "mnist": "dqn",
    "reinforce": "embeddings",
    "run_clm": "multi_tracker",
    "timm_loop": "nanogpt",
    "trl_sft": "trl_grpo",
    "vae": "dqn",
}
"""Scripts that use the same tracker or trainer as another one, which `make test` runs under `hookline exec`."""


def scripts(names):
    """Parameters of a test with these scripts under `hookline exec`."""
    return [pytest.param(name, marks=pytest.mark.soak if name in SIMILAR else ()) for name in sorted(names)]


class Outcome:
    """The output and the records of all scripts' runs."""

    def __init__(self, home):
        self.home = home
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOOKLINE_", "WANDB_"))
        } | {
            "HF_HUB_OFFLINE": "1",
            "KERAS_BACKEND": "torch",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
        }
        (home / "attached").mkdir()
        for script in SCRIPTS:
            text = script.read_text()
            for old, new in ATTACHED[script.stem]:
                assert text.count(old) >= 1, (script.stem, old)
                text = text.replace(old, new, 1)
            (home / "attached" / script.name).write_text(text)
        with ThreadPoolExecutor(2) as pool:
            plain = pool.submit(self._together, "plain", SCRIPTS)
            attached = pool.submit(self._together, "attached_in", sorted((home / "attached").glob("*.py")))
            self.plain, self.attached = plain.result(), attached.result()
        self._executed = {}

    def executed(self, name):
        """The result of a script under `hookline exec`."""
        if name not in self._executed:
            self._executed[name] = self._execute(HERE / "scripts" / f"{name}.py")
        return self._executed[name]

    def _together(self, folder, scripts):
        command = [sys.executable, HERE / "run_scripts.py", self.home / folder, *scripts]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return {part.split()[0]: result_in(part) for part in done.stdout.split("SCRIPT ")[1:]}

    def _execute(self, script):
        folder = self.home / "exec" / script.stem
        folder.mkdir(parents=True)
        options = ["--quiet", *(["--as-wandb"] if script.stem in AS_WANDB else [])]
        command = [sys.executable, "-m", "hookline", "exec", *options, "--", sys.executable, script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=self.environment)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "is not recorded" not in done.stderr
        return result_in(done.stdout)

    def run(self, kind, name):
        """The only run of a script."""
        if kind == "exec":
            self.executed(name)
        found = hl.runs(self.home / kind / name / "runs")
        assert [run.status for run in found] in (["finished"], ["stopped"])
        return found[0]


def result_in(output):
    [line] = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    for package in (
        "accelerate",
        "flax",
        "gymnasium",
        "keras",
        "lightning",
        "mlflow",
        "tensorboardX",
        "trl",
        "xgboost",
    ):
        pytest.importorskip(package)
    return Outcome(tmp_path_factory.mktemp("scripts"))


def series(run, name):
    rows = [record for record in hl.read(run.directory) if isinstance(record, Metrics) and name in record.values]
    return [record.values[name] for record in sorted(rows, key=lambda record: record.step)]


def test_there_are_twenty_scripts_with_at_most_three_changed_lines_attached():
    assert [script.stem for script in SCRIPTS] == sorted(ATTACHED)
    assert len(SCRIPTS) == 20
    for replacements in ATTACHED.values():
        changed = [line for old, new in replacements for line in new.split("\n") if line not in old]
        assert len(changed) <= 3


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(ATTACHED))
def test_results_of_an_attached_script_are_bit_equal(name, outcome):
    assert outcome.attached[name] == outcome.plain[name]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", scripts(ATTACHED))
def test_results_of_a_script_under_exec_are_bit_equal(name, outcome):
    assert outcome.executed(name) == outcome.plain[name]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(SERIES))
def test_rows_of_an_attached_script_are_complete(name, outcome):
    check_rows(outcome, "attached_in", name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", scripts(SERIES))
def test_rows_of_a_script_under_exec_are_complete(name, outcome):
    check_rows(outcome, "exec", name)


def check_rows(outcome, kind, name):
    metric, part = SERIES[name]
    recorded = series(outcome.run(kind, name), metric)

    if isinstance(part, int):
        assert len(recorded) == part
    else:
        assert recorded == pytest.approx(outcome.plain[name][part], rel=1e-6)  # TensorBoard writes 32 bits


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", scripts(["embeddings", "reinforce"]))
def test_script_that_only_prints_has_a_run_with_its_console(name, outcome):
    run = outcome.run("exec", name)

    lines = [row.text for row in read_console(run.directory)]
    assert sum("loss" in line for line in lines) == len(outcome.plain[name]) - 1
    assert run.facts["exit"] == {"exit_code": 0}

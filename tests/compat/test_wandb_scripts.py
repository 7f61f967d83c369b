"""Scripts in the shape of well-known public ones, with the drop-in in wandb's place: all rows are recorded, no result
changes.
"""

import json
import os
from pathlib import Path

import pytest

import hookline.compat.wandb as wandb

SCRIPTS = Path(__file__).with_name("scripts")
NAMES = ("gpt_train", "ppo", "sweep")
RUN_ALL = """
import json, runpy, sys, os
from contextlib import redirect_stdout
from io import StringIO
import wandb
results = {"package": wandb.__name__}
for path in sys.argv[2:]:
    printed = StringIO()
    with redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    wandb.finish()
    results[path] = printed.getvalue().splitlines()[-1]
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
"""


def run_scripts(programs, folder, **variables):
    paths = [str(SCRIPTS / f"{name}.py") for name in NAMES]
    environment = {**wandb.child_environment(), "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", **variables}
    return programs.start("-c", RUN_ALL, "results.json", *paths, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def outcomes(torch_programs, tmp_path_factory):
    """What the scripts printed, recorded and with nothing recorded, and the API of the records."""
    pytest.importorskip("gymnasium")
    folders = {mode: tmp_path_factory.mktemp(mode) for mode in ("online", "disabled")}
    processes = {mode: run_scripts(torch_programs, folder, WANDB_MODE=mode) for mode, folder in folders.items()}
    for process in processes.values():
        output, _ = process.communicate(120)
        assert process.returncode == 0, output
    results = {mode: json.loads((folder / "results.json").read_text()) for mode, folder in folders.items()}
    return results, wandb.Api(overrides={"root": folders["online"] / "runs"})


def test_scripts_run_with_the_drop_in_and_compute_the_same(outcomes):
    results, _ = outcomes
    assert results["online"] == results["disabled"]
    assert results["online"]["package"] == "hookline.compat.wandb"


def test_gpt_loop_records_each_evaluation(outcomes):
    [run] = outcomes[1].runs("owt")
    rows = list(run.scan_history(keys=["iter", "train/loss", "val/loss", "lr", "mfu"]))
    assert ([row["iter"] for row in rows], run.name, run.state) == ([0, 4, 8, 12], "gpt-mini", "finished")
    assert (run.config["block_size"], run.config["wandb_project"]) == (8, "owt")


def test_ppo_records_losses_at_the_global_step(outcomes):
    [run] = outcomes[1].runs("cleanRL")
    losses = list(run.scan_history(keys=["losses/value_loss", "losses/policy_loss", "charts/SPS", "_step"]))
    assert [row["_step"] for row in losses] == [64, 128, 192, 256]
    assert len(list(run.scan_history(keys=["charts/episodic_return"]))) > 3
    assert (run.config["env_id"], run.name.startswith("CartPole-v1__ppo__1__")) == ("CartPole-v1", True)


def test_sweep_records_a_run_for_each_set_of_settings(outcomes):
    [sweep] = outcomes[1].project("my-first-sweep").sweeps()
    runs = sweep.runs
    assert ([run.state for run in runs], sweep.name) == (["finished"] * 3, "sweep")
    assert [len(list(run.scan_history())) for run in runs] == [run.config["epochs"] - 1 for run in runs]
    assert sweep.best_run().summary["val_acc"] == max(run.summary["val_acc"] for run in runs)


def test_scripts_import_nothing_of_hookline():
    assert [name for name in NAMES if "hookline" in (SCRIPTS / f"{name}.py").read_text()] == []
    assert os.environ.get("HOOKLINE_AS_WANDB") is None

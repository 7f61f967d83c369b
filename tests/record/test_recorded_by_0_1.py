"""Runs that version 0.1 recorded: read, verified and resumed as what they are.

``samples/recorded-0.1`` was recorded by it: a bare loop that failed after a checkpoint at step 4, and a `Trainer` that
was stopped after the row of step 5, with a checkpoint at step 4.
"""

import json
import shutil
from pathlib import Path

import pytest

import hookline as hl
from hookline.cli.app import app
from hookline.loops.trainer_config import CheckpointRules

SAMPLES = Path(__file__).parent / "samples" / "recorded-0.1"
LOSSES = {"bare": [1.0, 0.5, 1 / 3, 0.25], "trained": [2.6128625869750977, 0.48246949911117554]}


@pytest.fixture
def root(tmp_path):
    return shutil.copytree(SAMPLES, tmp_path / "runs")


def directory_of(root, name):
    found = {json.loads(path.read_text())["name"]: path.parent for path in root.glob("default/*/run.json")}
    return found[name]


def losses(directory):
    return [record.values["loss"] for record in hl.read(directory) if getattr(record, "axis", "") == "train"]


@pytest.mark.parametrize("name", LOSSES)
def test_run_of_0_1_is_read_as_it_was_recorded(root, name, caplog):
    found = losses(directory_of(root, name))
    assert (found[: len(LOSSES[name])], len(found), caplog.messages) == (LOSSES[name], 7 if name == "bare" else 5, [])


def test_runs_of_0_1_are_verified_without_checksums(root):
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["runs", "verify", "--root", str(root), "--json"])
    verdicts = json.loads(result.stdout)
    assert (result.exit_code, [run["ok"] for run in verdicts]) == (0, [True, True])
    assert [run["findings"] for run in verdicts] == [[], []]


def test_bare_run_of_0_1_is_resumed_with_its_sink(root):
    files = {"save": lambda path: None, "load": lambda path: None}
    with hl.run("bare", root=root, sinks=["csv"], resume="auto", summary=False, **files) as run:
        assert run.step == 4
        for _ in run.steps(10):
            run.log(loss=1 / (run.step + 1))
    rows = (run.dir / "metrics.csv").read_text().splitlines()[1:]
    assert run.dir == directory_of(root, "bare")
    assert losses(run.dir) == [1 / step for step in range(1, 11)]
    assert [int(row.split(",")[0]) for row in rows] == [*range(1, 11)]


def test_training_of_0_1_is_resumed_exactly(root):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    model = torch.nn.ModuleDict({"linear": torch.nn.Linear(4, 1)})
    data = list(torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(1)))
    before = losses(directory_of(root, "trained"))
    rules = CheckpointRules(every_n_steps=2, save_top_k=-1)
    config = hl.TrainerConfig(epochs=1, output_dir=str(root), summary=False, name="trained", checkpoint=rules)
    trainer = hl.Trainer(
        model, data, config=config, training_step=lambda model, batch: {"loss": model["linear"](batch).square().mean()}
    )
    trainer.resume("last")
    after = losses(directory_of(root, "trained"))
    assert (len(after), after[:5]) == (6, pytest.approx(before, rel=1e-6))

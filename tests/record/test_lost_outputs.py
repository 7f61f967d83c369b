"""Files of sinks that are deleted, cut or replaced: they are delivered again, and have every row once."""

import csv
import json
import logging
import os
import re
import shutil

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner
from waiting import wait_until

import hookline as hl
from hookline._record.delivery_manager import sync
from hookline.cli.app import app


def csv_steps(path):
    with path.open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def json_steps(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["step"] for row in rows if row.get("kind", "metrics") == "metrics" and "loss" in str(row)]


def log_steps(path):
    return [int(found[1]) for found in re.finditer(r" metrics .*?step=(\d+)", path.read_text())]


def event_steps(path):
    found = EventAccumulator(str(path.parent), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in found.Scalars("loss")]


def event_file(run):
    return run / "tensorboard" / f"events.out.tfevents.hookline.{run.name}"


OUTPUTS = {
    "csv": ("csv", lambda run: run / "metrics.csv", csv_steps),
    "jsonl": ("jsonl", lambda run: run / "records.jsonl", json_steps),
    "file": ("file", lambda run: run / "run.log", log_steps),
    "tensorboard": ("tensorboard", event_file, event_steps),
    "status": (
        {"status": {"path": "status.jsonl", "metrics": "all"}},
        lambda run: run.parents[2] / "status.jsonl",
        lambda path: [row["step"] for row in map(json.loads, path.read_text().splitlines()) if "loss" in str(row)],
    ),
    "csv elsewhere": ({"csv": {"path": "out.csv"}}, lambda run: run.parents[2] / "out.csv", csv_steps),
}


def cut(path):
    os.truncate(path, path.stat().st_size // 3)


def replace(path):
    (path.parent / "another").write_bytes(b"x" * 2 * path.stat().st_size)
    (path.parent / "another").replace(path)


DAMAGES = {"delete": lambda path: path.unlink(), "cut": cut, "replace": replace}
CASES = {f"{output}-{name}": (output, damage) for output in OUTPUTS for name, damage in DAMAGES.items()}
CASES["tensorboard-remove the folder"] = ("tensorboard", lambda path: shutil.rmtree(path.parent))
over_all = pytest.mark.parametrize(("output", "damage"), CASES.values(), ids=CASES)


def train(sink, steps, then=lambda run: None, **options):
    checkpoints = {
        "save": lambda path: path.mkdir(exist_ok=True),
        "load": lambda path: None,
        "callbacks": ["checkpoint"],
    }
    with hl.run("training", sinks=[sink], summary=False, **checkpoints, **options) as run:
        for step in run.steps(steps):
            run.log(loss=float(step))
            if step == 29:
                then(run)
    return run.dir


def verified(run_dir):
    result = CliRunner().invoke(app, ["runs", "verify", str(run_dir), "--json"])
    (document,) = json.loads(result.stdout)
    return result.exit_code, [finding["what"] for finding in document["findings"]]


@over_all
def test_output_damaged_while_running_has_every_row_once(output, damage):
    sink, path_of, steps_of = OUTPUTS[output]

    def then(run):
        wait_until(lambda: run.sinks()[0].delivered > 20 and path_of(run.dir).exists())
        damage(path_of(run.dir))

    run_dir = train(sink, 60, then)
    assert steps_of(path_of(run_dir)) == list(range(1, 61))
    assert verified(run_dir) == (0, [])


@over_all
def test_output_damaged_after_its_run_is_reported_and_synced(output, damage):
    sink, path_of, steps_of = OUTPUTS[output]
    run_dir = train(sink, 60)
    damage(path_of(run_dir))
    status, (what,) = verified(run_dir)
    assert (status, what.split(":")[0]) == (1, f"{output.split()[0]} has lost records")
    result = CliRunner().invoke(app, ["runs", "sync", "--json"])
    (synced,) = json.loads(result.stdout)["runs"]
    assert [(sink["status"], sink["sent_again_bytes"] > 0) for sink in synced["sinks"]] == [("ok", True)]
    assert steps_of(path_of(run_dir)) == list(range(1, 61))
    assert verified(run_dir) == (0, [])


@over_all
def test_output_damaged_before_a_resume_has_every_row_once(output, damage):
    sink, path_of, steps_of = OUTPUTS[output]
    run_dir = train(sink, 60, lambda run: run.request_stop("later"))
    damage(path_of(run_dir))
    assert train(sink, 60, resume="auto") == run_dir
    assert steps_of(path_of(run_dir)) == list(range(1, 61))


def test_output_in_a_copy_of_a_run_is_left_alone(tmp_path):
    run_dir = train("csv", 60)
    copied = shutil.copytree(tmp_path / "runs", tmp_path / "copy") / run_dir.relative_to(tmp_path / "runs")
    before = (copied / "metrics.csv").stat().st_ino
    assert (verified(copied), sync(copied, seconds=10)[0].sent_again_bytes) == ((0, []), 0)
    assert (copied / "metrics.csv").stat().st_ino == before


def test_output_with_rows_of_others_keeps_them_when_it_is_cut(tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("step,loss\r\n-1,0.5\r\n-2,0.5\r\n")

    def then(run):
        wait_until(lambda: run.sinks()[0].delivered > 20)
        os.truncate(out, 200)

    train({"csv": {"path": "out.csv"}}, 60, then)
    assert csv_steps(out) == [-1, -2, *range(1, 61)]


def test_output_that_was_replaced_is_kept_beside_the_new_one(tmp_path):
    run_dir = train("jsonl", 10)
    replace(run_dir / "records.jsonl")
    sync(run_dir, seconds=10)
    assert (run_dir / "records.jsonl.damaged").read_bytes()[:3] == b"xxx"


def test_output_that_is_lost_is_reported_once_with_the_reason(caplog):
    run_dir = train("csv", 10)
    (run_dir / "metrics.csv").unlink()
    sync(run_dir, seconds=10)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [
        f"csv has lost records: {run_dir / 'metrics.csv'} is gone. They are delivered again from the journal."
    ]

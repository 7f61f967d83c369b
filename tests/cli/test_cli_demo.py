"""``hookline demo``: what it says, writes and refuses; and ``--quick``, a bare loop without torch."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hookline as hl
import hookline.store
from hookline.cli import app
from hookline.cli.demo.quick import train

SUBSCRIBERS = ["broken_pager", "early_stopping", "overfitting", "progress_bar", "weight_norm"]
TINY = ("--processes", 1, "--repeats", 1, "--sft-steps", 3, "--grpo-steps", 4)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The directory of two demos, one after the other: what the first printed, and the document of the second."""
    directory = tmp_path_factory.mktemp("twice")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("COLUMNS", "200")
        first, second = (CliRunner().invoke(app, ["demo", *map(str, TINY), *more]) for more in ((), ("--json",)))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    return directory, first.stdout, json.loads(second.stdout)


def test_demo_completed_says_what_came_of_it_and_where_it_lies(twice):
    directory, shown, _ = twice
    assert "demo-1: 2 arms, 4 runs, stage grpo" in shown
    assert re.search(r"\w+ minus \w+, repeat by repeat: .*95% bootstrap interval [+-]\d", shown)
    assert re.search(r"exact  reward [▁-█]{4}  \d.\d\d to \d.\d\d    right [▁-█]{4}  \d.\d\d to \d.\d\d", shown)
    assert re.search(r"close  \d.\d\d after sft, \d.\d\d after grpo", shown)
    costs = re.findall(r"^ *(\w+) +[\d,]+ +[\d.]+ (?:s|ms|µs|ns) ", shown, flags=re.MULTILINE)
    assert {"gradient_monitor", "near_misses", "throughput_monitor"} <= set(costs)
    assert "http://127.0.0.1:8765/#/experiment?experiment=demo-1" in shown
    assert "hookline ui --root runs" in shown
    assert (directory / "runs/demo-1/report.html").is_file()


def test_demo_after_a_complete_one_is_a_new_one_and_json_is_one_document(twice):
    directory, _, document = twice
    assert Path(document["output_dir"]) == directory / "runs/demo-2"
    assert {arm["arm"]: len(arm["right"]) for arm in document["curves"]} == {"exact": 4, "close": 4}
    assert (document["status"], document["metric"], document["gap"]["tasks"]) == ("completed", "sums/accuracy", 200)


def test_demo_record_has_both_stages_of_both_arms_with_rollouts_and_predictions(twice):
    runs = hookline.store.runs(twice[0] / "runs").filter(project="demo-2")
    assert sorted((info.arm, info.stage, info.step) for info in runs) == [
        (arm, stage, steps) for arm in ("close", "exact") for stage, steps in (("grpo", 4), ("sft", 3))
    ]
    samples = runs.filter(arm="exact", stage="grpo").sql("SELECT axis, rewards FROM samples WHERE prompt LIKE '%+%='")
    assert {(row["axis"], *sorted(row["rewards"])) for row in samples} == {
        ("rollout", "close", "correct"),
        ("final", "accuracy"),
    }


@pytest.mark.parametrize("root", ["taken", "taken/below", "/proc/hookline"])
def test_demo_directory_that_cannot_be_written_is_one_line_and_status_2(cli, root):
    Path("taken").write_text("a file")
    result = cli("demo", *TINY, "--root", root)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"Error: \S+/demo-1 cannot be written: .*\. Give another --root\.\n", result.stderr)


def test_quick_demo_directory_that_cannot_be_written_asks_for_another_root(cli):
    result = cli("demo", "--quick", "--root", "/proc/hookline")
    assert result.exit_code == 2
    assert re.search(r"^Error: /proc/hookline cannot be written: .*\. Give another --root\.$", result.stderr, re.M)
    assert "None" not in result.stderr


def test_demo_without_torch_says_what_to_install_and_what_needs_none(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = cli("demo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'hookline[hf,experiment,ui]'" in result.stderr
    assert "hookline demo --quick" in result.stderr


def test_quick_demo_stopped_by_a_signal_ends_with_its_status(cli, monkeypatch):
    def terminated(callbacks, *, root):
        stop = hl.on("step_end", lambda loop, step_idx: os.kill(os.getpid(), signal.SIGTERM), every=5)
        return train([*callbacks, stop], root=root)

    monkeypatch.setattr("hookline.cli.demo.quick.train", terminated)
    result = cli("demo", "--quick")
    assert result.exit_code == 128 + signal.SIGTERM
    assert re.search(r"The run stopped at step 5 of \d+: SIGTERM", result.stdout)


def test_quick_demo_stops_early_disables_the_broken_observer_and_accounts_for_all(program):
    result = program("demo", "--quick")
    assert result.returncode == 0
    assert "bare-loop stopped (early stopping: val/loss has not improved" in result.stderr
    assert "broken_pager is DISABLED from here on: it failed 3 times in a row." in result.stderr
    assert "broken_pager (3 errors, DISABLED) did no harm" in result.stdout
    assert "Traceback" not in result.stderr
    assert {"overfitting/gap", "weight_norm/l2", "val/loss"} <= set(result.stderr.split())
    costs = re.findall(r"^ *(\w+) +[\d,]+ +[\d.]+ (?:s|ms|µs|ns) ", result.stderr, flags=re.MULTILINE)
    assert sorted(costs) == SUBSCRIBERS


def test_quick_demo_with_json_prints_one_document_and_nothing_else(program):
    result = program("demo", "--quick", "--json")
    document = json.loads(result.stdout)
    facts = (result.returncode, document["state"], document["stop_reason"].partition(":")[0])
    assert facts == (0, "stopped", "early stopping")
    assert Path(document["directory"]).is_dir()
    assert sorted(cost["name"] for cost in document["costs"]) == SUBSCRIBERS
    assert document["metrics"]["val/loss"] > 0


def test_bare_loop_few_epochs_ends_with_all_steps_done(tmp_path):
    run = train(root=tmp_path, epochs=15)
    assert (run.state, run.step, run.num_steps, run.stop_reason) == ("completed", 120, 120, None)
    assert run.dir.parent == tmp_path / "demo-quick"

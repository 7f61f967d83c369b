"""``hookline run``: experiments and single trainings from a file, as users start them."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from hookline.cli import app

ARMS = '''
import os, signal, threading
from pathlib import Path


def train(ctx, run):
    """Logs a loss; where a strike is set, sends a signal to a process, once."""
    for step in run.steps(4):
        run.log(loss=run.config["lr"] / (step + 1) + run.config["seed"])
        if ctx.run_key == run.config["strike"] and step == 2 and not Path("struck").exists():
            Path("struck").touch()
            strike(run)
    if run.config["fails"]:
        raise ValueError("as the test wants it")
    print(f"printed by {ctx.run_key}")
    return {"score": run.config["lr"] + run.config["seed"]}


def strike(run):
    whom = os.getppid() if run.config["parent"] else os.getpid()
    os.kill(whom, getattr(signal, run.config["signal"]))
    while run.config["parent"] and not run.stop_requested:
        threading.Event().wait(0.01)
'''
EXPERIMENT = """
repeats: 2
base:
  function: "my_arms:train"
  config: {lr: 1.0, fails: false, strike: null, signal: SIGINT, parent: false}
arms: {low: {lr: 0.1}, high: {lr: 2.0}}
"""
SFT = """
model: {tiny: {hidden_size: 16, layers: 1}}
data: {train: [{prompt: "1+1=", completion: "2"}]}
train: {name: sums, max_steps: 2, device: cpu}
save_model: false
"""
RL = """
model: {tiny: {hidden_size: 16, layers: 1}}
curriculum: {lessons: [{id: sort, environment: {sorting: {length: 2}}}], eval_frequency: 0, micro_eval_frequency: 0}
rollout: {prompts: 2, group_size: 2, max_tokens: 3}
train: {name: sorts, max_steps: 1, device: cpu}
"""
TIMES = re.compile(r"begun [^;]+|\d+(\.\d+)? (ms|s)\b")


def write_files(directory):
    (directory / "my_arms.py").write_text(ARMS)
    for name, text in {"exp": EXPERIMENT, "sft": SFT, "rl": RL}.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


@pytest.fixture
def files(tmp_path):
    """The files of an experiment, in the directory that programs run in."""
    yield write_files(tmp_path)
    for module in ("my_arms", "my_calls"):
        sys.modules.pop(module, None)


def contents(directory):
    return {
        path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


def report(directory):
    """The report, but for how long things took."""
    return TIMES.sub("T", (directory / "report.md").read_text())


def test_run_prints_the_table_and_where_the_report_lies(files, cli):
    done = cli("run", "exp.yaml", "--no-progress")
    rows = [line.split()[:4] for line in done.stdout.splitlines() if line.strip().startswith(("low", "high"))]
    assert (done.exit_code, [row[0] for row in rows]) == (0, ["low", "high"])
    assert "Report: runs/exp/report.md" in done.stdout
    assert (files / "runs" / "exp" / "report.md").is_file()
    assert "started" not in done.stderr


def test_run_tells_of_runs_on_standard_error_unless_it_is_asked_not_to(files, cli):
    done = cli("run", "exp.yaml", "repeats=1")
    reported = [line.partition(" (")[0] for line in done.stderr.splitlines()]
    assert reported[:5] == ["exp: 2 runs", "started low-r0", "completed low-r0", "started high-r0", "completed high-r0"]


def test_run_again_makes_nothing_that_is_complete(files, cli):
    cli("run", "exp.yaml", "--no-progress")
    again = cli("run", "exp.yaml")
    assert again.exit_code == 0
    assert again.stderr.splitlines()[0] == "exp: 4 runs, 4 complete already"
    assert "started" not in again.stderr


def test_run_with_overrides_and_options_does_as_they_say(files, cli):
    done = cli("run", "exp.yaml", "repeats=1", "arms.low.lr=0.3", "--output-dir", "elsewhere", "--json")
    document = json.loads(done.stdout)
    scores = {arm["name"]: [run["metrics"]["score"] for run in arm["runs"]] for arm in document["arms"]}
    assert (scores, document["output_dir"]) == ({"low": [0.3], "high": [2.0]}, str(files / "elsewhere"))


def test_run_with_a_run_that_fails_makes_the_others_and_exits_with_one(files, cli):
    done = cli("run", "exp.yaml", "arms.low.fails=true", "repeats=1", "--no-progress")
    assert done.exit_code == 1
    assert "failed: low-r0: ValueError: as the test wants it" in done.stdout
    assert (files / "runs" / "exp" / "high-r0" / "result.json").is_file()


def test_run_with_a_benchmark_that_fails_says_which_and_exits_with_one(files, cli):
    done = cli("run", "exp.yaml", "benchmarks=[{arithmetic: {}}]", "repeats=1", "--no-progress")
    assert done.exit_code == 1
    assert re.search("no result: low-r0, benchmark arithmetic: .*Nothing answers it", done.stdout)
    assert json.loads((files / "runs" / "exp" / "low-r0" / "result.json").read_text())["status"] == "incomplete"


def test_run_as_json_in_processes_prints_one_document_and_nothing_else(files, program):
    done = program("run", "exp.yaml", "repeats=1", "--json", "--processes", "2")
    document = json.loads(done.stdout)
    assert (done.returncode, [arm["name"] for arm in document["arms"]]) == (0, ["low", "high"])
    assert "printed by low-r0" in done.stderr
    assert "\x1b" not in done.stderr


def test_dry_run_shows_runs_and_listeners_and_changes_nothing(files, cli):
    cli("run", "exp.yaml", "repeats=1", "arms.high.fails=true", "--no-progress")
    before = contents(files)
    done = cli("run", "exp.yaml", "arms.high.fails=true", "callbacks=[{early_stopping: {}}]", "--dry-run")
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" *\w+-r\d", line)]
    assert rows == [
        ["low-r0", "low", "0", "0", "complete"],
        ["low-r1", "low", "1", "1", "new"],
        ["high-r0", "high", "0", "0", "failed"],
        ["high-r1", "high", "1", "1", "new"],
    ]
    listening = [line.split()[:3] for line in done.stdout.splitlines() if line.strip().startswith("on_")]
    assert listening[:2] == [["on_train_start", "1", "early_stopping"], ["on_log", "1", "early_stopping"]]
    assert contents(files) == before


def test_dry_run_as_json_has_stages_and_moments_in_the_order_in_which_they_fire(files, cli):
    (files / "my_calls.py").write_text(
        "import hookline as hl\n\n\nclass Mine(hl.Callback):\n"
        + "".join(f"    def {name}(self, *a): ...\n" for name in ("on_run_end", "on_step_end", "on_run_start"))
    )
    stages, callbacks = "stages=[a, {name: b, lr: 3.0}]", "callbacks=[{use: 'my_calls:Mine'}]"
    done = cli("run", "exp.yaml", "repeats=1", stages, callbacks, "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert document["runs"][1] == {
        "run": "low-r0-s1",
        "arm": "low",
        "repeat": 0,
        "stage": "b",
        "seed": 0,
        "starts_from": "low-r0-s0",
        "on_disk": "new",
    }
    (listeners,) = document["listeners"]
    assert (listeners["arms"], listeners["stages"], list(listeners["moments"])) == (
        ["low", "high"],
        {"low": ["a", "b"], "high": ["a", "b"]},
        ["on_run_start", "on_step_end", "on_run_end"],
    )
    assert not (files / "runs").exists()


def staged(directory):
    """A file with two stages: two of its arms learn from rewards in the second, one with callbacks of its own."""
    plain = yaml.safe_load(RL)
    monitored = {**plain, "train": {**plain["train"], "callbacks": ["gradient_monitor"]}}
    (directory / "staged.yaml").write_text(
        f"""
base:
  sft: {json.dumps(yaml.safe_load(SFT))}
  stages: {{grpo: {{rl: {json.dumps(plain)}}}}}
arms:
  plain:
  monitored: {{stages: {{grpo: {{rl: {json.dumps(monitored)}}}}}}}
  shown: {{stages: {{grpo: null}}}}
stages: [sft, grpo]
"""
    )


def test_dry_run_shows_who_listens_in_the_stages_that_differ(files, cli):
    staged(files)
    stopping = "base.sft.train.callbacks=[early_stopping]"
    done = cli("run", "staged.yaml", stopping, "--dry-run")
    said = [line.strip() for line in done.stdout.splitlines() if line.startswith(("Arms", "There are no"))]
    assert said == [
        "Arms: plain (sft), monitored (sft), shown",
        "Arms: plain (grpo)",
        "There are no subscribers.",
        "Arms: monitored (grpo)",
    ]
    document = json.loads(cli("run", "staged.yaml", stopping, "--dry-run", "--json").stdout)
    assert [(each["arms"], each["stages"]) for each in document["listeners"]] == [
        (["plain", "monitored", "shown"], {"plain": ["sft"], "monitored": ["sft"], "shown": ["sft", "grpo"]}),
        (["plain"], {"plain": ["grpo"]}),
        (["monitored"], {"monitored": ["grpo"]}),
    ]
    moments = ["on_train_start", "on_before_optimizer_step", "on_step_end"]
    assert list(document["listeners"][2]["moments"]) == moments


def test_dry_run_shows_callbacks_that_the_settings_of_a_stage_bring(files, cli):
    staged(files)
    stages = "stages=[sft, {name: grpo, train.callbacks: [nan_guard]}]"
    done = cli("run", "staged.yaml", stages, "--dry-run")
    assert [line for line in done.stdout.splitlines() if line.startswith("Arms")] == [
        "Arms: plain (sft), monitored (sft), shown (sft)",
        "Arms: plain (grpo), monitored (grpo), shown (grpo)",
    ]


def test_run_of_a_file_that_is_not_there_and_has_no_others_beside_it_says_where_it_looked(cli):
    result = cli("run", "nope.yaml")
    said = f"Error: nope.yaml: there is no such configuration file. {Path.cwd()} has none.\n"
    assert (result.exit_code, result.stderr) == (2, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ex.yaml"], "ex.yaml: there is no such configuration file. Did you mean 'exp.yaml'?"),
        (["no.yaml"], "no.yaml: there is no such configuration file."),
        (["exp.yaml", "repeat=2"], "command line: repeat: unknown key. Did you mean 'repeats'?"),
        (["exp.yaml", "oops"], "command line: 'oops' is not an override: give train.epochs=3 or --train.epochs 3."),
        (
            ["exp.yaml", "--executor", "locl"],
            "command line: executor: there is no such executor. Did you mean 'local'?",
        ),
        (
            ["exp.yaml", "--executor", "ray", "--processes", "2"],
            "--processes 2 is for experiments with the local executor, not for runs on Ray.",
        ),
        (
            ["sft.yaml", "--processes", "2"],
            "--processes 2 is for experiments with the local executor, not for a single training.",
        ),
        (["sft.yaml", "train.max_stepps=2"], "command line: train.max_stepps: unknown key. Did you mean 'max_steps'?"),
        (
            ["odd.yaml"],
            "odd.yaml: nothing to run was recognized in its keys: x. An experiment has arms, base or grid; a config",
        ),
    ],
)
def test_run_of_what_is_wrong_says_so_and_exits_with_two(files, cli, arguments, said):
    (files / "odd.yaml").write_text("x: 1\n")
    done = cli("run", *arguments)
    assert done.exit_code == 2
    assert done.stderr.removeprefix("Error: ").splitlines()[0].startswith(said)
    assert not (files / "runs").exists()


def test_run_in_the_directory_of_another_experiment_exits_with_two(files, cli):
    cli("run", "exp.yaml", "repeats=1", "--no-progress")
    done = cli("run", "exp.yaml", "arms.low.lr=7")
    assert done.exit_code == 2
    assert "has runs of 'exp' with other settings: arm 'low': config.lr was 0.1, now it is 7." in done.stderr


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_run_of_a_single_training_trains_and_prints_its_result_as_json(files, cli, kind):
    torch.set_num_threads(1)
    done = cli("run", f"{kind}.yaml", "--json", "--output-dir", "there")
    document = json.loads(done.stdout)
    name, steps = {"sft": ("sums", 2), "rl": ("sorts", 1)}[kind]
    assert (done.exit_code, document["name"], document["step"], document["stop_reason"]) == (0, name, steps, None)
    assert Path(document["output_dir"]).is_relative_to(files / "there")


def test_dry_run_of_a_single_training_shows_who_listens(files, cli):
    done = cli("run", "sft.yaml", "--dry-run", "train.callbacks=[early_stopping]")
    assert (done.exit_code, (files / "runs").exists()) == (0, False)
    assert [line.split() for line in done.stdout.splitlines() if line.startswith(("kind", "max_steps"))] == [
        ["kind", "sft"],
        ["max_steps", "2"],
    ]
    assert "early_stopping" in done.stdout


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The directory of an experiment that nothing happened to."""
    place = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(write_files(place))
        patch.setattr(sys, "path", [*sys.path])
        done = CliRunner().invoke(app, ["run", "exp.yaml", "--no-progress"])
    sys.modules.pop("my_arms", None)
    assert done.exit_code == 0, done.output
    return place / "runs" / "exp"


STRIKES = {
    "interrupted": (["base.config.signal=SIGINT"], 130),
    "killed": (["base.config.signal=SIGKILL"], -9),
    "killed with processes": (["base.config.signal=SIGKILL", "base.config.parent=true", "--processes", "2"], -9),
}


@pytest.mark.parametrize("how", STRIKES)
def test_run_that_was_ended_continues_with_the_same_command_and_gives_the_same_report(files, program, undisturbed, how):
    arguments, code = STRIKES[how]
    command = ["run", "exp.yaml", "base.config.strike=low-r1", *arguments]
    ended, again = program(*command), program(*command)
    assert (ended.returncode, again.returncode) == (code, 0), ended.stderr + again.stderr
    assert (files / "struck").exists()
    assert "started low-r1" in again.stderr
    if code > 0:
        assert f"Stopped by {signal.Signals(code - 128).name}. Complete runs are kept. Resume with" in ended.stderr
    if "--processes" not in arguments:
        assert "started low-r0" not in again.stderr
    assert report(files / "runs" / "exp") == report(undisturbed)
    assert (files / "runs" / "exp" / "curves.png").read_bytes() == (undisturbed / "curves.png").read_bytes()

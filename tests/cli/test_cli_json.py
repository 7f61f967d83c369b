"""``--json``: every command has it, and prints what ``docs/json.md`` says."""

import contextlib
import functools
import json
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
from typer.testing import CliRunner

import hookline as hl
from hookline._record.console import ConsoleWriter
from hookline.cli import app
from hookline.cli.demo import quick
from hookline.store.alert_book import AlertBook, RaisedAlert

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))
import json_reference  # noqa: E402
import json_schemas as schemas  # noqa: E402

TRAIN = "def train(ctx, run):\n    for _ in run.steps(2):\n        run.log(loss=1.0)\n    return {'score': 1.0}\n"
FILES = {
    "callbacks.yaml": "callbacks: [nan_guard]\n",
    "trained.py": TRAIN,
    "experiment.yaml": "base: {function: 'trained:train', config: {x: 1}}\noutput_dir: experiments/e\n",
    "search.yaml": "base: {function: 'trained:train', config: {x: 1}}\noutput_dir: experiments/s\n"
    "search: {parameters: {x: [1, 2]}, metric: score, trials: 2, pruner: none}\n",
    "sft.yaml": "model: {tiny: {hidden_size: 16}}\ndata: {train: [{prompt: '1+1=', completion: '2'}]}\n"
    "train: {max_steps: 1, output_dir: trained, callbacks: []}\n",
    "alerts.yaml": "callbacks: [{alert: {above: 5}}]\nsilence_seconds: 60\n",
}
CASES: list[tuple[str, Any]] = [
    ("alerts list", schemas.AlertList),
    ("alerts ack a1", schemas.Acknowledged),
    ("alerts mute --rule loss", schemas.Mutes),
    ("alerts test alerts.yaml", schemas.TestedAlerts),
    ("artifacts list", schemas.ArtifactList),
    ("artifacts show model", schemas.ShownArtifact),
    ("artifacts get model copied", schemas.CopiedArtifact),
    ("artifacts verify", list[schemas.VerifiedArtifact]),
    ("artifacts tag model best", schemas.ArtifactFolder),
    ("artifacts delete model:v0 --yes", schemas.DeletedArtifact),
    ("artifacts gc", schemas.RemovedFiles),
    ("bench dispatch --quick", schemas.Benchmarks),
    ("control r0", schemas.ControlState),
    ("demo --quick", schemas.QuickDemo),
    ("hooks check callbacks.yaml", schemas.CheckedFile),
    ("hooks list", list[schemas.Callback]),
    ("hooks new my-hook", schemas.NewPackage),
    ("hooks plan callbacks.yaml", schemas.CallbackPlan),
    ("hooks show nan_guard", schemas.ShownCallback),
    ("replay r0 --callbacks callbacks.yaml", schemas.ReplayedRun),
    ("run experiment.yaml --dry-run", schemas.PlannedExperiment),
    ("run experiment.yaml --no-progress", schemas.Experiment),
    ("run search.yaml --dry-run", schemas.PlannedExperiment),
    ("run search.yaml --no-progress", schemas.Experiment),
    ("run sft.yaml --dry-run", schemas.PlannedTraining),
    ("run sft.yaml", schemas.Training),
    ("runs list", schemas.RunList),
    ("runs show r0", schemas.ShownRun),
    ("runs compare r0 r1", schemas.RunComparison),
    ("runs importance loss", schemas.SettingImportance),
    ("runs media r0", schemas.Media),
    ("runs media r0 --export files", schemas.Media),
    ("runs code r0", schemas.Code),
    ("runs export r0 -o r0.csv", schemas.Exported),
    ("runs export r0 -o whole --what all", schemas.Exported),
    ("runs compress r1", schemas.Compressed),
    ("runs edit r2 --tag x", schemas.Edited),
    ("runs delete r3 --yes", schemas.Deleted),
    ("runs verify r0", list[schemas.VerifiedRun]),
    ("runs sync", schemas.Synced),
    ("runs sync r0", schemas.SyncedRun),
    ("runs import whole --root imported", list[schemas.ImportedRun]),
    ("samples export r0 -o samples.jsonl", schemas.ExportedSamples),
    ("sql 'SELECT 1 AS x'", list[dict[str, Any]]),
    ("sql --schema", dict[str, dict[str, str]]),
    ("tokens create viewer --role read", schemas.Token),
    ("tokens list", schemas.TokenList),
    ("tokens rotate TOKEN", schemas.Token),
    ("tokens revoke TOKEN", schemas.RevokedToken),
    ("tokens audit", schemas.AuditEntries),
]
LINES = [("runs tail r0", schemas.RecordLine), ("runs log r0", schemas.LogLine)]
IN_A_PROCESS = {"serve": schemas.Served}


def commands(command, path=()):
    for name, sub in command.commands.items():
        if hasattr(sub, "commands"):
            yield from commands(sub, (*path, name))
        else:
            yield " ".join((*path, name)), any("--json" in param.opts for param in sub.params)


def name_of(line):
    """The command of a line: the longest that it begins with."""
    return max((name for name in schemas.SCHEMAS if line.startswith(name)), key=len)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    home = tmp_path_factory.mktemp("json")
    for name, text in FILES.items():
        (home / name).write_text(text)
    (home / "model.bin").write_text("weights")
    with contextlib.chdir(home):
        for number in range(12):
            with hl.run(f"r{number}", config={"lr": number / 10}, summary=False) as run:
                for _ in run.steps(3):
                    run.log(loss=1.0 + number)
                if number == 0:
                    run.log(note=hl.Text("text"))
                    run.log_samples([{"prompt": "1+1", "completion": "2", "total": 1.0}])
                    run.save_artifact("model", "model.bin")
            if number == 0:
                console = ConsoleWriter(run.dir)
                console.line("printed", "stdout", 1.0)
                console.close()
        AlertBook(Path("runs")).add([RaisedAlert("a1", "default/r0", "loss", "too high", 1.0)], [])
    return home


def invoke(workspace, line):
    with contextlib.chdir(workspace):
        if "TOKEN" in line:
            listed = json.loads(CliRunner().invoke(app, ["tokens", "list", "--json"]).stdout)
            line = line.replace("TOKEN", listed["tokens"][0]["id"])
        return CliRunner().invoke(app, [*shlex.split(line), "--json"])


def test_every_command_has_json_with_a_schema_or_a_reason():
    known = dict(commands(typer.main.get_command(app)))
    assert {name for name, has_json in known.items() if has_json} == set(schemas.SCHEMAS)
    assert {name for name, has_json in known.items() if not has_json} == set(schemas.WITHOUT)


def test_every_schema_is_checked_by_a_case():
    checked = {name_of(line) for line, _ in (*CASES, *LINES)} | set(IN_A_PROCESS)
    assert checked == set(schemas.SCHEMAS)
    for line, kind in (*CASES, *LINES):
        assert kind in json_reference.alternatives(schemas.SCHEMAS[name_of(line)])


@pytest.mark.parametrize(("line", "kind"), CASES, ids=[line for line, _ in CASES])
def test_command_prints_its_documented_json(workspace, line, kind, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(quick, "train", functools.partial(quick.train, epochs=15))  # the demo
    done = invoke(workspace, line)
    assert (done.exit_code, done.exception) == (0, None), done.output
    msgspec.json.decode(done.stdout, type=kind)


@pytest.mark.parametrize(("line", "kind"), LINES, ids=[line for line, _ in LINES])
def test_command_prints_a_documented_object_on_each_line(workspace, line, kind):
    lines = invoke(workspace, line).stdout.splitlines()
    assert lines
    for each in lines:
        msgspec.json.decode(each, type=kind)


def test_server_prints_its_documented_json(tmp_path):
    command = [Path(sysconfig.get_path("scripts")) / "hookline", "serve", tmp_path / "runs", "--port", "0", "--json"]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            msgspec.json.decode(server.stdout.readline(), type=schemas.Served)
        finally:
            server.terminate()


@pytest.mark.parametrize(
    "line", ["runs show nothing", "sql 'SELECT'", "hooks new 1", "alerts ack nothing", "alerts mute"]
)
def test_wrong_input_is_a_documented_error(workspace, line):
    done = invoke(workspace, line)
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"] == msgspec.json.decode(done.stdout, type=schemas.Error).error


def test_json_page_is_what_the_schemas_say():
    assert json_reference.PAGE.read_text() == json_reference.page(), "run: python scripts/json_reference.py"

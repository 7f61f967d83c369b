"""Settings by environment: one implementation for every way of starting a run, and one table of all variables."""

import ast
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hookline as hl
from hookline._record import run_directory
from hookline.cli import app

SOURCE = Path(hl.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "recording.md"
VARIABLE = re.compile(r"_?HOOKLINE_[A-Z_]*[A-Z]_?")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def metadata(run):
    return run_directory.read_metadata(run.dir)


def bare_run(**options):
    with hl.run(summary=False, console=False, **options) as run:
        run.log(loss=1.0)
    return run


def trained():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
    config = hl.TrainerConfig(max_steps=1, summary=False, console=False)
    trainer = hl.Trainer(torch.nn.Linear(3, 1), data, config=config, loss=torch.nn.functional.mse_loss)
    trainer.fit()
    return trainer


def written():
    from hookline.compat.tensorboard import SummaryWriter

    with SummaryWriter("logs", console=False) as writer:
        writer.add_scalar("loss", 1.0, 0)
    return writer.run


def hosted():
    from hookline.integrations.xgboost import HooklineCallback

    xgboost = pytest.importorskip("xgboost")
    hooks = HooklineCallback(summary=False, console=False)
    xgboost.train({}, xgboost.DMatrix([[1.0], [2.0]], [1.0, 2.0]), 1, callbacks=[hooks])
    return hooks.loop


@pytest.mark.parametrize("start", [bare_run, trained, written, hosted])
def test_settings_come_from_the_environment_where_the_program_gives_none(start, monkeypatch, tmp_path):
    values = {"ROOT": "there", "PROJECT": "digits", "NAME": "night", "TAGS": "a, b", "SINKS": "csv"}
    if start is written:  # a writer names its run after its directory
        values["NAME"] = ""
    for name, value in values.items():
        monkeypatch.setenv(f"HOOKLINE_{name}", value)

    run = start()

    assert run.dir.parent == tmp_path / "there" / "digits"
    assert (metadata(run)["name"], metadata(run)["tags"]) == (values["NAME"] or "logs", ["a", "b"])
    assert (run.dir / "metrics.csv").exists()


def test_arguments_win_over_the_environment(monkeypatch, tmp_path):
    for name, value in {"ROOT": "there", "PROJECT": "digits", "NAME": "night", "TAGS": "a", "SINKS": "csv"}.items():
        monkeypatch.setenv(f"HOOKLINE_{name}", value)

    run = bare_run(root="runs", project="default", name="run", tags=["mine"], sinks=["jsonl"])

    assert run.dir.parent == tmp_path / "runs" / "default"
    assert (metadata(run)["name"], metadata(run)["tags"]) == ("run", ["mine"])
    assert [state.name for state in run.sinks()] == ["jsonl"]


def test_root_of_the_environment_is_also_where_runs_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("HOOKLINE_ROOT", "there")
    (tmp_path / "weights").write_text("1")
    with hl.run(summary=False, console=False) as run:
        run.log(loss=1.0)
        run.save_artifact("model", tmp_path / "weights", kind="model")
    listed = CliRunner().invoke(app, ["runs", "list", "--json"])
    assert [info["id"] for info in json.loads(listed.stdout)["runs"]] == [f"default/{run.dir.name}"]
    assert [info.name for info in hl.runs()] == ["run"]
    assert len(hl.replay(f"default/{run.dir.name}", [hl.callbacks.Timer()]).subscribers) == 1
    assert hl.control("latest").run_dir == run.dir.resolve()
    assert hl.artifact("model").version == "v0"


def test_drop_in_of_wandb_takes_the_settings_of_the_environment(monkeypatch, tmp_path):
    import hookline.compat.wandb as wandb

    monkeypatch.delenv("WANDB_PROJECT", raising=False)  # an agent of another test may have set it
    for name, value in {"ROOT": "there", "PROJECT": "digits", "NAME": "night", "TAGS": "a"}.items():
        monkeypatch.setenv(f"HOOKLINE_{name}", value)
    wandb.configure(root=None)

    with wandb.init(settings=wandb.Settings(silent=True, console="off")) as run:
        run.log({"loss": 1.0})

    assert run.directory.parent == tmp_path / "there" / "digits"
    found = run_directory.read_metadata(run.directory)
    assert (found["name"], found["tags"]) == ("night", ["a"])


def test_callbacks_of_the_environment_come_in_addition(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import hookline as hl\n\n"
        "class Doubled(hl.Callback):\n"
        "    def on_step_end(self, loop, step_idx, batch, metrics):\n"
        "        return {'twice': 2 * metrics['loss']}\n\n"
        "class Seen(Doubled):\n    pass\n\n"
        "callbacks = [Doubled]\n"
    )
    (tmp_path / "others.yaml").write_text("callbacks: [timer]\n")
    monkeypatch.setenv("HOOKLINE_CALLBACKS", "mine.py, mine.py:Seen, others.yaml, throughput_monitor")

    with hl.run(callbacks=["print_progress"], summary=False, console=False) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)

    assert run.metrics["doubled/twice"] == run.metrics["seen/twice"] == 2.0
    names = [name for order in run.callbacks.plan().values() for name in order]
    assert {"print_progress", "timer", "throughput_monitor"} <= {part for name in names for part in name.split("/")}


def test_mode_disabled_records_nothing(monkeypatch, tmp_path):
    import hookline.compat.wandb as wandb

    monkeypatch.setenv("HOOKLINE_MODE", "disabled")

    assert bare_run(root="runs", sinks=["csv"], resume="auto").dir is None
    with wandb.init(settings=wandb.Settings(silent=True)) as run:
        run.log({"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_mode_offline_leaves_sinks_that_use_the_network_to_sync(monkeypatch):
    monkeypatch.setenv("HOOKLINE_MODE", "offline")
    monkeypatch.setenv("HOOKLINE_TOKEN", "secret")
    monkeypatch.setenv("HOOKLINE_SINKS", '[csv, {hookline: {url: "http://127.0.0.1:9"}}]')

    run = bare_run()

    states = {state.name: (state.status, state.delivered > 0) for state in run.sinks()}
    assert states == {"csv": ("ok", True), "hookline": ("lagging", False)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MODE", "disable", "HOOKLINE_MODE='disable': online, offline, disabled are accepted. Did you mean"),
        ("SINKS", "cvs", "HOOKLINE_SINKS='cvs': .*Did you mean 'csv'"),
        ("SINKS", "[{csv: ", "HOOKLINE_SINKS=.*not a YAML list"),
        ("SINKS", "[3]", "HOOKLINE_SINKS: 3 is not a sink"),
        ("CALLBACKS", "timr", "HOOKLINE_CALLBACKS='timr': .*timer"),
        ("CALLBACKS", "gone.py", "gone.py: there is no such file"),
        ("TAGS", "x" * 2000, "is not a tag"),
    ],
)
def test_variable_with_a_wrong_value_is_an_error(name, value, message, monkeypatch, tmp_path):
    monkeypatch.setenv(f"HOOKLINE_{name}", value)

    with pytest.raises(hl.OptionError, match=message):
        bare_run()
    assert not (tmp_path / "runs").exists()


def test_callbacks_file_without_the_name_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("other = []\n")
    monkeypatch.setenv("HOOKLINE_CALLBACKS", "mine.py")

    with pytest.raises(hl.OptionError, match=r"mine.py has no 'callbacks'"):
        bare_run()


def test_table_lists_the_variables_in_the_code():
    section = PAGE.read_text().partition("## Settings by environment")[2].partition("\n## ")[0]
    documented = {
        name for line in section.splitlines() if line.startswith("|") for name in VARIABLE.findall(line.split("|")[1])
    }
    used = {
        name
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in VARIABLE.findall(node.value)
        if not name.startswith("_")
    }
    assert documented == used

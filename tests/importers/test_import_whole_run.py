"""A run that ``hookline runs export --what all`` wrote, imported elsewhere."""

import json
import math
import time
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

import hookline as hl
from hookline._record.console import ConsoleWriter
from hookline._record.console_reader import STREAMS, read_console
from hookline._record.environment import read_environments
from hookline._record.run_directory import update
from hookline.cli import app
from hookline.importers import import_runs

pytest.importorskip("duckdb")

OWN = {"id", "directory", "facts", "records"}
"""What an imported run has of its own: its directory, and where it came from in its facts."""
MEMBERSHIP = {"name": "sweep", "id": "e1", "group": "low", "group_id": "g1", "arm": "low", "repeat": 2} | {
    "stage": "first",
    "seed": 17,
    "run_key": "low-r2",
    "position": 1,
}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path):
    """A run of another host, with something of everything."""
    (tmp_path / "weights.bin").write_bytes(b"abc")
    config = {"lr": 0.1, "layers": [{"size": 3}], "api_key": "sk-abcdefghijklmnopqrstuv"}
    with hl.run("base", project="p", root="here", config=config, tags=["a"], notes="why", summary=False) as made:
        for step in made.steps(2):
            made.log(loss=1 / (step + 1))
        origin = {
            "rollout": "0-1",
            "parent": "0-0",
            "prompt_length": 3,
            "last_version": 4,
            "timings": {"generate": 0.5},
        }
        made.log_samples([{"prompt": "1+1", "completion": "2", "rewards": {"exact": 1.0}, **origin}])
        made.recorder.sample_use(["0-1", "0-2"], 2, "stale")
        made.recorder.rewards("exact", [1.0, math.nan], ["s1", "s2"], step=2)
        made.recorder.line("INFO", "own", "a line", step=1)
        made.summary["best"] = math.inf
        made.save_artifact("model", "weights.bin", kind="model", metadata={"loss": 0.5}, aliases=["best"])
    console = ConsoleWriter(made.dir)
    console.line("printed", "stdout", time.time(), step=2)
    console.log("WARNING", "own", "warned", time.time())
    console.close()
    for name, value in {"host": "far", "experiment": MEMBERSHIP, "command": ["train.py", "--lr", "0.1"]}.items():
        update(made.dir, name, value)
    return made


def hookline(*arguments):
    result = CliRunner().invoke(app, ["runs", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def export(run, place="out"):
    hookline("export", run.dir, "--what", "all", "-o", place)
    return place


def described(root):
    (info,) = hl.runs(root)
    return {name: value for name, value in asdict(info).items() if name not in OWN}


def records(directory):
    return sorted(repr(record) for record in hl.read(directory))


def test_whole_run_is_the_same_where_it_is_imported(run):
    (made,) = import_runs(export(run), root="there")
    assert described("there") == described("here")
    assert records(made.directory) == records(run.dir)
    assert list(read_console(made.directory, streams=STREAMS)) == list(read_console(run.dir, streams=STREAMS)) != []
    assert read_environments(made.directory) == read_environments(run.dir) != []
    assert (made.name, made.skipped_count, made.directory.parent.name) == ("base", 0, "p")


def test_imported_facts_are_those_of_the_export_and_not_of_the_importer(run, monkeypatch):
    place = export(run)
    monkeypatch.setattr("sys.argv", ["importer"])
    (made,) = import_runs(place, root="there")
    before, after = (json.loads((each / "run.json").read_text()) for each in (run.dir, made.directory))
    assert {name for name in before if after.get(name) != before[name]} == {"id", "pid"}
    assert set(after) - set(before) == {"imported"}
    assert (after["config"]["api_key"], after["command"]) == ("[redacted]", ["train.py", "--lr", "0.1"])


def test_saved_artifact_is_imported_as_a_version_that_show_names(run):
    import_runs(export(run), root="there", project="q")
    here, there = hl.artifact("p/model:best", root="here"), hl.artifact("q/model:best", root="there")
    assert (there.digest, there.metadata, there.kind) == (here.digest, {"loss": 0.5}, "model")
    assert there.path().read_bytes() == b"abc"
    (shown,) = json.loads(hookline("show", "latest", "--root", "there", "--json"))["artifacts"]
    assert (shown["artifact"], shown["version"], shown["role"]) == ("q/model", "v0", "saved")


@pytest.mark.parametrize("harm", ["no line", "other content", "no file"])
def test_artifact_that_is_not_in_the_export_is_not_claimed(run, tmp_path, harm):
    place = tmp_path / export(run)
    (line,) = (place / "artifacts.jsonl").read_text().splitlines()
    blob = place / "blobs" / json.loads(line)["artifact"]["files"][0]["blob"]
    if harm == "no line":
        (place / "artifacts.jsonl").write_text("")
    elif harm == "no file":
        blob.unlink()
    else:
        blob.write_bytes(b"xyz")
    (made,) = import_runs(place, root="there")
    assert json.loads(hookline("show", "latest", "--root", "there", "--json"))["artifacts"] == []
    assert (made.skipped_count, (tmp_path / "there" / ".artifacts").exists()) == (int(harm != "no line"), False)


def test_import_numbers_a_version_after_those_in_the_root_and_leaves_their_aliases(run, tmp_path):
    (tmp_path / "other.bin").write_bytes(b"other")
    with hl.run("own", project="p", root="there", summary=False) as own:
        own.save_artifact("model", "other.bin", aliases=["best"])
    (made,) = import_runs(export(run), root="there")
    (event,) = [each for each in hl.read(made.directory) if getattr(each, "name", "") == "artifact_saved"]
    assert (event.data["version"], hl.artifact("p/model:best", root="there").version) == ("v1", "v0")
    assert hl.artifact("p/model:v1", root="there").path().read_bytes() == b"abc"


def test_options_of_the_import_win_over_the_facts(run):
    (made,) = import_runs(export(run), root="there", project="mine", name="again")
    (info,) = hl.runs("there")
    assert (info.project, info.name, info.facts["project"], made.name) == ("mine", "again", "mine", "again")
    assert (info.tags, info.seed, info.host) == (("a",), 17, "far")


def test_export_without_configuration_is_imported_without_one():
    with hl.run("plain", root="here", summary=False) as plain:
        plain.log(loss=1.0)
    import_runs(export(plain), root="there")
    assert described("there") == described("here")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("project", "../up", "imported"),
        ("project", ".blobs", "imported"),
        ("project", 7, "imported"),
        ("name", "x" * 5000, "p/"),
        ("tags", [["nested"]], ()),
        ("notes", ["x"], ""),
        ("summary", "x", {}),
        ("experiment", {"repeat": "two"}, None),
        ("started", 10**400, None),
        ("host", {"a": 1}, None),
    ],
)
def test_fact_that_is_not_valid_is_skipped_and_the_rest_is_imported(run, tmp_path, name, value, kept):
    place = tmp_path / export(run)
    line = json.loads((place / "facts.jsonl").read_text())
    (place / "facts.jsonl").write_text(json.dumps(line | {"facts": line["facts"] | {name: value}}) + "\n")
    (made,) = import_runs(place, root="there")
    (info,) = hl.runs("there")
    found = getattr(info, name)
    if name == "started":
        assert 0 < found < 1e11
    elif name == "name":
        assert found.startswith(kept)
    else:
        assert found == kept
    assert (made.skipped_count, info.config["lr"]) == (1, 0.1)


@pytest.mark.parametrize("name", ["config", "tags"])
def test_deeply_nested_fact_does_not_stop_the_import(run, tmp_path, name):
    place = tmp_path / export(run)
    line = (place / "facts.jsonl").read_text().rstrip()
    nested = "[" * 600 + "]" * 600
    (place / "facts.jsonl").write_text(f'{line[:-2]},"{name}":{nested}}}}}\n')
    (made,) = import_runs(place, root="there")
    (info,) = hl.runs("there")
    assert (info.name, info.tags, made.skipped_count) == (
        "base",
        ("a",) if name == "config" else (),
        int(name == "tags"),
    )


def test_unknown_facts_and_those_of_a_process_are_ignored(run, tmp_path):
    place = tmp_path / export(run)
    line = json.loads((place / "facts.jsonl").read_text())
    added = {"pid": 1, "id": "../x", "imported": {"fingerprint": "f"}, "__proto__": {}, "experiment": {"evil": 1}}
    (place / "facts.jsonl").write_text(json.dumps(line | {"facts": line["facts"] | added}) + "\n")
    (made,) = import_runs(place, root="there")
    facts = json.loads((made.directory / "run.json").read_text())
    assert (facts["id"], facts["experiment"], made.skipped_count) == (made.directory.name, {}, 0)
    assert not {"pid", "__proto__"} & facts.keys()
    assert facts["imported"]["path"] == str(place)


def test_export_redacts_facts_that_were_recorded_unchanged(tmp_path):
    secret = "sk-abcdefghijklmnopqrstuv"
    with hl.run("open", root="here", config={"api_key": secret}, redact=False, summary=False) as run:
        run.log(loss=1.0)
    assert secret in (run.dir / "run.json").read_text()
    place = tmp_path / export(run)
    assert secret not in (place / "facts.jsonl").read_text()


def test_second_import_names_the_directory_and_nothing_else(run):
    place = export(run)
    (made,) = import_runs(place, root="there")
    said = hookline("import", place, "--root", "there")
    assert said == f"{place}: already imported as {made.directory}; --again imports it once more.\n"

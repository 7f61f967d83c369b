"""``hookline runs show``: what is said about one run, and which one is meant."""

import json
import os

import pytest
from finished_runs import change_facts, journal_file, record

import hookline as hl
from hookline._engine.costs import Cost
from hookline.cli.runs.text import ASCII, BLOCKS, sparkline


def rich_run():
    """A run with something of everything."""
    config = {"train": {"lr": 0.1, "betas": [0.9, 0.99]}, "model": {"layers": [{"size": 4}]}}
    with hl.run("full", config=config, sinks=["csv"], summary=False) as run:
        for step in run.steps(100):
            run.log(loss=50.0 if step == 40 else 1.0 / (step + 1), accuracy=step / 100)
        run.save_checkpoint()
        run.recorder.metrics(Cost("pager", 7, 0.5, 0.1, 0.2, 0.3, errors=2).as_metrics(), 100)
        run.recorder.event("alert", step=41, severity="warning", message="loss is 50")
    return run.dir


def test_show_has_a_part_for_everything_that_was_recorded(cli):
    directory = rich_run()
    result = cli("runs", "show", "latest")
    parts = ["Configuration", "Curves", "Metrics", "Checkpoints", "Hooks", "Sinks", "Events"]
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if line in parts] == parts
    assert result.stdout.startswith("full  finished  step 100/100 in ")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for begin in (
        f"run default/{directory.name}",
        "├── train",
        "loss 0.01 100 0.01",
        "accuracy 0.99 100 0.99",
        "step-00000100",
        "pager 7 500.0 ms 100.0 ms 200.0 ms 300.0 ms 2",
        "csv ok 105 records",
    ):
        assert [line for line in lines if line.startswith(begin)], begin
    assert [line.partition("step 41 ")[2] for line in lines if "alert" in line] == [
        "alert severity=warning message=loss is 50"
    ]


def test_show_says_where_a_run_was_resumed(cli):
    for attempt in range(3):  # the first has no checkpoint
        with hl.run("job", resume="auto", summary=False) as run:
            for _ in run.steps(4):
                if attempt == 1:
                    run.request_checkpoint()
                if attempt < 2:
                    run.request_stop("preempted")
    events = cli("runs", "show", run.dir.name).stdout.partition("\nEvents")[2].splitlines()
    said = [line.split("  ")[2] for line in events if "began" in line or "resume" in line]
    assert said == ["began again at step 0", "resumed at step 1"]


class Broken(hl.Callback):
    def on_step_end(self, loop, step_idx, batch, metrics):
        raise ValueError("no room")


def test_show_has_costs_errors_and_the_order_of_a_run_of_seconds(cli):
    quiet = hl.on("step_end", lambda loop: None, name="quiet")
    both = hl.CallbackCollection(
        [hl.on(moment, lambda loop: None) for moment in ("train_start", "train_end")], name="g"
    )
    with hl.run("short", callbacks=[Broken(), quiet, both], summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
    result = cli("runs", "show", "latest")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert {("broken", "3"), ("quiet", "3")} <= {tuple(line.split()[:2]) for line in lines}
    assert "DISABLED broken at on_step_end, step 3: ValueError: no room" in lines
    assert "quiet on_step_end" in lines[lines.index("Order") :]
    assert not [line for line in lines if "hooks_cost" in line or "hooks_plan" in line]
    document = json.loads(cli("runs", "show", run.dir.name, "--json").stdout)
    costs = {hook["name"]: (hook["calls"], hook["errors"], hook["disabled"]) for hook in document["hooks"]}
    assert (costs["broken"], costs["quiet"]) == ((3, 3, True), (3, 0, False))
    assert document["order"][0]["moments"]["on_step_end"] == ["quiet"]
    assert document["hook_errors"][0]["error"] == "ValueError: no room"


def test_steps_beyond_the_planned_number_are_shown_without_it(cli):
    with hl.run("epochs", summary=False) as run:
        for _epoch in range(3):
            for _ in run.steps(8):
                run.log(loss=1.0)
    assert cli("runs", "show", "latest").stdout.startswith("epochs  finished  step 24 in ")
    document = json.loads(cli("runs", "show", "latest", "--json").stdout)
    assert (document["step"], document["num_steps"], "records" in document) == (24, None, False)


def test_show_draws_a_peak_of_one_step(cli):
    rich_run()
    curve = next(line for line in cli("runs", "show", "latest").stdout.splitlines() if line.startswith("  loss"))
    assert (curve.count("█"), "(0.01 to 50)" in curve) == (1, True)


def test_show_as_json_is_one_document_with_numbers(cli):
    directory = rich_run()
    document = json.loads(cli("runs", "show", directory.name, "--json").stdout)
    assert (document["id"], document["status"], document["step"]) == (f"default/{directory.name}", "finished", 100)
    results = {row["name"]: (row["last"], row["least"], row["largest"]) for row in document["results"]}
    assert results["loss"] == (0.01, 0.01, 50.0)
    assert document["config"]["train"] == {"lr": 0.1, "betas": [0.9, 0.99]}
    assert [(row["step"], row["damage"]) for row in document["checkpoints"]] == [(100, None)]
    assert [(hook["name"], hook["calls"], hook["errors"]) for hook in document["hooks"]] == [("pager", 7, 2)]
    assert [(sink["name"], sink["behind_bytes"]) for sink in document["sinks"]] == [("csv", 0)]
    assert [event["name"] for event in document["events"]] == ["running", "checkpoint", "alert", "finished"]


def test_show_of_a_failed_run_says_why_and_what_is_damaged(cli):
    directory = record(error="out of memory", config={"lr": 0.1})
    with journal_file(directory).open("ab") as file:
        file.write(b"no record\n")
    result = cli("runs", "show", directory)
    lines = result.stdout.splitlines()
    first_fact = next(place for place, line in enumerate(lines) if line.startswith("  run  "))
    assert [lines[first_fact - 1], lines[lines.index("Configuration") - 1]] == ["", ""]
    assert "RuntimeError: out of memory" in result.stdout
    assert "1 line is not a record" in result.stdout
    assert f"hookline runs verify {directory}" in result.stdout


@pytest.mark.parametrize("way", ["id", "name", "given name", "part", "directory", "relative", "latest"])
def test_show_finds_a_run_by(way, tmp_path, cli):
    record("other", project="elsewhere")
    directory = record("meant")
    ways = {"id": f"default/{directory.name}", "name": directory.name, "part": f"lt/{directory.name[:-2]}"}
    ways |= {"given name": "meant", "directory": directory, "relative": os.path.relpath(directory), "latest": "latest"}
    result = cli("runs", "show", ways[way])
    assert (result.exit_code, result.stdout.split()[0]) == (0, "meant"), result.stderr


def test_show_of_a_directory_below_another_root_needs_no_root(tmp_path, cli):
    directory = record(root=tmp_path / "kept")
    assert cli("runs", "show", directory).exit_code == 0


def test_show_of_a_part_that_several_have_names_them(cli):
    names = sorted(record().name for _ in range(2))
    result = cli("runs", "show", "default/")
    assert (result.exit_code, all(name in result.stderr for name in names)) == (2, True)
    assert "Give more of the id" in result.stderr


def test_show_of_an_unknown_run_names_the_closest(cli):
    directory = record()
    result = cli("runs", "show", f"{directory.name}0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Did you mean '{directory.name}'?" in result.stderr


def test_show_of_a_name_that_several_have_takes_none_and_lists_their_ids(cli):
    ids = [f"default/{record('twice').name}", f"other/{record('twice', project='other').name}"]
    result = cli("runs", "show", "twice")
    assert (result.exit_code, result.stdout, all(run in result.stderr for run in ids)) == (2, "", True)


def test_show_of_a_name_that_is_part_of_other_ids_is_the_run_of_that_name(cli):
    record("other")
    record("default")
    assert cli("runs", "show", "default").stdout.startswith("default  finished")


@pytest.mark.parametrize(("given", "meant"), [("lates", "latest"), ("warn", "warm")])
def test_show_of_a_misspelt_word_or_name_suggests_it(given, meant, cli):
    record("warm")
    assert f"Did you mean '{meant}'?" in cli("runs", "show", given).stderr


def test_show_where_nothing_was_recorded_says_how_to_begin(tmp_path, cli):
    result = cli("runs", "show", "latest")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"There are no runs yet: the directory {tmp_path / 'runs'} does not exist." in result.stderr


def test_show_of_hooks_at_80_columns_breaks_no_word(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with hl.run("costly", summary=False) as run:
        for name in ("progress_bar", "a_subscriber_with_a_name_that_is_long"):
            run.recorder.metrics(Cost(name, 1_234_567, 0.5, 0.1, 0.2, 0.3, errors=2).as_metrics(), 1)
    lines = cli("runs", "show", "latest").stdout.splitlines()
    rows = [line.split() for line in lines[lines.index("Hooks") :]]
    assert ["progress_bar", "1,234,567", "500.0", "ms"] in [row[:4] for row in rows]
    assert max(map(len, lines[lines.index("Hooks") :])) <= 80
    (header,) = [row for row in rows if row[:1] == ["hook"]]
    assert (header[:3], header[-1], "max" in header) == (["hook", "calls", "total"], "errors", False)


def test_show_of_the_latest_goes_by_the_start_and_not_by_the_name(cli):
    early, late = record("early"), record("late")
    change_facts(early, started=json.loads((late / "run.json").read_text())["started"] + 100)
    assert cli("runs", "show", "latest").stdout.startswith("early")


def test_show_where_blocks_cannot_be_encoded_draws_in_ascii(tmp_path, program, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rich_run()
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    result = program("runs", "show", "latest")
    curve = next(line for line in result.stdout.splitlines() if line.startswith("  loss"))
    assert (result.returncode, curve.count("@"), result.stdout.isascii()) == (0, 1, True)


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([1.0], "▅"), ([0.0, 7.0], "▁█"), ([-1e308, 1e308], "▅▅"), ([2, 1, 0], "█▅▁")]
)
def test_sparkline_of_values_has_a_character_each(values, drawn):
    assert sparkline(values, BLOCKS) == drawn
    assert len(sparkline(values, ASCII)) == len(values)


def test_show_list_and_compare_of_facts_of_unexpected_kinds_show_the_rest(cli):
    odd, other = record("odd"), record("other", config={"lr": 1})
    kinds = {"command": 5, "git": "x", "packages": [1], "config": ["text", {"a": {}}], "tags": {"a": 1}, "cwd": 9}
    change_facts(odd, **kinds, experiment=7, host=3, started="never", name=None)
    with journal_file(odd).open("ab") as file:
        file.write(b'{"kind":"event","name":"odd","data":{"a":{"b":[1,null]},"c":"NaN"},"time":9e99}\n')
    results = [cli("runs", "show", odd), cli("runs", "list"), cli("runs", "compare", odd, other)]
    assert [result.exit_code for result in results] == [0, 0, 0], results[0].exception
    assert "a={'b': [1, None]}  c=NaN" in results[0].stdout
    assert json.loads(cli("runs", "show", odd, "--json").stdout)["events"][-1]["data"] == {
        "a": {"b": [1, None]},
        "c": "NaN",
    }


def test_show_of_values_that_are_not_finite_says_so_and_draws_the_others(cli):
    nan = float("nan")
    record(losses=[1.0, nan, 3.0, float("inf")])
    shown = cli("runs", "show", "latest").stdout
    curve = next(line for line in shown.splitlines() if line.startswith("  loss"))
    assert ("▁█" in curve, "2 not finite" in curve, " inf " in shown) == (True, True, True)
    record(losses=[nan, nan])
    assert "NaN" in cli("runs", "show", "latest").stdout


def test_show_of_a_run_without_anything_has_no_empty_parts(cli):
    record(losses=[])
    shown = cli("runs", "show", "latest").stdout
    assert [part for part in ("Curves", "Metrics", "Checkpoints", "Hooks", "Sinks") if part in shown] == []

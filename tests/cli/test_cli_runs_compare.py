"""``hookline runs compare``: what differs between runs."""

import json
from pathlib import Path

from finished_runs import change_facts, record

import hookline as hl
from hookline import rl
from hookline._record import run_directory


def two_runs():
    first = record("low", losses=[3.0, 1.0, 2.0], config={"train": {"lr": 0.1, "steps": 3}, "seed": 1})
    second = record("high", losses=[3.0, 0.5], config={"train": {"lr": 0.2, "steps": 3}})
    return first, second


def cells(result, begin):
    return next(line.split() for line in result.stdout.splitlines() if line.split()[:1] == [begin])


def test_compare_shows_settings_that_differ_and_none_that_do_not(cli):
    first, second = two_runs()
    result = cli("runs", "compare", first.name, second.name)
    assert result.exit_code == 0
    assert cells(result, "train.lr") == ["train.lr", "0.1", "0.2"]
    assert cells(result, "seed") == ["seed", "1", "-"]
    assert "train.steps" not in result.stdout


def test_compare_of_trainings_names_the_settings_that_differ(cli):
    for name, beta in (("one", 0.0), ("two", 0.5)):
        config = {"model": {"tiny": {"hidden_size": 8, "layers": 1, "heads": 2}}, "grpo": {"beta": beta}}
        config |= {"curriculum": {"lessons": [{"id": "sort", "environment": "sorting"}]}}
        config |= {"rollout": {"prompts": 2, "group_size": 2, "max_tokens": 2}}
        config |= {"train": {"name": name, "max_steps": 1, "summary": False}}
        Path(f"{name}.json").write_text(json.dumps(config))
        rl.train(f"{name}.json")
    assert cells(cli("runs", "compare", "one", "two"), "grpo.beta") == ["grpo.beta", "0.0", "0.5"]
    document = json.loads(cli("runs", "compare", "one", "two", "--json").stdout)
    assert document["config"] == {"grpo.beta": [0.0, 0.5], "train.name": ["one", "two"]}


def test_compare_by_the_names_that_runs_were_given_finds_them(cli):
    two_runs()
    assert cells(cli("runs", "compare", "low", "high"), "name") == ["name", "low", "high"]


def test_compare_shows_last_and_best_with_the_difference_to_the_first(cli):
    first, second = two_runs()
    result = cli("runs", "compare", first, second)
    assert cells(result, "loss") == ["loss", "last", "2", "0.5", "(-1.5)"]
    assert cells(result, "best") == ["best", "1", "0.5", "(-0.5)"]
    assert cells(result, "steps") == ["steps", "3/3", "2/2"]


def test_compare_in_a_narrow_terminal_says_what_each_line_is_about(cli, monkeypatch):
    first, second = two_runs()
    monkeypatch.setenv("COLUMNS", "40")
    result = cli("runs", "compare", first, second)
    assert cells(result, "status") == ["status", "finished", "finished"]
    assert cells(result, "steps") == ["steps", "3/3", "2/2"]


def test_compare_as_json_has_all_numbers(cli):
    first, second = two_runs()
    document = json.loads(cli("runs", "compare", second, first, "--json").stdout)
    assert [run["id"] for run in document["runs"]] == [f"default/{second.name}", f"default/{first.name}"]
    assert document["config"] == {"train.lr": [0.2, 0.1], "seed": [None, 1]}
    (loss,) = document["metrics"]
    assert (loss["name"], loss["better"], loss["last"], loss["last_difference"]) == (
        "loss",
        "min",
        [0.5, 2.0],
        [0, 1.5],
    )
    assert (loss["best"], loss["best_difference"]) == ([0.5, 1.0], [0, 0.5])


def test_compare_shows_the_value_recorded_last_whatever_the_clock_says(cli):
    for name, clock in (("still", lambda: 5.0), ("back", iter(range(10, 0, -1)).__next__)):
        directory = run_directory.create("runs", "p", {"name": name, "project": "p"}, run_id=name)
        recorder = hl.Recorder(directory, clock=clock)
        for value in (3.0, 1.0, 2.0):
            recorder.log({"loss": value}, step=1)
        recorder.status("finished", step=1)
        recorder.close()
    (loss,) = json.loads(cli("runs", "compare", "still", "back", "--json").stdout)["metrics"]
    assert (loss["last"], loss["best"]) == ([2.0, 2.0], [1.0, 1.0])


def test_compare_three_runs_of_which_one_lacks_a_metric_leaves_its_cell_empty(cli):
    first, second = two_runs()
    with hl.run("else", summary=False) as run:
        for _ in run.steps(1):
            run.log(reward=1.0, spread=2.0)
    result = cli("runs", "compare", first, second, run.dir)
    assert cells(result, "reward") == ["reward", "last", "-", "-", "1"]
    assert cells(result, "spread") == ["spread", "last", "-", "-", "2"]


def test_compare_of_the_same_configuration_says_so(cli):
    one, other = (record(config={"lr": 1}) for _ in range(2))
    assert "The configuration is the same." in cli("runs", "compare", one, other).stdout


def test_compare_of_one_run_exits_with_two(cli):
    directory = record()
    for given in ([directory], [directory, directory.name]):
        result = cli("runs", "compare", *given)
        assert (result.exit_code, "give two or more runs, each once" in result.stderr) == (2, True)


def test_compare_on_a_terminal_colours_what_is_better_green_and_what_is_worse_red(cli, monkeypatch):
    first, second = two_runs()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32m (-1.5)" in cli("runs", "compare", first, second).stdout
    assert "\x1b[31m (+1.5)" in cli("runs", "compare", second, first).stdout


def test_compare_of_repeats_shows_the_mean_and_the_spread_of_each_arm(cli):
    for arm, losses in (("low", (1.0, 3.0)), ("high", (5.0, 6.0))):
        for repeat, loss in enumerate(losses):
            directory = record(f"{arm}-{repeat}", losses=[loss])
            change_facts(directory, experiment={"name": "sweep", "arm": arm, "repeat": repeat})
    result = cli("runs", "compare", "low-0", "low-1", "high-0", "high-1")
    words = result.stdout.split("mean over repeats")[1].split()
    assert words[:4] == ["low", "(2)", "high", "(2)"]
    assert "2 ± 1.4" in result.stdout
    assert "5.5 ± 0.71 (+3.5)" in result.stdout
    arms = json.loads(cli("runs", "compare", "low-0", "low-1", "--json").stdout)["arms"]
    assert arms == [{"name": "low", "runs": [0, 1]}]


def test_compare_with_all_lists_what_is_the_same(cli):
    first, second = two_runs()
    result = cli("runs", "compare", first, second, "--all")
    assert cells(result, "train.steps") == ["train.steps", "3", "3"]

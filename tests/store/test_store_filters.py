"""Which runs a filter finds, how they are sorted, and what it says about one that it cannot understand."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import append, ended, make_run, row
from typer.testing import CliRunner

import hookline as hl
from hookline.cli import app
from hookline.store.filters import FilterError, parse_filter


@pytest.fixture
def root(tmp_path):
    """Four runs: a and b are alike, c diverged, d failed without a metric."""
    runs = {
        "a": (
            {"lr": 1e-3, "optimizer": {"name": "adam"}, "seed": 1},
            [3.0, 1.0, 2.0],
            ["ablation", "good"],
            "finished",
        ),
        "b": ({"lr": 1e-5, "optimizer": {"name": "sgd"}, "amp": True}, [4.0, 0.5, 0.7], ["good"], "finished"),
        "c": ({"lr": 1e-1, "optimizer": {"name": "adam"}, "layers": [1, 2]}, [2.0, math.nan], [], "stopped"),
        "d": ({}, [], [], "failed"),
    }
    for number, (name, (config, losses, tags, status)) in enumerate(runs.items()):
        facts = {"config": config, "tags": tags, "started": 1000.0 * number, "summary": {"best": number}}
        directory = make_run(tmp_path, name, **facts)
        rows = [row(step, **{"val/loss": loss}, lr=9.0) for step, loss in enumerate(losses, start=1)]
        append(directory, *rows, ended(len(losses), status=status, time=1000.0 * number + 7200))
    return tmp_path


def found(root, where):
    return sorted(info.name for info in hl.runs(root, where=where))


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("lr > 1e-4", "ac"),
        ("lr = 0.001", "a"),
        ("config.lr <= 1e-3 and val/loss < 1.5", "b"),
        ("metric.lr = 9", "abc"),
        ("optimizer.name = adam", "ac"),
        ("optimizer.name != adam", "b"),
        ('config.optimizer.name = "sgd" or status = failed', "bd"),
        ("min(val/loss) < 1.5", "ab"),
        ("max(val/loss) >= 4", "b"),
        ("first(val/loss) = 2", "c"),
        ("mean(val/loss, 2) < 1", "b"),
        ("val/loss is nan", "c"),
        ("val/loss is missing", "d"),
        ("val/loss is not missing and not val/loss is nan", "ab"),
        ('tag = "ablation"', "a"),
        ("tag != ablation", "ab"),
        ("not tag = ablation", "bcd"),
        ("tag in (ablation, other)", "a"),
        ("name not in (a, b)", "cd"),
        ("name ~ '^[ab]$'", "ab"),
        ("name !~ '^[ab]$'", "cd"),
        ("message contains X or project contains P", "abcd"),
        ("amp = true", "b"),
        ("duration >= 2h", "abcd"),
        ("duration > 121m", ""),
        ("started >= 2000", "cd"),
        ("started < '1970-01-01T00:30:00+00:00'", "ab"),
        ("summary.best > 1", "cd"),
        ("best = 2", "c"),
        ("seed = 1", "a"),
        ("(lr > 1e-4 or status = failed) and not (tag = good)", "cd"),
        ("NOT status = failed AND step >= 3", "ab"),
        ("`val/loss` < 1", "b"),
        ('"ABLA"', "a"),
        ('not "abla" and (\'good\' or "failed")', "bd"),
        ("lr < abc", ""),
        ("lr != abc", "abc"),
    ],
)
def test_filter_finds_the_runs_that_match(root, where, names):
    assert "".join(found(root, where)) == names


@pytest.mark.parametrize(
    ("where", "position", "problem"),
    [
        (" ", 0, "The filter is empty"),
        ("median(loss) < 1", 0, "There is no function 'median'"),
        ("1 < lr", 0, "Put the name on the left"),
        ("duration > 2parsecs", 11, "'2parsecs' is neither a number nor a duration"),
        ("started > yesterday", 10, "give a date in quotes"),
        ("last_seen > 1h", 12, "give a date in quotes"),
        ("status = finshed", 9, "Did you mean 'finished'"),
        ("mean(val/loss, 1e999) > 1", 15, "how many of the last values"),
        ("name ~ 'a{99999999999999}'", 7, "not a regular expression"),
        ("lr >", 4, "Give a value"),
        ("lr 5", 3, "Give a comparison"),
        ("lr > 1 status = failed", 7, "Unexpected 'status'"),
        ("(lr > 1", 7, "Expected ')'"),
        ("lr > 1 and", 10, "Give the name"),
        ("lr ; 1", 3, "Unexpected character"),
        ("name ~ '['", 7, "not a regular expression"),
        ("lr is odd", 6, "nan or missing"),
        ("mean(val/loss, 0) > 1", 15, "how many of the last values"),
        ("vall/loss < 1", 0, "Did you mean 'val/loss'"),
        ("lr > 1 and config.lrr = 1", 11, "Did you mean 'config.lr'"),
        ("(" * 200 + "lr > 1" + ")" * 200, 100, "nested too deeply"),
        ("x" * 10_001, 0, "10,001 characters"),
    ],
)
def test_filter_that_cannot_be_understood_names_the_place(root, where, position, problem):
    with pytest.raises(FilterError, match=problem.replace("(", r"\(").replace(")", r"\)")) as caught:
        hl.runs(root, where=where)
    assert caught.value.position == position


WORDS = ["lr", ">", "1", "and", "(", ")", "in", "'a'", "is"]


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_filter_of_any_text_is_parsed_or_refused(text):
    position = 0
    try:
        parse_filter(text)
    except FilterError as error:
        position = error.position
    assert 0 <= position <= len(text)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("min(val/loss)", "bacd"),
        ("-min(val/loss)", "cabd"),
        ("lr", "bacd"),
        ("-lr", "cabd"),
        ("-started", "dcba"),
        ("name", "abcd"),
        ("-optimizer.name", "bcad"),
    ],
)
def test_sorting_puts_runs_without_a_value_last(root, by, names):
    assert "".join(info.name for info in hl.runs(root).sort(by)) == names


@pytest.mark.parametrize("by", ["val/loss", "-val/loss"])
def test_sorting_puts_nan_last_in_both_directions(root, by):
    shown = [info.name for info in hl.runs(root, where="val/loss is not missing").sort(by)]
    assert shown == (["a", "b", "c"] if by.startswith("-") else ["b", "a", "c"])


def test_sorted_and_filtered_runs_stay_so_after_a_refresh(root):
    chosen = hl.runs(root, where="val/loss is not missing", sort="-lr")
    append(make_run(root, "e", config={"lr": 5.0}), row(1, **{"val/loss": 1.0}), ended(1))
    assert [info.name for info in chosen.refresh()] == ["e", "c", "a", "b"]


def test_values_are_a_table_of_chosen_fields(root):
    table = hl.runs(root).sort("name").values(["lr", "min(val/loss)", "tag"])
    assert table[0] == {"id": "p/a", "lr": 1e-3, "min(val/loss)": 1.0, "tag": "ablation"}
    assert table[3] == {"id": "p/d", "lr": None, "min(val/loss)": None, "tag": None}


def test_values_and_sorting_by_what_no_run_has_or_is_no_field_are_refused(root):
    found = hl.runs(root)
    with pytest.raises(FilterError, match="No run has 'nope'"):
        found.values(["nope"])
    with pytest.raises(hl.OptionError, match="give a list of fields"):
        found.values("lr")
    with pytest.raises(hl.OptionError, match="give one field"):
        found.sort(["lr"])
    with pytest.raises(FilterError, match="Give one field"):
        found.sort("lr desc")


def test_filter_of_no_runs_finds_none(tmp_path):
    assert len(hl.runs(tmp_path, where="anything > 1", sort="-other")) == 0


def test_runs_list_takes_a_filter_and_a_field_to_sort_by(root):
    call = ["runs", "list", "--root", str(root), "--where", "min(val/loss) < 1.5", "--sort", "-lr", "--json"]
    result = CliRunner().invoke(app, call)
    assert [run["name"] for run in json.loads(result.stdout)["runs"]] == ["a", "b"]


def test_runs_list_with_a_wrong_filter_shows_the_place(root):
    result = CliRunner().invoke(app, ["runs", "list", "--root", str(root), "--where", "lr > "])
    assert (result.exit_code, "lr >" in result.output, "^" in result.output) == (2, True, True)

"""The importance of settings: functions whose important settings are known, odd values, and too few runs."""

import math

import numpy as np
import pytest
from recorded_runs import append, ended, finished_run, make_run, row

import hookline as hl
from hookline.store.importance import MIN_RUNS, MOST_SETTINGS, field_text, rate, varying_settings

COUNT = 300


@pytest.fixture(scope="module")
def drawn():
    """Settings drawn at random, as a random search does."""
    random = np.random.default_rng(7)
    return {
        "a": random.random(COUNT).tolist(),
        "b": random.random(COUNT).tolist(),
        "lr": (10.0 ** random.uniform(-5, -1, COUNT)).tolist(),
        "kind": [str(each) for each in random.choice(["x", "y", "z"], COUNT)],
        "flag": [bool(each) for each in random.random(COUNT) < 0.5],
        "path": [f"out/{place}" for place in range(COUNT)],
    }


def shares(drawn, result, mode="min"):
    values = [float(result(*each)) for each in zip(*(drawn[name] for name in ("a", "b", "lr", "kind")), strict=True)]
    return {each.setting: each for each in rate(drawn, values, mode)}


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        pytest.param(lambda a, b, lr, kind: a + b / 1000, {"a": 1.0}, id="one"),
        pytest.param(lambda a, b, lr, kind: a + b, {"a": 0.5, "b": 0.5}, id="two alike"),
        pytest.param(lambda a, b, lr, kind: 3 * (kind == "y") + a / 1000 + b, {"b": 0.8, "kind": 0.2}, id="a category"),
        pytest.param(lambda a, b, lr, kind: (math.log10(lr) + 3) ** 2, {"lr": 1.0}, id="a scale with an optimum"),
        pytest.param(lambda a, b, lr, kind: np.exp(20 * a), {"a": 1.0}, id="an exponential result"),
    ],
)
def test_importance_of_a_known_function_is_that_of_its_terms(drawn, result, wanted):
    found = shares(drawn, result)
    for name, each in found.items():
        assert each.importance == pytest.approx(wanted.get(name, 0.0), abs=0.15), name
    assert all(found[name].p_value < 0.01 for name in wanted)
    assert sum(each.importance for each in found.values()) == pytest.approx(1.0)


def test_importance_is_the_same_on_every_monotonic_scale_and_in_both_directions(drawn):
    plain = shares(drawn, lambda a, b, lr, kind: a + b)
    turned = shares(
        {**drawn, "a": [math.exp(9 * each) for each in drawn["a"]]}, lambda a, b, lr, kind: -math.log(a) / 9 - b, "max"
    )
    for name in ("a", "b"):
        assert turned[name].importance == pytest.approx(plain[name].importance)
        assert (plain[name].correlation > 0.5, turned[name].correlation < -0.5) == (True, True)


def test_setting_with_a_value_of_its_own_in_each_run_or_without_effect_explains_nothing(drawn):
    found = shares(drawn, lambda a, b, lr, kind: a)
    assert (found["path"].explained, found["path"].p_value, found["path"].correlation) == (0.0, 1.0, None)
    assert found["flag"].explained < 0.02
    assert abs(found["flag"].correlation) < 0.2
    assert found["a"].explained > 0.5


def test_importance_for_noise_alone_is_not_significant():
    random = np.random.default_rng(3)
    p_values = [
        each.p_value
        for _ in range(20)
        for each in rate({name: random.random(40).tolist() for name in "abcde"}, random.random(40).tolist(), "min")
    ]
    assert sum(p_value <= 0.05 for p_value in p_values) <= 12  # 5 of 100 are expected


def test_missing_values_are_a_level_and_diverged_runs_are_the_worst():
    settings = {"momentum": [None] * 20 + [0.9] * 20, "lr": [0.1 * place for place in range(40)]}
    values = [1.0 + place % 7 for place in range(20)] + [math.nan, math.inf] * 10
    for mode in ("min", "max"):
        found = {each.setting: each for each in rate(settings, values, mode)}
        assert (found["momentum"].missing, found["momentum"].values) == (20, 1)
        assert found["momentum"].p_value < 0.01
        assert (found["lr"].correlation > 0) == (mode == "min")


def record(root, count, **more):
    for place in range(count):
        finished_run(root, f"r{place:02}", (9.0, place + 1.0), config={"lr": place / 10, "same": 1} | more)


def test_runs_rate_the_settings_that_differ_and_leave_out_runs_without_a_result(tmp_path):
    record(tmp_path, 20)
    finished_run(tmp_path, "diverged", (1.0, math.nan), config={"lr": 90.0})
    append(make_run(tmp_path, "failed", config={"lr": 0.0}), row(1, loss=0.1), ended(1, "failed"))
    make_run(tmp_path, "empty", config={"lr": 0.0})
    runs = hl.runs(tmp_path)
    found = runs.importance("loss")
    assert (found.mode, found.runs, found.best, found.diverged, found.left_out) == ("min", 21, 6, 1, 2)
    assert [each.setting for each in found] == ["lr", "same"]
    assert found[0].correlation == pytest.approx(1.0)
    assert "Only 21 runs" in found.note
    assert runs.importance("min(loss)", mode="max").mode == "max"


def test_too_few_runs_and_equal_ones_are_refused_with_a_reason(tmp_path):
    record(tmp_path, MIN_RUNS - 1)
    few = hl.runs(tmp_path).importance("loss")
    assert list(few) == []
    assert few.problem == "9 completed runs have a value of loss; at least 10 are needed to rate settings."
    record(tmp_path / "same", MIN_RUNS)
    alike = hl.runs(tmp_path / "same")
    assert alike.importance("first(loss)").problem == "All runs have the same value of first(loss)."
    with pytest.raises(hl.HooklineError, match="No run has 'los'"):
        alike.importance("los")
    with pytest.raises(hl.HooklineError, match="give 'min' or 'max'"):
        alike.importance("loss", mode="down")


def test_importance_is_shown_in_a_notebook_and_as_a_table(tmp_path):
    record(tmp_path, 12, **{"<b>": 1})
    finished_run(tmp_path, "other", (1.0,), config={"<b>": 2, "lr": 3.0})
    found = hl.runs(tmp_path).importance("loss")
    html = found._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert repr(found).splitlines()[1].startswith("  lr  ")
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["setting"]) == [row["setting"] for row in found.rows()]


@pytest.mark.parametrize(
    ("name", "text"),
    [("lr", "lr"), ("seed", "config.seed"), ("a b", "`a b`"), ("min", "min"), ("in", "`in`"), ("a`b", None)],
)
def test_setting_is_named_as_a_filter_has_to_write_it(name, text):
    assert field_text("config", name, ["seed"]) == text


def test_configuration_with_very_many_settings_leaves_the_common_ones(tmp_path):
    for place in range(MIN_RUNS):
        more = {f"own{n}": n for n in range(MOST_SETTINGS)} if place == 0 else {}
        finished_run(tmp_path, f"r{place}", config=more | {"lr": place})
    found = varying_settings(hl.runs(tmp_path))
    assert (len(found), "lr" in found) == (MOST_SETTINGS, True)

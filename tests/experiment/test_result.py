"""`ExperimentResult`: the table against NumPy, the choice of the metric, and the ways out: dict, frame, terminal."""

import html
import io
import json
import math
import pickle
import sys

import msgspec
import numpy as np
import pytest
from rich.console import Console

from hookline._engine import state
from hookline._engine.errors import MissingExtraError, UnknownNameError
from hookline._engine.state import ArmResult, EvalResult, RunResult
from hookline.experiment.results.result import ExperimentResult


def run_of(arm, repeat=0, status="completed", *, stage=None, benchmark=None, **options):
    evals = [EvalResult(name, metrics) for name, metrics in (benchmark or {}).items()]
    key = f"{arm}-r{repeat}" + (f"-s{stage}" if stage else "")
    return RunResult(key, status, evals=evals, repeat=repeat, stage=stage, seed=10 + repeat, **options)


def arm_of(name, values, metric="accuracy", **options):
    return ArmResult(name, {}, [run_of(name, i, metrics={metric: value}, **options) for i, value in enumerate(values)])


def result_of(**values):
    return ExperimentResult("test", [arm_of(name, given) for name, given in values.items()])


def printed(result, width=160, **options):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    result.print(console, **options)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_table_agrees_with_numpy():
    values = np.random.default_rng(0).normal(size=(3, 5))

    rows = result_of(a=values[0], b=values[1], c=values[2]).table()

    assert [row.arm for row in rows] == ["a", "b", "c"]
    np.testing.assert_allclose([row.mean for row in rows], values.mean(axis=1))
    np.testing.assert_allclose([row.std for row in rows], values.std(axis=1, ddof=1))
    assert [(row.n, row.best, row.worst) for row in rows] == [(5, max(v), min(v)) for v in values]


def test_table_of_equal_values_has_no_deviation_of_rounding():
    (row,) = result_of(a=[0.1] * 3).table()

    assert (row.mean, row.std) == (0.1, 0.0)


def test_result_survives_a_journey_to_another_process():
    result = result_of(a=[0.5, 0.6])

    assert pickle.loads(pickle.dumps(result)) == result


def test_table_of_a_loss_has_the_smallest_as_the_best():
    (row,) = ExperimentResult("test", [arm_of("a", [0.5, 0.2, 0.9], "loss")]).table()

    assert (row.best, row.worst) == (0.2, 0.9)


def test_table_with_a_mode_takes_that_for_better():
    (row,) = ExperimentResult("test", [arm_of("a", [0.5, 0.2], "speed")]).table(mode="max")

    assert row.best == 0.5


def test_table_of_a_single_repeat_has_no_deviation():
    (row,) = result_of(a=[0.5]).table()

    assert (row.mean, row.std, row.n) == (0.5, None, 1)


def test_table_counts_only_runs_that_completed():
    runs = [
        run_of("a", 0, metrics={"accuracy": 0.5}, seconds=2.0),
        run_of("a", 1, "failed", metrics={"accuracy": 0.9}, seconds=1.0),
        run_of("a", 2, "stopped", metrics={"accuracy": 0.9}, seconds=4.0),
    ]

    (row,) = ExperimentResult("test", [ArmResult("a", {}, runs)]).table()

    assert (row.mean, row.n, row.runs, row.failed, row.seconds) == (0.5, 1, 3, 1, 7.0)


def test_table_of_an_arm_that_failed_altogether_is_empty_there():
    broken = ArmResult("broken", {}, [run_of("broken", 0, "failed", error="Traceback\nValueError: no [good]")])
    result = ExperimentResult("test", [arm_of("a", [0.5]), broken])

    row = result.table()[1]

    assert (row.mean, row.std, row.n, row.best, row.failed) == (None, None, 0, None, 1)
    assert "—" in printed(result)
    assert "failed: broken-r0: ValueError: no [good]" in printed(result)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e308, 10**400])
def test_table_with_values_that_are_no_ordinary_numbers_shows_them(odd):
    result = result_of(a=[odd, 0.5, -1e308], b=[0.5, 0.6])

    rows = result.table()

    assert rows[0].n == 3
    assert printed(result)
    assert result.to_markdown()
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))


@pytest.mark.parametrize("values", [[math.nan, 0.9], [0.9, math.nan], [0.9, 0.9, math.nan]])
def test_table_with_nan_is_nan_and_ranks_last(values):
    result = result_of(a=values, b=[0.1, 0.2])

    assert math.isnan(result.table()[0].mean)
    assert result.table()[0].best == 0.9
    assert result.best_arms(2) == ["b", "a"]
    assert "nan" in result.to_markdown()


def test_table_of_values_that_numpy_made_takes_them_as_numbers():
    (row,) = result_of(a=[np.float32(0.5), np.int64(1)]).table()

    assert row.mean == 0.75


def test_table_with_stages_is_about_the_last_one():
    runs = [
        run_of("a", 0, stage="sft", metrics={"accuracy": 0.1}, seconds=1.0),
        run_of("a", 0, stage="grpo", metrics={"accuracy": 0.9}, seconds=2.0),
        run_of("a", 1, "failed", stage="sft"),
        run_of("a", 1, "skipped", stage="grpo"),
    ]
    result = ExperimentResult("test", [ArmResult("a", {}, runs)])

    (row,) = result.table()
    by_stage = [(row.stage, row.mean, row.n, row.runs, row.failed) for row in result.table(by_stage=True)]

    assert (row.stage, row.mean, row.n, row.runs, row.failed, row.seconds) == ("grpo", 0.9, 1, 2, 1, 3.0)
    assert by_stage == [("sft", 0.1, 1, 2, 1), ("grpo", 0.9, 1, 2, 0)]


def test_table_by_stage_without_stages_has_a_row_for_each_arm():
    result = result_of(a=[1, 2], b=[3])

    assert result.table(by_stage=True) == result.table()


def test_table_of_an_unknown_metric_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="metric='acuracy'.*Did you mean 'accuracy'"):
        result_of(a=[1]).table("acuracy")


def test_table_of_a_metric_where_nothing_completed_is_empty_rather_than_an_error():
    result = ExperimentResult("test", [ArmResult("a", {}, [run_of("a", 0, "failed")])])

    assert result.table("accuracy")[0].mean is None
    assert result.main_metric is None
    assert result.differences() == []
    assert "1 arm, 1 run" in printed(result)


def test_main_metric_is_the_first_of_the_first_benchmark():
    benchmark = {"sorting": {"exact": 0.5, "near": 0.7}, "adding": {"accuracy": 0.1}}
    metrics = {"val/accuracy": 0.1, "sorting/exact": 0.5, "sorting/near": 0.7, "adding/accuracy": 0.1}

    result = ExperimentResult("test", [ArmResult("a", {}, [run_of("a", benchmark=benchmark, metrics=metrics)])])

    assert result.main_metric == "sorting/exact"
    assert result.mode() == "max"
    assert result.metric_names() == list(metrics)


def test_benchmark_metrics_that_stand_in_evals_alone_are_found():
    arm = ArmResult("a", {}, [run_of("a", benchmark={"sorting": {"exact": 0.5}})])

    assert ExperimentResult("test", [arm]).table()[0].mean == 0.5


@pytest.mark.parametrize(
    ("metrics", "chosen"),
    [
        ({"loss": 1, "val/loss": 2, "val/accuracy": 3}, "val/accuracy"),
        ({"accuracy": 1, "val/tokens": 2, "val/loss": 3}, "val/loss"),
        ({"lr": 1, "loss": 2, "reward": 3}, "reward"),
        ({"lr": 1, "loss": 2}, "loss"),
        ({"hooks/a/mean": 1, "lr": 1, "tokens": 2}, "lr"),
        ({"note": "text"}, None),
        ({}, None),
    ],
)
def test_main_metric_without_benchmarks_is_the_likeliest(metrics, chosen):
    result = ExperimentResult("test", [ArmResult("a", {}, [run_of("a", metrics=metrics)])])

    assert result.main_metric == chosen


def test_main_metric_is_one_that_all_arms_have():
    arms = [
        ArmResult("a", {}, [run_of("a", metrics={"accuracy": 1, "loss": 2})]),
        ArmResult("b", {}, [run_of("b", metrics={"loss": 2})]),
        ArmResult("c", {}, [run_of("c", status="failed")]),
    ]

    assert ExperimentResult("test", arms).main_metric == "loss"


def test_result_is_the_plain_one_with_methods():
    assert isinstance(result_of(a=[1]), state.ExperimentResult)
    assert ExperimentResult("empty").table() == []
    assert printed(ExperimentResult("empty")).startswith("empty: 0 arms, 0 runs")


def test_to_pandas_has_a_row_for_each_run():
    pandas = pytest.importorskip("pandas")
    arms = [
        ArmResult("a", {}, [run_of("a", 0, metrics={"accuracy": 0.5, "seconds": 9}, seconds=2.0)]),
        ArmResult("b", {}, [run_of("b", 0, "failed", stage="sft")]),
    ]

    frame = ExperimentResult("test", arms).to_pandas()

    assert list(frame.columns) == [
        *("arm", "run", "repeat", "stage", "seed", "status", "seconds"),
        *("accuracy", "metrics/seconds"),
    ]
    assert frame["arm"].tolist() == ["a", "b"]
    assert frame.loc[0, ["run", "seconds", "accuracy", "metrics/seconds"]].tolist() == ["a-r0", 2.0, 0.5, 9]
    assert pandas.isna(frame.loc[1, "accuracy"])


def test_to_pandas_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[experiment\]'"):
        result_of(a=[1]).to_pandas()


def test_to_dict_survives_json_with_everything_in_it():
    benchmark = {"sorting": {"exact": 0.5}}
    run = run_of("a", 0, benchmark=benchmark, metrics={"x": math.nan}, error="boom", failed_evals={"other": "why"})
    result = ExperimentResult("test", [ArmResult("a", {"lr": 0.1, "make": dict}, [run, run_of("a", 1, "failed")])])

    back = msgspec.json.decode(msgspec.json.encode(result.to_dict()))

    assert (back["metric"], back["mode"], back["table"][0]["mean"]) == ("sorting/exact", "max", 0.5)
    assert back["arms"][0]["config"] == {"lr": 0.1, "make": "builtins:dict"}
    first, second = back["arms"][0]["runs"]
    assert (first["metrics"]["x"], first["failed_evals"], first["seed"]) == ("NaN", {"other": "why"}, 10)
    assert first["evals"][0]["metrics"] == {"exact": 0.5}
    assert second["status"] == "failed"


def test_print_shows_means_and_how_far_from_the_best():
    text = printed(result_of(low=[0.1, 0.2, 0.15], high=[0.8, 0.9, 0.85]))

    low = next(line for line in text.splitlines() if line.strip().startswith("low"))
    high = next(line for line in text.splitlines() if line.strip().startswith("high"))
    assert "0.150 ± 0.050" in low
    assert "-0.7 (-0.813 to -0.587)" in low
    assert "best" in high.split()


def test_print_of_names_with_brackets_shows_them():
    assert "[bold]x" in printed(result_of(**{"[bold]x": [1.0]}))


def test_print_without_a_console_goes_to_standard_output(capsys):
    result_of(a=[0.5]).print()

    assert "0.5" in capsys.readouterr().out


def test_print_to_an_output_without_the_signs_prints_what_it_can(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    result_of(a=[0.5, 0.6]).print()

    assert b"0.550 ? 0.071" in raw.getvalue()


def test_print_of_benchmarks_without_result_names_them():
    runs = [run_of("a", metrics={"accuracy": 1}, failed_evals={"sorting": "Traceback\nBenchmarkError: bad task"})]

    text = printed(ExperimentResult("test", [ArmResult("a", {}, runs)]))

    assert "no result: a-r0, benchmark sorting: BenchmarkError: bad task" in text


def test_print_of_a_thousand_arms_shows_the_best_twenty():
    arms = [arm_of(f"arm{i:04}", [i, i + 0.5, i + 1.0]) for i in range(1000)]
    result = ExperimentResult("test", arms)

    text, table = printed(result), result.to_markdown()

    assert "and 980 more arms" in text
    assert "980 more are not shown" in table
    shown = [line.split()[0] for line in text.splitlines() if line.strip().startswith("arm0")]
    assert shown == [f"arm{i:04}" for i in range(999, 979, -1)]


@pytest.mark.parametrize(
    "name", ["a|b", "<i>x</i>", "_c_", "**d**", "[e](f)", "`g`", "&lt;", "\\\\h\\", "- i", "~~j~~"]
)
def test_to_markdown_is_read_back_with_every_name_as_it_is(name):
    from markdown_it import MarkdownIt

    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(result_of(**{name: [1.0]}).to_markdown())

    assert f"<td>{html.escape(name, quote=False)}</td>" in page


def test_to_markdown_of_names_with_signs_keeps_the_table_whole():
    table = result_of(**{"a|b <i>": [1.0, 2.0], "_c_": [0.5]}).to_markdown()

    lines = table.splitlines()
    assert lines[0] == "| arm | accuracy | n | best run | difference to the best arm | failed |"
    assert lines[2].startswith(r"| a\|b \<i\> | 1.50 ± 0.71 | 2 |")
    assert lines[3].startswith(r"| \_c\_ | 0.5 | 1 |")

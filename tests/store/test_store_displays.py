"""Runs and costs as a notebook shows them, and runs as data frames."""

import math
import re
import sys

import pytest
from recorded_runs import append, ended, journal, make_run, row

import hookline as hl
from hookline._engine import notebook


def record(root, run_id, **facts):
    directory = make_run(root, run_id, **facts)
    append(directory, *(row(step, loss=1 / (step + 1)) for step in range(500)), ended(500))
    return directory


def test_runs_display_has_a_chart_and_escapes_names(tmp_path):
    record(tmp_path, "r0", name="<script>alert(1)</script>")
    html = hl.runs(tmp_path)._repr_html_()
    assert "<polyline" in html
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert len(html) < 5_000


def test_runs_display_shows_twenty_runs_and_how_many_more(tmp_path):
    for number in range(23):
        make_run(tmp_path, f"r{number}")
    runs = hl.runs(tmp_path)
    assert runs._repr_html_().count("<tr>") == 21
    assert "3 more runs are not shown." in runs._repr_html_()
    assert repr(runs).splitlines()[-1] == "  and 3 more"


def test_run_display_shows_last_values_and_chart(tmp_path):
    record(tmp_path, "r0")
    html = hl.runs(tmp_path)[0]._repr_html_()
    assert "finished" in html
    assert html.count("<polyline") == 1


@pytest.mark.parametrize(
    ("ys", "points"),
    [([5.0], []), ([5.0, math.nan], []), ([5.0, 9.0], [[2, 38], [178, 2]]), ([9.0] * 2, [[2, 38], [178, 38]])],
)
def test_line_chart_spans_its_picture_from_two_finite_points_on(ys, points):
    html = notebook.line_chart([4, 7][: len(ys)], ys, "loss")
    found = re.findall(r'points="([^"]*)"', html)
    assert [[float(part) for part in point.split(",")] for each in found for point in each.split()] == points


def test_damaged_run_display_says_what_is_wrong_and_changes_nothing(tmp_path):
    directory = record(tmp_path, "r0")
    (directory / "run.json").write_text("{")
    before = journal(directory).read_bytes()
    runs = hl.runs(tmp_path)
    assert "run.json cannot be read" in runs._repr_html_()
    assert "run.json cannot be read" in runs[0]._repr_html_()
    assert journal(directory).read_bytes() == before


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_runs_as_data_frame_has_a_row_per_run(tmp_path, library):
    pytest.importorskip(library)
    record(tmp_path, "r0", config={"lr": 0.1, "size": 3})
    record(tmp_path, "r1", config={"lr": "auto"})
    frame = getattr(hl.runs(tmp_path, sort="name"), f"to_{library}")()
    columns = ["id", "name", "status", "step", "config.lr", "config.size", "metric.loss"]
    assert list(frame.columns) == columns
    assert list(frame["id"]) == ["p/r0", "p/r1"]
    assert list(frame["metric.loss"]) == [0.002, 0.002]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_runs_as_data_frame_without_the_package_says_what_to_install(tmp_path, monkeypatch, library):
    make_run(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(hl.MissingExtraError, match=f"pip install {library}"):
        getattr(hl.runs(tmp_path), f"to_{library}")()


def test_costs_display_has_a_row_per_subscriber(tmp_path):
    with hl.run(root=None, callbacks=[hl.callbacks.Timer()], summary=False) as run:
        for _ in run.steps(3):
            pass
    costs = run.callbacks.costs()
    assert costs._repr_html_().count("<tr>") == 1 + len(costs)
    assert repr(costs) == str(costs)


def test_query_result_display_shows_its_first_twenty_rows_as_text(tmp_path):
    record(tmp_path, "r0", name="<i>")
    runs = hl.runs(tmp_path)
    shown = runs.metrics("loss")._repr_html_()
    assert shown.count("<tr>") == 21
    assert "The first 20 rows; there are more." in shown
    shown = runs.sql("SELECT name, NULL AS nothing FROM runs")._repr_html_()
    assert "&lt;i&gt;" in shown
    assert "1 row<" in shown

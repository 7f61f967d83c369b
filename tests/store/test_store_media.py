"""Media and tables in the store: rows, contents, pages of long tables, and what a resume discards."""

import json
import math

import numpy as np
import pytest
from recorded_runs import append, ended, make_run, resumed, row

import hookline as hl
from hookline._record.blobs import BlobError, find_blob
from hookline._record.records import Media, TableRows


@pytest.fixture
def info(tmp_path):
    """A run that logged an image with a mask, a histogram, and a table with a picture in a cell."""
    with hl.run("m", root=tmp_path, project="p", summary=False) as run:
        answers = hl.Table(["q/a", "score", "ok", "picture", "mixed"])
        for step in run.steps(3):
            picture = hl.Image(np.full((4, 4), step, np.uint8), caption=f"at {step}", masks={"m": np.eye(4, dtype=int)})
            run.log(loss=1.0, picture=picture, weights=hl.Histogram(np.arange(8.0)))
            score = math.nan if step == 1 else step / 2
            answers.append([f"q{step}", score, step > 0, hl.Image(np.zeros((2, 2))), step or "none"])
            run.log(answers=answers)
    return hl.runs(tmp_path).latest()


def test_media_of_a_run_are_read_with_their_content(info):
    first, *_, last = info.media("pict*")
    assert (first.name, first.type, first.step, first.caption, first.data["width"]) == (
        *("picture", "image", 1, "at 0"),
        4,
    )
    assert np.asarray(last.image()).max() == 2
    with last.open() as file:
        assert last.read() == file.read() == info.blob(last.blob)
    assert last.file_name == "picture-3.png"
    assert [item.data["counts"][0] for item in info.media(type="histogram", steps=(2, None))] == [1, 1]


def test_content_that_changed_is_an_error(info):
    [picture] = info.media("picture", steps=(1, 1))
    path = find_blob(info.directory, picture.blob)
    path.write_bytes(b"other")
    with pytest.raises(BlobError, match="damaged"):
        picture.read()


def test_table_is_read_with_the_types_of_its_columns(info):
    frame = info.table("answers").pandas()
    assert list(frame.columns) == ["q/a", "score", "ok", "picture", "mixed"]
    assert frame["q/a"].tolist() == ["q0", "q1", "q2"]
    assert [str(kind) for kind in frame.dtypes[["score", "ok"]]] == ["float64", "bool"]
    assert math.isnan(frame["score"][1])
    assert frame["mixed"].tolist() == ['"none"', "1", "2"]  # JSON: not all are of one type
    cell = json.loads(frame["picture"][0])["media"]
    assert (cell["type"], len(info.blob(cell["blob"]))) == ("image", cell["size"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sort": "-score"}, ["q2", "q0", "q1"]),
        ({"sort": "mixed"}, ["q1", "q2", "q0"]),
        ({"where": ("score", ">=", 0)}, ["q0", "q2"]),
        ({"where": ("q/a", "contains", "Q1")}, ["q1"]),
        ({"where": ("ok", "=", "true")}, ["q1", "q2"]),
        ({"text": "none"}, ["q0"]),
        ({"text": "score"}, []),  # the name of a column is not a cell
        ({"limit": 1, "offset": 1}, ["q1"]),
        ({"step": 3}, ["q2"]),
        ({"latest": True}, ["q0", "q1", "q2"]),
    ],
)
def test_table_is_sorted_filtered_and_paged(info, options, expected):
    assert info.table("answers", **options).columns().get("q/a", []) == expected


def test_unknown_table_or_column_is_an_error_with_the_closest_name(info):
    with pytest.raises(hl.HooklineError, match="answers"):
        info.table("answer")
    with pytest.raises(hl.HooklineError, match="score"):
        info.table("answers", sort="scores")


def test_sql_sees_media_tables_and_blobs(info):
    runs = hl.runs(info.directory.parent.parent)
    assert runs.media_names().columns()["type"] == ["table", "image", "histogram"]
    scores = runs.sql("SELECT cells ->> 'score' AS s FROM table_rows ORDER BY position").columns()["s"]
    assert scores == ["0.0", "NaN", "1.0"]
    kinds = runs.sql("SELECT type, count(*) AS n FROM blobs GROUP BY type ORDER BY type").rows()
    assert [(row["type"], row["n"]) for row in kinds] == [("image", 6), ("mask", 3)]
    [table] = runs.tables()
    assert (table["name"], table["rows"], json.loads(table["columns"])[1]) == ("answers", 3, "score")


def rows_of(step, start, *values, table="t"):
    rows = [[value] for value in values]
    return TableRows(time=float(step), step=step, name="t", table=table, columns=["v"], rows=rows, start=start)


def test_rows_and_media_after_a_resume_replace_those_it_discards(tmp_path):
    directory = make_run(tmp_path)
    old = [
        each
        for step in (1, 2, 3)
        for each in (Media(step=step, name="h", type="histogram"), rows_of(step, step - 1, step))
    ]
    append(directory, row(1, loss=1.0), *old)
    runs = hl.runs(tmp_path)
    assert len(runs.media("h").rows()) == 3
    again = [
        resumed(2),
        Media(step=3, name="h", type="histogram", caption="new"),
        rows_of(3, 0, 30, table="u"),
        ended(3),
    ]
    append(directory, *again, session=1)
    assert [(each["step"], each["caption"]) for each in runs.media("h")] == [(1, ""), (2, ""), (3, "new")]
    info = runs.refresh().latest()
    assert info.table("t").columns() == {"v": [1, 2, 30]}
    assert info.table("t", latest=True).columns() == {"v": [30]}


def test_long_live_table_is_paged_after_each_addition(tmp_path):
    directory = make_run(tmp_path)
    for first in range(0, 20_000, 500):
        append(directory, rows_of(first // 500, first, *range(first, first + 500)))
    runs = hl.runs(tmp_path)
    page = runs.latest().table("t", sort="-v", limit=3, offset=10)
    assert (page.columns()["v"], page.total()) == ([19_989, 19_988, 19_987], 20_000)
    append(directory, rows_of(99, 20_000, 50_000))
    assert page.total() == 20_001
    assert runs.latest().table("t", where=("v", ">", 19_998)).columns() == {"v": [19_999, 50_000]}


def test_table_without_rows_is_listed_with_its_columns(tmp_path):
    append(make_run(tmp_path), rows_of(1, 0), ended())
    runs = hl.runs(tmp_path)
    assert [(each["rows"], each["columns"]) for each in runs.tables()] == [(0, '["v"]')]
    assert runs.latest().table("t").rows() == []


@pytest.mark.parametrize(
    "cells",
    [
        [["x", "one cell too many"]],
        [[]],
        [[{"media": "no object"}]],
        [[{"media": {"type": 3, "blob": "../../etc/passwd", "size": "x", "data": []}}]],
        [[{"media": {"blob": "0" * 64, "data": {"parts": {"m": None, "n": {"blob": 1}}}}}]],
        [[10**30], [2**63], ["NaN"], [None], [float("inf")], [[float("nan")]]],
    ],
)
def test_odd_tables_from_elsewhere_are_read(tmp_path, cells):
    odd = TableRows(step=1 << 70, name="t", table="t", columns=["v"], rows=cells)
    append(make_run(tmp_path), odd, ended())
    runs = hl.runs(tmp_path)
    assert len(runs.latest().table("t").rows()) == len(cells)
    assert all(len(each["blob"]) == 64 for each in runs.sql("SELECT * FROM blobs"))

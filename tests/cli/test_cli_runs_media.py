"""``hookline runs media``: lists and exports what a run logged beside its numbers."""

import csv
import io
import json

import numpy as np
import PIL.Image

import hookline as hl
from hookline._record.blobs import find_blob


def log_media():
    with hl.run("m", summary=False) as run:
        for step in run.steps(2):
            run.log({"a/b": [hl.Image(np.full((2, 2), step, np.uint8))] * 2, "h": hl.Histogram([1.0, 2.0])})
        run.log(t=hl.Table(["x", "y"], [[1, "one"], [2, None]]))
    return run.dir


def test_media_are_listed_with_their_numbers_steps_and_sizes(cli):
    log_media()
    lines = [line.split() for line in cli("runs", "media", "latest").stdout.splitlines() if line.strip()]
    assert lines[0] == ["name", "type", "items", "steps", "size"]
    assert lines[2][:6] == ["a/b", "image", "4", "1", "to", "2"]
    assert lines[3] == ["h", "histogram", "2", "1", "to", "2"]
    assert lines[4] == ["t", "table", "1", "2", "2", "rows"]
    shown = cli("runs", "show", "latest").stdout
    assert "Media" in shown
    assert "2 rows" in shown
    document = json.loads(cli("runs", "media", "latest", "--root", "runs", "--name", "a*", "--json").stdout)
    assert [(row["name"], row["items"]) for row in document["media"]] == [("a/b", 4)]


def test_media_are_exported_as_files(cli, tmp_path):
    log_media()
    result = cli("runs", "media", "latest", "--export", "out")
    assert result.exit_code == 0, result.stdout
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["a_b-1-1.png", "a_b-1.png", "a_b-2-1.png", "a_b-2.png", "h-1.json", "h-2.json", "t.csv"]
    assert np.asarray(PIL.Image.open(tmp_path / "out" / "a_b-2.png")).max() == 1
    assert json.loads((tmp_path / "out" / "h-1.json").read_text())["count"] == 2
    rows = list(csv.reader(io.StringIO((tmp_path / "out" / "t.csv").read_text())))
    assert rows == [["x", "y"], ["1", "one"], ["2", ""]]
    assert "not an empty directory" in cli("runs", "media", "latest", "--export", "out").stderr


def test_media_in_cells_of_a_table_are_exported_beside_it_and_named_in_the_cells(cli, tmp_path):
    picture, other = (hl.Image(np.full((2, 2), value, np.uint8)) for value in (1, 2))
    rows = [[1, picture, '{"media": 1}'], [2, other, "x"], [3, picture, None]]
    with hl.run("m", summary=False) as run:
        run.log({"a/t": hl.Table(["n", "../pic", "text"], rows)})
    result = cli("runs", "media", "latest", "--export", "out")
    assert result.exit_code == 0, result.stdout
    written = list(csv.reader(io.StringIO((tmp_path / "out" / "a_t.csv").read_text())))
    names = ["a_t_media/pic-0.png", "a_t_media/pic-1.png"]
    assert written[1:] == [["1", names[0], '{"media": 1}'], ["2", names[1], "x"], ["3", names[0], ""]]
    assert [int(np.asarray(PIL.Image.open(tmp_path / "out" / name)).max()) for name in names] == [1, 2]
    for path in (tmp_path / "runs" / ".blobs").glob("??/*"):
        path.write_bytes(b"other")
    result = cli("runs", "media", run.dir.name, "--export", "again")
    assert (result.exit_code, "a/t, row 0, column ../pic: the content is missing or damaged" in result.stdout) == (
        1,
        True,
    )


def test_damaged_content_is_reported_and_not_exported(cli, tmp_path):
    directory = log_media()
    picture = hl.runs("runs").latest().media("a/b")[0]
    find_blob(directory, picture.blob).write_bytes(b"other")
    result = cli("runs", "media", "latest", "--type", "image", "--export", "out")
    assert (result.exit_code, len(list((tmp_path / "out").iterdir()))) == (1, 2)
    assert "a/b at step 1: its content has other content" in result.stdout


def test_unknown_name_is_an_error_with_the_closest(cli):
    log_media()
    result = cli("runs", "media", "latest", "--name", "a/c")
    assert (result.exit_code, "a/b" in result.stderr) == (2, True)

"""Each kind of media in each destination, read back with the destination's own tools.

`EXPECTED` is the table: what a kind is in each tracker, or LEFT_OUT. Sinks for numbers leave out every kind, and those
that write records have all of them, with digests.
"""

import functools
import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest
from destinations import DESTINATIONS
from destinations.base import LEFT_OUT
from test_sinks import PACE

import hookline as hl
from hookline._record.artifact_versions import make_manifest
from hookline._record.blobs import find_blob
from hookline._record.delivery import Delivery, sink_states
from hookline._record.records import Media, TableRows

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
FRAMES = np.stack([np.full((8, 8, 3), shade, np.uint8) for shade in (0, 120, 250)])
BOX = {"box": (4, 5, 30, 31), "label": "cat", "score": 0.5}
PLOTLY = {"data": [{"type": "bar", "y": [1, 2]}], "layout": {"title": {"text": "</script>"}}}
FILE = b"epoch,loss\n1,0.5\n"
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
NUMBERS_ONLY = ("console", "csv", "function", "prometheus", "status")
RECORDS = ("file", "hookline", "jsonl")


def logged(tmp_path) -> dict[str, Any]:
    """One value of each kind."""
    (tmp_path / "losses.csv").write_bytes(FILE)
    mask = np.zeros((40, 40), np.uint8)
    mask[10:20, 10:20] = 1
    truth, scores = [1, 0, 1, 0], [0.9, 0.6, 0.4, 0.1]
    return {
        "image": hl.Image(PIXELS, caption="noise"),
        "images": [hl.Image(PIXELS), hl.Image(PIXELS[::-1])],
        "boxes": hl.Image(np.zeros((40, 40, 3), np.uint8), boxes=[BOX], masks={"truth": mask}),
        "audio": hl.Audio(np.zeros(80, np.float32), rate=800),
        "video": hl.Video(FRAMES),
        "histogram": hl.Histogram(counts=[3, 0, 5], edges=[0.0, 1.0, 2.0, 4.0]),
        "table": hl.Table(["prompt", "score", "shot"], [["a|b", 0.5, hl.Image(PIXELS)], ["c", 1.0, None]]),
        "figure": hl.Figure(PLOTLY),
        "html": hl.Html("<b>bold</b>"),
        "markdown": hl.Markdown("# Title"),
        "text": hl.Text("# no title"),
        "file": hl.File(tmp_path / "losses.csv"),
        "confusion": hl.plots.confusion_matrix([0, 1, 1], [0, 1, 0], labels=["cat", "dog"]),
        "roc": hl.plots.roc(truth, scores),
        "pr_curve": hl.plots.pr_curve(truth, scores),
    }


IMAGE, FLIPPED = PIXELS.tolist(), PIXELS[::-1].tolist()
RED = [230, 57, 70]
SOUND = {"rate": 800, "samples": 80}
VIDEO = {"frames": 3, "size": (8, 8)}
BINS = [[0.0, 1.0, 3], [1.0, 2.0, 0], [2.0, 4.0, 5]]
COLUMNS = ["prompt", "score", "shot"]
CURVE = [["1", 0.0, 0.0], ["1", 0.0, 0.5], ["1", 0.5, 0.5], ["1", 0.5, 1.0], ["1", 1.0, 1.0]]
MATRIX = {"columns": ["actual", "cat", "dog"], "rows": [["cat", 1, 0], ["dog", 1, 1]]}
PRECISION = [["1", 0.0, 1.0], ["1", 0.5, 1.0], ["1", 0.5, 0.5], ["1", 1.0, 2 / 3], ["1", 1.0, 0.5]]


def has_text(*parts):
    return lambda found: all(part in found for part in parts)


def box_is_drawn(found):
    """The corner of the box in red, and the mask mixed into the black between."""
    return found[5][4] == RED and found[15][15] != [0, 0, 0] and found[35][35] == [0, 0, 0]


def box_is_data(found):
    (box,) = found["boxes"]
    corners = box["position"] == {"minX": 4, "maxX": 30, "minY": 5, "maxY": 31}
    return corners and box["scores"] == {"score": 0.5} and found["mask"][15][15] == 1 and found["mask"][0][0] == 0


def precision_at(thresholds):
    """Whether the curve of TensorBoard has these precisions and recalls at thresholds from 0 to 1."""

    def check(found):
        places = {threshold: round(threshold * (len(found[0]) - 1)) for threshold in thresholds}
        shown = {threshold: (found[4][place], found[5][place]) for threshold, place in places.items()}
        return shown == thresholds and (found[0][0], found[1][0], found[2][0], found[3][0]) == (2, 2, 0, 0)

    return check


def table(columns, rows):
    return {"columns": columns, "rows": rows}


PLOTLY_PAGE = has_text("cdn.plot.ly", '[{"type": "bar", "y": [1, 2]}]', "\\u003c/script>")
EXPECTED: dict[str, tuple[Any, Any, Any, Any]] = {
    # kind: tensorboard, wandb, mlflow, trackio
    "image": (IMAGE, IMAGE, [IMAGE], IMAGE),
    "images": (IMAGE, [IMAGE, FLIPPED], [IMAGE, FLIPPED], IMAGE),
    "images/1": (FLIPPED, None, None, FLIPPED),
    "boxes": (box_is_drawn, box_is_data, lambda found: box_is_drawn(found[0]), box_is_drawn),
    "audio": (SOUND, SOUND, SOUND, SOUND),
    "video": (VIDEO, VIDEO, VIDEO, VIDEO),
    "histogram": (BINS, BINS, table(["low", "high", "count"], BINS), BINS),
    "table": (
        "| prompt | score | shot |\n| --- | --- | --- |\n| a\\|b | 0.5 | (image) |\n| c | 1.0 | null |",
        table(COLUMNS, [["a|b", 0.5, "image-file"], ["c", 1.0, None]]),
        lambda found: found["columns"] == COLUMNS and found["rows"][0][2].startswith("media/table/cells/"),
        table(COLUMNS, [["a|b", 0.5, "trackio.image"], ["c", 1.0, None]]),
    ),
    "figure": (LEFT_OUT, lambda found: list(found[0]["y"]) == [1, 2], PLOTLY_PAGE, PLOTLY_PAGE),
    "html": ("<b>bold</b>", has_text("<b>bold</b>"), "<b>bold</b>", "<b>bold</b>"),
    "markdown": ("# Title", has_text("<pre># Title</pre>"), "# Title", "# Title"),
    "text": ("    # no title", has_text("<pre># no title</pre>"), "# no title", "    # no title"),
    "file": (LEFT_OUT, FILE, FILE, LEFT_OUT),
    "confusion": (
        "| actual | cat | dog |\n| --- | --- | --- |\n| cat | 1 | 0 |\n| dog | 1 | 1 |",
        None,
        MATRIX,
        MATRIX,
    ),
    "confusion_table": (
        None,
        table(
            ["Actual", "Predicted", "nPredictions"],
            [["cat", "cat", 1], ["cat", "dog", 0], ["dog", "cat", 1], ["dog", "dog", 1]],
        ),
        None,
        None,
    ),
    "roc": ("1: area 0.7500", None, *2 * [table(["class", "false positive rate", "true positive rate"], CURVE)]),
    "roc_table": (None, table(["class", "fpr", "tpr"], CURVE), None, None),
    "pr_curve": (
        precision_at({0.0: (0.5, 1.0), 0.2: (0.666667, 1.0), 0.5: (0.5, 0.5), 0.7: (1.0, 0.5), 1.0: (1.0, 0.0)}),
        None,
        *2 * [table(["class", "recall", "precision"], PRECISION)],
    ),
    "pr_curve_table": (None, table(["class", "recall", "precision"], PRECISION), None, None),
}
"""By name; None where the destination has it under another one."""


def record(tmp_path, **values):
    """A run with these values at its first step."""
    with hl.run("media", root=tmp_path / "runs", project="p", summary=False) as run:
        for step in run.steps(2):
            run.log(loss=1.0 / (step + 1))
            if step == 0:
                run.log(values)
    return run.dir


def deliver(destination, run_dir):
    delivery = Delivery(run_dir, "sink", destination.sink(), PACE)
    delivery.round()
    delivery.close(0)
    delivery.run()
    return delivery


@pytest.fixture(scope="module")
def arrived(tmp_path_factory):
    """Delivers one value of each kind to each destination, once; returns what is there, and how many were left out."""
    made = []

    @functools.cache
    def deliver_all(name):
        tmp_path = tmp_path_factory.mktemp(name)
        run_dir = record(tmp_path, **logged(tmp_path))
        made.append(next(kind for kind in DESTINATIONS if kind.name == name)(tmp_path))
        deliver(made[-1], run_dir)
        (state,) = sink_states(run_dir)
        return run_dir, state, made[-1]

    yield deliver_all
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def media_of(arrived):
    """The media in a destination, which are read once."""
    return functools.cache(lambda name: arrived(name)[2].media())


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("name", TRACKERS)
def test_media_arrive_as_the_tracker_shows_them(name, kind, media_of):
    expected = EXPECTED[kind][TRACKERS.index(name)]
    found = media_of(name).get(kind)
    if expected in (None, LEFT_OUT):
        assert found is None
    elif callable(expected):
        assert expected(found), found
    else:
        assert found == expected


@pytest.mark.parametrize("name", TRACKERS)
def test_tracker_counts_what_it_leaves_out(name, arrived):
    _, state, destination = arrived(name)
    left_out = sum(row[TRACKERS.index(name)] is LEFT_OUT for row in EXPECTED.values())
    assert (state.status, state.left_out) == ("ok", left_out)
    assert destination.metrics() != []


@pytest.mark.parametrize("name", NUMBERS_ONLY)
def test_sink_for_numbers_leaves_media_alone(name, arrived):
    _, state, destination = arrived(name)
    assert (state.status, destination.media()) == ("ok", {})
    assert state.left_out == (len(logged_names()) if name == "csv" else 0)


def logged_names():
    return [name for name in EXPECTED if not name.endswith("_table")]


@pytest.mark.parametrize("name", RECORDS)
def test_sink_of_records_has_all_media_with_their_digests(name, arrived):
    run_dir, state, destination = arrived(name)
    records = [found for found in hl.read(run_dir) if isinstance(found, Media | TableRows)]
    assert (state.status, state.left_out, len(records)) == ("ok", 0, len(logged_names()))
    blobs = {found.name: found.blob for found in records if isinstance(found, Media) and found.blob}
    assert {key: value for key, value in destination.media().items() if key in blobs} == blobs


def test_left_out_kinds_are_logged_once_each(tmp_path, caplog):
    run_dir = record(tmp_path, **logged(tmp_path), more=hl.Text("x"))
    delivery = Delivery(run_dir, "csv", hl.sinks.CsvSink(), PACE)
    delivery.round()
    delivery.close(0)
    delivery.run()
    lines = [line for line in caplog.messages if line.startswith("csv leaves out")]
    assert len(lines) == len(set(lines)) == 11
    assert "csv leaves out images, which it cannot show; the run keeps everything." in lines


def test_mlflow_loads_the_table_of_a_run(arrived):
    rows = arrived("mlflow")[2].tables()
    assert [row[:2] for row in rows] == [["a|b", 0.5], ["c", 1.0]]


def test_tensorboard_has_the_configuration_as_hparams(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    config = {"lr": 0.1, "model": {"layers": 2, "sizes": [1, 2]}, "huge": 10**400, "none": None}
    run = hl.run("config", root=tmp_path, config=config, sinks=["tensorboard"], summary=False)
    with run:
        run.log(loss=1.0)
    found = EventAccumulator(str(run.dir / "tensorboard")).Reload()
    content = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(content)
    assert {name: value.number_value or value.string_value for name, value in start.hparams.items()} == {
        "lr": 0.1,
        "model/layers": 2.0,
        "model/sizes": "[1, 2]",
        "huge": str(10**400),
    }
    assert start.group_name == run.dir.name


SEVERAL = [kind for kind in DESTINATIONS if kind.name in TRACKERS]


@pytest.fixture
def make(tmp_path):
    made = []

    def destination(kind):
        made.append(kind(tmp_path))
        return made[-1]

    yield destination
    for each in made:
        each.close()


@pytest.mark.parametrize("kind", SEVERAL, ids=lambda kind: kind.name)
def test_batch_of_media_given_again_changes_nothing(kind, make, tmp_path):
    destination = make(kind)
    values = logged(tmp_path)
    with hl.run("again", root=tmp_path / "runs", project="p", summary=False) as run:
        run.log(loss=1.0)
        state = deliver(destination, run.dir).progress.path
        saved = state.read_text()
        run.log({name: values[name] for name in ("image", "table", "histogram", "audio", "file")})
    deliver(destination, run.dir)
    before, left_out = destination.media(), sink_states(run.dir)[0].left_out
    state.write_text(saved)  # as if the process had died before the batch was saved
    deliver(destination, run.dir)
    assert (destination.media(), sink_states(run.dir)[0].left_out) == (before, left_out)
    assert {"image", "table", "histogram", "audio"} <= before.keys()


@pytest.mark.parametrize("kind", SEVERAL, ids=lambda kind: kind.name)
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_blob_that_is_gone_is_reported_once_and_skipped(kind, damage, make, tmp_path, caplog):
    destination = make(kind)
    shades = {f"image{number}": hl.Image(np.full((2, 2, 3), number, np.uint8)) for number in range(3)}
    run_dir = record(tmp_path, **shades, after=hl.Text("here"))
    for found in hl.read(run_dir):
        if isinstance(found, Media) and found.name in ("image0", "image2"):
            path = find_blob(run_dir, found.blob)
            path.unlink() if damage == "missing" else path.write_bytes(b"other content")
    assert deliver(destination, run_dir).progress.status == "ok"
    assert set(destination.media()) == {"image1", "after"}
    assert sink_states(run_dir)[0].left_out == 2
    assert len([line for line in caplog.messages if "does not get the image 'image0' of step 1: The blob" in line]) == 1
    assert not any("image2" in line for line in caplog.messages)


@pytest.mark.parametrize("kind", SEVERAL, ids=lambda kind: kind.name)
def test_media_that_another_program_wrote_wrongly_are_skipped(kind, make, tmp_path):
    destination = make(kind)
    content = b"no picture"
    digest = hashlib.sha256(content).hexdigest()
    with hl.run("wrong", root=tmp_path / "runs", project="p", summary=False) as run:
        recorder = run.recorder
        place = tmp_path / "runs" / ".blobs" / digest[:2] / digest
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        for name, wrong in {
            "../../escape": {"type": "image", "blob": digest, "format": "png"},
            "counts": {"type": "histogram", "data": {"counts": "many"}},
            "plot": {"type": "plot", "data": {"plot": "unknown"}},
            "link": {"type": "image", "blob": "../../etc/passwd"},
            "unknown": {"type": "hologram"},
        }.items():
            recorder._append_now(Media(time=1.0, step=1, name=name, **wrong))
        recorder._append_now(TableRows(time=1.0, step=1, name="wide", table="t", columns=["a"], rows=[[1, 2], []]))
        run.log(note=hl.Text("here"))
    assert deliver(destination, run.dir).progress.status == "ok"
    assert "note" in destination.media()
    assert not list(tmp_path.rglob("escape*"))


def test_table_that_grows_is_shown_with_all_rows_of_a_step(tmp_path, make):
    destination = make(next(kind for kind in SEVERAL if kind.name == "tensorboard"))
    with hl.run("grows", root=tmp_path / "runs", project="p", summary=False) as run:
        answers = hl.Table(["n"])
        run.log(answers=answers)
        for number in run.steps(2):
            answers.append([number])
            deliver(destination, run.dir)
            answers.extend([[number + 10 * more] for more in range(1, 30)])
    deliver(destination, run.dir)
    text = destination.media()["answers"]
    assert text.startswith("| n |\n| --- |\n| 1 |\n| 11 |\n")
    assert text.endswith("10 more rows are in the run.")


WITHOUT_ARTIFACTS = [kind for kind in DESTINATIONS if kind.name in ("tensorboard", "trackio", "csv")]
WITH_ARTIFACTS = [kind for kind in DESTINATIONS if kind.name in ("wandb", "mlflow")]
ADDRESS = "store://bucket/rows.csv"


def save_artifacts(tmp_path, names=("model",)):
    """A run that saves a version of each name: a file, a file in a folder, and a reference."""
    (tmp_path / "weights").write_text("0.25")
    files = {"weights": tmp_path / "weights", "a/b #1.txt": tmp_path / "weights", "rows.csv": ADDRESS}
    with hl.run("saves", root=tmp_path / "runs", project="p", summary=False) as run:
        run.log(loss=1.0)
        for name in names:
            run.save_artifact(name, files, kind="model", aliases=["best"], metadata={"loss": 0.1, "name": name})
    return run.dir


@pytest.mark.parametrize("kind", WITH_ARTIFACTS, ids=lambda kind: kind.name)
def test_saved_artifact_arrives_with_files_and_references(kind, make, tmp_path):
    destination = make(kind)
    run_dir = save_artifacts(tmp_path)
    deliver(destination, run_dir)
    (state,) = sink_states(run_dir)
    assert (state.status, state.left_out) == ("ok", 0)
    (found,) = destination.artifacts()
    assert (found["name"], found["kind"], found["metadata"]["loss"]) == ("model", "model", 0.1)
    assert "best" in found["aliases"]
    assert sorted(found["files"].values()) == [b"0.25", b"0.25"]
    assert found["references"] == {"rows.csv": ADDRESS}


@pytest.mark.parametrize("kind", WITH_ARTIFACTS, ids=lambda kind: kind.name)
def test_batch_with_an_artifact_given_again_changes_nothing(kind, make, tmp_path):
    destination = make(kind)
    (tmp_path / "weights").write_text("0.25")
    (tmp_path / "weights").chmod(0o444)
    with hl.run("again", root=tmp_path / "runs", project="p", summary=False) as run:
        run.log(loss=1.0)
        state = deliver(destination, run.dir).progress.path
        saved = state.read_text()
        run.save_artifact("model", tmp_path / "weights", link=True)
        run.save_artifact("model", tmp_path / "weights", link=True, aliases=["best"])
    deliver(destination, run.dir)
    before = destination.artifacts()
    state.write_text(saved)  # as if the process had died before the batch was saved
    assert deliver(destination, run.dir).progress.status == "ok"
    assert destination.artifacts() == before
    assert [found["files"] for found in before] == [{"weights": b"0.25"}]


@pytest.mark.parametrize("kind", WITH_ARTIFACTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("damage", ["deleted", "damaged", "replaced", "manifest"])
def test_artifact_that_is_gone_is_reported_once_and_skipped(kind, damage, make, tmp_path, caplog):
    destination = make(kind)
    run_dir = save_artifacts(tmp_path, ("first", "second"))
    for name in ("first", "second"):
        found = hl.artifact(f"p/{name}", root=tmp_path / "runs")
        manifest = found.folder.directory / "v0.json"
        if damage == "deleted":
            found.folder.delete(0)
        elif damage == "damaged":
            find_blob(run_dir, found.files[-1].blob).write_text("another content")
        elif damage == "replaced":
            manifest.write_bytes(msgspec.json.encode(make_manifest("other", {}, found.files)))
        else:
            manifest.write_text(manifest.read_text().replace("a/b #1.txt", "../../../escape"))
    assert deliver(destination, run_dir).progress.status == "ok"
    assert (destination.artifacts(), sink_states(run_dir)[0].left_out) == ([], 2)
    assert len([line for line in caplog.messages if "does not get the artifact 'p/first:v0'" in line]) == 1
    assert not any("p/second" in line for line in caplog.messages)
    assert not list(tmp_path.rglob("escape*"))
    assert [value for *_, value in destination.metrics()] == [1.0]


def test_wandb_gets_a_used_artifact_as_an_input_of_the_run(make, tmp_path):
    save_artifacts(tmp_path)
    with hl.run("use", root=tmp_path / "runs", project="p", summary=False) as run:
        run.use_artifact("model:best")
    destination = make(next(kind for kind in WITH_ARTIFACTS if kind.name == "wandb"))
    deliver(destination, run.dir)
    (found,) = destination.artifacts()
    assert (found["name"], found["is_used"], found["aliases"]) == ("model", True, [])
    assert sorted(found["files"].values()) == [b"0.25", b"0.25"]
    assert sink_states(run.dir)[0].left_out == 0


def test_mlflow_gets_no_files_of_a_version_that_existed(make, tmp_path):
    save_artifacts(tmp_path)
    destination = make(next(kind for kind in WITH_ARTIFACTS if kind.name == "mlflow"))
    deliver(destination, save_artifacts(tmp_path))
    (found,) = destination.artifacts()
    assert (found["version"], found["files"], found["references"]) == ("v0", {}, {"rows.csv": ADDRESS})


@pytest.mark.parametrize("kind", WITHOUT_ARTIFACTS, ids=lambda kind: kind.name)
def test_destination_without_artifacts_counts_them(kind, make, tmp_path, caplog):
    destination = make(kind)
    run_dir = save_artifacts(tmp_path, ("first", "second"))
    deliver(destination, run_dir)
    (state,) = sink_states(run_dir)
    assert (state.status, state.left_out) == ("ok", 2)
    assert len([line for line in caplog.messages if "leaves out artifacts, which it cannot show" in line]) == 1

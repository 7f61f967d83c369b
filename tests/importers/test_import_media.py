"""Imported media: images, tables, histograms and files of TensorBoard, W&B and MLflow, written by these tools."""

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import types
import wave

import numpy as np
import pytest
from typer.testing import CliRunner

import hookline as hl
from hookline._engine.errors import ConfigError
from hookline._record.blobs import blob_problem, read_blob, references_in, remove_unused_blobs
from hookline._record.console import ConsoleWriter
from hookline._record.console_reader import STREAMS, read_console
from hookline._record.environment import read_environments
from hookline._record.records import Media, Status, TableRows
from hookline.cli.app import app
from hookline.importers import import_runs

PIXELS = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)


def media_of(run):
    return [record for record in hl.read(run.directory) if isinstance(record, Media)]


def by_name(run):
    return {record.name: record for record in media_of(run)}


def pixels_of(run, record):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(read_blob(run.directory, record.blob))))


def facts(run):
    return json.loads((run.directory / "run.json").read_text())


def assert_blobs(run):
    assert [blob_problem(run.directory, each.blob, each.size) for each in media_of(run) if each.blob].count("") == sum(
        bool(each.blob) for each in media_of(run)
    )


@pytest.fixture(scope="module")
def tensorboard_run(tmp_path_factory):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    directory = tmp_path_factory.mktemp("tb")
    with SummaryWriter(directory / "logs") as writer:
        writer.add_scalar("loss", 0.5, 1)
        writer.add_image("sample", PIXELS, 1, dataformats="HWC")
        writer.add_histogram("weights", np.array([0.0, 0.25, 0.25, 1.0]), 2)
        writer.add_histogram("same", np.full(10, 3.0), 2)
        writer.add_text("note", "it **begins**", 3)
        writer.add_pr_curve("eval/pr", np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.6, 0.3]), 4, num_thresholds=11)
        writer.add_audio("tone", np.sin(np.arange(800.0)[None] / 10), 5, sample_rate=8000)
    (run,) = import_runs(directory / "logs", root=directory / "runs")
    return run


def test_tensorboard_images_and_sounds_are_those_that_were_written(tensorboard_run):
    found = by_name(tensorboard_run)
    assert (pixels_of(tensorboard_run, found["sample"]) == PIXELS).all()
    with wave.open(io.BytesIO(read_blob(tensorboard_run.directory, found["tone"].blob))) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (8000, 800)
    assert_blobs(tensorboard_run)


def test_tensorboard_texts_histograms_and_curves_are_media_at_their_steps(tensorboard_run):
    found = by_name(tensorboard_run)
    kinds = {name: (record.type, record.step, record.axis) for name, record in found.items()}
    assert kinds == {
        "sample": ("image", 1, "train"),
        "weights": ("histogram", 2, "train"),
        "same": ("histogram", 2, "train"),
        "note": ("markdown", 3, "train"),
        "eval/pr": ("plot", 4, "eval"),
        "tone": ("audio", 5, "train"),
    }
    assert read_blob(tensorboard_run.directory, found["note"].blob) == b"it **begins**"
    weights = found["weights"].data
    assert (weights["low"], weights["high"], weights["count"]) == (0.0, 1.0, 4)
    assert (found["same"].data["low"], found["same"].data["high"], found["same"].data["count"]) == (3.0, 3.0, 10)
    (curve,) = found["eval/pr"].data["series"]
    assert (curve["x"] == sorted(curve["x"]), max(curve["x"]), curve["average_precision"]) == (True, 1.0, 1.0)
    assert (tensorboard_run.media, tensorboard_run.rows, tensorboard_run.left) == (6, 1, ())


def test_tensorboard_media_in_the_encoding_of_tensors_are_read(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram import metadata as histogram_metadata
    from tensorboard.plugins.image import metadata as image_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    picture = io.BytesIO()
    from PIL import Image

    Image.fromarray(PIXELS).save(picture, "PNG")
    images = make_tensor_proto([b"8", b"8", picture.getvalue(), picture.getvalue()])
    buckets = make_tensor_proto([[0.0, 0.5, 1.0], [0.5, 1.0, 2.0]])
    described = [image_metadata.create_summary_metadata("", ""), histogram_metadata.create_summary_metadata("", "")]
    values = [
        Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
        for tag, tensor, metadata in zip(("pics", "weights"), (images, buckets), described, strict=True)
    ]
    writer = EventFileWriter(str(tmp_path / "logs"))
    writer.add_event(Event(wall_time=100.0, step=7, summary=Summary(value=values)))
    writer.close()
    (run,) = import_runs(tmp_path / "logs", root=tmp_path / "runs")
    first, second, weights = media_of(run)
    assert [(each.name, each.index, each.step) for each in (first, second)] == [("pics", 0, 7), ("pics", 1, 7)]
    assert first.blob == second.blob
    assert (weights.data["counts"], weights.data["low"], weights.data["high"]) == ([1, 2], 0.0, 1.0)


@pytest.fixture(scope="module")
def wandb_directory(tmp_path_factory):
    wandb = pytest.importorskip("wandb")
    from destinations.wandb import end_wandb

    directory = tmp_path_factory.mktemp("wandb")
    settings = wandb.Settings(x_disable_stats=True, console="off", silent=True, x_disable_meta=True, disable_git=True)
    options = {"mode": "offline", "project": "p", "name": "nice", "config": {"lr": 0.1}, "settings": settings}
    boxes = [{"position": {"minX": 0.0, "maxX": 0.5, "minY": 0.25, "maxY": 1.0}, "class_id": 1, "scores": {"p": 0.5}}]
    with wandb.init(dir=directory, notes="why", tags=["a"], **options) as run:
        for step in range(3):
            run.log({"loss": 1 / (step + 1), "val/acc": step, "nested": {"a": 1.0}, "nan": float("nan")})
        table = wandb.Table(columns=["n", "text"], data=[[1, "a"], [2, "b"]])
        pictures = [wandb.Image(PIXELS, caption="a"), wandb.Image(255 - PIXELS, caption="b")]
        run.log({"one": wandb.Image(PIXELS, caption="cap"), "several": pictures, "t": table})
        boxed = wandb.Image(PIXELS, boxes={"seen": {"box_data": boxes, "class_labels": {1: "cat"}}})
        run.log({"boxed": boxed, "h": wandb.Histogram([0.0, 1.0, 1.0], num_bins=2), "page": wandb.Html("<b>x</b>")})
        (run_directory,) = directory.glob("wandb/offline-run-*")
        (run_directory / "files" / "weights.bin").write_bytes(b"\0" * 100)
        run.summary["best"] = 0.5
    end_wandb()
    return directory / "wandb"


def test_wandb_run_is_imported_with_its_rows_and_description(wandb_directory, tmp_path):
    (run,) = import_runs(wandb_directory, root=tmp_path / "runs")
    rows = [record for record in hl.read(run.directory) if isinstance(record, hl.sinks.Metrics)]
    assert [(row.step, row.axis, row.values.get("loss", row.values.get("val/acc"))) for row in rows] == [
        (step, axis, value) for step in range(3) for axis, value in (("train", 1 / (step + 1)), ("eval", step))
    ]
    assert np.isnan(rows[0].values["nan"])
    described = facts(run)
    assert (run.name, described["config"], described["notes"]) == ("nice", {"lr": 0.1}, "why")
    assert (described["summary"]["best"], described["tags"]) == (0.5, ["a"])
    assert [record.status for record in hl.read(run.directory) if isinstance(record, Status)] == ["running", "finished"]


def test_wandb_media_are_imported_as_they_were_logged(wandb_directory, tmp_path):
    (run,) = import_runs(wandb_directory, root=tmp_path / "runs")
    found = {(record.name, record.index): record for record in media_of(run)}
    assert {key: record.type for key, record in found.items()} == {
        ("one", 0): "image",
        ("several", 0): "image",
        ("several", 1): "image",
        ("boxed", 0): "image",
        ("h", 0): "histogram",
        ("page", 0): "html",
        ("files/weights.bin", 0): "file",
    }
    assert (pixels_of(run, found["several", 1]) == 255 - PIXELS).all()
    assert [found[key].caption for key in (("one", 0), ("several", 0), ("several", 1))] == ["cap", "a", "b"]
    (box,) = found["boxed", 0].data["boxes"]
    assert box == {"box": [0.0, 2.0, 4.0, 8.0], "label": "cat", "score": 0.5}
    assert found["h", 0].data["counts"] == [1, 2]
    assert read_blob(run.directory, found["files/weights.bin", 0].blob) == b"\0" * 100
    (table,) = [record for record in hl.read(run.directory) if isinstance(record, TableRows)]
    assert (table.columns, table.rows) == (["n", "text"], [[1, "a"], [2, "b"]])
    assert_blobs(run)


@pytest.fixture(scope="module")
def wandb_artifacts(tmp_path_factory):
    """A run with a table of images and artifacts, and W&B's own folders."""
    wandb = pytest.importorskip("wandb")
    from destinations.wandb import end_wandb

    directory, own = tmp_path_factory.mktemp("wandb"), tmp_path_factory.mktemp("own")
    (directory / "weights.bin").write_bytes(b"weights")
    settings = wandb.Settings(x_disable_stats=True, console="off", silent=True, x_disable_meta=True, disable_git=True)
    boxes = [{"position": {"minX": 0.0, "maxX": 0.5, "minY": 0.25, "maxY": 1.0}, "class_id": 1, "box_caption": "cat"}]
    seen = {"seen": {"box_data": boxes, "class_labels": {1: "cat"}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_DATA_DIR", str(own / "data"))
        patch.setenv("WANDB_CACHE_DIR", str(own / "cache"))
        with wandb.init(dir=directory, mode="offline", project="p", settings=settings) as run:
            cells = [[1, wandb.Image(PIXELS, caption="c"), wandb.Html("<b>x</b>"), wandb.Image(PIXELS, boxes=seen)]]
            run.log({"t": wandb.Table(columns=["n", "pic", "page", "boxed"], data=cells), "loss": 1.0})
            made = wandb.Artifact("model", "model", metadata={"loss": 0.5}, description="why")
            made.add_file(str(directory / "weights.bin"), "a/weights.bin")
            made.add_reference("s3://bucket/key", checksum=False)
            run.log_artifact(made, aliases=["best"])
        end_wandb()
    return directory / "wandb", own


@pytest.fixture
def own_folders(wandb_artifacts, tmp_path, monkeypatch):
    """A copy of W&B's run, and of its own folders at their place."""
    _, own = wandb_artifacts
    kept = shutil.copytree(own, tmp_path / "kept")
    monkeypatch.setenv("WANDB_DATA_DIR", str(own / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(own / "cache"))
    yield own
    shutil.rmtree(own)
    shutil.copytree(kept, own)


def test_wandb_media_in_cells_of_a_table_are_imported(wandb_artifacts, own_folders, tmp_path):
    (run,) = import_runs(wandb_artifacts[0], root=tmp_path / "runs")
    (table,) = [record for record in hl.read(run.directory) if isinstance(record, TableRows)]
    ((number, picture, page, boxed),) = table.rows
    assert (number, picture["media"]["caption"], page["media"]["type"]) == (1, "c", "html")
    assert boxed["media"]["data"]["boxes"] == [{"box": [0.0, 2.0, 4.0, 8.0], "label": "cat"}]
    assert (pixels_of(run, types.SimpleNamespace(**picture["media"])) == PIXELS).all()
    assert b"<b>x</b>" in read_blob(run.directory, page["media"]["blob"])


def test_wandb_artifact_is_imported_as_a_version(wandb_artifacts, own_folders, tmp_path):
    (run,) = import_runs(wandb_artifacts[0], root=tmp_path / "runs", project="q")
    found = hl.artifact("q/model:best", root=tmp_path / "runs")
    assert (found.kind, found.metadata, found.verify()) == ("model", {"loss": 0.5, "description": "why"}, [])
    assert {file.path: file.uri for file in found.files} == {"a/weights.bin": "", "key": "s3://bucket/key"}
    assert found.path("a/weights.bin").read_bytes() == b"weights"
    assert [(each.run, each.role) for each in found.runs] == [(f"q/{run.directory.name}", "saved")]
    (event,) = [record for record in hl.read(run.directory) if getattr(record, "name", "") == "artifact_saved"]
    assert (event.data["artifact"], event.data["version"], event.data["aliases"]) == ("q/model", "v0", ["best"])
    assert remove_unused_blobs(tmp_path / "runs").blobs == 0


@pytest.mark.parametrize("damage", ["gone", "changed", "link"])
def test_wandb_file_of_an_artifact_that_is_not_what_it_was_is_not_imported(
    wandb_artifacts, own_folders, tmp_path, damage
):
    (tmp_path / "secret").write_bytes(b"weights" if damage == "link" else b"secret!")
    for path in [path for path in own_folders.rglob("*") if path.is_file()]:
        path.unlink()
        if damage == "changed":
            path.write_bytes(b"secret!")
        elif damage == "link":
            path.symlink_to(tmp_path / "secret")
    (run,) = import_runs(wandb_artifacts[0], root=tmp_path / "runs")
    assert (run.rows, not (tmp_path / "runs" / ".artifacts").exists()) == (1, True)
    assert len([left for left in run.left if "model" in left.what]) + len(run.skipped) == 1
    stored = [path.read_bytes() for path in (tmp_path / "runs").glob(".blobs/??/*")]
    assert not {b"secret!", b"weights"}.intersection(stored)
    (table,) = [record for record in hl.read(run.directory) if isinstance(record, TableRows)]
    assert table.rows == [[1, "Image", "Html", "Image"]]


def test_wandb_artifact_that_names_a_file_elsewhere_does_not_read_it(wandb_artifacts, tmp_path, monkeypatch):
    # The files are there, with the right content; but on this machine W&B keeps none at this place.
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    (run,) = import_runs(wandb_artifacts[0], root=tmp_path / "runs")
    (left,) = [left for left in run.left if "model" in left.what]
    assert "neither in the run's directory nor in W&B's folders" in left.reason
    assert list((tmp_path / "runs").glob(".blobs/??/*")) == []


def test_wandb_file_that_is_damaged_or_cut_off_costs_only_those_records(wandb_directory, tmp_path):
    copy = shutil.copytree(wandb_directory, tmp_path / "copy", symlinks=True)
    (file,) = copy.glob("offline-run-*/*.wandb")
    content = bytearray(file.read_bytes())
    content[content.index(b"nested", content.index(b"nested") + 10)] ^= 1  # the first is in the summary
    file.write_bytes(content[:-20])
    (run,) = import_runs(copy, root=tmp_path / "runs")
    reasons = sorted({skip.reason for skip in run.skipped})
    assert reasons == ["a record is damaged; it is skipped", "the last record is cut off"]
    assert (run.rows, run.media > 5) == (4, True)


MLFLOW = """
    import os
    import mlflow
    import numpy as np

    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    for directory, uri in (("directory", "./mlruns"), ("../database", "sqlite:///mlflow.db")):
        os.chdir(directory)
        mlflow.set_tracking_uri(uri)
        with mlflow.start_run(run_name="first"):
            mlflow.log_param("lr", 0.1)
            mlflow.set_tag("team", "a")
            for step in range(3):
                mlflow.log_metrics({"loss": 1 / (step + 1), "val_loss": float("nan")}, step=step)
            mlflow.log_metric("peak", float("inf"), step=1)
            mlflow.log_image(pixels, "pics/a.png")
            mlflow.log_image(pixels, key="seen", step=2)
            mlflow.log_table({"q": ["a", "b"], "n": [1, 2]}, "t.json")
            mlflow.log_text("<b>x</b>", "page.html")
            mlflow.log_dict({"a": 1}, "plain.json")
            mlflow.log_text("step,loss", "history.csv")
"""


@pytest.fixture(scope="module")
def mlflow_stores(tmp_path_factory):
    """A store of MLflow in a directory, and one in a database."""
    pytest.importorskip("mlflow")
    directory = tmp_path_factory.mktemp("mlflow")
    for name in ("directory", "database"):
        (directory / name).mkdir()
    environment = os.environ | {"MLFLOW_ALLOW_FILE_STORE": "true"}
    command = [sys.executable, "-c", textwrap.dedent(MLFLOW)]
    subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, timeout=120)
    return directory


@pytest.fixture(params=["directory", "database"])
def mlflow_store(request, mlflow_stores):
    return mlflow_stores / request.param


def test_mlflow_run_is_imported_with_metrics_params_and_artifacts(mlflow_store, tmp_path):
    (run,) = import_runs(mlflow_store, root=tmp_path / "runs")
    rows = [record for record in hl.read(run.directory) if isinstance(record, hl.sinks.Metrics)]
    assert [row.values["loss"] for row in rows if "loss" in row.values] == [1.0, 0.5, 1 / 3]
    assert (sum("val_loss" in row.values for row in rows), {row.axis for row in rows}) == (3, {"train", "eval"})
    assert [(row.step, row.values["peak"]) for row in rows if "peak" in row.values] == [(1, float("inf"))]
    found = by_name(run)
    kinds = {name: (record.type, record.step) for name, record in found.items()}
    assert kinds == {
        "pics/a.png": ("image", 2),
        "seen": ("image", 2),
        "page.html": ("html", 2),
        "plain.json": ("file", 2),
        "history.csv": ("file", 2),
    }
    assert (pixels_of(run, found["pics/a.png"]) == PIXELS).all()
    (table,) = [record for record in hl.read(run.directory) if isinstance(record, TableRows)]
    assert (table.name, table.columns, table.rows) == ("t.json", ["q", "n"], [["a", 1], ["b", 2]])
    described = facts(run)
    assert (run.name, described["config"], described["imported"]["facts"]["tags"]["team"]) == (
        *("first", {"lr": "0.1"}, "a"),
    )
    assert_blobs(run)


def test_mlflow_run_is_imported_once_and_the_store_is_not_changed(mlflow_store, tmp_path):
    before = {path: path.read_bytes() for path in mlflow_store.rglob("*") if path.is_file()}
    (first,) = import_runs(mlflow_store, root=tmp_path / "runs")
    (again,) = import_runs(mlflow_store, root=tmp_path / "runs")
    assert (again.already, again.directory) == (True, first.directory)
    assert {path: path.read_bytes() for path in mlflow_store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("uri", ["/etc", "file:///etc", "../secret", "s3://bucket/x", "mlflow-artifacts:/../secret"])
def test_mlflow_artifacts_outside_of_the_store_are_not_read(tmp_path, uri):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("secret")
    store = tmp_path / "store"
    store.mkdir()
    with sqlite3.connect(store / "mlflow.db") as database:
        database.executescript("""
            CREATE TABLE alembic_version (x); CREATE TABLE experiments (x);
            CREATE TABLE runs (run_uuid, name, status, start_time, end_time, artifact_uri, lifecycle_stage);
            CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan);
            CREATE TABLE params (key, value, run_uuid); CREATE TABLE tags (key, value, run_uuid);
            INSERT INTO metrics VALUES ('loss', 0.5, 1000, 'r', 1, 0), ('odd', 'x', 'y', 'r', 1, 0);
        """)
        database.execute("INSERT INTO runs VALUES ('r', 'r', 'FINISHED', 0, 0, ?, 'active')", [uri])
    database.close()
    (run,) = import_runs(store, root=tmp_path / "runs")
    assert (run.rows, run.media, run.skipped_count) == (1, 0, 1)


def odd_database(file, columns):
    """A database as MLflow's, in which times are none."""
    with sqlite3.connect(file) as database:
        database.executescript(f"""
            CREATE TABLE alembic_version (x); CREATE TABLE experiments (x);
            CREATE TABLE runs (run_uuid, name, status, start_time, end_time, artifact_uri, lifecycle_stage);
            CREATE TABLE metrics ({columns});
            CREATE TABLE params (key, value, run_uuid); CREATE TABLE tags (key, value, run_uuid);
            INSERT INTO params VALUES ('lr', 0.1, 'r');
            INSERT INTO runs VALUES ('r', 'r', 'FINISHED', 'soon', x'00', '', 'active');
        """)
    database.close()
    return file


def test_mlflow_database_with_times_that_are_none_is_imported(tmp_path):
    file = odd_database(tmp_path / "mlflow.db", "key, value, timestamp, run_uuid, step, is_nan")
    (run,) = import_runs(file, root=tmp_path / "runs")
    assert (run.name, run.rows, run.skipped_count) == ("r", 0, 0)


def test_mlflow_database_without_a_column_is_refused(tmp_path):
    file = odd_database(tmp_path / "mlflow.db", "key, value")
    with pytest.raises(ConfigError, match="cannot be imported into .*: no such column"):
        import_runs(file, root=tmp_path / "runs")


def test_links_in_a_source_are_not_followed(wandb_directory, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    copy = shutil.copytree(wandb_directory, tmp_path / "copy", symlinks=True)
    (picture,) = copy.glob("offline-run-*/files/media/images/one_*")
    picture.unlink()
    picture.symlink_to(tmp_path / "secret.txt")
    (picture.parent.parent.parent / "link.txt").symlink_to(tmp_path / "secret.txt")
    (run,) = import_runs(copy, root=tmp_path / "runs")
    assert ("one" in by_name(run), run.skipped_count) == (False, 1)
    assert b"secret" not in b"".join(path.read_bytes() for path in (tmp_path / "runs").glob(".blobs/??/*"))


def test_failed_import_leaves_neither_run_nor_blobs(tensorboard_run, tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    source = json.loads((tensorboard_run.directory / "run.json").read_text())["imported"]["path"]
    monkeypatch.setattr("hookline._record.blobs.BlobBatch.commit", full)
    with pytest.raises(ConfigError, match="No space left"):
        import_runs(source, root=tmp_path / "runs")
    left = [path for path in (tmp_path / "runs").rglob("*") if path.is_file() and path.name != "lock"]
    assert left == []


@pytest.fixture
def exported(tmp_path):
    """The directory of an exported run with media of every kind, and the run."""
    with hl.run("taught", root=tmp_path / "here", project="p", summary=False) as run:
        for step in run.steps(3):
            run.log(loss=1 / (step + 1), sample=hl.Image(PIXELS + step, caption="c"))
        masks = {"truth": np.eye(8, dtype=np.uint8)}
        table = hl.Table(["n", "seen"], [[1, hl.Image(PIXELS)], [2, None]])
        run.log(masked=hl.Image(PIXELS, masks=masks), weights=hl.Histogram([1.0, 2.0]), t=table, page=hl.Html("<b>"))
    arguments = ["runs", "export", "latest", "--root", str(tmp_path / "here"), "--what", "all", "-o"]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "out")])
    assert (result.exit_code, "7 media" in result.output) == (0, True)
    return tmp_path / "out", run


def recorded(directory):
    kinds = (hl.sinks.Metrics, Media, TableRows)
    return sorted((each.time, repr(each)) for each in hl.read(directory) if isinstance(each, kinds))


def test_exported_run_is_imported_again_with_its_media(exported, tmp_path):
    directory, run = exported
    (again,) = import_runs(directory, root=tmp_path / "there")
    assert recorded(again.directory) == recorded(run.dir)
    assert (again.media, again.skipped_count) == (7, 0)
    blobs = [{path.name for path in root.glob(".blobs/??/*")} for root in (tmp_path / "here", tmp_path / "there")]
    assert (len(blobs[0]), blobs[0]) == (len(blobs[1]), blobs[1])
    assert_blobs(again)


def test_exported_run_is_imported_again_with_its_console_and_environment(tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    (code / "train.py").write_text("train()\n")
    with hl.run("taught", root=tmp_path / "here", project="p", summary=False, code="all") as run:
        run.log(loss=1.0)
    for rank, actor in ((0, ""), (3, ""), (0, "rollout1")):
        writer = ConsoleWriter(run.dir, rank=rank, actor=actor)
        writer.line(f"out {rank}", "stdout", 2.0 + rank, step=1)
        writer.log("WARNING", "own", f"logged {rank}", 3.0 + rank)
        writer.line("50%", "stderr", 4.0 + rank, partial=True)
        writer.close()
    arguments = ["runs", "export", "latest", "--root", str(tmp_path / "here"), "--what", "all", "-o"]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "out")])
    assert (result.exit_code, "9 console lines, 1 environments" in result.output) == (0, True)
    (again,) = import_runs(tmp_path / "out", root=tmp_path / "there")
    lines, environments = (
        [list(read(each)) for each in (run.dir, again.directory)]
        for read in (lambda each: read_console(each, streams=STREAMS), read_environments)
    )
    assert (lines[1], len(lines[1]), again.skipped_count) == (lines[0], 9, 0)
    assert environments[1] == environments[0] != []
    digests = references_in((again.directory / "environment.json").read_bytes())
    assert digests
    assert [blob_problem(again.directory, digest) for digest in digests] == [""] * len(digests)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("console.jsonl", {"console": {"time": 1.0, "rank": -1, "stream": "stdout", "text": "x"}}),
        ("console.jsonl", {"console": {"time": 1.0, "rank": 0, "stream": "../x", "text": "x"}}),
        ("console.jsonl", {"console": {"time": 1.0, "rank": 0, "stream": "log", "text": "x", "actor": "../x"}}),
        ("console.jsonl", {"console": "x"}),
        ("environment.jsonl", {"environment": "x"}),
        ("environment.jsonl", {"environment": {"time": 1.0, "git": {"diff": {"blob": "0" * 64}}}}),
    ],
)
def test_exported_console_and_environment_that_are_not_valid_are_skipped(exported, tmp_path, file, line):
    directory, _ = exported
    with (directory / file).open("a") as opened:
        run = json.loads((directory / "media.jsonl").read_text().partition("\n")[0])["run"]
        opened.write(json.dumps({"run": run} | line) + "\n")
    (again,) = import_runs(directory, root=tmp_path / "there")
    assert (again.skipped_count, again.media) == (1, 7)


@pytest.mark.parametrize("harm", ["damaged", "missing", "link", "not a record", "a path as digest"])
def test_exported_media_that_are_not_intact_are_skipped(exported, tmp_path, harm):
    directory, run = exported
    record = next(each for each in hl.read(run.dir) if isinstance(each, Media) and each.name == "page")
    blob = directory / "blobs" / record.blob
    lines = (directory / "media.jsonl").read_text()
    if harm == "damaged":
        blob.write_bytes(b"x")
    elif harm in ("missing", "link"):
        blob.unlink()
        if harm == "link":
            blob.symlink_to(tmp_path / "here" / ".blobs" / record.blob[:2] / record.blob)
    else:
        changed = {"not a record": ('"type":"html"', '"type":5'), "a path as digest": (record.blob, "../" * 21 + "x")}
        (directory / "media.jsonl").write_text(lines.replace(*changed[harm]))
    (again,) = import_runs(directory, root=tmp_path / "there")
    kept = {each.name for each in media_of(again)}
    assert (again.skipped_count, "page" in kept, kept >= {"sample", "masked", "weights"}) == (1, False, True)

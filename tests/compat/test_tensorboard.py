"""`hookline.compat.tensorboard.SummaryWriter`: what a program records that writes to TensorBoard."""

import inspect
import json
import math
import signal
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hookline as hl
from hookline.compat.tensorboard import SummaryWriter
from hookline.importers import import_runs

WIDTH, HEIGHT = 9, 8
PIXELS = {
    "CHW": np.full((3, HEIGHT, WIDTH), 0.5),
    "HWC": np.full((HEIGHT, WIDTH, 3), 128, np.uint8),
    "HW": np.full((HEIGHT, WIDTH), 0.5, np.float32),
    "WH": np.full((WIDTH, HEIGHT), 0.5, np.float32),
    "WHC": torch.full((WIDTH, HEIGHT, 1), 0.5),
    "NCHW": torch.full((1, 3, HEIGHT, WIDTH), 0.5),
}


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {"root": tmp_path / "records", "summary": False, "console": False, "code": False}


def records(writer, kind):
    writer.flush()
    return [record for record in hl.read(writer.run.dir) if type(record).__name__ == kind]


def rows(writer):
    return [(record.axis, record.step, record.values) for record in records(writer, "Metrics")]


def media(writer):
    return {record.name: record for record in records(writer, "Media")}


def pixel(writer, name):
    from PIL import Image

    (file,) = writer.run.dir.parents[1].rglob(media(writer)[name].blob)
    with Image.open(file) as image:
        return image.size, image.getpixel((0, 0))


def points(root, run, name):
    """The points of a metric, without those that a resume has made obsolete."""
    (line,) = (line for line in hl.runs(root).series(name) if line.run == run.id)
    return list(zip(line.x, line.y, strict=True))


def named_runs(root):
    return sorted((run.name, run.status, run.config) for run in hl.runs(root))


def test_scalars_keep_tags_steps_and_all_digits_in_the_order_of_the_calls(options):
    with SummaryWriter("logs/exp", **options) as writer:
        writer.add_scalar("Loss/train set (a)", 0.1, 7)
        writer.add_scalar("Loss/train set (a)", 1, 3)
        writer.add_scalar("val_loss", np.float32(0.5), np.int64(4))
        writer.add_scalar("x", torch.tensor(0.25), global_step=torch.tensor(2))
        writer.add_scalar("x", torch.ones(1, 1), 2.9)
        writer.add_scalar("x", True)
    assert rows(writer) == [
        ("train", 7, {"Loss/train set (a)": 0.1}),
        ("train", 3, {"Loss/train set (a)": 1}),
        ("eval", 4, {"val_loss": 0.5}),
        ("train", 2, {"x": 0.25}),
        ("train", 2, {"x": 1.0}),
        ("train", 0, {"x": 1.0}),
    ]


def test_scalars_that_are_not_finite_are_kept(options):
    with SummaryWriter("exp", **options) as writer:
        for step, value in enumerate([math.nan, math.inf, -math.inf]):
            writer.add_scalar("loss", value, step)
    found = [values["loss"] for _, _, values in rows(writer)]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_scalar_on_a_device_is_recorded_when_it_has_arrived(options):
    jax = pytest.importorskip("jax")

    with SummaryWriter("exp", **options) as writer:
        writer.add_scalar("loss", jax.numpy.float32(0.5), 1)
        writer.add_scalars("both", {"a": jax.numpy.float32(0.25), "b": 1.0}, 2, 1000.0)
    assert rows(writer) == [("train", 1, {"loss": 0.5}), ("train", 2, {"both/a": 0.25, "both/b": 1.0})]


def test_time_of_a_call_is_the_given_one(options):
    with SummaryWriter("exp", **options) as writer:
        writer.add_scalar("loss", 0.5, 1, 1000.5)
        writer.add_text("note", "hello", 1, walltime=2000.5)
        with writer.use_metadata(global_step=9, walltime=3000.5):
            writer.add_scalar("loss", 0.25)
    assert [(row.step, row.time) for row in records(writer, "Metrics")] == [(1, 1000.5), (9, 3000.5)]
    assert media(writer)["note"].time == 2000.5


@pytest.mark.parametrize(
    ("tag", "value", "problem"),
    [
        ("x", np.zeros(3), r"add_scalar\('x', a ndarray of shape \(3,\)\)"),
        ("x", torch.zeros(2), r"a Tensor of shape \(2,\)"),
        ("x", "abc", r"add_scalar\('x', 'abc'\): give a number"),
        ("x", None, "None"),
        ("", 1.0, "tag='': give a non-empty string"),
        (3, 1.0, "tag=3"),
    ],
)
def test_scalar_that_is_none_is_refused(options, tag, value, problem):
    with SummaryWriter("exp", **options) as writer, pytest.raises(hl.OptionError, match=problem):
        writer.add_scalar(tag, value, 1)
    assert rows(writer) == []


def test_scalars_of_one_call_are_one_row_below_their_main_tag(options):
    with SummaryWriter("exp", **options) as writer:
        writer.add_scalars("loss/all", {"train": 0.5, "b": torch.tensor(2.0)}, 3)
        writer.add_scalars("val", {"a": 1.0}, 3)
    assert rows(writer) == [
        ("train", 3, {"loss/all/train": 0.5, "loss/all/b": 2.0}),
        ("eval", 3, {"val/a": 1.0}),
    ]


def test_run_is_what_an_import_of_the_event_files_would_be(options, tmp_path):
    from torch.utils.tensorboard import SummaryWriter as Original

    def write(kind, folder, given):
        with kind(f"{folder}/train", **given) as train, kind(f"{folder}/val", **given) as val:
            for step in range(3):
                train.add_scalar("loss", 0.5 + step, step, 1000.0 + 10 * step)
                val.add_scalar("loss", 0.25 + step, step, 1005.0 + 10 * step)
            train.add_scalars("both", {"a": 1.0}, 1, 1100.0)
        return train

    write(Original, tmp_path / "files/exp", {})
    (imported,) = import_runs(tmp_path / "files/exp", root=tmp_path / "imported")
    recorded = write(SummaryWriter, "exp", options)
    found = [(r.axis, r.step, r.time, r.values) for r in hl.read(imported.directory) if type(r).__name__ == "Metrics"]
    own = [(r.axis, r.step, r.time, r.values) for r in records(recorded, "Metrics")]
    assert sorted(own, key=str) == sorted(found, key=str)


def test_writers_of_one_training_share_a_run_until_the_last_one_is_closed(options):
    train = SummaryWriter("logs/exp/train", **options)
    val = SummaryWriter("logs/exp/val")
    more = SummaryWriter("logs/exp/more")
    other = SummaryWriter("logs/other", **options)
    assert train.run is val.run is more.run
    assert train.run is not other.run
    for writer in (train, val, more):
        writer.add_scalar("loss", 1.0, 1)
    train.close()
    train.close()
    val.close()
    assert train.run.is_running
    more.close()
    other.close()
    assert [values for _, _, values in rows(train)] == [{"train/loss": 1.0}, {"val/loss": 1.0}, {"more/loss": 1.0}]
    assert [(name, status) for name, status, _ in named_runs(options["root"])] == [
        ("logs/exp", "finished"),
        ("logs/other", "finished"),
    ]


def test_run_is_named_after_its_directory_below_the_root_or_the_working_directory(options, tmp_path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for directory in ("records/a/b", "runs/x", "test", tmp_path / "logs" / "fit", elsewhere / "x" / ".." / "abc"):
        SummaryWriter(directory, **options).close()
    assert sorted(run.name for run in hl.runs(options["root"])) == ["a/b", "abc", "logs/fit", "runs/x", "test"]


def test_default_name_has_the_comment_and_the_directory_exists(options, tmp_path):
    with SummaryWriter(comment="-lr0.1", **options) as writer:
        pass
    assert writer.get_logdir() == writer.log_dir
    assert writer.get_logdir().startswith("runs/")
    assert (tmp_path / writer.get_logdir()).is_dir()
    assert writer.run.name.endswith("-lr0.1")


def test_closed_writer_continues_its_run_when_it_is_used_again(options):
    writer = SummaryWriter("exp", **options)
    writer.add_scalar("loss", 1.0, 5)
    writer.close()
    writer.add_scalar("loss", 2.0, 2)
    with SummaryWriter("exp") as again:
        again.add_scalar("loss", 3.0, 1)
    writer.close()
    assert again.run is writer.run
    assert [(step, values["loss"]) for _, step, values in rows(writer)] == [(5, 1.0), (2, 2.0), (1, 3.0)]
    assert [(name, status) for name, status, _ in named_runs(options["root"])] == [("exp", "finished")]


RESTARTED = """
import sys
from hookline.compat.tensorboard import SummaryWriter
first, purge = int(sys.argv[1]), None if sys.argv[2] == "none" else int(sys.argv[2])
writer = SummaryWriter("exp", purge_step=purge, summary=False)
for step in range(first, first + 4):
    writer.add_scalar("loss", first + step / 10, step)
"""


def test_program_that_restarts_with_purge_step_continues_its_run_from_there(tmp_path):
    for first, purge in ((0, "none"), (2, "2"), (0, "none")):
        subprocess.run([sys.executable, "-c", RESTARTED, str(first), purge], cwd=tmp_path, check=True, timeout=120)
    latest, continued = hl.runs(tmp_path / "runs")
    assert (latest.name, latest.status, continued.name, continued.status) == ("exp", "finished", "exp", "finished")
    root = tmp_path / "runs"
    assert points(root, continued, "loss") == [(0, 0.0), (1, 0.1), (2, 2.2), (3, 2.3), (4, 2.4), (5, 2.5)]
    assert points(root, latest, "loss") == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [("", "finished", 0), ("raise ValueError('oops')", "failed", 1), ("raise SystemExit(0)", "finished", 0)],
    ids=["end", "error", "exit"],
)
def test_program_that_never_closes_its_writer_ends_the_run_as_it_ends(tmp_path, end, status, code):
    body = f"from hookline.compat.tensorboard import SummaryWriter\nw = SummaryWriter('exp')\n{end}\n"
    done = subprocess.run([sys.executable, "-c", body], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, [run.status for run in hl.runs(tmp_path / "runs")]) == (code, [status])
    assert done.stdout == ""


KILLED = """
import os, signal, sys
from hookline.compat.tensorboard import SummaryWriter
writer = SummaryWriter("exp", summary=False)
for step in range(5000):
    writer.add_scalar("loss", step / 2, step)
    writer.add_scalars("both", {"a": step, "b": 1.0}, step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_program_has_lost_no_value(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    (run,) = hl.runs(tmp_path / "runs")
    assert run.status == "killed"
    found = [record.values for record in hl.read(run.directory) if type(record).__name__ == "Metrics"]
    expected = [row for step in range(5000) for row in ({"loss": step / 2}, {"both/a": step, "both/b": 1.0})]
    assert found == expected


@pytest.mark.parametrize("dataformats", PIXELS)
def test_image_has_its_size_and_the_pixels_of_tensorboard(options, dataformats):
    with SummaryWriter("exp", **options) as writer:
        add = writer.add_images if "N" in dataformats else writer.add_image
        add("image", PIXELS[dataformats], 2, dataformats=dataformats)
    size, colour = pixel(writer, "image")
    assert (media(writer)["image"].step, size) == (2, (WIDTH, HEIGHT))
    assert set(np.ravel(colour).tolist()) <= {127, 128}


def test_image_of_floats_is_not_stretched_and_a_batch_is_a_grid_of_eight_columns(options):
    with SummaryWriter("exp", **options) as writer:
        writer.add_image("dark", np.full((1, HEIGHT, WIDTH), 0.1), 1)
        writer.add_image("bright", np.full((1, HEIGHT, WIDTH), 2.0), 1)
        writer.add_images("batch", torch.zeros(9, 1, 4, 4), 1)
    assert [pixel(writer, name)[1] for name in ("dark", "bright")] == [26, 255]
    batch = media(writer)["batch"].data
    assert (batch["images"], batch["width"], batch["height"]) == (9, 8 * 4 + 7 * 2, 2 * 4 + 2)


@pytest.mark.parametrize(("value", "dataformats"), [(np.zeros((4, 4)), "CHW"), (np.zeros((4, 4, 3)), "HHC")])
def test_image_whose_dimensions_are_not_named_is_refused(options, value, dataformats):
    with SummaryWriter("exp", **options) as writer, pytest.raises(hl.OptionError, match="name each dimension once"):
        writer.add_image("image", value, dataformats=dataformats)


def test_boxes_are_drawn_with_labels_if_there_is_one_for_each(options):
    boxes = torch.tensor([[1, 2, 3, 4], [0, 0, 8, 8]])
    with SummaryWriter("exp", **options) as writer:
        writer.add_image_with_boxes("named", np.zeros((3, 8, 8)), boxes, 1, labels=["a", "b"])
        writer.add_image_with_boxes("plain", np.zeros((3, 8, 8)), boxes, 1, labels=["a"])
    found = media(writer)
    assert found["named"].data["boxes"] == [
        {"box": [1.0, 2.0, 3.0, 4.0], "label": "a"},
        {"box": [0.0, 0.0, 8.0, 8.0], "label": "b"},
    ]
    assert [set(box) for box in found["plain"].data["boxes"]] == [{"box"}, {"box"}]


@pytest.mark.parametrize(
    ("options_given", "count"),
    [({}, 64), ({"max_bins": 8}, 8), ({"bins": 5}, 5), ({"bins": "sqrt"}, 10), ({"bins": [0.0, 50.0, 99.0]}, 2)],
)
def test_histogram_has_the_bins_that_were_asked_for(options, options_given, count):
    with SummaryWriter("exp", **options) as writer:
        writer.add_histogram("h", torch.arange(100.0), 1, **options_given)
    data = media(writer)["h"].data
    assert (len(data["counts"]), data["low"], data["high"], sum(data["counts"])) == (count, 0.0, 99.0, 100)


def test_histogram_of_buckets_has_their_edges(options):
    with SummaryWriter("exp", **options) as writer:
        writer.add_histogram_raw("h", 0, 4, 5, 10, 30, torch.tensor([1.0, 2.0, 4.0]), np.array([1, 1, 3]), 2)
        with pytest.raises(hl.OptionError, match=r"add_histogram_raw\('h'\): 1 counts and 3 edges"):
            writer.add_histogram_raw("h", 0, 4, 5, 10, 30, [1.0, 4.0], [1])
    data = media(writer)["h"].data
    assert (data["counts"], data["edges"]) == ([1, 1, 3], [0.0, 1.0, 2.0, 4.0])


def test_figures_are_recorded_and_closed_unless_asked_otherwise(options):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    first, second, kept = (plt.figure() for _ in range(3))
    with SummaryWriter("exp", **options) as writer:
        writer.add_figure("two", [first, second], 1)
        writer.add_figure("kept", kept, 1, close=False)
    assert plt.get_fignums() == [kept.number]
    plt.close(kept)
    assert Counter(record.name for record in records(writer, "Media")) == {"two": 2, "kept": 1}


def test_video_audio_and_curves_are_recorded(options):
    video = torch.zeros(2, 5, 3, HEIGHT, WIDTH, dtype=torch.uint8)
    with SummaryWriter("exp", **options) as writer:
        writer.add_video("video", video, 1, fps=8)
        writer.add_video("last", video.permute(0, 1, 3, 4, 2), 1, dataformats="NTHWC")
        writer.add_audio("mono", torch.zeros(1, 4000), 1, sample_rate=8000)
        writer.add_audio("stereo", np.zeros((4000, 2)), 1, sample_rate=8000)
        writer.add_pr_curve("pr", np.array([0, 1, 1]), np.array([0.1, 0.9, 0.8]), 1)
        counts = np.array([[2, 1, 0], [2, 1, 0], [0, 1, 2], [0, 1, 2]])
        rates = {"precision": np.array([0.5, 0.5, 0]), "recall": np.array([1, 0.5, 0])}
        writer.add_pr_curve_raw("raw", counts[0], counts[1], counts[2], counts[3], **rates, global_step=1)
    found = media(writer)
    assert [found[name].data["frames"] for name in ("video", "last")] == [5, 5]
    assert [found[name].data["seconds"] for name in ("mono", "stereo")] == [0.5, 0.5]
    assert found["pr"].data["series"][0]["average_precision"] == 1.0
    raw = found["raw"].data["series"][0]
    assert (raw["x"], raw["y"], raw["thresholds"]) == ([0, 0.5, 1], [0.5, 0.5, 0.5], [0.5, 0])
    assert (raw["positives"], raw["negatives"]) == (2, 2)


def test_curve_is_that_of_tensorboard(options):
    from torch.utils.tensorboard.summary import compute_curve

    rng = np.random.default_rng(0)
    labels, scores, weights = rng.integers(0, 2, 50), rng.random(50), rng.random(50)
    with SummaryWriter("exp", **options) as writer:
        writer.add_pr_curve("pr", labels, torch.tensor(scores), 1, num_thresholds=20, weights=weights)
        with pytest.raises(hl.OptionError, match="3 labels and 2 predictions"):
            writer.add_pr_curve("pr", np.zeros(3), np.zeros(2))
    theirs = compute_curve(labels, scores, num_thresholds=20, weights=weights)
    (series,) = media(writer)["pr"].data["series"]
    shown = theirs[0] + theirs[1] > 0
    assert series["x"][1:] == theirs[5][shown][::-1].tolist()
    assert series["y"][1:] == theirs[4][shown][::-1].tolist()


def test_texts_are_markdown_and_a_table_of_hyperparameters_is_configuration(options):
    with SummaryWriter("exp", **options) as writer:
        writer.add_text("note", "**bold**", 3)
        writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|lr|0.1|\n|env|CartPole|v1|\n")
        writer.add_text("other", "|param|value|\n|-|-|\n|no|1|")
    found = media(writer)
    assert (found["note"].type, found["note"].step) == ("markdown", 3)
    assert dict(writer.run.config) == {"lr": "0.1", "env": "CartPole|v1"}


def test_hyperparameters_describe_the_run_and_other_trials_become_runs(options):
    with SummaryWriter("exp", **options) as writer:
        writer.add_hparams({"lr": 0.1, "on": True, "n": torch.tensor(3)}, {"hparam/acc": 0.5}, run_name=".")
        writer.add_hparams({"lr": 0.2}, {"hparam/acc": 0.6}, run_name="second")
        writer.add_hparams({"lr": 0.3}, {"hparam/acc": torch.tensor(0.75)}, global_step=4)
    first, *trials = named_runs(options["root"])
    assert first == ("exp", "finished", {"lr": 0.1, "on": True, "n": 3})
    assert [(status, config) for _, status, config in trials] == [
        ("finished", {"lr": 0.3}),
        ("finished", {"lr": 0.2}),
    ]
    assert trials[1][0] == "exp/second"
    assert rows(writer) == [("train", 0, {"hparam/acc": 0.5})]
    last = next(run for run in hl.runs(options["root"]) if run.config == {"lr": 0.3})
    assert points(options["root"], last, "hparam/acc") == [(4, 0.75)]
    assert json.loads((last.directory / "run.json").read_text())["parents"] == {"run_id": writer.run.dir.name}


def test_hyperparameters_that_are_no_dictionaries_are_refused(options):
    with SummaryWriter("exp", **options) as writer, pytest.raises(hl.OptionError, match="give two dictionaries"):
        writer.add_hparams([("lr", 0.1)], {})


ACCEPTED = {
    "add_tensor": ("t", torch.zeros(3)),
    "add_graph": (torch.nn.Linear(1, 1), torch.zeros(1)),
    "add_onnx_graph": ("model.onnx",),
    "add_embedding": (torch.zeros(3, 2),),
    "add_mesh": ("m", torch.zeros(1, 3, 3)),
    "add_custom_scalars": ({"a": {"b": ["Multiline", ["x"]]}},),
    "add_custom_scalars_multilinechart": (["x"],),
    "add_custom_scalars_marginchart": (["x", "y", "z"],),
}


@pytest.mark.parametrize("method", ACCEPTED)
def test_what_is_not_recorded_is_accepted_and_named_once(options, caplog, method):
    with SummaryWriter("exp", **options) as writer:
        for _ in range(2):
            getattr(writer, method)(*ACCEPTED[method])
    named = [record.message for record in caplog.records if method in record.message]
    assert named == [f"SummaryWriter.{method} is accepted, but not recorded."]


@pytest.mark.parametrize("library", ["torch.utils.tensorboard", "tensorboardX"])
def test_methods_take_the_arguments_of_the_original(library):
    original = pytest.importorskip(library).SummaryWriter
    for name, method in inspect.getmembers(original, inspect.isfunction):
        if name.startswith("_") and name not in ("__init__", "__enter__", "__exit__"):
            continue
        own = inspect.signature(getattr(SummaryWriter, name)).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in own.values())
        theirs = [each for each in inspect.signature(method).parameters.values() if each.kind is not each.VAR_KEYWORD]
        missing = [each.name for each in theirs if each.name not in own]
        allowed = {"exc_type", "exc_val", "exc_tb"} | ({"log_dir"} if takes_any else set())
        assert set(missing) <= allowed, (name, missing)


def test_sinks_get_what_is_written_and_tensorboard_files_are_one_of_them(options):
    with SummaryWriter("exp", sinks=["csv", "tensorboard"], **options) as writer:
        for step in range(3):
            writer.add_scalar("loss", step / 2, step)
    accumulator = EventAccumulator(str(writer.run.dir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [(event.step, event.value) for event in accumulator.Scalars("loss")] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert len((writer.run.dir / "metrics.csv").read_text().splitlines()) == 4


def test_callbacks_get_each_row_of_the_thread_that_opened_the_run(options):
    seen = []

    class Watch(hl.Callback):
        def on_log(self, loop, step, metrics):
            seen.append((step, dict(metrics)))

    with SummaryWriter("exp", callbacks=[Watch()], **options) as writer:
        writer.add_scalar("loss", 1.0, 1)
        other = threading.Thread(target=writer.add_scalar, args=("loss", 2.0, 2))
        other.start()
        other.join()
        writer.add_scalar("loss", torch.tensor(3.0), 3)
    assert seen == [(1, {"loss": 1.0}), (3, {"loss": 3.0})]
    assert [step for _, step, _ in rows(writer)] == [1, 2, 3]


def test_options_of_a_later_writer_of_a_run_are_named_as_without_effect(options, caplog):
    with SummaryWriter("exp/train", **options), SummaryWriter("exp/val", tags=["late"], sinks=["csv"]) as writer:
        pass
    assert "options sinks, tags have no effect" in caplog.text
    assert writer.run.tags == ()


def test_writer_that_does_not_write_records_nothing(options, tmp_path):
    accepted = {"max_queue": 1, "flush_secs": 1, "filename_suffix": ".x", "comet_config": {"disabled": True}}
    with SummaryWriter(logdir="exp", write_to_disk=False, **accepted, **options) as writer:
        writer.add_scalar("loss", 1.0, 1)
        writer.add_text("note", "x")
        writer.add_hparams({"lr": 1}, {"a": 1})
        writer.flush()
    assert writer.run is None
    assert list(tmp_path.iterdir()) == []


def test_error_inside_a_with_fails_the_run(options):
    with pytest.raises(ValueError, match="oops"), SummaryWriter("exp", **options) as writer:
        writer.add_scalar("loss", 1.0, 1)
        raise ValueError("oops")
    assert [run.status for run in hl.runs(options["root"])] == ["failed"]
    writer.add_scalar("loss", 2.0, 2)
    writer.close()
    assert [step for _, step, _ in rows(writer)] == [1, 2]


def test_import_of_the_writer_loads_neither_torch_nor_tensorboard():
    heavy = {"torch", "tensorboard", "numpy", "yaml"}
    code = f"import sys, hookline.compat.tensorboard\nprint(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

"""Importing TensorBoard event files of `SummaryWriter` and of hookline's sink."""

import json
import math

import pytest

import hookline as hl
from hookline.importers import detect, import_runs

pytest.importorskip("tensorboard")
pytest.importorskip("torch")

import torch
from torch.utils.tensorboard import SummaryWriter


def rows(run):
    return [(r.axis, r.step, r.time, r.values) for r in hl.read(run.directory) if r.__class__.__name__ == "Metrics"]


def events(run):
    return [(r.name, r.step, r.data) for r in hl.read(run.directory) if r.__class__.__name__ == "Event"]


def facts(run):
    return json.loads((run.directory / "run.json").read_text())


def write(directory, values, *, start=1000.0, **options):
    """Write ``(tag, value, step)`` ten seconds apart."""
    with SummaryWriter(str(directory)) as writer:
        for index, (tag, value, step) in enumerate(values):
            writer.add_scalar(tag, value, step, walltime=start + 10 * index, **options)
    return directory


def one_file(directory):
    (file,) = directory.glob("events*")
    return file


@pytest.mark.parametrize("new_style", [False, True], ids=["simple_value", "tensor"])
def test_event_files_keep_every_scalar_with_step_and_time(tmp_path, new_style):
    write(tmp_path / "exp", [("loss", 0.5, 1), ("loss", math.inf, 2), ("loss", -math.inf, 3)], new_style=new_style)
    (run,) = import_runs(tmp_path / "exp")
    assert (run.name, run.format, run.rows, run.skipped) == ("exp", "tensorboard", 3, ())
    assert rows(run) == [
        ("train", 1, 1000.0, {"loss": 0.5}),
        ("train", 2, 1010.0, {"loss": math.inf}),
        ("train", 3, 1020.0, {"loss": -math.inf}),
    ]


def test_event_file_keeps_nan(tmp_path):
    write(tmp_path / "exp", [("loss", math.nan, 1)])
    (run,) = import_runs(tmp_path / "exp")
    assert math.isnan(rows(run)[0][3]["loss"])


def test_event_files_of_many_points_are_not_sampled(tmp_path):
    write(tmp_path / "exp", [("loss", float(step), step) for step in range(12_000)])
    (run,) = import_runs(tmp_path / "exp")
    assert [values["loss"] for _, _, _, values in rows(run)] == [float(step) for step in range(12_000)]


def test_values_of_a_step_written_together_make_a_row_for_each_axis(tmp_path):
    with SummaryWriter(str(tmp_path / "exp")) as writer:
        for offset, tag in enumerate(["loss", "lr", "val/loss"]):
            writer.add_scalar(tag, offset, 5, walltime=1000.0 + offset / 10)
    (run,) = import_runs(tmp_path / "exp")
    assert rows(run) == [("train", 5, 1000.0, {"loss": 0.0, "lr": 1.0}), ("eval", 5, 1000.0, {"val/loss": 2.0})]


def test_train_and_validation_directories_become_one_run_with_prefixes(tmp_path):
    write(tmp_path / "exp" / "train", [("epoch_loss", 0.5, 0), ("epoch_loss", 0.25, 1)])
    write(tmp_path / "exp" / "validation", [("epoch_loss", 0.75, 0)], start=1005.0)
    (run,) = import_runs(tmp_path / "exp")
    assert run.name == "exp"
    assert rows(run) == [
        ("train", 0, 1000.0, {"train/epoch_loss": 0.5}),
        ("eval", 0, 1005.0, {"validation/epoch_loss": 0.75}),
        ("train", 1, 1010.0, {"train/epoch_loss": 0.25}),
    ]


def test_sibling_directories_become_separate_runs(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / "logs" / name, [("loss", 0.5, 1)])
    assert [run.name for run in import_runs(tmp_path / "logs")] == ["a", "b"]


def test_directories_of_add_scalars_belong_to_their_run(tmp_path):
    with SummaryWriter(str(tmp_path / "exp")) as writer:
        writer.add_scalar("loss", 0.5, 1)
        writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 1)
    (run,) = import_runs(tmp_path / "exp")
    found = {name: value for _, _, _, values in rows(run) for name, value in values.items()}
    assert found == {"loss": 0.5, "both/a": 1.0, "both/b": 2.0}


def test_hyperparameters_become_config_and_meshes_are_left(tmp_path):
    with SummaryWriter(str(tmp_path / "exp")) as writer:
        writer.add_hparams({"lr": 0.5, "name": "x", "fast": True}, {"accuracy": 0.25})
        writer.add_mesh("shape", torch.zeros(1, 3, 3), global_step=1)
    (run,) = import_runs(tmp_path / "exp")
    assert events(run) == []
    assert [values for _, _, _, values in rows(run)] == [{"accuracy": 0.25}]
    assert facts(run)["config"] == {"lr": 0.5, "name": "x", "fast": True}
    assert [left.what for left in run.left] == ["values of 'mesh'"]


def test_repeated_steps_replace_the_earlier_ones(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path / "exp", [("loss", float(step), step) for step in range(1, 6)])
    with SummaryWriter(str(tmp_path / "exp"), purge_step=4, filename_suffix=".z") as writer:
        for step in (4, 5, 6):
            writer.add_scalar("loss", 100.0 + step, step, walltime=2000.0 + step)
    (run,) = import_runs(tmp_path / "exp")
    shown = EventAccumulator(str(tmp_path / "exp"), size_guidance={"scalars": 0})
    shown.Reload()
    expected = [(point.step, point.value, point.wall_time) for point in shown.Scalars("loss")]
    assert [(step, values["loss"], time) for _, step, time, values in rows(run)] == expected
    assert [step for step, _, _ in expected] == [1, 2, 3, 4, 5, 6]


def test_event_file_with_a_torn_end_keeps_the_records_before_it(tmp_path):
    file = one_file(write(tmp_path / "exp", [("loss", float(step), step) for step in range(5)]))
    file.write_bytes(file.read_bytes()[:-7])
    (run,) = import_runs(tmp_path / "exp")
    assert [values["loss"] for _, _, _, values in rows(run)] == [0.0, 1.0, 2.0, 3.0]
    ((place, reason),) = run.skipped
    assert (place.startswith(f"{file}, byte "), reason) == (True, "the last record is cut off")


def test_event_file_with_a_damaged_record_skips_it(tmp_path):
    file = one_file(write(tmp_path / "exp", [("loss", float(step), step) for step in range(5)]))
    content = bytearray(file.read_bytes())
    content[-10] ^= 0xFF
    file.write_bytes(content)
    (run,) = import_runs(tmp_path / "exp")
    assert ([step for _, step, _, _ in rows(run)], run.skipped[0].reason) == (
        [0, 1, 2, 3],
        "a record is damaged; it is skipped",
    )


def test_event_file_with_a_damaged_length_skips_the_rest(tmp_path):
    file = one_file(write(tmp_path / "exp", [("loss", float(step), step) for step in range(5)]))
    good = file.read_bytes()
    file.write_bytes(good + b"\x01" * 40)
    (run,) = import_runs(tmp_path / "exp")
    assert (run.rows, run.skipped[0].place) == (5, f"{file}, byte {len(good)}")


def test_files_of_the_tensorboard_sink_round_trip_with_axes(tmp_path):
    with hl.run("own", sinks=["tensorboard"], summary=False) as made:
        for step in made.steps(3):
            made.log(loss=float(step), note="ok")
        made.recorder.metrics({"val/loss": 0.5}, 3, "eval")
    (run,) = import_runs(made.dir / "tensorboard")
    recorded = [(r.axis, r.step, r.time, r.values) for r in hl.read(made.dir) if r.__class__.__name__ == "Metrics"]
    assert sorted(rows(run), key=str) == sorted(recorded, key=str)


def test_single_event_file_becomes_a_run_named_after_its_directory(tmp_path):
    file = one_file(write(tmp_path / "exp", [("loss", 0.5, 1)]))
    (found,) = detect(file)
    assert (found.name, found.format, found.files) == ("exp", "tensorboard", [file])


def test_hparams_of_lightnings_tensorboard_logger_become_the_config(tmp_path):
    write(tmp_path / "version_0", [("loss", 0.5, 1)])
    (tmp_path / "version_0" / "hparams.yaml").write_text("lr: 0.5\n")
    (run,) = import_runs(tmp_path / "version_0")
    assert facts(run)["config"] == {"lr": 0.5}


def test_event_file_cut_off_anywhere_keeps_the_values_before_the_cut(tmp_path):
    whole = one_file(write(tmp_path / "exp", [("loss", float(step), step) for step in range(6)])).read_bytes()
    for size in range(len(whole) // 2, len(whole), 7):
        cut = tmp_path / f"cut-{size}" / "events.out.tfevents.1"
        cut.parent.mkdir()
        cut.write_bytes(whole[:size])
        (run,) = import_runs(cut)
        found = [values["loss"] for _, _, _, values in rows(run)]
        assert (found, run.skipped_count) == ([float(step) for step in range(run.rows)], 1)

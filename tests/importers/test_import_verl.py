"""Importing verl's rollouts and metrics."""

import json
import math

import pytest

import hookline as hl
from hookline.importers import import_runs


def rollout(step, output="#### 4", score=1.0, **more):
    return {"input": "user\n2+2?\nassistant\n", "output": output, "gts": "4", "score": score, "step": step, **more}


def write(file, lines):
    """Lines as verl writes them: Python's JSON, which has NaN."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return file


def records(run, kind):
    return [record for record in hl.read(run.directory) if record.__class__.__name__ == kind]


def test_rollouts_become_samples_with_the_reward_functions_values(tmp_path):
    file = write(tmp_path / "rollouts" / "7.jsonl", [rollout(7, acc=True, pred="4", uid="u1", overlong=-0.5)])
    (run,) = import_runs(tmp_path / "rollouts")
    (sample,) = records(run, "Sample")
    assert (run.name, run.format, run.samples) == ("rollouts", "verl", 1)
    assert (sample.step, sample.prompt, sample.completion) == (7, "user\n2+2?\nassistant\n", "#### 4")
    assert (sample.expected, sample.total, sample.group, sample.axis) == ("4", 1.0, "u1", "train")
    assert (sample.rewards, sample.extra) == ({"score": 1.0, "acc": True, "overlong": -0.5}, {"pred": "4"})
    assert sample.time == file.stat().st_mtime


def test_rollouts_without_ground_truth_are_read(tmp_path):
    line = {"input": "a", "output": "b", "score": math.nan, "step": 1}
    (run,) = import_runs(write(tmp_path / "1.jsonl", [line]))
    (sample,) = records(run, "Sample")
    assert (sample.expected, math.isnan(sample.total), math.isnan(sample.rewards["score"])) == (None, True, True)


def test_structured_ground_truth_is_kept_as_json(tmp_path):
    (run,) = import_runs(write(tmp_path / "1.jsonl", [rollout(1) | {"gts": ["4", "vier"]}, rollout(1) | {"gts": None}]))
    assert [sample.expected for sample in records(run, "Sample")] == ['["4", "vier"]', None]


def test_rollouts_are_read_in_step_order(tmp_path):
    for step in (10, 9, 100):
        write(tmp_path / f"{step}.jsonl", [rollout(step)])
    (run,) = import_runs(tmp_path)
    assert [sample.step for sample in records(run, "Sample")] == [9, 10, 100]


def test_metrics_become_rows_with_validations_on_the_eval_axis(tmp_path):
    data = {"actor/pg_loss": math.nan, "critic/score/mean": 0.5, "val-core/gsm8k/acc/mean@1": 0.25}
    (run,) = import_runs(write(tmp_path / "exp1.jsonl", [{"step": 0, "data": {"a": 1}}, {"step": 5, "data": data}]))
    assert run.name == "exp1"
    assert str([(row.axis, row.step, row.values) for row in records(run, "Metrics")]) == str(
        [
            ("train", 0, {"a": 1}),
            ("train", 5, {"actor/pg_loss": math.nan, "critic/score/mean": 0.5}),
            ("eval", 5, {"val-core/gsm8k/acc/mean@1": 0.25}),
        ]
    )


def test_metrics_rollouts_and_validations_of_a_directory_become_one_run(tmp_path):
    write(tmp_path / "exp" / "metrics.jsonl", [{"step": step, "data": {"loss": 1 / step}} for step in (1, 2)])
    for step in (1, 2):
        write(tmp_path / "exp" / "rollout_data" / f"{step}.jsonl", [rollout(step)])
    write(tmp_path / "exp" / "val_data" / "2.jsonl", [rollout(2)])
    (run,) = import_runs(tmp_path / "exp")
    assert (run.name, run.format, run.rows, run.samples) == ("exp", "verl", 2, 3)
    found = [(r.__class__.__name__, r.step, r.axis) for r in hl.read(run.directory) if hasattr(r, "axis")]
    assert found == [
        ("Metrics", 1, "train"),
        ("Sample", 1, "train"),
        ("Metrics", 2, "train"),
        ("Sample", 2, "train"),
        ("Sample", 2, "eval"),
    ]


def test_metrics_beside_event_files_take_their_times_and_what_they_lack(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    write(tmp_path / "exp" / "metrics.jsonl", [{"step": step, "data": {"loss": 1 / step}} for step in (1, 3)])
    with tensorboard.SummaryWriter(str(tmp_path / "exp" / "tensorboard")) as writer:
        for step in (1, 3, 4):
            writer.add_scalar("loss", 1 / step, step, walltime=1000.0 + step)
        writer.add_scalar("gpu", 0.5, 3, walltime=1003.5)
    (run,) = import_runs(tmp_path / "exp")
    assert [(row.step, row.time, row.values) for row in records(run, "Metrics")] == [
        (1, 1001.0, {"loss": 1.0}),
        (3, 1003.0, {"loss": 1 / 3}),
        (4, 1004.0, {"loss": 0.25}),
        (3, 1003.5, {"gpu": 0.5}),
    ]


def test_several_metrics_files_in_a_directory_become_separate_runs(tmp_path):
    for name in ("first", "second"):
        write(tmp_path / "project" / f"{name}.jsonl", [{"step": 1, "data": {"loss": 1.0}}])
    assert [run.name for run in import_runs(tmp_path / "project")] == ["first", "second"]


def test_torn_or_invalid_lines_are_skipped_and_reported(tmp_path):
    file = write(tmp_path / "metrics.jsonl", [{"step": 1, "data": {"a": 1, "b": [1]}}, {"step": "2", "data": {}}, [3]])
    with file.open("a") as opened:
        opened.write('nonsense\n{"step": 4, "data": {"a": 4}}\n{"step": 5, "da')
    (run,) = import_runs(file)
    assert [(row.step, row.values) for row in records(run, "Metrics")] == [(1, {"a": 1}), (4, {"a": 4})]
    assert [skip.place.removeprefix(f"{file}, ") for skip in run.skipped] == [
        "line 1, 'b'",
        "line 2",
        "line 3",
        "line 4",
        "line 6",
    ]
    assert run.skipped[-1].reason == "the last line is cut off"


def test_invalid_rollouts_are_skipped_and_reported(tmp_path):
    file = write(tmp_path / "1.jsonl", [rollout(1), rollout(None), rollout(1, output=3)])
    (run,) = import_runs(file)
    assert (run.samples, [skip.place for skip in run.skipped]) == (1, [f"{file}, line 2", f"{file}, line 3"])


def test_rollouts_join_the_only_event_files_beside_them(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    write(tmp_path / "exp" / "rollouts" / "1.jsonl", [rollout(1)])
    with tensorboard.SummaryWriter(str(tmp_path / "exp" / "tensorboard_log" / "p" / "e")) as writer:
        writer.add_scalar("loss", 0.5, 1, walltime=1000.0)
    (run,) = import_runs(tmp_path / "exp")
    assert (run.name, run.format, run.rows, run.samples) == ("exp", "tensorboard+verl", 1, 1)
    assert [sample.time for sample in records(run, "Sample")] == [1000.0]


def test_rollouts_beside_event_files_of_several_trainings_become_a_separate_run(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    write(tmp_path / "work" / "rollouts" / "1.jsonl", [rollout(1)])
    for name in ("a", "b"):
        with tensorboard.SummaryWriter(str(tmp_path / "work" / name)) as writer:
            writer.add_scalar("loss", 0.5, 1)
    assert [(run.name, run.format) for run in import_runs(tmp_path / "work")] == [
        ("work", "verl"),
        ("a", "tensorboard"),
        ("b", "tensorboard"),
    ]

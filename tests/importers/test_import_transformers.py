"""Importing Hugging Face's trainer state, alone and with event files and completions of the same training."""

import json
import math
import shutil

import pytest

import hookline as hl
from hookline.importers import import_runs

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tensorboard")


class Rows(torch.utils.data.Dataset):  # type: ignore[name-defined]
    """Texts to train on, as token ids."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        ids = torch.arange(index + 1, index + 6)
        return {"input_ids": ids, "labels": ids}


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory):
    """What a trainer leaves after six steps with an evaluation and a checkpoint after every two, and its events."""
    from transformers import Trainer, TrainingArguments

    from hookline.testing import character_tokenizer, tiny_causal_lm

    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("hf") / "finetune"
    arguments = TrainingArguments(
        output_dir=str(directory),
        max_steps=6,
        per_device_train_batch_size=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to=["tensorboard"],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    trainer = Trainer(tiny_causal_lm(character_tokenizer()), arguments, train_dataset=Rows(), eval_dataset=Rows())
    trainer.train()
    trainer.save_state()
    return directory


@pytest.fixture
def training(output_dir, tmp_path):
    """A copy to damage."""
    return shutil.copytree(output_dir, tmp_path / "finetune")


def history(file):
    return json.loads(file.read_text())["log_history"]


def rows(run):
    return [record for record in hl.read(run.directory) if record.__class__.__name__ == "Metrics"]


def as_logged(row):
    return {**row.values, "step": row.step}


def test_trainer_state_history_puts_evaluations_on_the_eval_axis(training):
    (run,) = import_runs(training / "trainer_state.json")
    logged = history(training / "trainer_state.json")
    assert (run.format, run.rows, [as_logged(row) for row in rows(run)]) == ("transformers", len(logged), logged)
    assert [row.axis for row in rows(run)] == ["eval" if "eval_loss" in row else "train" for row in logged]
    assert {row.time for row in rows(run)} == {(training / "trainer_state.json").stat().st_mtime}


def test_trainer_state_gives_best_evaluation_and_settings(training):
    (run,) = import_runs(training / "trainer_state.json")
    state = json.loads((training / "trainer_state.json").read_text())
    facts = json.loads((run.directory / "run.json").read_text())
    (best,) = [record for record in hl.read(run.directory) if record.__class__.__name__ == "Event"]
    assert (best.name, best.step, best.data["metric"]) == ("best", state["best_global_step"], state["best_metric"])
    assert (facts["config"]["max_steps"], facts["imported"]["facts"]["global_step"]) == (6, 6)


def test_output_directory_becomes_one_run_with_full_values_and_the_event_files_times(training):
    (run,) = import_runs(training)
    logged = history(training / "trainer_state.json")
    assert (run.name, run.format) == ("finetune", "transformers+tensorboard")
    assert [as_logged(row) for row in rows(run)] == logged
    times = [row.time for row in rows(run)]
    assert times == sorted(times)
    assert len(set(times)) == 6
    assert max(times) <= (training / "trainer_state.json").stat().st_mtime + 1
    assert json.loads((run.directory / "run.json").read_text())["config"]["args"]["max_steps"] == 6
    assert any("trainer_state.json has them as well" in left.reason for left in run.left)


def test_output_directory_without_state_uses_the_latest_checkpoint_and_later_events(training):
    (training / "trainer_state.json").unlink()
    shutil.rmtree(training / "checkpoint-6")
    (run,) = import_runs(training)
    logged = history(training / "checkpoint-4" / "trainer_state.json")
    assert [as_logged(row) for row in rows(run)][: len(logged)] == logged
    behind = [row for row in rows(run)[len(logged) :] if row.step > 4]
    assert {row.step for row in behind if "loss" in row.values} == {5, 6}
    assert [row.step for row in rows(run) if "eval_loss" in row.values] == [2, 4, 6]
    assert "states of other checkpoints" in [left.what for left in run.left]


def test_torn_state_is_reported_and_the_previous_checkpoint_used(training):
    shutil.rmtree(training / "runs")
    (training / "trainer_state.json").unlink()
    torn = training / "checkpoint-6" / "trainer_state.json"
    torn.write_text(torn.read_text()[:-200])
    (run,) = import_runs(training)
    assert [as_logged(row) for row in rows(run)] == history(training / "checkpoint-4" / "trainer_state.json")
    assert run.skipped[0].place.startswith(f"{torn}, line ")


def test_checkpoint_newer_than_the_state_wins(training):
    shutil.copy(training / "checkpoint-2" / "trainer_state.json", training / "trainer_state.json")
    (run,) = import_runs(training, format="transformers")
    assert [as_logged(row) for row in rows(run)] == history(training / "checkpoint-6" / "trainer_state.json")


def test_state_with_invalid_rows_skips_them_and_keeps_non_finite_values(tmp_path):
    odd = [{"loss": math.nan, "step": 1}, {"loss": 1.0}, "text", {"loss": math.inf, "table": [1, 2], "step": 2}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": odd, "global_step": 2}))
    (run,) = import_runs(tmp_path / "trainer_state.json")
    assert [str(row.values["loss"]) for row in rows(run)] == ["nan", "inf"]
    assert [skip.place.partition(", ")[2] for skip in run.skipped] == [
        "log_history[1]",
        "log_history[2]",
        "log_history[3], 'table'",
    ]


def test_evaluation_with_a_custom_prefix_is_on_the_eval_axis(tmp_path):
    logged = [{"heldout_loss": 0.5, "heldout_runtime": 1.0, "heldout_samples_per_second": 2.0, "epoch": 1, "step": 4}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": logged}))
    (run,) = import_runs(tmp_path / "trainer_state.json")
    assert [(row.axis, as_logged(row)) for row in rows(run)] == [("eval", logged[0])]


def test_state_whose_last_step_is_no_number_is_imported(tmp_path):
    state = {"log_history": [{"step": 1, "loss": 2.0}], "best_metric": 2.0, "global_step": [1], "max_steps": {}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    (run,) = import_runs(tmp_path / "trainer_state.json")
    assert run.rows == 1

"""Libraries that log to wandb, unmodified, with the drop-in in its place: what each recorded, in one process."""

import json
from pathlib import Path

import pytest

import hookline.compat.wandb as wandb

SCRIPT = Path(__file__).with_name("scripts") / "wandb_libraries.py"


@pytest.fixture(scope="module")
def recorded(torch_programs, tmp_path_factory):
    for package in ("transformers", "trl", "sentence_transformers", "accelerate", "lightning"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("libraries")
    program = torch_programs.start(SCRIPT, folder / "results.json", cwd=folder, env=wandb.child_environment())
    output, _ = program.communicate(240)
    assert program.returncode == 0, output[-3000:]
    return json.loads((folder / "results.json").read_text())


def test_libraries_import_the_drop_in_as_wandb(recorded):
    assert recorded["package"] == "hookline.compat.wandb"
    assert {name: run["state"] for name, run in recorded.items() if name != "package"} == dict.fromkeys(
        ("transformers", "trl", "sentence_transformers", "accelerate", "lightning"), "finished"
    )


def test_transformers_trainer_records_rows_configuration_and_models(recorded):
    run = recorded["transformers"]
    assert (run["name"], run["config"]["max_steps"], run["config"]["model/num_parameters"] > 0) == ("hf", 2, True)
    assert {"train/loss", "train/global_step", "eval/loss"} <= set(run["names"])
    assert (run["steps"], run["artifacts"], "train_runtime" in run["summary"]) == (
        [0, 1, 2, 3],
        ["model", "model"],
        True,
    )


def test_trl_records_completions_as_a_table(recorded):
    run = recorded["trl"]
    assert (run["name"], run["kinds"]) == ("grpo", {"completions": "table-file"})
    assert {"train/reward", "train/completions/mean_length"} <= set(run["names"])


def test_sentence_transformers_trainer_records_rows(recorded):
    run = recorded["sentence_transformers"]
    assert (run["name"], {"train/loss", "train/global_step"} <= set(run["names"])) == ("st", True)


def test_accelerate_tracker_records_metrics_tables_and_images(recorded):
    run = recorded["accelerate"]
    assert (run["name"], run["tags"], run["config"]["lr"], run["steps"]) == ("acc", ["t"], 0.1, [3, 4])
    assert run["kinds"] == {"image": "image-file", "table": "table-file"}


def test_lightning_logger_records_metrics_gradients_media_and_checkpoints(recorded):
    run = recorded["lightning"]
    assert (run["name"], run["config"]["lr"], run["artifacts"], run["steps"]) == ("pl", 0.1, ["model"], [0, 1, 2, 3])
    assert {"train/loss", "trainer/global_step", "epoch"} <= set(run["names"])
    assert {"gradients/layer.weight": "histogram", "texts": "table-file", "image": "image-file"}.items() <= run[
        "kinds"
    ].items()

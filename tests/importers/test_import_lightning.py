"""Importing Lightning's `CSVLogger` files: sparse metrics, and settings that must not run code."""

import json
import math

import pytest
import yaml

import hookline as hl
from hookline.importers import import_runs

loggers = pytest.importorskip("lightning.pytorch.loggers")

DANGEROUS = """
lr: 0.001
model: !!python/object/apply:os.mkdir ["pwned"]
mode: !!python/object/apply:package.Mode
- fast
size: !!python/tuple [2, 3]
optimizer: !!python/name:torch.optim.AdamW
other: !private {depth: 2}
"""


@pytest.fixture
def version(tmp_path):
    """The directory of a logger that logged three rows of training and one of validation."""
    logger = loggers.CSVLogger(str(tmp_path), name="lightning_logs", flush_logs_every_n_steps=1)
    logger.log_hyperparams({"lr": 0.1 + 0.2, "layers": 2, "name": "tiny"})
    logger.log_metrics({"train_loss": 1 / 3, "epoch": 0}, step=0)
    logger.log_metrics({"train_loss": math.nan, "epoch": 0}, step=9)
    logger.log_metrics({"val_loss": math.inf, "epoch": 0}, step=9)
    logger.log_metrics({"train_loss": 1e-30, "epoch": 1, "lr-AdamW": 0.1}, step=19)
    logger.save()
    return tmp_path / "lightning_logs" / "version_0"


def rows(run):
    found = [record for record in hl.read(run.directory) if record.__class__.__name__ == "Metrics"]
    return [(row.axis, row.step, row.values) for row in found]


def config(run):
    return json.loads((run.directory / "run.json").read_text())["config"]


def test_metrics_and_settings_are_imported(version):
    (run,) = import_runs(version)
    assert (run.name, run.format, run.rows) == ("version_0", "lightning", 4)
    assert str(rows(run)) == str(
        [
            ("train", 0, {"epoch": 0, "train_loss": 1 / 3}),
            ("train", 9, {"epoch": 0, "train_loss": math.nan}),
            ("eval", 9, {"epoch": 0, "val_loss": math.inf}),
            ("train", 19, {"epoch": 1, "lr-AdamW": 0.1, "train_loss": 1e-30}),
        ]
    )
    assert config(run) == {"lr": 0.1 + 0.2, "layers": 2, "name": "tiny"}


def test_each_version_of_a_logger_becomes_a_run(version):
    logger = loggers.CSVLogger(str(version.parents[1]), name="lightning_logs")
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.save()
    assert [run.name for run in import_runs(version.parent)] == ["version_0", "version_1"]


def test_metrics_beside_event_files_take_only_their_times(version):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(version)) as writer:
        for step, loss in ((0, 1 / 3), (9, math.nan), (19, 1e-30)):
            writer.add_scalar("train_loss", loss, step, walltime=1000.0 + step)
    (run,) = import_runs(version)
    found = [record for record in hl.read(run.directory) if record.__class__.__name__ == "Metrics"]
    assert (run.format, len(found)) == ("lightning+tensorboard", 4)
    assert [(row.step, row.time) for row in found if row.axis == "train"] == [(0, 1000.0), (9, 1009.0), (19, 1019.0)]
    assert found[0].values["train_loss"] == 1 / 3


def test_settings_with_python_tags_are_read_as_plain_data(version, tmp_path):
    (version / "hparams.yaml").write_text(DANGEROUS)
    (run,) = import_runs(version)
    assert config(run) == {
        "lr": 0.001,
        "model": ["pwned"],
        "mode": ["fast"],
        "size": [2, 3],
        "optimizer": "torch.optim.AdamW",
        "other": {"depth": 2},
    }
    assert not (tmp_path / "pwned").exists()


def test_settings_of_real_objects_are_read(version):
    (version / "hparams.yaml").write_text(yaml.dump({"range": (1, 2), "pi": math.pi, "none": None}))
    (run,) = import_runs(version)
    assert config(run) == {"range": [1, 2], "pi": math.pi, "none": None}


@pytest.mark.parametrize(
    "text",
    [
        "a: [1, 2",
        "a: &a [*a]",
        "\n".join(["a0: &a0 [1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))]),
    ],
    ids=["torn", "endless", "exploding"],
)
def test_unreadable_settings_are_reported_and_metrics_imported(version, text):
    (version / "hparams.yaml").write_text(text)
    (run,) = import_runs(version)
    assert (run.rows, config(run), [skip.place for skip in run.skipped]) == (4, {}, [str(version / "hparams.yaml")])


def test_unterminated_last_line_is_skipped(version):
    table = version / "metrics.csv"
    table.write_text(table.read_text().rstrip()[:-2])
    (run,) = import_runs(version)
    assert run.rows == 3
    assert run.skipped == ((f"{table}, line 5", "the last line is cut off"),)

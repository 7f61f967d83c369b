"""The bridge of MaxText with a stand-in of its training loop, beyond what the contract suite compares."""

import json
import sys

import pytest

pytest.importorskip("jax")

import jax
from host_runs import At, end_of, values
from hosts.stand_ins.maxtext import MetricLogger, installed, settings, train_loop

import hookline as hl
from hookline.integrations.maxtext import observe
from hookline.testing import RecordingCallback


@pytest.fixture(autouse=True)
def _maxtext():
    with installed():
        yield


class Count(hl.Callback):
    """Counts steps, with the count in its state."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, loop, step_idx):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def test_rows_are_those_of_the_metric_logger_and_it_still_writes_them(options):
    config = settings(eval_interval=4)
    with observe(**options) as hooks:
        train_loop(config)
    loop = hooks.loop
    assert [(step - 1, value) for step, value in values(loop, "learning/loss")] == config.written
    assert values(loop, "loss") == values(loop, "learning/loss")
    assert [step for step, _ in values(loop, "learning/current_learning_rate")] == [*range(1, 9)]
    assert [step for step, _ in values(loop, "val/loss")] == [1, 5]
    assert values(loop, "val/perplexity") == values(loop, "eval/avg_perplexity")
    assert (loop.num_steps, loop.native, loop.config["steps"]) == (8, config, 8)


def test_modules_are_as_before_afterwards(options):
    before = vars(sys.modules["maxtext.common.checkpointing"])["maybe_save_checkpoint"]
    with observe(**options):
        assert sys.modules["maxtext.common.metric_logger"].MetricLogger is not MetricLogger
    assert sys.modules["maxtext.common.metric_logger"].MetricLogger is MetricLogger
    assert vars(sys.modules["maxtext.common.checkpointing"])["maybe_save_checkpoint"] is before


def test_target_that_ends_the_training_is_an_orderly_end(options):
    seen, config = RecordingCallback(), settings(target_eval_loss=100.0)
    with observe([seen], **options) as hooks:
        train_loop(config)
    assert (hooks.loop.step, end_of(hooks.loop)[0]) == (1, "finished")
    assert seen.names()[-2:] == ["on_train_epoch_end", "on_train_end"]
    assert [step for step, _ in values(hooks.loop, "val/loss")] == [1]


def test_checkpoints_of_maxtext_come_with_the_states_of_callbacks(options, tmp_path):
    config = settings(checkpoint_dir=str(tmp_path / "out"), checkpoint_period=3)
    stop = At(4, lambda loop: loop.request_stop("for now"))
    count = Count()
    with observe([stop, Count()], **options) as first:
        train_loop(config)
    rows = first.loop.checkpoints
    assert [row.step for row in rows] == [1, 4]
    note = json.loads((rows[-1].path / "maxtext.json").read_text())
    assert note == {"checkpoint_dir": str(tmp_path / "out"), "step": 3}
    with observe([count], resume=rows[-1].path, **options) as again:
        train_loop(settings(checkpoint_dir=str(tmp_path / "out"), checkpoint_period=3))
    assert (again.loop.dir, again.loop.step, count.steps) == (first.loop.dir, 8, 8)
    assert [step for step, _ in values(again.loop, "loss")] == [*range(1, 9)]


def test_checkpoint_where_maxtext_saves_none_is_refused(options, caplog):
    with observe([At(2, lambda loop: loop.request_checkpoint())], **options) as hooks:
        train_loop(settings())
    assert "MaxText's checkpoints are disabled" in caplog.text
    assert hooks.loop.checkpoints == []


def test_error_ends_the_run_as_failed(options):
    seen = RecordingCallback()
    with pytest.raises(RuntimeError, match="broken"), observe([seen], **options) as hooks:
        train_loop(settings(breaks_at=2))
    assert end_of(hooks.loop) == ["failed", "RuntimeError: the batch is broken"]
    assert seen.names()[-1] == "on_exception"


def test_several_processes_are_not_stopped_by_one(options, monkeypatch, caplog):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with observe([At(2, lambda loop: loop.request_stop("enough"))], **options) as hooks:
        train_loop(settings())
    assert hooks.loop.step == 8
    assert "2 processes of JAX train together" in caplog.text

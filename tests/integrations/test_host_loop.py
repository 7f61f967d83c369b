import logging
import os
import signal
from pathlib import Path

import pytest

import hookline as hl
from hookline._engine.errors import CheckpointError
from hookline._record.records import Event, Metrics, Status
from hookline.integrations import host_loop
from hookline.integrations.host_loop import HostLoop, Requests
from hookline.testing import RecordingCallback


class Counter(hl.Callback):
    def __init__(self):
        self.steps = 0

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.steps += 1
        return {"twice": 2 * metrics["loss"]}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def host(*callbacks, **options):
    return HostLoop("hosted", native="the trainer", callbacks=callbacks, summary=False, **options)


def step(loop, loss):
    loop.step_start()
    loop.batch_start("batch")
    loop.batch_end({"loss": loss}, "batch")
    loop.before_optimizer_step(None)
    loop.step_end("batch", {"loss": loss})


def train(loop, losses, **start):
    loop.train_start(num_steps=len(losses), **start)
    for loss in losses:
        step(loop, loss)
    loop.train_end()


def rows(loop, axis="train"):
    return [(r.step, r.values) for r in hl.read(loop.dir) if isinstance(r, Metrics) and r.axis == axis]


def test_host_loop_fires_every_moment_in_order():
    seen = RecordingCallback()
    loop = host(seen)
    loop.begin()
    loop.train_start(num_steps=1, num_epochs=1)
    loop.epoch_start(0)
    loop.rollout_start(0)
    loop.rollout_end(0, ["rollout"])
    step(loop, 0.5)
    loop.host_log({"learning_rate": 0.1})
    loop.validation_start()
    loop.validation_batch_start("batch")
    loop.validation_batch_end("outputs", "batch")
    loop.validation_end("val", {"val/loss": 0.25})
    loop.checkpoint_saved("there")
    loop.epoch_end()
    loop.train_end()
    assert seen.names() == [
        "on_train_start",
        "on_train_epoch_start",
        "on_rollout_start",
        "on_rollout_end",
        "on_step_start",
        "on_train_batch_start",
        "on_train_batch_end",
        "on_before_optimizer_step",
        "on_step_end",
        "on_log",
        "on_log",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_batch_start",
        "on_validation_batch_end",
        "on_log",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_eval",
        "on_checkpoint",
        "on_train_epoch_end",
        "on_train_end",
    ]


def test_host_loop_records_what_subscribers_derive_in_the_row_of_the_step():
    loop = host(Counter(), strict=True)
    loop.begin()
    train(loop, [0.5, 0.25])
    assert rows(loop) == [(1, {"loss": 0.5, "counter/twice": 1.0}), (2, {"loss": 0.25, "counter/twice": 0.5})]
    assert [r.status for r in hl.read(loop.dir) if isinstance(r, Status)] == ["running", "finished"]


def test_host_loop_is_a_loop_state_with_the_trainer_of_the_host():
    loop = host()
    assert isinstance(loop, hl.LoopState)
    assert loop.native == "the trainer"


def test_host_loop_takes_the_counters_from_the_host():
    seen = RecordingCallback()
    loop = host(seen, root=None)
    loop.begin()
    loop.train_start(step=4, epoch=1, num_steps=6)
    loop.step_start()
    loop.step_end(metrics={"loss": 1.0}, step=5)
    indices = [event.arguments[0] for event in seen.events if event.moment in ("on_step_start", "on_step_end")]
    assert (indices, loop.step, loop.epoch) == ([4, 4], 5, 1)
    loop.train_end()


def test_host_loop_gives_requests_once():
    loop = host(root=None)
    loop.begin()
    loop.train_start()
    loop.request_checkpoint()
    loop.request_validation()
    assert loop.requests() == Requests(None, True, True)
    loop.request_stop("enough")
    assert loop.requests() == Requests("enough", False, False)
    loop.train_end()
    assert loop.state == "stopped"


def test_host_loop_stops_at_the_next_boundary_after_a_signal():
    loop = host(root=None)
    loop.begin()
    loop.train_start()
    os.kill(os.getpid(), signal.SIGTERM)
    assert loop.requests().stop == "SIGTERM"
    loop.train_end()


def test_host_loop_that_failed_keeps_the_open_row_and_fires_on_exception():
    seen = RecordingCallback()
    loop = host(seen)
    loop.begin()
    loop.train_start()
    loop.step_start()
    loop.log(depth=3)
    loop.failed(ValueError("no more"))
    loop.failed(ValueError("a second failure"))
    assert rows(loop) == [(1, {"depth": 3})]
    assert seen.names()[-1] == "on_exception"
    assert [r.message for r in hl.read(loop.dir) if isinstance(r, Status)][-1] == "ValueError: no more"


def test_host_loop_isolates_observers_and_lets_critical_ones_through():
    class Broken(hl.Callback):
        def on_step_start(self, loop, step_idx):
            raise RuntimeError("broken")

    loop = host(Broken(), root=None)
    loop.begin()
    train(loop, [1.0])
    assert [failure.moment for failure in loop.callbacks.failures] == ["on_step_start"]
    critical = host(Broken().configure(critical=True), root=None)
    critical.begin()
    critical.train_start()
    with pytest.raises(RuntimeError, match="broken"):
        critical.step_start()
    critical.failed(RuntimeError("broken"))


def test_host_loop_saves_through_the_host():
    saved = []

    def save(path):
        saved.append(path)
        return loop.checkpoint_saved(path or "where the host keeps them")

    loop = HostLoop("hosted", native=None, save=save, root=None, summary=False)
    loop.begin()
    loop.train_start(step=3)
    assert loop.save_checkpoint("here").path == Path("here")
    assert (saved, loop.checkpoints[0].step) == ([Path("here")], 3)
    loop.train_end()


def test_host_loop_without_a_save_function_says_who_saves_nothing():
    with pytest.raises(CheckpointError, match="str saves no checkpoints"):
        host(root=None).save_checkpoint()


def test_host_loop_resumed_continues_in_its_run_with_the_states_of_callbacks(tmp_path):
    first = host(Counter())
    first.begin()
    first.train_start(num_steps=4)
    for loss in (4.0, 3.0):
        step(first, loss)
    host_loop.save(tmp_path, first)
    step(first, 2.0)
    first.failed(KeyboardInterrupt())
    counter, seen = Counter(), RecordingCallback()
    again = host(counter, seen)
    state = host_loop.load(tmp_path)
    again.begin(state=state, row=again.checkpoint_row(tmp_path))
    assert counter.steps == 2
    train(again, [1.0, 0.5], step=2)
    assert again.dir == first.dir
    assert [(at, values["loss"]) for at, values in rows(again)] == [(1, 4.0), (2, 3.0), (3, 1.0), (4, 0.5)]
    assert seen.names()[:2] == ["on_train_start", "on_checkpoint_load"]
    assert not list(again.dir.glob(".resumed*"))


def test_host_loop_resumed_reports_and_records_rows_that_are_missing_below_the_checkpoint(tmp_path, caplog):
    first = host()
    first.begin()
    first.train_start(num_steps=4)
    for loss in (4.0, 3.0):
        step(first, loss)
    host_loop.save(tmp_path, first)
    first.failed(KeyboardInterrupt())
    (journal,) = (first.dir / "journal").glob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]))
    again = host()
    again.begin(state=host_loop.load(tmp_path))
    train(again, [1.0], step=2)
    events = [record for record in hl.read(again.dir) if isinstance(record, Event)]
    missing = [event.data["count"] for event in events if event.name == "records_missing"]
    assert (missing, "before the checkpoint of step 2 are missing" in caplog.text) == ([1], True)


@pytest.mark.parametrize("durability", ["process", "checkpoint", "power"])
def test_host_loop_state_for_a_checkpoint_comes_behind_a_sync_of_the_journal(monkeypatch, durability):
    synced = []
    loop = host(durability=durability)
    loop.begin()
    loop.train_start(num_steps=1)
    step(loop, 1.0)
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().suffix))
    loop.state_dict()
    assert (".jsonl" in synced) == (durability != "process")
    loop.train_end()


def test_host_loop_resumed_where_its_run_is_gone_begins_another(tmp_path):
    first = host(Counter())
    first.begin()
    first.train_start()
    step(first, 1.0)
    host_loop.save(tmp_path, first)
    first.train_end()
    counter = Counter()
    again = host(counter, root="elsewhere")
    again.begin(state=host_loop.load(tmp_path))
    train(again, [0.5], step=1)
    assert (counter.steps, [at for at, _ in rows(again)]) == (2, [2])
    assert again.dir != first.dir


def test_host_state_that_is_missing_or_damaged_is_reported_and_skipped(tmp_path, caplog):
    assert host_loop.load(tmp_path) is None
    loop = host(root=None)
    loop.begin()
    host_loop.save(tmp_path, loop)
    loop.train_end()
    (tmp_path / host_loop.STATE_FOLDER / "state.json").write_text("{")
    assert host_loop.load(tmp_path) is None
    assert ["start from scratch" in record.getMessage() for record in caplog.records] == [True, True]


def test_host_loop_that_validates_without_training_fires_no_train_moment():
    seen = RecordingCallback()
    loop = host(seen)
    loop.begin(trains=False)
    loop.start()
    loop.validation_start()
    loop.validation_end("val", {"val/loss": 0.5})
    loop.train_end()
    assert [name for name in seen.names() if "train" in name] == []
    assert rows(loop, "eval") == [(0, {"val/loss": 0.5})]


def test_host_loop_that_validates_after_training_continues_in_its_run(caplog):
    seen = RecordingCallback()
    loop = host(seen, Counter())
    loop.begin()
    train(loop, [1.0])
    trained = loop.dir
    loop.begin(trains=False)
    loop.start()
    loop.validation_start()
    loop.validation_end("val", {"val/loss": 0.5})
    loop.train_end()
    assert (loop.dir, [at for at, _ in rows(loop)], rows(loop, "eval")) == (trained, [1], [(1, {"val/loss": 0.5})])
    assert seen.names().count("on_train_end") == 1
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_host_loop_trains_twice_in_two_runs():
    counter = Counter()
    loop = host(counter)
    loop.begin()
    train(loop, [1.0, 2.0])
    first = loop.dir
    loop.begin()
    train(loop, [3.0])
    assert loop.dir != first
    assert [at for at, _ in rows(loop)] == [1]


def test_host_loop_on_another_rank_leaves_what_the_host_says_to_rank_zero():
    loop = host(Counter())
    loop.begin()
    loop.rank = 1
    loop.train_start()
    step(loop, 0.5)
    loop.host_log({"loss": 1.0})
    loop.rank = 0
    loop.train_end()
    assert rows(loop) == [(1, {"counter/twice": 1.0})]


def test_host_loop_records_checkpoints_of_the_host(tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "model.bin").write_bytes(b"12345")
    loop = host()
    loop.begin()
    loop.train_start()
    step(loop, 1.0)
    row = loop.checkpoint_saved(saved)
    loop.train_end()
    events = [r.data for r in hl.read(loop.dir) if isinstance(r, Event) and r.name == "checkpoint"]
    assert (row.step, row.bytes) == (1, 5)
    assert events == [{"path": str(saved), "bytes": 5, "kind": "step"}]


def test_host_loop_in_an_open_step_validates_and_saves_at_the_steps_that_are_complete():
    seen = RecordingCallback()
    loop = host(seen)
    loop.begin()
    loop.train_start()
    step(loop, 0.5)
    loop.step_start()
    loop.validation_start()
    loop.validation_end("val", {"val/loss": 0.25})
    saved = loop.checkpoint_saved("there")
    assert (saved.step, loop.state_dict()["step"], rows(loop, "eval")) == (1, 1, [(1, {"val/loss": 0.25})])
    assert [e.arguments[0] for e in seen.events if e.moment == "on_eval"] == [0]
    loop.step_end("batch", {"loss": 0.25})
    loop.train_end()


def test_host_loop_takes_the_step_of_a_validation_and_a_checkpoint_from_the_host():
    loop = host()
    loop.begin()
    loop.train_start()
    loop.step_start()
    loop.validation_start()
    loop.validation_end("val", {"val/loss": 0.25}, step=1)
    assert (loop.checkpoint_saved("there", step=1).step, loop.state_dict(step=1)["step"]) == (1, 1)
    assert rows(loop, "eval") == [(1, {"val/loss": 0.25})]
    loop.step_end()
    loop.train_end()

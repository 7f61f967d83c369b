"""Replay: recorded runs fire the moments of a training, and rules decide as they did live."""

import contextlib
import math
import random
import signal
import subprocess
import sys
import textwrap

import pytest

import hookline as hl
from hookline.callbacks import Alert, CheckpointCallback, EarlyStoppingCallback, NoProgress, Timer

NAN = float("nan")


def values_of(seed, count=12):
    """Values with ties and some that are not finite."""
    rng = random.Random(seed)
    return [rng.choice([0.1, 0.2, 0.2, 0.3, 0.5, 0.9, *([NAN] if seed % 2 else [])]) for _ in range(count)]


def rules():
    return [
        EarlyStoppingCallback("val/loss", patience=3, check_finite=False),
        CheckpointCallback("val/loss", save_top_k=2, save_last=False),
        Alert("loss", above=0.8),
        Alert("loss", above=0.4, in_a_row=2, rearm="recovered").configure(name="high"),
        NoProgress("loss", steps=6),
    ]


def train(root, seed, callbacks=(), *, name="run", epochs=12, **options):
    """Record a run with an evaluation after each epoch of three steps."""
    losses, evaluations = values_of(seed + 100, 3 * epochs), values_of(seed, epochs)
    with hl.run(name, root=root, callbacks=callbacks, console=False, code=False, summary=False, **options) as run:
        for epoch in run.epochs(epochs):
            for index in run.steps(3):
                run.log(loss=losses[3 * epoch + index])
            with run.validate() as val:
                val.log(loss=evaluations[epoch])
    return run


def events(run, name):
    return [event for event in hl.read(run.dir) if getattr(event, "name", None) == name]


def kept_on_disk(run):
    folder = run.dir / "checkpoints"
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("seed", range(8))
def test_replay_rules_of_a_live_run_decide_the_same(tmp_path, seed):
    live = train(tmp_path, seed, rules())

    replayed = hl.replay(live.dir, rules())

    stops = [(event.step, event.data["reason"]) for event in events(live, "stop")]
    assert [(stop.step, stop.reason) for stop in replayed.stops] == stops
    assert [(alert.step, alert.message) for alert in replayed.alerts] == [
        (event.step, event.data["message"]) for event in events(live, "alert")
    ]
    assert [saved.step for saved in replayed.checkpoints] == [event.step for event in events(live, "checkpoint")]
    assert replayed.kept == kept_on_disk(live)
    assert replayed.errors == []


@pytest.mark.parametrize("seed", range(4))
def test_replay_of_a_run_without_rules_stops_where_a_live_run_stopped(tmp_path, seed):
    live = train(tmp_path, seed, rules(), name="live")
    plain = train(tmp_path, seed, name="plain")

    replayed = hl.replay(plain.dir, rules())

    stop = events(live, "stop")
    assert [(each.step, each.reason) for each in replayed.stops] == [(e.step, e.data["reason"]) for e in stop]


@pytest.mark.parametrize(
    "options",
    [
        {"every_n_steps": 4},
        {"every_n_epochs": 2, "save_top_k": -1},
        {"monitor": "val/loss", "mode": "max", "save_top_k": 3},
        {"monitor": "loss", "every_n_steps": 1, "save_top_k": 2, "save_last": False},
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_replay_checkpoint_rule_saves_and_deletes_as_live(tmp_path, seed, options):
    live = train(tmp_path, seed, [CheckpointCallback(**options)], epochs=5)

    replayed = hl.replay(live.dir, [CheckpointCallback(**options)])

    assert [saved.step for saved in replayed.checkpoints] == [event.step for event in events(live, "checkpoint")]
    assert replayed.kept == kept_on_disk(live)


def resumed_rules():
    early = EarlyStoppingCallback("val/loss", patience=3, check_finite=False)
    return [early, Alert("loss", above=0.8), CheckpointCallback(every_n_steps=5, save_top_k=2)]


def interrupted(root, seed):
    """Record a run that fails in its third epoch and is resumed from its last checkpoint."""
    losses, evaluations = values_of(seed + 100, 36), values_of(seed, 12)
    for attempt in range(2):
        run = hl.run(
            "resumed",
            root=root,
            callbacks=resumed_rules(),
            resume="auto",
            save=lambda path: (path / "weights").write_text("x"),
            load=lambda path: None,
            console=False,
            code=False,
            summary=False,
        )
        with pytest.raises(ArithmeticError) if attempt == 0 else contextlib.nullcontext(), run:
            for epoch in run.epochs(12):
                for index in run.steps(3):
                    run.log(loss=losses[3 * epoch + index])
                    if attempt == 0 and epoch == 2 and index == 1:
                        raise ArithmeticError("the disk is on fire")
                with run.validate() as val:
                    val.log(loss=evaluations[epoch])
    return run


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_replay_of_a_resumed_run_is_one_training(tmp_path, seed):
    live = interrupted(tmp_path, seed)
    seen = []

    class Steps(hl.Callback):
        def on_train_start(self, loop):
            seen.append("start")

        def on_step_end(self, loop, step_idx):
            seen.append(step_idx + 1)

        def on_exception(self, loop, error):
            seen.append("exception")

    replayed = hl.replay(live.dir, [Steps(), *resumed_rules()])

    assert seen == ["start", *range(1, live.step + 1)]
    stops = [(event.step, event.data["reason"]) for event in events(live, "stop")]
    assert [(stop.step, stop.reason) for stop in replayed.stops] == stops
    assert replayed.recording.status == live.ending
    assert replayed.kept == kept_on_disk(live)
    obsolete = hl.replay(live.dir, []).recording
    assert [alert.step for alert in replayed.alerts] == [alert.step for alert in obsolete.alerts]


class Moments(hl.Callback):
    """Lists what it sees."""

    def __init__(self):
        self.seen = []

    def on_train_start(self, loop):
        self.seen.append("train_start")

    def on_train_epoch_start(self, loop):
        self.seen.append(f"epoch_start {loop.epoch}")

    def on_step_start(self, loop, step_idx):
        self.seen.append(f"step_start {step_idx}")

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.seen.append(f"step_end {step_idx} {dict(metrics)}")

    def on_log(self, loop, step, metrics):
        self.seen.append(f"log {step} {dict(metrics)}")

    def on_validation_start(self, loop):
        self.seen.append("validation_start")

    def on_validation_end(self, loop):
        self.seen.append(f"validation_end {loop.get_metric('val_loss')}")

    def on_eval(self, loop, step_idx, eval_name, metrics):
        self.seen.append(f"eval {step_idx} {eval_name} {dict(metrics)}")

    def on_train_epoch_end(self, loop):
        self.seen.append(f"epoch_end {loop.epoch}")

    def on_train_end(self, loop, artifacts):
        self.seen.append(f"train_end {artifacts.step} {artifacts.stop_reason}")


def test_replay_fires_the_moments_in_the_order_of_the_live_run(tmp_path):
    live, again = Moments(), Moments()
    run = train(tmp_path, 0, [live], epochs=3)

    hl.replay(run.dir, [again])

    assert again.seen == live.seen


def test_replay_evaluation_in_the_body_of_a_step_is_of_that_step(tmp_path):
    live, again = Moments(), Moments()
    with hl.run("body", root=tmp_path, callbacks=[live], console=False, code=False, summary=False) as run:
        for step in run.steps(4):
            if step == 2:
                with run.validate() as val:
                    val.log(loss=0.5)
            if step != 1:
                run.log(loss=float(step))

    hl.replay(run.dir, [again])

    assert again.seen == live.seen


def test_replay_of_a_loop_without_steps_numbers_rows_from_zero(tmp_path):
    again = Moments()
    run = hl.start("bare", root=tmp_path, console=False, code=False, summary=False)
    for step in range(3):
        run.log(loss=float(step))
    run.finish()

    hl.replay(run.dir, [again])

    assert [line for line in again.seen if line.startswith("step_end")] == [
        f"step_end {step} {{'loss': {float(step)}}}" for step in range(3)
    ]


def test_replay_clocks_show_the_recorded_time(tmp_path):
    recorder = hl.Recorder(tmp_path / "p" / "slow", clock=iter(range(0, 10_000, 100)).__next__)
    (tmp_path / "p" / "slow" / "run.json").write_text("{}")
    recorder.status("running", step=0, num_steps=8, num_epochs=1)
    for step in range(1, 9):
        recorder.metrics({"loss": 1.0}, step)
    recorder.status("finished", step=8)
    recorder.close()

    replayed = hl.replay(tmp_path / "p" / "slow", [Timer(seconds=450), Alert("loss", above=0, cooldown_seconds=250)])

    assert [stop.step for stop in replayed.stops] == [5]
    assert [alert.step for alert in replayed.alerts] == [1, 4, 7]


def test_replay_names_what_a_recording_does_not_have(tmp_path):
    class NeedsModel(hl.Callback):
        def on_step_end(self, loop, step_idx):
            loop.model.parameters()

        def on_train_batch_end(self, loop, outputs, batch, batch_idx):
            raise AssertionError("no batch is recorded")

    run = train(tmp_path, 0, epochs=2)

    replayed = hl.replay(run.dir, [NeedsModel()])

    assert replayed.unavailable == {"needs_model": ["loop.model", "on_train_batch_end"]}
    assert [(e.step, e.moment, e.disabled) for e in replayed.errors] == [
        (1, "on_step_end", False),
        (2, "on_step_end", False),
        (3, "on_step_end", True),
    ]


def test_replay_changes_nothing_in_the_run(tmp_path):
    run = train(tmp_path, 0, [CheckpointCallback(every_n_steps=3, save_top_k=-1)], epochs=2)
    before = {path: path.stat().st_mtime_ns for path in run.dir.rglob("*")}

    def spill(report_data, step):
        del report_data, step

    replayed = hl.replay(run.dir, [CheckpointCallback(every_n_steps=2), "csv_metrics", spill])

    assert {path: path.stat().st_mtime_ns for path in run.dir.rglob("*")} == before
    assert replayed.kept == [6]
    assert replayed.errors == []


def test_replay_values_and_cadence_are_those_of_the_engine(tmp_path):
    class Double(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            return {"loss": 2 * metrics["loss"]}

    class Direct(hl.Callback):
        def on_step_end(self, loop, step_idx):
            loop.log(seen=loop.get_metric("double/loss"))

    run = train(tmp_path, 0, epochs=2)
    callbacks = hl.CallbackCollection()
    callbacks.add(Double(), every=3)
    callbacks.add(Direct(), every=6)

    replayed = hl.replay(run.dir, callbacks)

    loss = {row.step: row.values["loss"] for row in hl.read(run.dir) if "loss" in getattr(row, "values", {})}
    assert [tuple(value) for value in replayed.values] == [
        (3, "double/loss", 2 * loss[3], "double"),
        (6, "double/loss", 2 * loss[6], "double"),
        (6, "seen", 2 * loss[6], "direct"),
    ]
    assert [value.step for value in replayed.of("direct").values] == [6]


def test_replay_of_a_failed_run_ends_with_the_exception(tmp_path):
    seen = []

    class Ends(hl.Callback):
        def on_exception(self, loop, error):
            seen.append(str(error))

    options = {"root": tmp_path, "console": False, "code": False, "summary": False}
    with pytest.raises(ValueError, match="no gradient"), hl.run("bad", **options) as run:
        for step in run.steps(3):
            run.log(loss=step)
            if step == 1:
                raise ValueError("no gradient")

    replayed = hl.replay(run.dir, [Ends()])

    assert seen == ["ValueError: no gradient"]
    assert replayed.recording.status == "failed"


def test_replay_of_a_killed_run_has_no_end(tmp_path):
    program = f"""
        import os, signal
        import hookline as hl
        with hl.run("killed", root={str(tmp_path)!r}, console=False, code=False) as run:
            for step in run.steps(100):
                run.log(loss=float(step))
                if step == 50:
                    os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert ended.returncode == -signal.SIGKILL
    (directory,) = (tmp_path / "default").iterdir()
    again = Moments()

    replayed = hl.replay(f"default/{directory.name}", [again], root=tmp_path)

    assert replayed.recording.step == 50
    assert not [line for line in again.seen if line.startswith("train_end")]


def test_replay_values_that_arrived_late_are_in_the_order_of_their_times(tmp_path):
    times = iter([0.0, 3.0, 1.0, 2.0, 4.0, 5.0])
    recorder = hl.Recorder(tmp_path / "p" / "late", clock=times.__next__)
    recorder.status("running", step=0, num_steps=3, num_epochs=1)
    recorder.log({"val/loss": 0.5}, step=2, axis="eval")
    for step in (1, 2, 3):
        recorder.log(loss=float(step), step=step)
    recorder.close()
    again = Moments()

    hl.replay(tmp_path / "p" / "late", [again])

    assert [line for line in again.seen if line.startswith("log")] == [
        "log 1 {'loss': 1.0}",
        "log 2 {'loss': 2.0}",
        "log 2 {'val/loss': 0.5}",
        "log 3 {'loss': 3.0}",
    ]


@pytest.mark.parametrize("step", [10**15, -5, 2**62])
def test_replay_of_hostile_steps_ends(tmp_path, step):
    recorder = hl.Recorder(tmp_path / "p" / "odd")
    recorder.status("running", step=0, num_steps=3, num_epochs=1)
    recorder.log(loss=1.0, step=step)
    recorder.status("finished")
    recorder.close()

    replayed = hl.replay(tmp_path / "p" / "odd", [Alert("loss", above=0)])

    assert [alert.step for alert in replayed.alerts] == [step]


def test_replay_of_something_else_says_what_is_accepted(tmp_path):
    with pytest.raises(hl.UnknownNameError, match="There is no run 'nothing'"):
        hl.replay("nothing", [], root=tmp_path)
    with pytest.raises(hl.OptionError, match="RunInfo"):
        hl.replay(3, [])


def test_replay_critical_failure_ends_it_as_a_training(tmp_path):
    class Breaks(hl.Callback):
        critical = True

        def on_log(self, loop, step):
            if step == 2:
                raise ArithmeticError("no")

    run = train(tmp_path, 0, epochs=2)
    other = Moments()

    replayed = hl.replay(run.dir, [Breaks(), other])

    assert str(replayed.ended_by) == "no"
    assert not any(line.startswith("step_start 2") for line in other.seen)
    assert math.isfinite(replayed.seconds)

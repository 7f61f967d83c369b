"""Signals sent to a process in which a Trainer trains: it stops cleanly, and a second start resumes exactly."""

import json
import runpy
import signal
import sys
import textwrap

import pytest

import hookline as hl

torch = pytest.importorskip("torch")

SCRIPT = """
    import json, random, sys
    import torch
    import hookline as hl
    from hookline.loops.trainer_config import CheckpointRules

    torch.set_num_threads(1)
    root, waits_at = sys.argv[1], int(sys.argv[2])

    class Waits(hl.Callback):
        "Says that it is there, and is busy until a signal has come."
        def on_train_batch_end(self, loop, outputs, batch, batch_idx):
            if loop.step == waits_at:
                print("ready", flush=True)
                while "endless" in sys.argv or not loop.stop_requested:
                    pass

        def on_exception(self, loop, error):
            print("exception", type(error).__name__, flush=True)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    x = torch.randn(12, 3)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    config = hl.TrainerConfig(
        name="mine", epochs=3, batch_size=4, schedule="cosine", output_dir=root, resume="auto", summary=False,
        checkpoint=CheckpointRules(every_n_steps=2, save_last=False, save_top_k=-1), save_at_end=False,
    )
    loss = torch.nn.functional.mse_loss
    trainer = hl.Trainer(model, data, data, config=config, loss=loss, callbacks=[Waits(), hl.callbacks.EMA(0.5)])
    artifacts = trainer.fit()
    print("after", trainer.state, artifacts.stop_reason, artifacts.step, flush=True)
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    result = {"rows": [(row.step, row.metrics) for row in trainer.history], "weights": weights}
"""
NEVER = "-1"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


@pytest.fixture
def start(torch_programs, script):
    """Starts a process that trains, and waits until it is in the middle of a step."""

    def started(*arguments):
        program = torch_programs.start(script, *arguments, merge=False)
        assert program.stdout.readline() == "ready\n"
        return program

    return started


def run_here(script, monkeypatch, root):
    """The same script in this process, to its end."""
    torch.set_num_threads(1)
    monkeypatch.setattr(sys, "argv", [str(script), str(root), NEVER])
    return runpy.run_path(str(script))["result"]


def the_run(root):
    (directory,) = (root / "default").iterdir()
    return directory


def last_status(run):
    """What a list of runs shows of it."""
    status = [record for record in hl.read(run) if hasattr(record, "status")][-1]
    return status.status, status.message, status.step


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_after_the_step_saves_and_a_second_start_continues_exactly(
    start, script, tmp_path, monkeypatch, number
):
    process = start(str(tmp_path / "runs"), "4")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (out.splitlines(), process.returncode) == ([f"after stopped {number.name} 5"], 0)
    assert "stopping after this step" in err
    run = the_run(tmp_path / "runs")
    assert sorted(path.name for path in (run / "checkpoints").iterdir())[-1] == "step-00000005"
    assert json.loads((run / "checkpoints" / "step-00000005" / "manifest.json").read_text())["kind"] == "stop"
    records = list(hl.read(run))
    assert [record.data for record in records if getattr(record, "name", None) == "stop"] == [{"reason": number.name}]
    assert last_status(run) == ("stopped", number.name, 5)
    whole = run_here(script, monkeypatch, tmp_path / "whole")
    assert run_here(script, monkeypatch, tmp_path / "runs") == whole
    assert the_run(tmp_path / "runs") == run


def test_second_signal_ends_at_once_and_a_second_start_continues_exactly(start, script, tmp_path, monkeypatch):
    process = start(str(tmp_path / "runs"), "5", "endless")
    process.send_signal(signal.SIGINT)
    assert "stopping after this step" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (out.splitlines(), process.returncode) == (["exception SystemExit"], 128 + signal.SIGTERM)
    run = the_run(tmp_path / "runs")
    assert last_status(run)[0] == "stopped"
    whole = run_here(script, monkeypatch, tmp_path / "whole")
    assert run_here(script, monkeypatch, tmp_path / "runs") == whole


def test_kill_in_the_middle_of_a_step_and_a_second_start_continues_exactly(start, script, tmp_path, monkeypatch):
    process = start(str(tmp_path / "runs"), "6")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    run = the_run(tmp_path / "runs")
    whole = run_here(script, monkeypatch, tmp_path / "whole")
    assert run_here(script, monkeypatch, tmp_path / "runs") == whole
    assert the_run(tmp_path / "runs") == run


# In this process: what happens with a signal at other moments


class SignalAt(hl.Callback):
    """Sends this process a signal at one moment."""

    def __init__(self, moment, step, number=signal.SIGTERM):
        self.moment, self.step, self.number = moment, step, number
        self.sent = False

    def _look(self, loop, moment):
        if (moment, loop.step, self.sent) == (self.moment, self.step, False):
            self.sent = True
            signal.raise_signal(self.number)

    def on_train_start(self, loop):
        self._look(loop, "on_train_start")

    def on_step_end(self, loop, step_idx, batch, metrics):
        self._look(loop, "on_step_end")

    def on_validation_batch_start(self, loop, batch, batch_idx):
        self._look(loop, "on_validation_batch_start")

    def on_train_epoch_end(self, loop):
        self._look(loop, "on_train_epoch_end")

    def on_train_end(self, loop, artifacts):
        self._look(loop, "on_train_end")


def trainer_in(root, *callbacks, **settings):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(12, 3)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    config = hl.TrainerConfig(
        epochs=2, batch_size=4, output_dir=str(root), resume="auto", summary=False, strict=True, **settings
    )
    loss = torch.nn.functional.mse_loss
    return hl.Trainer(torch.nn.Linear(3, 1), data, data, config=config, loss=loss, callbacks=callbacks)


@pytest.mark.parametrize("step", [3, 6])
@pytest.mark.parametrize("moment", ["on_validation_batch_start", "on_train_epoch_end"])
def test_signal_between_steps_stops_there_and_a_second_start_continues_exactly(tmp_path, moment, step):
    whole = trainer_in(tmp_path / "whole")
    whole.fit()
    first = trainer_in(tmp_path / "runs", SignalAt(moment, step))
    first.fit()
    assert (first.state, first.stop_reason, first.step) == ("stopped", "SIGTERM", step)
    again = trainer_in(tmp_path / "runs")
    again.fit()
    assert (again.state, again.output_dir) == ("completed", first.output_dir)
    assert [(row.step, row.metrics) for row in again.history] == [(row.step, row.metrics) for row in whole.history]


@pytest.mark.parametrize("asked", [False, True])
def test_signal_before_a_validation_saves_first_and_leaves_it_to_the_second_start(tmp_path, asked):
    settings = {"validate_every_steps": 5 if asked else 2}
    more = [hl.on("step_end", lambda loop: loop.request_validation(), every=2)] if asked else []
    whole = trainer_in(tmp_path / "whole", *more, **settings)
    whole.fit()
    first = trainer_in(tmp_path / "runs", SignalAt("on_step_end", 2), *more, **settings)
    first.fit()
    assert [sorted(row.metrics) for row in first.history] == [["learning_rate", "loss"]] * 2
    again = trainer_in(tmp_path / "runs", *more, **settings)
    again.fit()
    assert [(row.step, row.metrics) for row in again.history] == [(row.step, row.metrics) for row in whole.history]


def test_signal_before_the_first_step_trains_nothing_and_saves_nothing(tmp_path):
    trainer = trainer_in(tmp_path, SignalAt("on_train_start", 0))
    trainer.fit()
    assert (trainer.state, trainer.step, trainer.checkpoints) == ("stopped", 0, [])
    again = trainer_in(tmp_path)
    again.fit()
    assert (again.state, again.step, again.output_dir) == ("completed", 6, trainer.output_dir)


def test_signal_when_training_has_ended_does_not_undo_that(tmp_path):
    trainer = trainer_in(tmp_path, SignalAt("on_train_end", 6))
    trainer.fit()
    assert (trainer.state, trainer.step) == ("completed", 6)
    assert last_status(trainer.output_dir)[0] == "finished"


def test_signal_saves_even_where_the_end_is_not_to_be_saved(tmp_path):
    trainer = trainer_in(tmp_path, SignalAt("on_train_epoch_end", 3), save_at_end=False)
    trainer.fit()
    assert [row.step for row in trainer.checkpoints] == [3]


def test_signal_handlers_are_given_back_after_fit(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trainer_in(tmp_path, SignalAt("on_train_epoch_end", 3)).fit()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


# hookline.main

CONFIG = {
    "model": {"tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
    "data": {"train": [{"prompt": f"{a}+1=", "completion": str(a + 1)} for a in range(6)]},
    "train": {"name": "sums", "epochs": 2, "batch_size": 2, "device": "cpu", "summary": False, "strict": True},
    "save_model": False,
}


@pytest.fixture
def config(tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "sums.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


class Sends(hl.Callback):
    """Sends this process a signal at the second step."""

    def __init__(self, number):
        self.number = number

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == 2:
            signal.raise_signal(self.number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_main_exits_as_the_signal_says_and_a_second_start_continues(config, tmp_path, number, code):
    torch.set_num_threads(1)
    arguments = ["--config", config, f"train.output_dir={tmp_path / 'runs'}", "--train.resume", "auto"]
    with pytest.raises(SystemExit) as caught:
        hl.main(argv=arguments, callbacks=[Sends(number)])
    assert caught.value.code == code
    run = the_run(tmp_path / "runs")
    assert last_status(run) == ("stopped", number.name, 2)
    whole = hl.main(argv=["--config", config, f"train.output_dir={tmp_path / 'whole'}"])
    again = hl.main(argv=arguments)
    assert (again.output_dir, again.step, again.stop_reason) == (run, 6, None)
    assert rows_of(again.output_dir) == rows_of(whole.output_dir)


def rows_of(run):
    return [(record.step, record.values) for record in hl.read(run) if hasattr(record, "values")]

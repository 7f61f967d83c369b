"""ProcessCourier: a process that sees the death of the training, tells of it, delivers, and goes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waiting import wait_until

import hookline as hl
from hookline._record.delivery_manager import DeliveryProcess
from hookline._record.recorder import Recorder
from hookline.sinks import FunctionSink, JsonlSink

SINKS = '''
    """Sinks that both the test and the courier's process can import."""
    import os
    import threading
    from dataclasses import dataclass
    from pathlib import Path
    import hookline as hl
    from hookline._record.records import Status
    from hookline._record.sink import Sink
    from hookline.sinks import JsonlSink

    def fork(action):
        """A child of the training's process, as a data loader makes one, that does something and leaves."""
        child = os.fork()
        if child == 0:
            action()
            os._exit(0)
        return child

    def wait_for(path):
        while not Path(path).exists():
            threading.Event().wait(0.01)

    @dataclass(eq=False)
    class GatedSink(JsonlSink):
        """Writes once a file is there: when it is opened, or when it is written to."""

        gate: str = ""
        stands_at: str = "write"

        def open(self, run_dir, state):
            (run_dir / "opening").touch()
            if self.stands_at == "open":
                wait_for(self.gate)
            return super().open(run_dir, state)

        def write(self, parcels):
            if self.stands_at == "write":
                wait_for(self.gate)
            return super().write(parcels)

    @dataclass(eq=False)
    class RefusingSink(Sink):
        name: str | None = None

        def open(self, run_dir, state):
            raise hl.RefusedError("Set API_KEY.")

        def write(self, parcels):
            return None

    @dataclass(eq=False)
    class BeatingSink(JsonlSink):
        """Notes heartbeats, and what it is told of the run's status."""

        def beat(self):
            self._note("beat")

        def write(self, parcels):
            for status in [parcel.record.status for parcel in parcels if isinstance(parcel.record, Status)]:
                self._note(status)
            return super().write(parcels)

        def _note(self, word):
            with (Path(self.path).parent / "notes").open("a") as file:
                file.write(word + "\\n")
'''

TRAINING = """
    import os, sys, threading
    import hookline as hl
    from hookline._record.delivery import Pace
    from courier_test_sinks import *

    root = Path(sys.argv[1])
    run = hl.run("r", root=root, sinks=[{sinks}], delivery="process", summary=False)
    run.recording.sinks.pace = Pace(0.05, 0.05, 0.2)
    {before}
    with run:
        for step in run.steps(10_000):
            run.log(loss=float(step))
            if step == 99:
                print(run.recording.sinks._courier.pid, run.dir, flush=True)
                {inside}
                sys.stdin.readline()
                {after}
"""


@pytest.fixture(autouse=True)
def _sinks(tmp_path, monkeypatch):
    """A module of sinks on the path of this process and of all it starts."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "courier_test_sinks.py").write_text(textwrap.dedent(SINKS))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    yield
    sys.modules.pop("courier_test_sinks", None)


@pytest.fixture
def train(tmp_path):
    """Starts a training in a process of its own; what it started is ended with the test."""
    started = []

    def training(sinks="'jsonl'", before="pass", inside="pass", after="pass"):
        code = textwrap.dedent(TRAINING).format(sinks=sinks, before=before, inside=inside, after=after)
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "runs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield training
    for process in started:
        process.kill()
        process.communicate()


def told(process):
    """The courier's process and the run's directory, once a hundred steps are done."""
    pid, directory = process.stdout.readline().split()
    return int(pid), Path(directory)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def records(directory, name="records.jsonl"):
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def steps(directory):
    return [record["step"] for record in records(directory) if record["kind"] == "metrics"]


def test_process_courier_sees_a_killed_training_records_it_delivers_and_goes(train):
    process = train("'jsonl', 'csv'")
    courier, directory = told(process)
    process.kill()
    process.wait()
    wait_until(lambda: is_gone(courier), seconds=10)
    assert steps(directory) == list(range(1, 100))
    (failed,) = [record for record in records(directory) if record.get("status") == "failed"]
    assert (failed["step"], failed["message"]) == (99, "The training process died without saying why.")
    assert [record["status"] for record in records(directory) if record["kind"] == "status"] == ["running", "failed"]
    assert list((directory / "journal").glob("courier-*.jsonl"))


def test_process_courier_tells_of_the_death_behind_all_the_rows(train, tmp_path):
    gate = tmp_path / "gate"
    process = train(f"GatedSink(gate={str(gate)!r})")
    courier, directory = told(process)
    process.kill()
    process.wait()
    wait_until(lambda: list((directory / "journal").glob("courier-*.jsonl")))
    gate.touch()
    wait_until(lambda: is_gone(courier))
    assert records(directory)[-1]["status"] == "failed"
    assert steps(directory) == list(range(1, 100))


def test_process_courier_sees_the_death_although_a_forked_child_lives(train):
    process = train(inside="print(fork(lambda: threading.Event().wait(60)), flush=True)")
    courier, directory = told(process)
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    wait_until(lambda: is_gone(courier), seconds=10)
    assert not is_gone(child)
    os.kill(child, signal.SIGKILL)
    assert any(record.get("status") == "failed" for record in records(directory))


def test_process_courier_forked_child_that_leaves_the_run_does_not_end_the_courier(train):
    process = train(inside="print(os.waitpid(fork(run.recording.sinks.close), 0)[1], flush=True)")
    courier, directory = told(process)
    assert process.stdout.readline() == "0\n"
    assert not is_gone(courier)
    process.communicate("\n")
    assert steps(directory) == list(range(1, 10_001))


def test_process_courier_of_a_training_that_ends_delivers_all_and_goes(train):
    process = train()
    courier, directory = told(process)
    process.communicate("\n")
    assert process.returncode == 0
    assert is_gone(courier)
    assert steps(directory) == list(range(1, 10_001))
    assert records(directory)[-1]["status"] == "finished"


def test_process_courier_leaves_interrupts_to_the_training(train):
    process = train()
    courier, directory = told(process)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(courier, number)
    process.send_signal(signal.SIGTERM)
    process.communicate("\n")
    wait_until(lambda: is_gone(courier))
    assert records(directory)[-1]["status"] == "stopped"


def test_process_courier_sends_no_heartbeat_for_the_dead(train, tmp_path):
    process = train(f"BeatingSink({str(tmp_path / 'x.jsonl')!r})")
    courier, _ = told(process)
    wait_until(lambda: "beat" in (tmp_path / "notes").read_text().split())
    process.kill()
    process.wait()
    wait_until(lambda: is_gone(courier))
    notes = (tmp_path / "notes").read_text().split()
    assert notes[notes.index("failed") :] == ["failed"]


def test_process_courier_training_killed_while_the_sinks_are_opened_is_told_of_too(train, tmp_path):
    gate = tmp_path / "gate"
    process = train(f"GatedSink(gate={str(gate)!r}, stands_at='open')")
    wait_until(lambda: list((tmp_path / "runs").glob("default/*/opening")))
    (directory,) = (tmp_path / "runs" / "default").iterdir()
    before = Recorder(directory)  # as a session before this one would have left it
    before.status("running", step=0)
    before.close()
    process.kill()
    process.wait()
    gate.touch()
    wait_until(lambda: (directory / "records.jsonl").exists())
    wait_until(lambda: any(record.get("status") == "failed" for record in records(directory)), seconds=15)


def test_process_courier_refused_at_the_start_is_an_error_and_leaves_nothing(tmp_path):
    from courier_test_sinks import RefusingSink

    courier = DeliveryProcess(tmp_path, {"jsonl": JsonlSink(), "mine": RefusingSink()})
    with pytest.raises(hl.RefusedError, match="^mine: Set API_KEY.$"):
        courier.start()
    assert is_gone(courier.pid)


@pytest.mark.parametrize("function", [lambda report_data, step: None, "local"])
def test_process_courier_function_that_cannot_be_sent_is_an_error(tmp_path, function):
    def local(report_data, step):
        pass

    courier = DeliveryProcess(tmp_path, {"f": FunctionSink(local if function == "local" else function)})
    with pytest.raises(hl.ConfigError, match="'f' cannot be sent to another process .* delivery='thread'"):
        courier.start()
    assert courier.pid is None


def test_process_courier_function_of_the_script_itself_is_an_error_that_says_what_to_do(tmp_path):
    code = """
        import hookline as hl
        def log(report_data, step): pass
        with hl.run(sinks=[log], delivery="process"): pass
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "ConfigError" in said.splitlines()[-1]
    assert "delivery='thread'" in said.splitlines()[-1]


def test_process_courier_sink_that_hangs_does_not_hold_up_the_end(tmp_path):
    from courier_test_sinks import GatedSink

    courier = DeliveryProcess(
        tmp_path, {"hanging": GatedSink(gate=str(tmp_path / "never")), "jsonl": JsonlSink(tmp_path / "x")}
    )
    courier.start(0.5)
    recorder = Recorder(tmp_path)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    courier.close(0.5)
    assert is_gone(courier.pid)
    assert [record["step"] for record in records(tmp_path, "x")] == [1]


def test_process_courier_that_was_killed_is_said_at_the_end_and_leaves_the_rest_to_sync(tmp_path, caplog):
    courier = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    courier.start()
    os.kill(courier.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(courier.pid))
    recorder = Recorder(tmp_path)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    courier.close(1.0)
    assert courier.states()[0].behind_bytes > 0
    assert "hookline runs sync" in caplog.text


def test_process_courier_close_again_and_without_a_start_is_fine(tmp_path):
    courier = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    courier.close()
    courier.start()
    courier.close(1.0)
    courier.close(1.0)
    assert is_gone(courier.pid)


def test_process_courier_sinks_are_listed_before_it_is_started(tmp_path):
    courier = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    assert [state.name for state in courier.states()] == ["jsonl"]


def test_process_courier_leaves_no_descriptor_open(tmp_path):
    courier = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    before = descriptors()
    courier.start()
    courier.close(1.0)
    assert descriptors() == before


def descriptors():
    return {path.name: path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}

"""DeliveryProcess: notices the death of the training, records it, delivers the rest, and exits."""

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
    """Sinks that both the test and the delivery process can import."""
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

        def write(self, entries):
            if self.stands_at == "write":
                wait_for(self.gate)
            return super().write(entries)

    @dataclass(eq=False)
    class RefusingSink(Sink):
        name: str | None = None

        def open(self, run_dir, state):
            raise hl.RefusedError("Set API_KEY.")

        def write(self, entries):
            return None

    @dataclass(eq=False)
    class BeatingSink(JsonlSink):
        """Notes heartbeats and the statuses of the run."""

        def beat(self):
            self._note("beat")

        def write(self, entries):
            for status in [entry.record.status for entry in entries if isinstance(entry.record, Status)]:
                self._note(status)
            return super().write(entries)

        def _note(self, word):
            with (Path(self.path).parent / "notes").open("a") as file:
                file.write(word + "\\n")
'''

TRAINING = """
    import os, sys, threading
    import hookline as hl
    from hookline._record.delivery import Pace
    from delivery_test_sinks import *

    root = Path(sys.argv[1])
    run = hl.run("r", root=root, sinks=[{sinks}], delivery="process", summary=False)
    run.recording.sinks.pace = Pace(0.05, 0.05, 0.2)
    {before}
    with run:
        for step in run.steps(10_000):
            run.log(loss=float(step))
            if step == 99:
                print(run.recording.sinks._manager.pid, run.dir, flush=True)
                {inside}
                sys.stdin.readline()
                {after}
"""


@pytest.fixture(autouse=True)
def _sinks(tmp_path, monkeypatch):
    """A module of sinks on the path of this process and of all it starts."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "delivery_test_sinks.py").write_text(textwrap.dedent(SINKS))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    yield
    sys.modules.pop("delivery_test_sinks", None)


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


def reported(process):
    """The delivery process and the run's directory, once a hundred steps are done."""
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


def test_delivery_process_of_a_killed_training_records_the_death_delivers_and_exits(train):
    process = train("'jsonl', 'csv'")
    delivery, directory = reported(process)
    process.kill()
    process.wait()
    wait_until(lambda: is_gone(delivery))
    assert steps(directory) == list(range(1, 100))
    (failed,) = [record for record in records(directory) if record.get("status") == "failed"]
    assert (failed["step"], failed["message"]) == (99, "The training process died without saying why.")
    assert [record["status"] for record in records(directory) if record["kind"] == "status"] == ["running", "failed"]
    assert list((directory / "journal").glob("courier-*.jsonl"))


def test_delivery_process_records_the_death_after_all_rows(train, tmp_path):
    gate = tmp_path / "gate"
    process = train(f"GatedSink(gate={str(gate)!r})")
    delivery, directory = reported(process)
    process.kill()
    process.wait()
    wait_until(lambda: list((directory / "journal").glob("courier-*.jsonl")))
    gate.touch()
    wait_until(lambda: is_gone(delivery))
    assert records(directory)[-1]["status"] == "failed"
    assert steps(directory) == list(range(1, 100))


def test_delivery_process_notices_the_death_although_a_forked_child_lives(train):
    process = train(inside="print(fork(lambda: threading.Event().wait(200)), flush=True)")
    delivery, directory = reported(process)
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    wait_until(lambda: is_gone(delivery))
    assert not is_gone(child)
    os.kill(child, signal.SIGKILL)
    assert any(record.get("status") == "failed" for record in records(directory))


def test_delivery_process_outlives_a_forked_child_that_leaves_the_run(train):
    process = train(inside="print(os.waitpid(fork(run.recording.sinks.close), 0)[1], flush=True)")
    delivery, directory = reported(process)
    assert process.stdout.readline() == "0\n"
    assert not is_gone(delivery)
    process.communicate("\n")
    assert steps(directory) == list(range(1, 10_001))


def test_delivery_process_of_a_training_that_ends_delivers_all_and_exits(train):
    process = train()
    delivery, directory = reported(process)
    process.communicate("\n")
    assert process.returncode == 0
    assert is_gone(delivery)
    assert steps(directory) == list(range(1, 10_001))
    assert records(directory)[-1]["status"] == "finished"


def test_delivery_process_ignores_interrupts(train):
    process = train()
    delivery, directory = reported(process)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(delivery, number)
    process.send_signal(signal.SIGTERM)
    process.communicate("\n")
    wait_until(lambda: is_gone(delivery))
    assert records(directory)[-1]["status"] == "stopped"


def test_delivery_process_sends_no_heartbeat_for_a_dead_training(train, tmp_path):
    (tmp_path / "notes").touch()
    process = train(f"BeatingSink({str(tmp_path / 'x.jsonl')!r})")
    delivery, _ = reported(process)
    wait_until(lambda: "beat" in (tmp_path / "notes").read_text().split())
    process.kill()
    process.wait()
    wait_until(lambda: is_gone(delivery))
    notes = (tmp_path / "notes").read_text().split()
    assert notes[notes.index("failed") :] == ["failed"]


def test_delivery_process_of_a_training_killed_while_sinks_open_records_the_death(train, tmp_path):
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
    wait_until(lambda: (directory / "records.jsonl").exists() and records(directory))
    wait_until(lambda: records(directory)[-1].get("status") == "failed")
    assert records(directory)[-1]["message"] == "The training process died without saying why."


def test_delivery_process_start_with_a_refusing_sink_raises_and_leaves_nothing(tmp_path):
    from delivery_test_sinks import RefusingSink  # type: ignore[import-not-found]

    delivery = DeliveryProcess(tmp_path, {"jsonl": JsonlSink(), "mine": RefusingSink()})
    with pytest.raises(hl.RefusedError, match="^mine: Set API_KEY.$"):
        delivery.start()
    assert is_gone(delivery.pid)


@pytest.mark.parametrize("function", [lambda report_data, step: None, "local"])
def test_delivery_process_with_a_function_that_cannot_be_sent_is_an_error(tmp_path, function):
    def local(report_data, step):
        pass

    delivery = DeliveryProcess(tmp_path, {"f": FunctionSink(local if function == "local" else function)})
    with pytest.raises(hl.ConfigError, match="'f' cannot be sent to another process .* delivery='thread'"):
        delivery.start()
    assert delivery.pid is None


def test_delivery_process_with_a_function_of_the_script_is_an_error_with_advice(tmp_path):
    code = """
        import hookline as hl
        def log(report_data, step): pass
        with hl.run(sinks=[log], delivery="process"): pass
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "ConfigError" in said.splitlines()[-1]
    assert "delivery='thread'" in said.splitlines()[-1]


def test_delivery_process_with_a_hanging_sink_ends_in_time(tmp_path):
    from delivery_test_sinks import GatedSink

    delivery = DeliveryProcess(
        tmp_path, {"hanging": GatedSink(gate=str(tmp_path / "never")), "jsonl": JsonlSink(tmp_path / "x")}
    )
    delivery.start(0.5)
    recorder = Recorder(tmp_path)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    wait_until(lambda: delivery.states()[1].delivered == 1)
    delivery.close(0.5)
    assert is_gone(delivery.pid)
    assert [record["step"] for record in records(tmp_path, "x")] == [1]


def test_delivery_process_that_was_killed_is_reported_and_leaves_the_rest_to_sync(tmp_path, caplog):
    delivery = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    delivery.start()
    os.kill(delivery.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(delivery.pid))
    recorder = Recorder(tmp_path)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    delivery.close(1.0)
    assert delivery.states()[0].behind_bytes > 0
    assert "hookline runs sync" in caplog.text


def test_delivery_process_close_again_and_without_a_start_is_fine(tmp_path):
    delivery = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    delivery.close()
    delivery.start()
    delivery.close(1.0)
    delivery.close(1.0)
    assert is_gone(delivery.pid)


def test_delivery_process_sinks_are_listed_before_it_is_started(tmp_path):
    delivery = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    assert [state.name for state in delivery.states()] == ["jsonl"]


def test_delivery_process_leaves_no_descriptor_open(tmp_path):
    delivery = DeliveryProcess(tmp_path, {"jsonl": JsonlSink()})
    before = descriptors()
    delivery.start()
    delivery.close(1.0)
    assert descriptors().items() <= before.items()


def descriptors():
    return {path.name: path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}

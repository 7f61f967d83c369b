"""A run's sinks: what `hl.run(sinks=...)` takes, how they stand, and what its end says of them."""

import csv
import threading
from dataclasses import dataclass

import pytest

import hookline as hl
from hookline.record.records import Status
from hookline.sinks import CsvSink, Sink


@dataclass(eq=False)
class Recording(Sink):
    """Keeps what it is given; refuses, fails or hangs if told to."""

    refuses: bool = False
    fails: bool = False

    def __post_init__(self):
        self.records, self.gate = [], None

    def open(self, run_dir, state):
        if self.refuses:
            raise hl.RefusedError("the key is wrong: set KEY")
        return state

    def write(self, parcels):
        if self.gate is not None:
            self.gate.wait(60)
        if self.fails:
            raise ConnectionError("nobody there")
        self.records += [parcel.record for parcel in parcels]


def train(run, steps=5):
    for step in run.steps(steps):
        run.log(loss=1.0 / (step + 1))


def test_run_with_sinks_of_all_forms_delivers_to_each(tmp_path):
    calls, own = [], Recording()

    def logger(report_data, step):
        calls.append((report_data["loss"], step))

    sinks = ["csv", {"jsonl": {"path": tmp_path / "all.jsonl"}}, CsvSink(tmp_path / "b.csv"), logger, own]
    with hl.run("x", sinks=sinks, summary=False) as run:
        train(run)
    assert [(state.name, state.status) for state in run.sinks()] == [
        (name, "ok") for name in sorted(["csv", "csv_2", "jsonl", "function", "Recording"])
    ]
    with (run.dir / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3", "4", "5"]
    assert calls == [(1.0 / step, step) for step in range(1, 6)]
    assert len(own.records) == len((tmp_path / "all.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["cvs"], "Did you mean 'csv'?"),
        ([{"csv": {"pth": "x"}}], "Did you mean 'path'?"),
        ([{"csv": {"kind": "metric"}}], "Did you mean 'metrics'?"),
        ([{"os:system": {"command": "true"}}], "is no subclass of Sink"),
        ([3], "3 is not a sink"),
        ("csv", "give a list of sinks"),
        ([{"csv": {}, "jsonl": {}}], "is not a sink: give {name: {setting: value}}"),
    ],
)
def test_run_with_something_that_is_no_sink_is_an_error_at_once(given, said):
    with pytest.raises(hl.HooklineError) as error:
        hl.run("x", sinks=given)
    assert said in str(error.value)


def test_run_with_sinks_but_no_record_is_an_error():
    with pytest.raises(hl.OptionError, match="sinks are fed from the record"):
        hl.run("x", root=None, sinks=["csv"])


@pytest.mark.parametrize("option", [{"delivery": "pigeon"}, {"drain_seconds": -1}])
def test_run_with_a_bad_option_of_delivery_is_an_error(option):
    with pytest.raises(hl.OptionError, match=next(iter(option))):
        hl.run("x", **option)


def test_run_with_a_sink_that_refuses_is_an_error_at_the_start_and_recorded():
    run = hl.run("x", sinks=[Recording(refuses=True)], summary=False)
    with pytest.raises(hl.RefusedError, match="Recording: the key is wrong: set KEY"), run:
        pytest.fail("the body must not run")
    statuses = [record.status for record in hl.read(run.dir) if isinstance(record, Status)]
    assert (statuses, run.sinks()[0].status) == (["failed"], "refused")


def test_run_with_a_sink_that_fails_ends_in_time_and_says_what_waits(capsys):
    with hl.run("x", sinks=[Recording(fails=True)], drain_seconds=0.05) as run:
        train(run)
    said = capsys.readouterr().err
    assert (run.state, run.sinks()[0].status, run.sinks()[0].error) == (
        "completed",
        "lagging",
        "ConnectionError: nobody there",
    )
    assert "lagging Recording: 0 records delivered" in said
    assert f"hookline runs sync {run.dir}" in said


def test_run_with_a_sink_that_hangs_ends_in_time(capsys):
    sink = Recording()
    sink.gate = threading.Event()
    with hl.run("x", sinks=[sink, "csv"], drain_seconds=0.05, summary=False) as run:
        train(run)
    assert {state.name: state.behind_bytes > 0 for state in run.sinks()} == {"Recording": True, "csv": False}
    sink.gate.set()


def test_status_of_a_run_is_recorded_and_reaches_the_sinks():
    sink = Recording()
    with hl.run("x", sinks=[sink], summary=False) as run:
        run.status("tokenizing", "twelve shards", shards=12)
        train(run, 1)
    words = [(record.status, record.message, record.data) for record in sink.records if isinstance(record, Status)]
    assert words[0] == ("tokenizing", "twelve shards", {"shards": 12})
    assert words[-1][0] == "finished"


def test_resumed_run_goes_on_in_the_same_csv_without_the_rows_done_again():
    def start():
        return hl.run("x", sinks=["csv"], resume="auto", summary=False)

    with pytest.raises(RuntimeError, match="power cut"), start() as run:
        for step in run.steps(10):
            run.log(loss=float(step))
            if step == 3:
                run.save_checkpoint()
            if step == 7:
                raise RuntimeError("power cut")
    with start() as again:
        for step in again.steps(10):
            again.log(loss=float(step) + 100)
    with (again.dir / "metrics.csv").open() as file:
        rows = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    assert again.dir == run.dir
    assert rows == [(step, step - 1.0) for step in range(1, 5)] + [(step, step + 99.0) for step in range(5, 11)]

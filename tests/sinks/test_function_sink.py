"""The sink `function`: a logger function, called once per row, whatever it does."""

import contextlib
import functools
import math
import subprocess

import pytest

import hookline as hl
from hookline._record import files
from hookline._record.delivery import Delivery, Pace
from hookline._record.recorder import Recorder
from hookline._record.sink import make_sink
from hookline.sinks import FunctionSink

PACE = Pace(retry_seconds=0.0, longest_seconds=0.0)


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path)
    yield recorder
    recorder.close()


def log_to_nowhere(report_data, step):
    """A function that can be imported."""


async def log_later(report_data, step):
    pass


def log_with_one(report_data):
    pass


class Flaky:
    """A logger function that raises at some steps, a number of times each."""

    def __init__(self, **times):
        self.left = {int(step.removeprefix("at")): count for step, count in times.items()}
        self.calls = []

    def __call__(self, report_data, step):
        if self.left.get(step, 0) > 0:
            self.left[step] -= 1
            raise ValueError(f"no {step}")
        self.calls.append(step)


def rounds(tmp_path, function, count=40):
    delivery = Delivery(tmp_path, "function", FunctionSink(function), PACE)
    for _ in range(count):
        delivery.round()
    return delivery


def log(recorder, steps):
    for step in steps:
        recorder.log(loss=1.0, step=step)


def test_function_is_called_once_for_each_row_of_training_and_evaluation(recorder, tmp_path):
    calls = []
    recorder.log({"loss": 0.5, "n": 3, "bad": math.inf, "none": None}, step=1)
    recorder.log({"val/loss": 0.25}, step=1, axis="eval")
    recorder.log({"reward": 1.0}, step=1, axis="rollout")
    recorder.event("checkpoint", step=1)
    other = Recorder(tmp_path, name="rank1")
    other.log(loss=9.0, step=1)
    other.close()
    rounds(tmp_path, lambda report_data, step: calls.append((report_data, step)))
    assert calls == [({"loss": 0.5, "n": 3, "bad": math.inf, "none": None}, 1), ({"val/loss": 0.25}, 1)]
    assert [type(value) for value in calls[0][0].values()] == [float, int, float, type(None)]


def test_function_gets_nan_as_a_float(recorder, tmp_path):
    calls = []
    recorder.log({"loss": math.nan}, step=1)
    rounds(tmp_path, lambda report_data, step: calls.append(report_data["loss"]))
    assert len(calls) == 1
    assert math.isnan(calls[0])


def test_function_that_fails_twice_gets_every_row_once_in_order(recorder, tmp_path):
    log(recorder, range(1, 6))
    flaky = Flaky(at3=2)
    delivery = rounds(tmp_path, flaky)
    assert flaky.calls == [1, 2, 3, 4, 5]
    assert (delivery.sink.failed, delivery.progress.status) == (0, "ok")


def test_function_row_that_always_fails_is_given_up_and_the_rest_continues(recorder, tmp_path, caplog):
    log(recorder, range(1, 6))
    flaky = Flaky(at3=1000)
    delivery = rounds(tmp_path, flaky)
    assert flaky.calls == [1, 2, 4, 5]
    assert flaky.left == {3: 997}
    assert (delivery.sink.failed, delivery.progress.status, delivery.is_done()) == (1, "ok", True)
    assert "The logger function failed at step 3: ValueError: no 3. The row is dropped." in caplog.text


def test_function_last_row_that_always_fails_is_given_up_in_the_end(recorder, tmp_path):
    log(recorder, range(1, 4))
    flaky = Flaky(at3=1000)
    delivery = rounds(tmp_path, flaky)
    assert flaky.left == {3: 990}
    assert (delivery.sink.failed, delivery.is_done()) == (1, True)


def test_function_that_always_fails_is_refused_and_loses_nothing(recorder, tmp_path):
    log(recorder, range(1, 8))
    flaky = Flaky(at3=6, at4=4, at5=4)
    delivery = Delivery(tmp_path, "function", FunctionSink(flaky), PACE)
    for _ in range(3):
        delivery.round()
    assert delivery.progress.status == "refused"
    assert "ValueError: no 3" in delivery.progress.error
    for _ in range(20):
        delivery.round()
    assert (flaky.calls, delivery.sink.failed) == ([1, 2, 3, 4, 5, 6, 7], 0)  # type: ignore[attr-defined]
    assert delivery.progress.status == "ok"  # type: ignore[comparison-overlap]


def test_function_broken_while_rows_come_one_by_one_is_refused_at_the_third(recorder, tmp_path):
    flaky = Flaky(**{f"at{step}": 1000 for step in range(1, 6)})
    delivery = Delivery(tmp_path, "function", FunctionSink(flaky), PACE)
    for step in range(1, 6):
        log(recorder, [step])
        for _ in range(15):
            delivery.round()
    assert (delivery.sink.failed, delivery.progress.status) == (2, "refused")  # type: ignore[attr-defined]


def test_function_that_exits_does_not_end_the_delivery(recorder, tmp_path):
    calls = []

    def leave(report_data, step):
        calls.append(step)
        if step == 2 and calls.count(2) < 3:
            raise SystemExit("bye")

    log(recorder, [1, 2, 3])
    rounds(tmp_path, leave)
    assert calls == [1, 2, 2, 2, 3]


def test_function_killed_between_the_call_and_the_cursor_repeats_nothing_that_was_noted(recorder, tmp_path):
    flaky = Flaky(at3=1)
    log(recorder, range(1, 6))
    first = Delivery(tmp_path, "function", FunctionSink(flaky), PACE)
    first.round()  # it fails at 3: the batch does not count
    files.release_lock(first._lock)  # as death does
    rounds(tmp_path, flaky)
    assert flaky.calls == [1, 2, 3, 4, 5]


@pytest.fixture
def ballast(tmp_path):
    """A file that takes all room of the file system on which the cursors and places are written down."""
    folder = tmp_path / "sinks"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted: not root")
    yield folder / "ballast"
    subprocess.run(["umount", "-l", folder], check=True)


def fill(ballast):
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_function_on_a_full_disk_waits_and_gets_every_row_once(recorder, tmp_path, ballast):
    function = Flaky()
    delivery = rounds(tmp_path, function, 1)
    fill(ballast)
    log(recorder, range(1, 301))
    for _ in range(20):
        delivery.round()
    while_full = len(function.calls)
    ballast.unlink()
    delivery.round()
    assert (delivery.progress.status, function.calls) == ("ok", list(range(1, 301)))
    assert while_full < 300


def test_function_killed_while_the_disk_is_full_repeats_one_row_at_most(recorder, tmp_path, ballast):
    function = Flaky()
    delivery = rounds(tmp_path, function, 1)
    fill(ballast)
    log(recorder, range(1, 301))
    for _ in range(20):
        delivery.round()
    ballast.unlink()
    files.release_lock(tmp_path / "sinks" / "function.lock")  # as the death of its process does
    rounds(tmp_path, function)
    assert list(dict.fromkeys(function.calls)) == list(range(1, 301))
    assert len(function.calls) <= 301


def test_function_place_file_stays_small_and_a_cut_line_in_it_does_no_harm(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.sinks.output_files.MOST_POSITION_BYTES", 500)
    log(recorder, range(100))
    calls = []
    delivery = rounds(tmp_path, lambda report_data, step: calls.append(step), count=1)
    before = delivery.progress.path.read_text()
    (places,) = (tmp_path / "sinks").glob("*.passed")
    assert places.stat().st_size < 1000
    with places.open("a") as file:
        file.write('["main-00')
    delivery.progress.path.write_text(
        before.replace(before[before.index('"places"') : before.index(', "state"')], '"places": {}')
    )
    files.release_lock(delivery._lock)
    rounds(tmp_path, lambda report_data, step: calls.append(step), count=1)
    assert calls == list(range(100))


def test_function_by_its_place_is_called(recorder, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_logger.py").write_text("calls = []\ndef log(report_data, step):\n    calls.append(step)\n")
    log(recorder, [1, 2])
    delivery = Delivery(tmp_path, "function", make_sink({"function": {"function": "my_logger:log"}}), PACE)
    delivery.round()
    import my_logger  # type: ignore[import-not-found]

    assert my_logger.calls == [1, 2]


def test_function_at_the_top_of_a_module_is_rebuilt_from_its_spec():
    sink = make_sink(log_to_nowhere)
    assert sink.spec() == {"use": "function", "with": {"function": f"{__name__}:log_to_nowhere"}}
    rebuilt = make_sink(sink.spec())
    rebuilt.check()
    assert rebuilt.spec() == sink.spec()


@pytest.mark.parametrize("function", [lambda report_data, step: None, functools.partial(log_to_nowhere), Flaky()])
def test_function_that_cannot_be_found_again_says_so_when_it_is_rebuilt(function):
    sink = make_sink(function)
    sink.check()
    assert sink.spec() == {"use": "function", "with": {"function": None}}
    with pytest.raises(hl.ConfigError, match="cannot be rebuilt"):
        make_sink(sink.spec()).check()


def test_function_at_no_place_says_so_at_the_check():
    with pytest.raises(hl.ConfigError, match="'nowhere_at_all:log'"):
        FunctionSink("nowhere_at_all:log").check()


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (log_later, hl.OptionError, "async"),
        (log_with_one, hl.MomentError, "two arguments"),
        (Flaky, hl.MomentError, "is not a logger function"),
        ("log_row", hl.OptionError, "package.module:name"),
        (3, hl.MomentError, "is not a logger function"),
    ],
)
def test_function_of_the_wrong_kind_is_an_error_at_once(function, error, message):
    with pytest.raises(error, match=message):
        FunctionSink(function)


def test_run_takes_a_function_as_a_sink(tmp_path):
    calls = []

    def keep(report_data, step):
        calls.append((step, report_data["loss"]))

    with hl.run("functions", root=tmp_path, sinks=[keep], summary=False) as run:
        for step in run.steps(5):
            run.log(loss=step * 0.5)
    assert calls == [(1, 0.0), (2, 0.5), (3, 1.0), (4, 1.5), (5, 2.0)]

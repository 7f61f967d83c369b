"""Every sink keeps the same promises. What arrived is read back with the destination's own tools."""

import math

import pytest
from destinations import DESTINATIONS
from destinations.base import LEFT_OUT
from waiting import wait_until

import hookline as hl
from hookline._record.delivery import Delivery, Pace, sink_states
from hookline._record.recorder import Recorder
from hookline._record.sink import SINKS, make_sink

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)
WITH_HISTORY = [kind for kind in DESTINATIONS if kind.keeps_history]
WITH_SAMPLES = [kind for kind in DESTINATIONS if kind.keeps_samples]
FAULTS = [(kind, fault) for kind in DESTINATIONS for fault in kind.faults]


@pytest.fixture
def make(tmp_path):
    """Makes a destination, and ends it with the test."""
    made = []

    def destination(kind):
        made.append(kind(tmp_path))
        return made[-1]

    yield destination
    for each in made:
        each.close()


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path / "run")
    yield recorder
    recorder.close()


def deliver(destination, tmp_path, *, name="sink"):
    """One round of a new delivery, as after a start of the program, and its end."""
    delivery = Delivery(tmp_path / "run", name, destination.sink(), PACE)
    delivery.round()
    finish(delivery)
    return delivery


def finish(delivery):
    delivery.close(0)
    delivery.run()


def expected(destination, rows):
    """What of the metrics logged can be read back, by name within a row."""
    shown = [(step, key, destination.shown(value)) for step, values in rows for key, value in sorted(values.items())]
    return [item for item in shown if item[2] is not LEFT_OUT]


def arrived(destination):
    """The metrics at the destination, by name within a row."""
    found = destination.metrics()
    order = {step: place for place, step in enumerate(dict.fromkeys(step for step, _, _ in found))}
    return sorted(found, key=lambda item: (order[item[0]], item[1]))


def log_all(recorder, rows):
    for step, values in rows:
        recorder.log(values, step=step)


def same(left, right):
    """Whether two lists of (step, name, value) are equal, where NaN equals itself."""
    return [_key(item) for item in left] == [_key(item) for item in right]


def _key(item):
    step, name, value = item
    return step, name, "nan" if isinstance(value, float) and math.isnan(value) else value


def test_every_sink_of_hookline_has_a_destination_here():
    ours = {name for name in SINKS.names() if SINKS.find(name).__module__.startswith("hookline.")}
    assert {kind.name for kind in DESTINATIONS} == ours


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_sink_of_its_own_spec_is_the_same_sink(kind, make):
    sink = make(kind).sink()
    again = make_sink(sink.spec())
    assert (type(again), again.spec()) == (type(sink), sink.spec())


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_sink_is_in_the_run_under_its_name(kind, make):
    assert SINKS.find(kind.name) is type(make(kind).sink())


@pytest.mark.parametrize("kind", WITH_HISTORY)
def test_metrics_arrive_in_order(kind, make, recorder, tmp_path):
    destination = make(kind)
    rows = [(step, {"loss": 1 / step, "step_time": step * 0.5}) for step in range(1, 51)]
    log_all(recorder, rows)
    deliver(destination, tmp_path)
    assert same(arrived(destination), expected(destination, rows))


@pytest.mark.parametrize("kind", WITH_HISTORY)
def test_batch_given_again_arrives_once(kind, make, recorder, tmp_path):
    destination = make(kind)
    rows = [(step, {"loss": 1 / step}) for step in range(1, 11)]
    log_all(recorder, rows[:5])
    delivery = deliver(destination, tmp_path)
    before = delivery.progress.path.read_text()
    log_all(recorder, rows[5:])
    deliver(destination, tmp_path)
    delivery.progress.path.write_text(before)  # as if the process had died before it was saved
    deliver(destination, tmp_path)
    assert same(arrived(destination), expected(destination, rows))


@pytest.mark.parametrize("kind", WITH_HISTORY)
def test_odd_numbers_arrive_as_they_can_be_shown(kind, make, recorder, tmp_path):
    destination = make(kind)
    odd = [math.nan, math.inf, -math.inf, None, 1e308, 5e-324, 2**63, True, -0.0, 0.1]
    rows = [(step, {"value": value, "other": 1.0}) for step, value in enumerate(odd, 1)]
    log_all(recorder, rows)
    assert deliver(destination, tmp_path).progress.status == "ok"
    assert same(arrived(destination), expected(destination, rows))


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_whole_numbers_that_no_float_holds_do_not_stop_what_comes_after(kind, make, recorder, tmp_path):
    destination = make(kind)
    huge = {"value": 10**400, "other": -(10**400)}
    recorder.log(huge, step=1)
    recorder.samples([{"completion": "c", "rewards": huge, "total": 10**400, "advantage": -(10**400), "n": 10**400}], 1)
    recorder.rewards("right", [10**400, 1.0, -(10**400)], step=1)
    recorder.event("checkpoint", step=1, size=10**400)
    recorder.status("running", step=1, size=10**400)
    recorder.log(loss=0.5, step=2)
    assert deliver(destination, tmp_path).progress.status == "ok"
    assert (2, "loss", destination.shown(0.5)) in arrived(destination)


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_odd_texts_and_other_records_do_no_harm(kind, make, recorder, tmp_path):
    destination = make(kind)
    recorder.log({"emoji 🐟": 1.0, "note": 'lone \ud800 NUL \0 line\nbreak, "quoted"', "a/b": 2.0}, step=1)
    recorder.samples([{"prompt": "p", "completion": "ü🐟\n\0,", "rewards": {"right": math.nan}, "weird": object()}], 1)
    recorder.rewards("right", [1.0, None, math.nan], step=1)
    recorder.event("checkpoint", step=1, path="x")
    recorder.line("INFO", "hookline", "a line")
    recorder.status("finished", step=1)
    assert deliver(destination, tmp_path).progress.status == "ok"


@pytest.mark.parametrize("kind", WITH_SAMPLES)
def test_texts_of_samples_arrive_whole(kind, make, recorder, tmp_path):
    destination = make(kind)
    texts = ["plain", "ü🐟 日本語", 'two\nlines, "quoted"', "x" * 60_000]
    for step, text in enumerate(texts, 1):
        recorder.samples([{"prompt": "p", "completion": text, "rewards": {"right": 1.0}}], step)
    deliver(destination, tmp_path)
    assert destination.texts() == texts


@pytest.mark.parametrize("kind", WITH_HISTORY)
def test_new_names_in_the_middle_of_a_run_arrive(kind, make, recorder, tmp_path):
    destination = make(kind)
    rows = [(step, {"loss": float(step)} | ({"late": 2.0 * step} if step > 5 else {})) for step in range(1, 11)]
    for part in (rows[:3], rows[3:8], rows[8:]):
        log_all(recorder, part)
        deliver(destination, tmp_path)
    assert same(arrived(destination), expected(destination, rows))


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_thousands_of_names_arrive(kind, make, recorder, tmp_path):
    destination = make(kind)
    rows = [(1, {f"layer{i}/norm": float(i) for i in range(2000)})]
    log_all(recorder, rows)
    deliver(destination, tmp_path)
    assert same(arrived(destination), expected(destination, rows))


@pytest.mark.parametrize("kind", WITH_HISTORY)
def test_next_start_continues_after_what_arrived(kind, make, recorder, tmp_path):
    destination = make(kind)
    rows = [(step, {"loss": float(step)}) for step in range(1, 31)]
    for part in (rows[:10], rows[10:20], rows[20:]):
        log_all(recorder, part)
        deliver(destination, tmp_path)
    assert same(arrived(destination), expected(destination, rows))


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_close_twice_and_without_open_delivers_as_before(kind, make, recorder, tmp_path):
    destination = make(kind)
    rows = [(1, {"loss": 0.5})]
    log_all(recorder, rows)
    sink = destination.sink()
    sink.close()
    finish(delivery := Delivery(tmp_path / "run", "sink", sink, PACE))
    sink.close()
    assert (delivery.progress.status, arrived(destination)) == ("ok", expected(destination, rows))


@pytest.mark.parametrize(("kind", "fault"), FAULTS)
def test_fault_leaves_training_alone_and_every_row_arrives_once(kind, fault, make, tmp_path):
    destination = make(kind)
    run = hl.run("faulty", root=tmp_path / "runs", sinks=[destination.sink()], summary=False, drain_seconds=0.3)
    run.recording.sinks.pace = PACE

    def fail():
        wait_until(lambda: run.sinks()[0].delivered >= 20)
        destination.fail(fault)

    with run:
        losses = train(run, at={20: fail, 300: lambda: wait_until(lambda: run.sinks()[0].status != "ok")})
    assert losses == train(None)
    destination.heal()
    finish_later(run.dir)
    rows = [(step, {"loss": loss}) for step, loss in enumerate(losses, 1)]
    assert same(arrived(destination), expected(destination, rows if kind.keeps_history else rows[-1:]))


def train(run, at=None):
    """A little training whose losses depend on everything before; alone, or driven by a run."""
    weight, losses = 1.0, []
    for step in range(400) if run is None else run.steps(400):
        if at and step in at:
            at[step]()
        weight -= 0.1 * math.sin(weight + step)
        losses.append(weight * weight)
        if run is not None:
            run.log(loss=losses[-1])
    return losses


def finish_later(run_dir):
    """What `hookline runs sync` does: a new delivery from what was saved, until nothing waits."""
    (state,) = sink_states(run_dir)
    delivery = Delivery(run_dir, state.name, make_sink(state.spec), PACE)

    def is_done():  # at first the run's own thread may still be at it
        delivery.round()
        return delivery.is_done()

    wait_until(is_done)
    finish(delivery)

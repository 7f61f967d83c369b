"""Whatever stands in a journal, runs are listed, queried and shown: an odd record is one run's own affair.

What is made up is the same each time: records of every kind with any JSON where anything may stand, and lines that are
no records at all.
"""

import json
import logging
import math
import shutil

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from recorded_runs import append, finished_run, journal, make_run, row

import hookline as hl
from hookline._record.reader import last_status, last_step
from hookline._record.recorder import Recorder
from hookline._record.records import Event, Status
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store

pytest.importorskip("starlette", reason="the web page needs the extra 'ui'")
from starlette.testclient import TestClient

from hookline.server.application import application

QUICK = settings(
    max_examples=14,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
HUGE = 10**400
WORDS = st.sampled_from(
    ["loss", "steps", "costs", "moments", "metrics", "report", "count", "num_steps", "epoch", "hooks/a/calls", "*", ""]
)
TEXTS = st.text(max_size=8) | st.sampled_from(["NaN", "Infinity", "\u0000", "\u202e", "1e999", "{", "x" * 500])
NUMBERS = st.sampled_from([0, -1, 2**63, -(2**70), HUGE, 1e308, -1e308, 5e-324]) | st.integers() | st.floats(-1e9, 1e9)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | TEXTS, inner, max_size=3),
    max_leaves=6,
)
DATA = st.dictionaries(WORDS, JSON, max_size=4)
TIMES = st.sampled_from([0.0, 1.0, 1e9, -1e308, 1e308]) | st.floats(0, 2e9)
STEPS = st.sampled_from([0, 1, -1, 2**63, HUGE, -HUGE]) | st.integers(0, 100)
EVENTS = ["resume", "hooks_cost", "hooks_plan", "hook_error", "records_lost", "run_result", "hang", "checkpoint"]
AXES = st.sampled_from(["train", "eval", "rollout", "final", ""])


def record(kind, optional=None, **fields):
    given = {"kind": st.just(kind), "time": TIMES, **fields}
    return st.fixed_dictionaries(given, optional=optional or {}).map(lambda made: json.dumps(made).encode())


SAMPLE = {"total": JSON, "advantage": JSON, "extra": DATA, "expected": TEXTS, "lesson": TEXTS, "group": TEXTS}
EVAL = st.fixed_dictionaries({"name": TEXTS}, optional=dict.fromkeys(("metrics", "breakdowns", "intervals"), DATA))
RESULT = {"metrics": DATA, "evals": st.lists(EVAL | JSON, max_size=2), "seconds": NUMBERS, "attempts": JSON}
RECORDS = st.one_of(
    record("metrics", step=STEPS, axis=AXES, values=DATA),
    record("sample", SAMPLE, step=STEPS, axis=AXES, prompt=TEXTS, completion=TEXTS, rewards=DATA),
    record("rewards", step=STEPS, name=TEXTS, values=st.lists(JSON, max_size=3), samples=st.lists(TEXTS, max_size=2)),
    record("status", {"step": STEPS}, status=st.sampled_from(["running", "finished", "heartbeat", "x"]), data=DATA),
    record("event", {"step": STEPS}, name=st.sampled_from(EVENTS), data=DATA),
    record("event", name=st.just("run_result"), data=st.fixed_dictionaries({}, optional=RESULT)),
    record("log", {"step": STEPS}, level=TEXTS, logger=TEXTS, message=TEXTS),
)
LINES = RECORDS | st.binary(max_size=40)
DEEP = b'{"kind":"event","name":"x","data":{"a":' + b"[" * 3000 + b"]" * 3000 + b"}}"
REPORT = b'{"kind":"status","status":"running","data":{"report":{},"metrics":5,"num_steps":"many"}}'
LARGE = json.dumps({"kind": "metrics", "step": HUGE, "values": {"loss": HUGE, "reward": -HUGE}}).encode()
NO_UTF8 = b'{"kind":"log","level":"a","logger":"b","message":"\xff"}'
QUERIES = ["metrics", "metric_names", "samples", "events", "rewards", "hooks", "hook_errors", "hook_order", "logs"]
ODD, BOTH = {"id": "p/odd"}, {"run": ["p/odd", "p/good"]}
PAGES = [("runs", {}), ("run", ODD), ("experiments", {}), ("experiment", {"project": "p"})]
PAGES += [
    (name, BOTH) for name in ("metrics", "samples", "samples/choices", "events", "logs", "hooks", "order", "sinks")
]
PAGES += [("samples/histogram", BOTH), ("series", BOTH | {"name": "loss"}), ("bands", BOTH | {"name": "loss"})]  # type: ignore[list-item]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where one run is as it should be; the index is made once, which takes longest."""
    home = tmp_path_factory.mktemp("runs")
    finished_run(home, "good")
    runs = hl.runs(home)
    yield home
    runs.close()


def write(directory, lines, session=0):
    file = journal(directory, session=session)
    file.write_bytes(b"".join(line.replace(b"\0", b"").replace(b"\n", b"") + b"\n" for line in lines))


@QUICK
@example(lines=[REPORT], later=[], is_over=False)
@example(lines=[LARGE], later=[LARGE], is_over=False)
@example(lines=[DEEP, b"\xff", NO_UTF8], later=[], is_over=True)
@given(lines=st.lists(LINES, max_size=10), later=st.lists(LINES, max_size=4), is_over=st.booleans())
def test_odd_records_of_any_kind_are_listed_queried_and_shown(root, lines, later, is_over):
    odd = make_run(root, "odd", experiment={"name": "e", "arm": "a", "repeat": 0})
    try:
        write(odd, lines)
        write(odd, [*later, *([b'{"kind":"status","status":"finished","time":2e9}'] if is_over else [])], session=1)
        check_everything(root, odd)
    finally:
        shutil.rmtree(odd)
        hl.runs(root)  # the index forgets it


def check_everything(root, odd):
    assert len(list(hl.read(odd))) >= 0
    last_status(odd), last_step(odd)
    runs = hl.runs(root)
    assert {info.id: "cannot be read" in str(info.problems) for info in runs} == {"p/odd": False, "p/good": False}
    for name in QUERIES:
        getattr(runs, name)().rows()
    runs.sql("SELECT * FROM runs").rows(), runs.series("*"), runs.bands("loss")
    client = TestClient(application(runs), base_url="http://127.0.0.1", raise_server_exceptions=True)
    for page, about in PAGES:
        assert client.get(f"/api/{page}", params=about).status_code == 200, page


def test_lines_that_are_no_records_are_counted_and_said(tmp_path):
    odd = make_run(tmp_path)
    write(
        odd,
        [b'{"kind":"metrics","step":1,"values":{"loss":1}}', DEEP, NO_UTF8, b'{"kind":"status","status":"finished"}'],
    )

    assert [type(record).__name__ for record in hl.read(odd)] == ["Metrics", "Status"]
    assert hl.runs(tmp_path).read("p/r0").problems == ("2 lines are not records; skipped",)


def test_resume_mark_of_another_shape_takes_nothing_back(tmp_path):
    odd = make_run(tmp_path)
    append(odd, row(1, loss=1.0), row(2, loss=0.5))
    append(odd, Event(name="resume", data={"steps": 7}), Event(name="resume", data={"steps": {"*": "x"}}), session=1)

    assert [record.step for record in hl.read(odd) if record.step] == [1, 2]
    assert hl.runs(tmp_path).metrics().rows()[-1]["step"] == 2


def test_status_with_huge_steps_is_listed_with_the_largest_that_can_be_shown(tmp_path):
    odd = make_run(tmp_path)
    append(odd, Status(time=1.0, status="running", step=0, data={"num_steps": HUGE}), row(HUGE, loss=1.0, time=2.0))

    [info] = hl.runs(tmp_path)
    assert (info.step, info.num_steps, info.problems) == (2**63 - 1, 2**63 - 1, ())


class Puzzled(Liveness):
    """Fails for one of the runs."""

    def status(self, summary, directory, facts, only_path=None):
        if directory.name == "odd":
            raise ZeroDivisionError("what is that?")
        return super().status(summary, directory, facts, only_path)


def test_listing_with_an_unreadable_run_shows_its_problem_and_the_others(tmp_path, caplog):
    finished_run(tmp_path, "odd")
    finished_run(tmp_path, "good")
    store = open_store(tmp_path)

    with caplog.at_level(logging.ERROR, "hookline"):
        first, second = store.list_runs(Puzzled()), store.list_runs(Puzzled())

    why = "its record cannot be read: ZeroDivisionError: what is that?"
    assert first == second
    assert {info.id: info.problems for info in first} == {"p/good": (), "p/odd": (why,)}
    assert [record.getMessage() for record in caplog.records] == [
        "Only the name of p/odd is listed: its record cannot be read."
    ]


def test_value_nested_without_end_is_recorded_as_far_as_it_can_be_read(tmp_path):
    nested = []
    for _ in range(5000):
        nested = [nested]
    recorder = Recorder(tmp_path)
    recorder.event("odd", data=nested, size=10**5000)
    recorder.close()

    [event] = hl.read(tmp_path)
    assert (str(event.data["data"]).count("["), event.data["size"]) == (89, math.inf)

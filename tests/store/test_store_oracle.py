"""Whatever is written, resumed, torn and read in between: the store has what `hl.read` has."""

import math
import shutil

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from recorded_runs import append, close, journal, make_run, what_read_says, what_store_says

import hookline as hl
from hookline._record.records import Event, LogLine, Metrics, Rewards, Sample, Status
from hookline.store import runs

WRITERS = st.sampled_from(["main", "main", "rank1"])
AXES = st.sampled_from(["train", "eval"])
STEPS = st.integers(0, 3)
TIMES = st.floats(0, 1e4)
VALUES = st.one_of(
    st.floats(), st.integers(-5, 5), st.booleans(), st.none(), st.sampled_from(["warm", "NaN", "-Infinity", ""])
)
NAMES = st.sampled_from(["loss", "hooks/A/calls", "x/y"])
TEXTS = st.text(max_size=8)
RECORDS = st.one_of(
    st.builds(Metrics, time=TIMES, step=STEPS, axis=AXES, values=st.dictionaries(NAMES, VALUES, max_size=2)),
    st.builds(Metrics, time=TIMES, step=STEPS, axis=st.just("eval"), values=st.just({"loss": 1.0})),
    st.builds(
        Sample,
        time=TIMES,
        step=STEPS,
        axis=AXES,
        prompt=TEXTS,
        rewards=st.dictionaries(NAMES, st.floats() | st.none(), max_size=2),
    ),
    st.builds(Rewards, time=TIMES, step=STEPS, name=NAMES, values=st.lists(st.floats(), max_size=2)),
    st.builds(Status, time=TIMES, step=STEPS, status=st.sampled_from(["running", "heartbeat", "finished", "failed"])),
    st.builds(Event, time=TIMES, step=st.none() | STEPS, name=st.just("note"), data=st.dictionaries(TEXTS, TEXTS)),
    st.builds(LogLine, time=TIMES, step=st.none() | STEPS, level=st.just("INFO"), logger=st.just("a"), message=TEXTS),
)
RESUMES = st.dictionaries(st.sampled_from(["*", "train", "eval"]), st.integers(-1, 2), min_size=1, max_size=2)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), WRITERS, st.lists(RECORDS, min_size=1, max_size=4)),
    st.tuples(st.just("resume"), WRITERS, RESUMES),
    st.tuples(st.just("session"), WRITERS, st.none()),
    st.tuples(st.just("late"), WRITERS, st.lists(RECORDS, min_size=1, max_size=2)),
    st.tuples(st.just("segment"), WRITERS, st.none()),
    st.tuples(st.just("torn"), WRITERS, st.sampled_from([b'{"kind":"met', b"no record\n", b"\0\0\0"])),
    st.tuples(st.just("reopen"), st.booleans(), st.none()),
)


class Writers:
    """Which file each writer is at."""

    def __init__(self, directory):
        self.directory, self.at = directory, {}

    def file(self, name):
        return self.at.setdefault(name, [0, 0])

    def act(self, action, name, given):
        session, number = self.file(name)
        if action in ("write", "late"):
            self._append(name, given, max(0, session - 1) if action == "late" else session, number)
        elif action == "resume":
            mark = Event(time=0.0, name="resume", data={"steps": given})
            self._append(name, [mark], session, number)
        elif action == "session":
            self.at[name] = [session + 1, 0]
        elif action == "segment" and journal(self.directory, name, session, number).exists():
            self.at[name] = [session, number + 1]
        elif action == "torn":
            with journal(self.directory, name, session, number).open("ab") as file:
                file.write(given)

    def _append(self, name, records, session, number):
        """After what is whole: a torn tail stays as it is, with nothing readable after it."""
        append(self.directory, *records, name=name, session=session, number=number)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # making a failure smaller takes minutes
)
@given(actions=st.lists(ACTIONS, min_size=4, max_size=12), looks=st.booleans())
def test_store_after_any_history_has_what_the_reader_has(tmp_path_factory, actions, looks):
    root = tmp_path_factory.mktemp("root")
    writers = Writers(make_run(root))
    try:
        for action, name, given_ in actions:
            if looks:
                runs(root).ingest()
                runs(root).series("*")
            if action == "reopen":
                close(root)
                if name:
                    shutil.rmtree(root / ".hookline", ignore_errors=True)
            else:
                writers.act(action, name, given_)
        assert what_store_says(runs(root), "p/r0") == what_read_says(writers.directory)
        assert what_charts_show(runs(root)) == what_charts_should_show(writers.directory)
    finally:
        close(root)
        shutil.rmtree(root)


def what_charts_show(found):
    return {
        (line.name, line.axis): (sorted(zip(line.x, line.y, strict=True)), line.not_finite)
        for line in found.series("*", max_points=1000)
    }


def what_charts_should_show(directory):
    shown = {}
    for record in hl.read(directory):
        if isinstance(record, Metrics):
            for name, value in record.values.items():
                points, left_out = shown.setdefault((name, record.axis), ([], [0]))
                if isinstance(value, int | float):
                    left_out[0] += not math.isfinite(value)
                    points += [(float(record.step), float(value))] if math.isfinite(value) else []
    return {key: (sorted(points), left_out[0]) for key, (points, left_out) in shown.items()}


def test_oracle_tells_not_a_number_from_a_missing_value(tmp_path):
    directory = make_run(tmp_path)
    append(directory, Metrics(step=1, values={"a": math.nan, "b": None, "c": math.inf, "d": "NaN", "e": "words"}))
    found = {row["name"]: (row["value"], row["text"]) for row in runs(tmp_path).metrics()}
    assert math.isnan(found["a"][0])
    assert math.isnan(found["d"][0])
    assert (found["b"], found["c"], found["e"]) == ((None, None), (math.inf, None), (None, "words"))

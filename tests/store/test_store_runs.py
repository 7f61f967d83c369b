"""Listing runs: what is known about each, how it is, and which are meant."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from recorded_runs import append, close, ended, finished_run, journal, make_run, resumed, row

import hookline as hl
from hookline._record import run_directory
from hookline._record.records import Event, Sample, Status
from hookline.store import runs
from hookline.store.run_summary import Liveness
from hookline.store.runs import Runs
from hookline.store.store import open_store

EXPERIMENT = {"name": "sweep", "id": "x1", "group": "fast", "arm": "fast", "repeat": 1, "stage": "sft", "seed": 7}


def begun(num_steps=100, time=1.0):
    return Status(time=time, status="running", step=0, data={"num_steps": num_steps})


def held_run(root, run_id="r0", **facts):
    """A run whose process, this one, is alive."""
    directory = make_run(root, run_id, **facts)
    run_directory.acquire(directory)
    return directory


OPENED = """
import os, sys
import hookline as hl

opened, listens = set(), False

def note(event, arguments):
    if listens and event == "open" and "/journal/" in str(arguments[0]):
        opened.add(str(arguments[0]).split("/journal/")[0])

sys.addaudithook(note)
hl.runs(sys.argv[1])
listens = True
print(len(hl.runs(sys.argv[1])), len(opened))
"""


def status_at(root, now, host="here"):
    liveness = Liveness(stall_seconds=300, clock=lambda: now, host=host)
    return Runs(open_store(root), liveness)[0].status


def received_run(root, *, sign):
    """A run of another machine that promised a sign of life every five seconds, and gave the last one then."""
    directory = make_run(root, host="there")
    append(directory, begun(time=sign), row(1, loss=1.0, time=sign))
    (directory / "received.json").write_text('{"origin": "a", "every_seconds": 5.0}')
    for path in (directory / "received.json", journal(directory)):
        os.utime(path, (sign, sign))
    return directory


@pytest.mark.parametrize(
    ("sign", "since", "words"),
    [
        (1000.0, None, {1010: "running", 1016: "killed"}),  # nobody was away
        (1000.0, 900.0, {1010: "running", 1016: "killed"}),
        (1000.0, 1060.0, {1061: "running", 1104: "running", 1106: "killed"}),  # the sender may still wait
        (1065.0, 1060.0, {1079: "running", 1081: "killed"}),  # it was heard again, and died
        (1000.0, 9000.0, {9001: "stalled", 9046: "killed"}),  # silent for hours
    ],
)
def test_received_run_that_is_silent_is_killed_but_gets_time_to_return_after_an_outage(tmp_path, sign, since, words):
    received_run(tmp_path, sign=sign)
    given = {} if since is None else {"since": since}
    said = {
        now: Runs(open_store(tmp_path), Liveness(clock=lambda now=now: float(now), **given))[0].status for now in words
    }
    assert said == words


def test_run_info_of_an_experiment_says_what_was_run_and_how_far_it_is(tmp_path):
    directory = make_run(tmp_path, "fast-r1", "sweep", experiment=EXPERIMENT, config={"lr": 0.1}, tags=["a", "b"])
    append(
        directory, begun(), row(1, loss=2.0, time=2.0), row(2, loss=1.0, time=3.0), ended(2, "stopped", "asked", 4.0)
    )
    info = runs(tmp_path)["sweep/fast-r1"]
    place = (info.experiment, info.group, info.arm, info.repeat, info.stage, info.seed)
    assert place == ("sweep", "fast", "fast", 1, "sft", 7)
    assert (info.name, info.project, info.directory) == ("fast-r1", "sweep", directory)
    assert (info.status, info.message, info.ended, info.last_seen) == ("stopped", "asked", 4.0, 4.0)
    assert (info.step, info.num_steps, info.metrics["loss"], info.problems) == (2, 100, 1.0, ())
    assert (info.config, info.tags) == ({"lr": 0.1}, ("a", "b"))


def test_run_that_ends_with_many_predictions_still_tells_its_latest_metrics(tmp_path):
    directory = make_run(tmp_path)
    predictions = [Sample(time=4.0, step=2, axis="final", completion="x" * 2000) for _ in range(200)]
    costs = row(2, time=4.5, **{"hooks/slow/calls": 3.0})
    long = Event(time=1.5, name="note", data={"text": "y" * 5000})
    append(directory, begun(), long, row(1, loss=2.0, time=2.0), row(2, loss=1.0, time=3.0))
    append(directory, row(2, "final", time=3.5, **{"quiz/accuracy": 0.5}), *predictions, costs)
    info = runs(tmp_path)[0]
    assert {"loss": 1.0, "quiz/accuracy": 0.5}.items() <= info.metrics.items()
    assert (info.step, info.last_seen) == (2, 4.5)
    append(directory, *[predictions[0]] * 600)
    assert "loss" not in runs(tmp_path)[0].metrics  # no more than a mebibyte is looked through


def test_run_whose_metrics_have_rows_of_their_own_shows_the_latest_value_of_each(tmp_path):
    directory = make_run(tmp_path)
    names = ["loss", "acc", *(f"m{number}" for number in range(20))]
    rows = [row(step, **{name: float(step)}) for step in range(1, 40) for name in names]
    # More than what is read at first comes between the last two rows.
    events = [Event(time=100.0, name="note", step=39, data={"text": "x" * 1000}) for _ in range(12)]
    append(directory, begun(), row(1, once=5.0), *rows, *events, row(40, loss=40.0), ended(40))
    (run,) = runs(tmp_path)
    assert run.metrics == dict.fromkeys(names, 39.0) | {"loss": 40.0, "once": 5.0}


def test_runs_of_a_real_loop_are_running_and_then_finished_and_keep_their_sinks(tmp_path):
    with hl.run("first", sinks=["csv"], summary=False) as run:
        for step in run.steps(5):
            run.log(loss=float(step))
        found = runs("runs")
        live = found.latest()
    done = found.refresh().latest()
    assert (live.status, live.step, live.ended) == ("running", 5, None)
    assert (done.id, done.status, done.is_over) == (f"default/{run.dir.name}", "finished", True)
    assert [(sink.name, sink.behind_bytes) for sink in done.sinks()] == [("csv", 0)]


def test_run_that_is_alive_without_progress_is_stalled_even_if_it_beats(tmp_path):
    directory = held_run(tmp_path)
    append(directory, begun(time=999.0), row(1, time=1000.0, loss=1.0))
    append(directory, *[Status(time=1000.0 + beat, status="heartbeat", step=1) for beat in range(0, 500, 10)])
    assert [status_at(tmp_path, now) for now in (1010.0, 1299.0, 1301.0)] == ["running", "running", "stalled"]
    append(directory, row(2, time=1400.0, loss=1.0))
    assert status_at(tmp_path, 1401.0) == "running"
    run_directory.release(directory)


def test_run_with_long_steps_is_not_stalled_before_twenty_of_them(tmp_path):
    directory = held_run(tmp_path)
    append(directory, begun(time=0.5), *[row(step, time=100.0 * step, loss=1.0) for step in range(1, 11)])
    assert [status_at(tmp_path, now) for now in (2900.0, 3100.0)] == ["running", "stalled"]
    run_directory.release(directory)


def test_run_whose_watchdog_saw_a_hang_is_stalled_at_once(tmp_path):
    directory = held_run(tmp_path)
    append(directory, begun(), row(1, time=10.0, loss=1.0), Event(time=11.0, name="hang", step=1))
    assert status_at(tmp_path, 12.0) == "stalled"
    append(directory, row(2, time=13.0, loss=1.0))
    assert status_at(tmp_path, 14.0) == "running"
    run_directory.release(directory)


def test_run_whose_process_is_gone_was_killed(tmp_path):
    directory = held_run(tmp_path)
    append(directory, begun(), row(1, time=10.0, loss=1.0))
    host = runs(tmp_path)[0].host
    run_directory.release(directory)
    assert status_at(tmp_path, 11.0, host=host) == "killed"
    assert runs(tmp_path)[0].ended == 10.0


HOLD = """
import sys
from pathlib import Path
from hookline._record import run_directory
print(run_directory.acquire(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def as_another_user():
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("mode", "ages"), [(0o644, {11.0: "running"}), (0o600, {11.0: "running", 9000.0: "killed"})])
def test_live_run_of_another_user_is_running(mode, ages):
    with tempfile.TemporaryDirectory() as root:  # pytest's own are closed to other users
        directory = make_run(root)
        append(directory, begun(), row(1, time=10.0, loss=1.0))
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"True\n"
        (directory / run_directory.LOCK).chmod(mode)
        Path(root).chmod(0o755)
        host = runs(root)[0].host
        close(root)
        with as_another_user():
            assert {now: status_at(root, now, host=host) for now in ages} == ages
        process.communicate(b"")
        close(root)


def test_run_killed_since_the_last_listing_shows_its_last_step(tmp_path):
    directory = held_run(tmp_path)
    recorder = hl.Recorder(directory)
    recorder.log(loss=1.0, step=1)
    found = runs(tmp_path)
    before = found[0].step
    times = journal_times(directory)
    recorder.log(loss=1.0, step=9)  # into a page that is mapped: the file's size stays, and its time may
    restore_times(times)
    run_directory.release(directory)
    after = found.refresh()[0]
    assert (before, after.step, after.status) == (1, 9, "killed")
    recorder.close()


def journal_times(directory):
    return {path: path.stat() for path in (directory / "journal").glob("*.jsonl")}


def restore_times(times):
    for path, stat in times.items():
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_run_that_never_recorded_anything_is_reported_without_a_journal(tmp_path):
    make_run(tmp_path, started=1000.0)
    found = runs(tmp_path)
    assert (found[0].status, found[0].problems) == ("killed", ("there is no journal",))
    assert status_at(tmp_path, 1010.0) == "running"  # it is being prepared


def test_run_of_another_machine_is_judged_by_its_last_contact(tmp_path):
    directory = make_run(tmp_path, host="elsewhere")
    append(directory, begun(time=999.0), row(1, time=1000.0, loss=1.0))
    assert [status_at(tmp_path, now) for now in (1100.0, 1500.0, 5000.0)] == ["running", "stalled", "killed"]


def test_run_reported_dead_by_its_delivery_is_failed_until_resumed(tmp_path):
    directory = make_run(tmp_path)
    append(directory, begun(), row(4, time=10.0, loss=1.0))
    append(directory, ended(4, "failed", "killed", 20.0), name="courier")
    found = runs(tmp_path)
    dead = found[0]
    append(
        directory, resumed(3, time=29.0), begun(time=30.0), row(4, time=31.0, loss=1.0), ended(4, time=32.0), session=1
    )
    assert (dead.status, dead.message) == ("failed", "killed")
    assert found.refresh()[0].status == "finished"


def test_listing_leaves_out_what_is_hidden_linked_or_no_run(tmp_path):
    elsewhere = finished_run(tmp_path / "elsewhere", "secret")
    root = tmp_path / "root"
    finished_run(root)
    (root / "p" / "linked").symlink_to(elsewhere)
    (root / "project").symlink_to(elsewhere.parent)
    (root / "p" / "empty").mkdir()
    shutil.copytree(root / "p", root / ".hidden")
    linked = make_run(root, "files")
    journal(linked).symlink_to(journal(elsewhere))
    found = runs(root)
    assert sorted(info.id for info in found) == ["p/files", "p/r0"]
    assert {row["run"] for row in found.metrics()} == {"p/r0"}
    assert found["files"].status == "running"  # it was made just now, and has recorded nothing


def test_run_with_a_damaged_run_json_is_listed_with_what_is_wrong(tmp_path):
    directory = finished_run(tmp_path)
    (directory / "run.json").write_text('{"name": ')
    info = runs(tmp_path)[0]
    assert (info.name, info.status, len(info.problems)) == ("r0", "finished", 1)
    assert "run.json cannot be read" in info.problems[0]


def test_run_json_with_facts_of_the_wrong_kind_is_listed(tmp_path):
    directory = finished_run(tmp_path)
    facts = {"name": 5, "experiment": ["x"], "started": "soon", "tags": {"a": 1}, "host": None, "config": [1]}
    (directory / "run.json").write_text(json.dumps(facts))
    [listed] = runs(tmp_path).sql("SELECT name, experiment, started, tags, config FROM runs").rows()
    assert listed == {"name": "5", "experiment": None, "started": None, "tags": ["a=1"], "config": "[1]"}


def test_filter_takes_names_patterns_and_functions_and_holds_after_a_refresh(tmp_path):
    for repeat, arm in enumerate(("fast", "slow", "slow[2]")):
        finished_run(tmp_path, f"{arm}-r{repeat}", project="sweep", experiment={**EXPERIMENT, "arm": arm}, tags=[arm])
    finished_run(tmp_path, "other")
    found = runs(tmp_path)

    def ids(chosen):
        return sorted(info.id for info in chosen)

    assert ids(found.filter(arm="slow*")) == ["sweep/slow-r1", "sweep/slow[2]-r2"]
    assert ids(found.filter(arm=["fast", "slow[2]"])) == ["sweep/fast-r0", "sweep/slow[2]-r2"]
    assert ids(found.filter(tag="fast", project="sweep", status="finished")) == ["sweep/fast-r0"]
    chosen = found.filter(lambda info: info.experiment is None)
    assert ids(chosen) == ["p/other"]
    finished_run(tmp_path, "another")
    assert ids(chosen.refresh()) == ["p/another", "p/other"]
    assert chosen.latest().id == "p/another"
    assert {row["run"] for row in chosen.metrics()} == {"p/another", "p/other"}


def test_filter_by_a_question_mark_means_that_character(tmp_path):
    for name in ("wat", "w?t", "w?tch", "w[a]t"):
        finished_run(tmp_path, name.replace("?", "q").strip("[]"), name=name, tags=[name])
    found = runs(tmp_path)
    assert [sorted(run.name for run in found.filter(name=name)) for name in ("w?t", "w?t*", "w[a]*")] == [
        ["w?t"],
        ["w?t", "w?tch"],
        ["w[a]t"],
    ]
    assert [run.name for run in found.filter(tag="w?t")] == ["w?t"]


def test_filter_by_a_status_that_does_not_exist_is_refused_with_the_closest(tmp_path):
    finished_run(tmp_path)
    with pytest.raises(hl.OptionError, match="status='finish'.*'finished'"):
        runs(tmp_path).filter(status="finish")


def test_run_by_an_id_that_does_not_exist_is_refused_with_the_closest(tmp_path):
    finished_run(tmp_path, "fast-r0")
    finished_run(tmp_path, "fast-r0", project="q")
    found = runs(tmp_path)
    with pytest.raises(hl.UnknownNameError, match="'p/fast-r1'.*Did you mean 'p/fast-r0'"):
        found["p/fast-r1"]
    with pytest.raises(hl.UnknownNameError, match="Several runs are called 'fast-r0'"):
        found["fast-r0"]
    assert ("q/fast-r0" in found, found["q/fast-r0"] in found, "fast" in found) == (True, True, False)  # type: ignore[comparison-overlap]


def test_runs_of_a_directory_that_does_not_exist_say_so(tmp_path):
    with pytest.raises(hl.ConfigError, match="does not exist"):
        runs(tmp_path / "nowhere")


def test_runs_of_an_empty_directory_are_none_and_can_be_queried(tmp_path):
    found = runs(tmp_path)
    assert (len(found), found.metrics().rows(), found.sql("SELECT count(*) AS n FROM runs").rows()) == (
        0,
        [],
        [{"n": 0}],
    )
    with pytest.raises(hl.UnknownNameError, match="no matching runs"):
        found.latest()


def test_listing_reads_only_the_ends_of_journals(tmp_path, monkeypatch):
    directory = make_run(tmp_path)
    append(directory, begun(5000), *[row(step, loss=1.0) for step in range(5000)], ended(5000))
    read = []
    original = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: read.append(args[1]) or original(*args))  # type: ignore[func-returns-value]
    found = runs(tmp_path)
    assert (found[0].step, found[0].num_steps, found[0].status) == (5000, 5000, "finished")
    assert sum(read) < 200_000 < journal(directory).stat().st_size
    assert found._store.index.state("p/r0").read is None


def test_step_behind_a_long_log_is_found(tmp_path):
    directory = make_run(tmp_path)
    lines = [Event(time=2.0, name="note", data={"text": "x" * 1000}) for _ in range(100)]
    append(directory, begun(), row(7, loss=1.0), *lines)
    assert runs(tmp_path)[0].step == 7


def test_closed_runs_let_another_opening_have_the_index(tmp_path):
    finished_run(tmp_path)
    found = runs(tmp_path)
    assert runs(tmp_path)._store is found._store
    found.close()
    close(tmp_path)
    assert runs(tmp_path).note == ""


def test_run_that_fails_within_a_step_has_the_same_number_of_complete_steps_everywhere(tmp_path, capsys):
    with pytest.raises(RuntimeError), hl.run("breaks", root=tmp_path, summary=True) as run:
        for step in run.steps(10):
            run.log(loss=1.0)
            if step == 4:
                raise RuntimeError("within the fifth step")
    [info] = runs(tmp_path)
    [failed] = runs(tmp_path).events("failed", kind="status")
    [last] = runs(tmp_path).sql("SELECT max(step) AS step FROM metrics").rows()
    assert "breaks failed after 4 steps" in capsys.readouterr().err
    assert (info.step, info.num_steps, failed["step"], run.step) == (4, 10, 4, 4)
    assert last["step"] == 5  # what the step that failed had logged


def test_unchanged_runs_that_ended_are_listed_without_opening_their_files(tmp_path):
    finished_run(tmp_path)
    (first,) = [info.directory for info in runs(tmp_path)]
    for number in range(99):
        shutil.copytree(first, first.with_name(f"copy{number}"))
    for directory in first.parent.iterdir():  # a directory that changed within the last seconds counts as changed
        os.utime(directory / "journal", (1000.0, 1000.0))
    done = subprocess.run([sys.executable, "-c", OPENED, tmp_path], capture_output=True, text=True, timeout=120)
    count, opened = map(int, done.stdout.split())
    assert (count, opened <= 50) == (100, True), f"{opened} opened"

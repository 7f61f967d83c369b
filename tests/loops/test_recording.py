"""The records of a run, and resuming it."""

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

import hookline as hl
from hookline._record import files, run_directory
from hookline._record.records import Event, Metrics, Sample, Status


def records(run_dir, kind):
    return [record for record in hl.read(run_dir) if isinstance(record, kind)]


def test_run_records_rows_samples_events_and_how_it_ended():
    def fail(loop):
        raise ValueError("broken")

    with hl.run(callbacks=[hl.on("step_end", fail, every=2)], summary=False) as run:
        for i in run.steps(2):
            run.log(loss=i)
        run.log_samples([{"prompt": "2+2", "completion": "4", "rewards": {"exact": 1.0}}])
        with run.validate() as val:
            val.log(loss=0.5)
        run.save_checkpoint()
    rows = [(r.axis, r.step, r.values) for r in records(run.dir, Metrics)]
    assert rows == [("train", 1, {"loss": 0}), ("train", 2, {"loss": 1}), ("eval", 2, {"val/loss": 0.5})]
    assert [(s.step, s.completion, s.rewards) for s in records(run.dir, Sample)] == [(2, "4", {"exact": 1.0})]
    happened = [("hook_error", 2), ("eval", 2), ("checkpoint", 2)]
    events = [(event.name, event.step) for event in records(run.dir, Event)]
    assert events == [("hooks_plan", 0), *happened, ("hooks_cost", 2)]
    assert [s.status for s in records(run.dir, Status)] == ["running", "finished"]


def test_run_directory_says_what_was_run():
    with hl.run("trial", project="tests", config={"lr": 0.1, "odd": object}, summary=False) as run:
        pass
    facts = json.loads((run.dir / "run.json").read_text())
    assert run.dir.parts[-3:-1] == ("runs", "tests")
    assert (facts["id"], facts["name"], facts["project"], facts["config"]["lr"]) == (
        run.dir.name,
        "trial",
        "tests",
        0.1,
    )
    assert facts["packages"]["hookline"] == hl.__version__
    assert {"command", "cwd", "host", "user", "pid", "python", "platform", "git", "started", "parents"} <= set(facts)


def test_run_ids_are_unique_and_sort_by_day():
    ids = []
    for _ in range(5):
        with hl.run(summary=False) as run:
            ids.append(run.dir.name)
    assert len(set(ids)) == 5
    assert [name.rpartition("-")[2] for name in ids] == ["1", "2", "3", "4", "5"]


def test_run_in_a_git_repository_keeps_the_commit_and_the_changes(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "model.py").write_text("new line\n")
    subprocess.run(["git", "add", "model.py"], check=True)
    with hl.run(summary=False) as run:
        pass
    facts = json.loads((run.dir / "run.json").read_text())
    assert (len(facts["git"]["commit"]), facts["git"]["changed"]) == (40, True)
    assert "+new line" in (run.dir / "git.diff").read_text()


def test_run_that_fails_or_is_stopped_says_so():
    with pytest.raises(ZeroDivisionError), hl.run(summary=False) as failed:
        for i in failed.steps(3):
            failed.log(x=1 / (1 - i))
    with hl.run(summary=False) as stopped:
        for _ in stopped.steps(3):
            stopped.request_stop("enough")
    ends = [(s.status, s.message) for run in (failed, stopped) for s in records(run.dir, Status)[1:]]
    assert ends == [("failed", "ZeroDivisionError: division by zero"), ("stopped", "enough")]


def test_run_without_root_writes_nothing(tmp_path):
    with hl.run(root=None, summary=False) as run:
        for i in run.steps(2):
            run.log(loss=i)
    assert (run.dir, list(tmp_path.iterdir())) == (None, [])
    assert [row.metrics for row in run.history] == [{"loss": 0}, {"loss": 1}]


def test_run_where_nothing_can_be_written_is_an_error_before_it_begins(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(hl.ConfigError, match="cannot be written"), hl.run(root=tmp_path / "file"):
        pass
    with pytest.raises(hl.ConfigError, match="project='a/b'"), hl.run(project="a/b"):
        pass


def test_resume_of_an_unknown_run_is_an_error_with_the_closest():
    with hl.run(summary=False) as run:
        pass
    with pytest.raises(hl.UnknownNameError, match=f"Did you mean '{run.dir.name}'"), hl.run(resume=run.dir.name + "0"):
        pass
    for misspelt, meant in (("atuo", "auto"), ("lst", "last")):
        with pytest.raises(hl.UnknownNameError, match=f"Did you mean '{meant}'"), hl.run(resume=misspelt):
            pass
    with pytest.raises(hl.OptionError, match="root=None"):
        hl.run(root=None, resume="auto")


@pytest.mark.parametrize("reference", [lambda run: run.dir, lambda run: run.dir.name, lambda run: "auto"])
def test_resume_continues_the_run_at_its_last_checkpoint(reference):
    with hl.run("long", summary=False) as first:
        for i in first.steps(10):
            first.log(loss=i, first=1)
            if i in (2, 5):
                first.request_checkpoint()
            if i == 7:
                first.request_stop("preempted")
    with hl.run("long", resume=reference(first), summary=False) as second:
        for i in second.steps(10):
            second.log(loss=i)
    assert (second.dir, second.step, second.num_steps) == (first.dir, 10, 10)
    assert [row.step for row in second.history] == list(range(1, 11))
    assert ["first" in row.metrics for row in second.history] == [True] * 6 + [False] * 4


def test_resume_auto_without_an_unfinished_run_begins_a_new_one(caplog):
    for _ in range(2):
        with hl.run("job", resume="auto", summary=False) as run:
            list(run.steps(2))
    assert len(list(run.dir.parent.iterdir())) == 2
    assert ([event.name for event in records(run.dir, Event)], caplog.messages) == ([], [])


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "Give save= and load= (or call run.checkpoint_with), and the callback 'checkpoint'."),
        ({"save": print, "load": print}, "Give the callback 'checkpoint', or let it save sooner."),
    ],
)
def test_resume_auto_without_a_checkpoint_says_that_it_begins_again_and_repeats_no_row(caplog, options, advice):
    for steps in (3, 2):
        with hl.run("job", resume="auto", summary=False, **options) as run:
            for i in run.steps(9):
                run.log(loss=i)
                if run.step + 1 == steps:
                    run.request_stop("preempted")
    assert caplog.messages == [f"'job' has no checkpoint: it starts over at step 0. {advice}"]
    assert [row.step for row in run.history] == [1, 2]
    assert [event.data for event in records(run.dir, Event) if event.name == "resume"] == [{"steps": {"*": -1}}]


def nothing(directory):
    """Writes or reads a model of no size."""


@pytest.mark.parametrize(
    ("options", "lacking"),
    [({}, ["save= and load="]), ({"save": nothing}, ["load="]), ({"save": nothing, "load": nothing}, [])],
)
def test_resume_from_a_checkpoint_whose_model_nobody_reads_says_so_once(caplog, options, lacking):
    for steps in (3, 9):
        with hl.run("job", resume="auto", callbacks=["checkpoint"], summary=False, **options) as run:
            for _ in run.steps(9):
                if run.step + 1 == steps:
                    run.request_stop("preempted")
    said = "\n".join(caplog.messages)
    assert re.findall(r"^'job' continues at step 3 .* Give (.*), or call.*$", said, re.MULTILINE) == lacking
    assert len(caplog.messages) == len(lacking)


def test_resume_from_a_checkpoint_that_is_read_inside_the_run_says_nothing(caplog):
    read = []
    for steps in (3, 9):
        with hl.run("job", resume="auto", callbacks=["checkpoint"], summary=False) as run:
            run.checkpoint_with(nothing, read.append)
            for _ in run.steps(9):
                if run.step + 1 == steps:
                    run.request_stop("preempted")
    assert (caplog.messages, read) == ([], [run.resumed_from])


KILLED = """
    import os, signal, sys
    import hookline as hl

    with hl.run("job", resume="auto", summary=False) as run:
        for i in run.steps(60):
            run.log(loss=i, pid=os.getpid())
            if i % 5 == 4:
                run.request_checkpoint()
            if i == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_run_killed_again_and_again_ends_with_each_row_once(tmp_path):
    code = textwrap.dedent(KILLED)
    ends = [
        subprocess.run([sys.executable, "-c", code, str(at)], check=False).returncode for at in (3, 12, 13, 31, 49, 99)
    ]
    assert ends == [-signal.SIGKILL] * 5 + [0]
    (run_dir,) = (tmp_path / "runs" / "default").iterdir()
    rows = records(run_dir, Metrics)
    assert sorted(row.step for row in rows) == list(range(1, 61))
    assert all(row.values["loss"] == row.step - 1 for row in rows)
    assert len({row.values["pid"] for row in rows}) == len(list(itertools.groupby(rows, lambda row: row.values["pid"])))
    assert records(run_dir, Status)[-1].status == "finished"


def test_run_with_a_background_subscriber_records_what_it_returns_at_its_step():
    late = hl.on("step_end", lambda loop: {"step": loop.step}, name="late", every=5, background=True)
    with hl.run(callbacks=[late], strict=True, summary=False) as run:
        for i in run.steps(10):
            run.log(loss=i)
    found = [(row.step, row.values["late/step"]) for row in records(run.dir, Metrics) if "late/step" in row.values]
    assert found == [(5, 5), (10, 10)]


def test_samples_of_a_step_are_recorded_at_its_completed_count():
    with hl.run(summary=False) as run:
        for i in run.steps(2):
            run.log(i=i)
            run.log_samples([{"completion": str(i), "group": 3, "advantage": 0.5}])
    assert [(s.step, s.completion, s.group) for s in records(run.dir, Sample)] == [(1, "0", "3"), (2, "1", "3")]


def test_run_that_changes_its_directory_continues_recording(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    with hl.run(summary=False) as run:
        for i in run.steps(3):
            run.log(i=i, text="x" * 3_000_000)
            monkeypatch.chdir(tmp_path / "elsewhere")
    assert [row.step for row in run.history] == [1, 2, 3]


def test_resume_auto_leaves_a_run_alone_that_is_still_running():
    with hl.run("job", summary=False) as first, hl.run("job", resume="auto", summary=False) as second:
        assert first.dir != second.dir
        with pytest.raises(hl.ConfigError, match="still running"), hl.run("job", resume=first.dir):
            pass


def test_run_that_two_resume_at_once_is_acquired_by_one(monkeypatch):
    with hl.run("job", summary=False) as first:
        first.log(loss=1.0)
        monkeypatch.setattr(run_directory, "is_alive", lambda directory: False)  # it was not, when they looked
        with pytest.raises(hl.ConfigError, match="still running"), hl.run("job", resume=first.dir, summary=False):
            pass
        assert files.is_locked(first.dir / run_directory.LOCK)
    assert [record.status for record in hl.read(first.dir) if isinstance(record, Status)] == ["running", "finished"]


def test_run_whose_journal_cannot_be_made_is_not_held(tmp_path):
    with hl.run("job", root=tmp_path, summary=False) as run:
        pass
    shutil.rmtree(run.dir / "journal")
    (run.dir / "journal").write_text("in its place")
    with pytest.raises(FileExistsError), hl.run("job", root=tmp_path, resume=run.dir, summary=False):
        pass
    assert not run_directory.is_alive(run.dir)


def test_resume_auto_sees_that_another_process_runs(tmp_path):
    code = "import sys, hookline as hl\n"
    code += "with hl.run('job', summary=False) as run: print(run.dir, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        theirs = other.stdout.readline().strip()
        with hl.run("job", resume="auto", summary=False) as mine:
            pass
        other.kill()
    assert str(mine.dir) != theirs
    with hl.run("job", resume="auto", summary=False) as again:
        pass
    assert str(again.dir) == theirs


def test_resume_after_a_checkpoint_in_the_body_of_a_step_misses_no_row():
    with pytest.raises(KeyboardInterrupt), hl.run("job", summary=False) as first:
        for i in first.steps(5):
            first.log(i=i)
            if i == 1:
                first.save_checkpoint()
                raise KeyboardInterrupt
    with hl.run("job", resume="auto", summary=False) as second:
        for i in second.steps(5):
            second.log(i=i)
    assert second.dir == first.dir
    assert [(row.step, row.metrics) for row in second.history] == [(i + 1, {"i": i}) for i in range(5)]


def test_resume_before_the_first_checkpoint_and_after_an_evaluation_repeats_no_row():
    for attempt in range(3):
        with hl.run("job", resume="auto", summary=False) as run:
            if run.step == 0:
                run.log(params=7)
            for _ in run.epochs(2):
                for i in run.steps(2):
                    run.log(i=i)
                    if attempt and i == 1:
                        run.request_checkpoint()
                with run.validate() as val:
                    val.log(loss=attempt)
                if attempt < 2:
                    run.request_stop("preempted")
    rows = [(r.axis, r.step) for r in records(run.dir, Metrics)]
    assert sorted(rows) == [("eval", 2), ("eval", 4), ("train", 0), *[("train", step) for step in (1, 2, 3, 4)]]


def test_resume_whose_checkpoint_cannot_be_loaded_lets_go_of_the_run():
    with hl.run("job", summary=False) as first:
        for _ in first.steps(2):
            first.request_checkpoint()
            first.request_stop("preempted")

    def refuse(path):
        raise RuntimeError("another model")

    with pytest.raises(RuntimeError, match="another model"), hl.run("job", resume="auto", load=refuse, summary=False):
        pass
    with hl.run("job", resume="auto", summary=False) as again:
        pass
    assert again.dir == first.dir

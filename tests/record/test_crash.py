"""Why a run failed is in its record: the traceback, the place, the last lines; also of a crash in C code."""

import os
import signal

import pytest
from printing import run_directory, run_script
from waiting import wait_until

import hookline as hl
from hookline._record.console_reader import crash_reports
from hookline._record.records import Event
from hookline.store.journal_files import regular_journal_files
from hookline.store.run_summary import Liveness, summarize


def failing(tmp_path, error):
    with pytest.raises(type(error)), hl.run("failing", root=tmp_path / "runs", summary=False) as run:
        raise error
    return crash_reports(run.dir)


def chained():
    try:
        raise KeyError("first")
    except KeyError as cause:
        try:
            raise ValueError("second") from cause
        except ValueError:
            error = RuntimeError("third")
            error.add_note("a note")
            try:
                raise error
            except RuntimeError as raised:
                return raised


def grouped():
    try:
        raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
    except ExceptionGroup as group:
        return group


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


TRACEBACKS = {
    "plain": (lambda: ValueError("broken"), "ValueError", ["ValueError: broken"]),
    "chained": (chained, "RuntimeError", ["KeyError: 'first'", "direct cause", "ValueError: second",
                                          "During handling", "RuntimeError: third", "a note"]),
    "group": (grouped, "ExceptionGroup", ["several (2 sub-exceptions)", "ValueError: one", "TypeError: two"]),
    "unprintable": (Unprintable, "test_crash.Unprintable", ["exception str() failed"]),
    "recursion": (lambda: RecursionError("deep"), "RecursionError", ["deep"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACEBACKS)
def test_failure_records_the_whole_traceback(tmp_path, name):
    make, kind, expected = TRACEBACKS[name]
    [report] = failing(tmp_path, make())
    assert (report.type, report.is_interrupt, report.rank) == (kind, False, 0)
    assert [text for text in expected if text not in report.traceback] == []


def test_failure_records_the_place_in_the_user_s_own_code(tmp_path):
    with pytest.raises(ValueError), hl.run("failing", root=tmp_path, summary=False) as run:  # noqa: PT011
        int("not a number")
    [report] = crash_reports(run.dir)
    place = report.place
    assert place is not None
    assert (place["file"], place["function"]) == (__file__, "test_failure_records_the_place_in_the_user_s_own_code")
    assert place["source"][place["line"] - place["first"]].strip() == 'int("not a number")'


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), "stopped"), (SystemExit(3), "stopped")])
def test_interrupt_is_recorded_without_a_traceback(tmp_path, error, status):
    [report] = failing(tmp_path, error)
    assert (report.type, report.is_interrupt, report.traceback) == (type(error).__name__, True, "")
    assert report.place is not None
    [run] = hl.runs(tmp_path / "runs")
    assert run.status == status


def test_failure_has_the_last_200_lines(tmp_path):
    run_script(
        tmp_path,
        """
        with begin() as run:
            for number in range(300): print("line", number)
            raise ValueError("broken")
        """,
    )
    [report] = crash_reports(run_directory(tmp_path))
    assert report.console == [f"line {number}" for number in range(100, 300)]


@pytest.mark.parametrize("flags", [{}, {"PYTHONFAULTHANDLER": "1"}], ids=["by us", "enabled before"])
def test_crash_in_c_code_is_kept(tmp_path, flags):
    done = run_script(
        tmp_path,
        """
        with begin() as run:
            print("last words", flush=True)
            ctypes.string_at(0)
        """,
        env=os.environ | flags,
    )
    assert done.returncode == -signal.SIGSEGV
    if flags:  # the program's own report goes where it went before, and is recorded as console output
        assert "Segmentation fault" in done.stderr
        wait_until(lambda: "Fatal Python error: Segmentation fault" in _lines(tmp_path))
    else:
        wait_until(lambda: [report.console for report in crash_reports(run_directory(tmp_path))] == [["last words"]])
        [report] = crash_reports(run_directory(tmp_path))
        assert (report.type, report.message) == ("crash", "Fatal Python error: Segmentation fault")
        assert "program.py" in report.traceback


def _lines(tmp_path):
    from printing import texts

    return texts(tmp_path, "stderr")


def test_crash_file_is_removed_and_faulthandler_disabled_when_nothing_happened(tmp_path):
    done = run_script(
        tmp_path,
        """
        import faulthandler
        with begin(): assert faulthandler.is_enabled()
        assert not faulthandler.is_enabled()
        """,
    )
    assert done.returncode == 0, done.stderr
    assert not (run_directory(tmp_path) / "console").exists()


def test_failure_of_an_earlier_session_is_not_that_of_a_later_one(tmp_path):
    with pytest.raises(ValueError), hl.run("twice", root=tmp_path, summary=False) as run:  # noqa: PT011
        for _ in run.steps(range(2)):
            run.save_checkpoint()
        raise ValueError("broken")
    with hl.run("twice", root=tmp_path, summary=False, resume="last") as again:
        pass
    assert again.dir == run.dir
    assert crash_reports(run.dir) == []
    assert Liveness().status(summarize(regular_journal_files(run.dir / "journal")), run.dir, {}) == "finished"


def test_failure_is_not_shown_by_sinks_that_report_progress(tmp_path, capsys):
    with pytest.raises(ValueError), hl.run("failing", root=tmp_path, summary=False, sinks=["console"]) as run:  # noqa: PT011
        raise ValueError("broken")
    assert [r.name for r in hl.read(run.dir) if isinstance(r, Event) and r.name == "failure"] == ["failure"]
    assert "Traceback" not in capsys.readouterr().out

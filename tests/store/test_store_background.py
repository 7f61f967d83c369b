"""Ended runs are read before anybody asks for them, and requests come first."""

from recorded_runs import append, ended, finished_run, make_run, row
from waiting import wait_until

import hookline as hl
from hookline.store import runs
from hookline.store.background import BackgroundIngest
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store


def read_runs(store):
    return sorted(run for run, state in store.index.states.items() if state.read is not None)


def test_background_reads_ended_runs_and_leaves_live_ones(tmp_path):
    for number in range(3):
        finished_run(tmp_path, f"r{number}")
    store = open_store(tmp_path)
    background = BackgroundIngest(store, Liveness())
    with hl.run("live", root=tmp_path, summary=False):
        background.start()
        wait_until(lambda: read_runs(store) == ["p/r0", "p/r1", "p/r2"] and not background.remaining)
        background.stop()
        assert (background.remaining, background.note) == (0, "")


def test_background_waits_while_a_request_is_answered(tmp_path):
    finished_run(tmp_path)
    store = open_store(tmp_path)
    background = BackgroundIngest(store, Liveness())
    with background.request():
        background.start()
        wait_until(lambda: background.remaining == 1)
        assert (read_runs(store), "1 run is still being read" in background.note) == ([], True)
    wait_until(lambda: read_runs(store) == ["p/r0"])
    background.stop()


def test_background_stopped_during_a_request_reads_nothing(tmp_path):
    finished_run(tmp_path)
    store = open_store(tmp_path)
    background = BackgroundIngest(store, Liveness())
    with background.request():
        background.start()
        wait_until(lambda: background.remaining == 1)
        background.stop()
    assert read_runs(store) == []


def test_background_survives_a_run_that_cannot_be_read(tmp_path):
    directory = make_run(tmp_path, "broken")
    append(directory, row(1, loss=1.0), ended(1))
    (directory / "journal").rename(tmp_path / "elsewhere")
    (directory / "journal").write_text("a file")
    finished_run(tmp_path, "whole")
    store = open_store(tmp_path)
    background = BackgroundIngest(store, Liveness())
    background.start()
    wait_until(lambda: "p/whole" in read_runs(store))
    background.stop()
    assert len(runs(tmp_path)) == 2


def test_runs_that_are_read_by_two_at_once_have_their_rows_once(tmp_path):
    directory = finished_run(tmp_path, "r0", losses=(3.0, 2.0))
    finished_run(tmp_path, "r1")
    listed = runs(tmp_path)

    def read_meanwhile(done, total):  # between two runs, as another thread may
        if done == 1:
            runs(tmp_path).ingest()
            append(directory, row(3, loss=1.0))

    listed.filter(lambda info: info.id in ("p/r0", "p/r1")).ingest(read_meanwhile)
    found = runs(tmp_path).sql("SELECT run, count(*) AS rows FROM metrics GROUP BY run ORDER BY run").rows()
    assert found == [{"run": "p/r0", "rows": 3}, {"run": "p/r1", "rows": 3}]

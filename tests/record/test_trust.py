"""What a received or shared run directory may make its reader do: nothing outside of that directory."""

import json
import os
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import hookline as hl
from hookline._engine.errors import ConfigError
from hookline._record.delivery_manager import sync


@pytest.fixture
def endpoint():
    """An address, and the authorization that each request to it carried."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", seen
    server.shutdown()
    thread.join()
    server.server_close()


def left_behind(*sinks, rows=3):
    """The directory of a run whose rows were not delivered."""
    with hl.run("done", sinks=list(sinks), summary=False) as run:
        run.recording.sinks.close()
        for _ in run.steps(rows):
            run.log(loss=1.0)
    return run.dir


def plant(run_dir, use, settings, name="evil"):
    saved = {"sink": {"use": use, "with": settings}, "status": "ok", "error": "", "delivered": 0}
    (run_dir / "sinks").mkdir(exist_ok=True)
    (run_dir / "sinks" / f"{name}.json").write_text(json.dumps(saved | {"places": {}, "state": None}))


def wishes(states, name="evil"):
    return next((state.status, state.error) for state in states if state.name == name)


def test_sync_of_a_planted_endpoint_with_a_variable_sends_nothing_and_delivers_the_others(endpoint, monkeypatch):
    address, seen = endpoint
    monkeypatch.setenv("SECRET", "s3cret")
    run_dir = left_behind("csv")
    plant(run_dir, "status", {"endpoint": address, "headers": {"Authorization": "${SECRET}"}})
    states = sync(run_dir, seconds=10)
    status, error = wishes(states)
    assert (status, seen) == ("refused", [])
    assert f"address {address}, variable SECRET" in error
    assert f"hookline runs sync {run_dir} --trust" in error
    assert len((run_dir / "metrics.csv").read_text().splitlines()) == 4


def test_sync_of_a_planted_endpoint_with_trust_delivers(endpoint, monkeypatch):
    address, seen = endpoint
    monkeypatch.setenv("SECRET", "s3cret")
    run_dir = left_behind("csv")
    plant(run_dir, "status", {"endpoint": address, "headers": {"Authorization": "${SECRET}"}})
    assert wishes(sync(run_dir, seconds=10, trusted=True)) == ("ok", "")
    assert set(seen) == {"s3cret"}


def test_sync_of_a_sink_that_the_own_run_wrote_down_needs_no_trust(endpoint, monkeypatch):
    address, seen = endpoint
    monkeypatch.setenv("SECRET", "s3cret")
    given = {"status": {"endpoint": address, "headers": {"Authorization": "${SECRET}"}, "metrics": "all"}}
    run_dir = left_behind(given)
    seen.clear()
    assert [state.status for state in sync(run_dir, seconds=10)] == ["ok"]
    assert seen[:1] == ["s3cret"]


@pytest.mark.parametrize(
    ("use", "settings", "wish"),
    [
        ("csv", {"path": "/nowhere/out.csv"}, "path /nowhere/out.csv"),
        ("csv", {"path": "RUN/../other/out.csv"}, "path "),
        ("tensorboard", {"log_dir": "/nowhere"}, "path /nowhere"),
        ("prometheus", {"port": 9}, "port 9"),
        ("hookline", {"url": "http://127.0.0.1:9"}, "address http://127.0.0.1:9, variable HOOKLINE_TOKEN"),
        ("function", {"function": "planted:steal"}, "import planted:steal"),
        ("planted:Evil", {}, "import planted:Evil"),
        ("mlflow", {"tracking_uri": "http://127.0.0.1:9"}, "address http://127.0.0.1:9"),
        ("wandb", {}, "W&B, with its credentials"),
        ("trackio", {"directory": "/nowhere"}, "trackio's database, path /nowhere"),
    ],
)
@pytest.mark.parametrize("repair", [False, True])
def test_sync_of_a_planted_sink_refuses_what_it_asks_for(tmp_path, monkeypatch, use, settings, wish, repair):
    (tmp_path / "planted.py").write_text("import pathlib; pathlib.Path('imported').touch()")
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = left_behind("csv")
    plant(
        run_dir,
        use,
        {key: str(value).replace("RUN", str(run_dir)) if key == "path" else value for key, value in settings.items()},
    )
    status, error = wishes(sync(run_dir, seconds=10, repair=repair))
    assert (status, wish in error) == ("refused", True), error
    assert not (tmp_path / "imported").exists()


def test_sync_of_a_signed_file_that_was_changed_or_copied_refuses_it(tmp_path):
    run_dir = left_behind({"csv": {"path": tmp_path / "out.csv"}})
    other = left_behind("csv")
    shutil.copy(run_dir / "sinks" / "csv.json", other / "sinks" / "csv.json")
    file = run_dir / "sinks" / "csv.json"
    file.write_text(file.read_text().replace("out.csv", "bad.csv"))
    found = [wishes(sync(place, seconds=10), "csv") for place in (run_dir, other)]
    assert [(status, "path " in error) for status, error in found] == [("refused", True)] * 2
    assert not (tmp_path / "bad.csv").exists()


def test_sync_without_a_key_of_its_own_refuses_outside_paths(tmp_path, monkeypatch):
    run_dir = left_behind({"csv": {"path": tmp_path / "out.csv"}})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert wishes(sync(run_dir, seconds=10), "csv")[0] == "refused"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_sync_of_a_file_of_another_user_refuses_it(tmp_path):
    run_dir = left_behind({"csv": {"path": tmp_path / "out.csv"}})
    os.chown(run_dir / "sinks" / "csv.json", 65534, 65534)
    assert wishes(sync(run_dir, seconds=10), "csv")[0] == "refused"


def test_key_that_others_can_read_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    left_behind({"csv": {"path": tmp_path / "out.csv"}})
    key = tmp_path / "state" / "hookline" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    shutil.copytree(tmp_path / "state", tmp_path / "open")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "open"))
    run_dir = left_behind({"csv": {"path": tmp_path / "more.csv"}})
    assert wishes(sync(run_dir, seconds=10), "csv")[0] == "refused"


def test_sync_of_a_run_with_a_link_out_writes_nothing_through_it(tmp_path):
    run_dir = left_behind("csv")
    (run_dir / "sinks" / "csv.json").unlink()
    plant(run_dir, "csv", {})
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (run_dir / "metrics.csv").unlink(missing_ok=True)
    (run_dir / "metrics.csv").symlink_to(victim)
    ((state),) = sync(run_dir, seconds=10)
    assert (state.status, f"{run_dir / 'metrics.csv'} is a link" in state.error) == ("refused", True)
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize("name", ["metrics.csv", "journal", ".run.json.partial", "tensorboard"])
def test_resume_of_a_run_with_a_link_out_is_refused(tmp_path, name):
    run_dir = left_behind("csv")
    victim = tmp_path / "victim"
    (run_dir / name).rename(victim) if (run_dir / name).exists() else victim.mkdir()
    (run_dir / name).symlink_to(victim)
    with pytest.raises(ConfigError, match="is a link that leads out of the run's directory"):
        hl.run("done", resume=run_dir, sinks=["csv"], summary=False).__enter__()


STREAM = {"writer": "main", "axis": "train", "bytes": 5}


@pytest.mark.parametrize(
    ("sink", "state", "reason"),
    [
        ("console", {"token": "../../outside"}, "is not valid"),
        ("console", {"token": "/tmp/outside"}, "is not valid"),
        ("tensorboard", {"../../outside": STREAM}, "is not one of its folders"),
        ("mlflow", {"uri": "http://127.0.0.1:9/outside"}, "names http://127.0.0.1:9/outside"),
        ("wandb", {"id": "../outside", "rows": 0, "failed": False}, "is not a valid W&B id"),
        ("trackio", {"directory": "/tmp/outside", "run_id": "1"}, "names /tmp/outside"),
    ],
)
def test_resume_with_a_planted_state_that_names_another_place_is_refused(tmp_path, sink, state, reason):
    if sink in ("mlflow", "wandb", "trackio"):
        pytest.importorskip(sink)
    run_dir = left_behind()
    plant(run_dir, sink, {}, name=sink)
    file = run_dir / "sinks" / f"{sink}.json"
    file.write_text(file.read_text().replace("null", json.dumps(state)))
    with pytest.raises(hl.HooklineError, match=re.escape(reason)):
        hl.run("done", resume=run_dir, sinks=[sink], summary=False).__enter__()
    assert not list(tmp_path.rglob("outside*"))


def test_index_from_elsewhere_with_views_is_replaced_and_reads_no_file(tmp_path):
    import duckdb

    left_behind(rows=3)
    assert len(hl.runs("runs").sql("SELECT * FROM metrics").rows()) == 3
    (tmp_path / "secret").write_text("s3cret")
    shutil.copytree(tmp_path / "runs", tmp_path / "received")
    (planted,) = (tmp_path / "received" / ".hookline").glob("*.duckdb")
    planted.unlink()
    with duckdb.connect(str(planted)) as connection:
        connection.execute(f"CREATE VIEW live_metrics AS SELECT * FROM read_text('{tmp_path / 'secret'}')")
        connection.execute(f"CREATE VIEW meta AS SELECT content FROM read_text('{tmp_path / 'secret'}')")
    rows = hl.runs("received").sql("SELECT * FROM metrics").rows()
    assert (len(rows), "s3cret" in str(rows)) == (3, False)


@pytest.mark.parametrize("text", ['{"sink": {}}', "[1]", '{"sink": 1, "places": {"main": "x"}}', "[" * 100_000, ""])
def test_planted_file_of_a_sink_that_makes_no_sense_is_left_alone(text):
    run_dir = left_behind("csv")
    (run_dir / "sinks" / "evil.json").write_text(text)
    assert [state.name for state in sync(run_dir, seconds=10)] == ["csv"]

"""`hookline.compat.mlflow.sync`: a run records the calls of MLflow's client, whatever its tracking server."""

import numpy as np
import pytest

pytest.importorskip("starlette", reason="MLflow's client needs a server")

import hookline as hl
from hookline.compat.mlflow import sync
from hookline.server import Tokens, WebServer

mlflow = pytest.importorskip("mlflow")
Client = mlflow.tracking._tracking_service.client.TrackingServiceClient


TOKEN = "write-token-of-a-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """What MLflow logs to."""
    root = tmp_path_factory.mktemp("server") / "runs"
    root.mkdir()
    with WebServer(root, tokens=Tokens(TOKEN)) as started:
        yield started


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    mlflow.set_tracking_uri(server.url.rstrip("/"))
    with hl.run("synced", root=tmp_path / "records", summary=False, console=False, code=False) as run:
        yield run


def rows(run):
    return [(r.axis, r.step, r.time, r.values) for r in hl.read(run.dir) if type(r).__name__ == "Metrics"]


def media(run):
    run.recorder.flush()
    return {(r.name, r.type) for r in hl.read(run.dir) if type(r).__name__ == "Media"}


def test_sync_records_what_mlflow_logs_and_mlflow_keeps_it_too(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("hello")
    with sync(run), mlflow.start_run() as logged:
        mlflow.log_param("lr", 0.1)
        mlflow.log_params({"layers": 3})
        mlflow.log_metric("loss", np.float32(0.5), step=3, timestamp=1_700_000_000_500)
        mlflow.log_metrics({"val_loss": 0.25}, step=4, timestamp=1_700_000_001_000)
        mlflow.set_tag("team", "vision")
        mlflow.log_artifact("out/a.txt", "notes")
        mlflow.log_artifact("out")
        mlflow.log_image(np.zeros((4, 4, 3), np.uint8), "plain.png")
    assert rows(run) == [
        ("train", 3, 1_700_000_000.5, {"loss": 0.5}),
        ("eval", 4, 1_700_000_001.0, {"val_loss": 0.25}),
    ]
    assert dict(run.config) == {"lr": 0.1, "layers": "3", "mlflow.tags": {"team": "vision"}}
    assert {("notes/a.txt", "file"), ("out/a.txt", "file"), ("plain.png", "image")} <= media(run)
    kept = mlflow.get_run(logged.info.run_id).data
    assert (kept.metrics, kept.params) == ({"loss": 0.5, "val_loss": 0.25}, {"lr": "0.1", "layers": "3"})


def test_values_of_a_second_run_begin_with_the_start_of_its_id(run):
    with sync(run), mlflow.start_run():
        mlflow.log_metric("loss", 1.0)
        with mlflow.start_run(nested=True) as child:
            mlflow.log_metric("loss", 2.0)
    assert [next(iter(values)) for *_, values in rows(run)] == ["loss", f"{child.info.run_id[:8]}/loss"]


def test_stop_restores_the_client_and_a_run_that_has_ended_gets_nothing(run):
    originals = [Client.log_metric, Client.log_batch]
    synced = sync(run)
    assert [Client.log_metric, Client.log_batch] != originals
    with mlflow.start_run():
        synced.stop()
        synced.stop()
        mlflow.log_metric("loss", 1.0)
        with sync(run):
            run.finish()
            mlflow.log_metric("loss", 2.0)
    assert rows(run) == []
    assert [Client.log_metric, Client.log_batch] == originals
    with pytest.raises(hl.OptionError, match="give a run that has begun"):
        sync("run")


def test_value_that_cannot_be_recorded_is_an_error_of_mlflow_alone(run, caplog):
    with sync(run), mlflow.start_run(), pytest.raises(TypeError):
        mlflow.log_metric("loss", "not a number")
    assert "TrackingServiceClient.log_metric is not recorded." in caplog.text
    assert rows(run) == []

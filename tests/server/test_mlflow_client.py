"""An unmodified MLflow client logs to a server: its responses, and the run that hookline records."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from sending import WRITE

import hookline as hl
from hookline.server.root_tokens import Tokens
from hookline.server.tokens import TokenStore, default_tokens_file

mlflow = pytest.importorskip("mlflow")
MlflowException = mlflow.exceptions.MlflowException

pytestmark = [  # of pandas for MLflow's code, and of MLflow for its own
    pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType"),
]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The client, configured by the environment, without retries, so that a refusal is an immediate error."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", WRITE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    yield
    while mlflow.active_run() is not None:
        mlflow.end_run("KILLED")
    mlflow.tracking.fluent._active_experiment_id = None


@pytest.fixture
def server(root, serve):
    started = serve(root, tokens=Tokens(WRITE))
    mlflow.set_tracking_uri(started.url.rstrip("/"))
    return started


def recorded(root, run, kind):
    (found,) = [each for each in hl.runs(root) if each.directory.name == run.info.run_id]
    return [record for record in hl.read(found.directory) if type(record).__name__ == kind]


def of(root, run):
    (found,) = [each for each in hl.runs(root) if each.directory.name == run.info.run_id]
    return found


def test_client_logs_a_run_that_is_an_ordinary_one_of_its_project(server, root):
    mlflow.set_experiment("churn")
    with mlflow.start_run(run_name="first", tags={"release": "1.2"}, description="A *note*.") as run:
        mlflow.log_param("lr", 0.1)
        mlflow.log_params({"layers": 3, "optimizer": "adam", "amp": True})
        mlflow.log_metric("loss", 0.5, step=1, timestamp=1_700_000_001_000)
        mlflow.log_metric("loss", 0.25, step=2, timestamp=1_700_000_002_000)
        mlflow.log_metrics({"val_loss": 0.75, "acc": 1}, step=2, timestamp=1_700_000_002_500)
        mlflow.set_tags({"team": "vision"})
    found = of(root, run)
    assert (found.project, found.name, found.status, found.step) == ("churn", "first", "finished", 2)
    assert found.config == {"lr": 0.1, "layers": 3, "optimizer": "adam", "amp": True}
    assert (found.tags, found.notes) == (("release=1.2", "team=vision"), "A *note*.")
    assert [(row.axis, row.step, row.time, row.values) for row in recorded(root, run, "Metrics")] == [
        ("train", 1, 1_700_000_001.0, {"loss": 0.5}),
        ("train", 2, 1_700_000_002.0, {"loss": 0.25}),
        ("eval", 2, 1_700_000_002.5, {"val_loss": 0.75}),
        ("train", 2, 1_700_000_002.5, {"acc": 1.0}),
    ]
    data = mlflow.get_run(run.info.run_id).data
    assert data.metrics == {"loss": 0.25, "val_loss": 0.75, "acc": 1.0}
    assert data.params == {"lr": "0.1", "layers": "3", "optimizer": "adam", "amp": "True"}
    assert data.tags["team"] == "vision"


def test_client_reads_numbers_that_are_not_finite_and_whole_histories(server, root):
    client = mlflow.MlflowClient()
    with mlflow.start_run() as run:
        for step, value in enumerate([math.nan, math.inf, -math.inf, 1.5]):
            mlflow.log_metric("loss", value, step=step)
        mlflow.log_metric("late", 1.0, step=9)
        mlflow.log_metric("late", 2.0, step=3)
    history = client.get_metric_history(run.info.run_id, "loss")
    assert math.isnan(history[0].value)
    assert [(each.step, each.value) for each in history[1:]] == [(1, math.inf), (2, -math.inf), (3, 1.5)]
    assert client.get_run(run.info.run_id).data.metrics == {"loss": 1.5, "late": 1.0}
    assert of(root, run).project == "default"


def test_nested_runs_are_grouped_by_the_name_of_their_parent(server, root):
    with mlflow.start_run(run_name="search") as parent:
        children = []
        for lr in (0.1, 0.2):
            with mlflow.start_run(nested=True) as child:
                mlflow.log_param("lr", lr)
            children.append(child)
    found = mlflow.search_runs(filter_string=f"tags.mlflow.parentRunId = '{parent.info.run_id}'", output_format="list")
    assert {each.info.run_id for each in found} == {child.info.run_id for child in children}
    assert [of(root, child).group for child in children] == ["search", "search"]
    assert of(root, parent).group is None


def test_artifacts_are_media_of_the_run_and_come_back_as_they_were(server, root, tmp_path):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    (tmp_path / "out" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "a.bin").write_bytes(bytes(range(256)) * 40_000)
    (tmp_path / "out" / "deep" / "empty.txt").write_bytes(b"")
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 1.0, step=7)
        mlflow.log_text("hello", "notes/a.md")
        mlflow.log_dict({"a": [1, 2]}, "config.json")
        mlflow.log_image(np.zeros((4, 5, 3), np.uint8), key="samples/one", step=3)
        mlflow.log_image(np.zeros((4, 5, 3), np.uint8), "plain.png")
        figure, _ = plt.subplots()
        mlflow.log_figure(figure, "figure.png")
        plt.close(figure)
        mlflow.log_artifacts(str(tmp_path / "out"), "all")
    client, run_id = mlflow.MlflowClient(), run.info.run_id
    assert [(each.path, each.is_dir) for each in client.list_artifacts(run_id)] == [
        ("all", True),
        ("config.json", False),
        ("figure.png", False),
        ("images", True),
        ("notes", True),
        ("plain.png", False),
    ]
    assert [(each.path, each.file_size) for each in client.list_artifacts(run_id, "all/deep")] == [
        ("all/deep/empty.txt", 0)
    ]
    back = client.download_artifacts(run_id, "all", str(tmp_path))
    assert (tmp_path / "all" / "a.bin").read_bytes() == (tmp_path / "out" / "a.bin").read_bytes()
    assert (Path(back) / "deep" / "empty.txt").read_bytes() == b""
    assert mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/config.json") == {"a": [1, 2]}
    media = {(item.name, item.type, item.step) for item in of(root, run).media()}
    assert media == {
        ("notes/a.md", "markdown", 7),
        ("config.json", "file", 7),
        ("samples/one", "image", 3),
        ("plain.png", "image", 7),
        ("figure.png", "image", 7),
        ("all/a.bin", "file", 7),
        ("all/deep/empty.txt", "file", 7),
    }
    (image,) = of(root, run).media("samples/one")
    assert image.read()[:4] == b"\x89PNG"


def test_rows_of_a_table_are_recorded_once_when_it_grows(server, root):
    with mlflow.start_run() as run:
        for answer in ("yes", "no", "maybe"):
            mlflow.log_table({"answer": [answer], "score": [0.5]}, "answers.json")
    assert mlflow.load_table("answers.json", run_ids=[run.info.run_id])["answer"].tolist() == ["yes", "no", "maybe"]
    assert of(root, run).table("answers.json").rows() == [
        {"answer": answer, "score": 0.5} for answer in ("yes", "no", "maybe")
    ]


def test_searches_find_what_their_filters_say_in_their_order(server):
    for index, (name, lr) in enumerate([("a", 0.1), ("b", 0.01), ("c", 0.001)]):
        experiment = mlflow.set_experiment("one" if index < 2 else "two")
        with mlflow.start_run(run_name=name, tags={"kind": "x" if index else "y's"}):
            mlflow.log_params({"lr": lr, "my param": name})
            mlflow.log_metrics({"loss": index, "val/acc": 1 - index})

    def names(filter_string="", *, order_by=None, **options):
        found = mlflow.search_runs(
            search_all_experiments=True, filter_string=filter_string, order_by=order_by, output_format="list", **options
        )
        return [run.info.run_name for run in found]

    assert names() == ["c", "b", "a"]
    assert names("metrics.loss < 1.5 and params.lr != '0.1'") == ["b"]
    assert names('metrics."val/acc" >= 0', order_by=["metrics.loss ASC"]) == ["a", "b"]
    assert names("params.`my param` LIKE 'A'") == []
    assert names("params.`my param` ILIKE 'A'") == ["a"]
    assert names("attributes.run_name IN ('a', 'c')", order_by=["params.lr DESC"]) == ["a", "c"]
    assert names("tags.kind LIKE 'y%' and status = 'FINISHED'") == ["a"]
    assert names("tags.missing IS NULL", max_results=2) == ["c", "b"]
    assert [run.info.run_name for run in mlflow.search_runs([experiment.experiment_id], output_format="list")] == ["c"]
    client = mlflow.MlflowClient()
    page = client.search_runs(
        [experiment.experiment_id, client.get_experiment_by_name("one").experiment_id], "", max_results=2
    )
    assert ([run.info.run_name for run in page], bool(page.token)) == (["c", "b"], True)
    rest = client.search_runs([client.get_experiment_by_name("one").experiment_id], "", page_token=None)
    assert [run.info.run_name for run in rest] == ["b", "a"]
    with pytest.raises(MlflowException, match="is not valid: 'loss' is not a name"):
        names("loss < 1")


def test_experiments_are_projects_and_have_tags_and_a_lifecycle(server, root):
    client = mlflow.MlflowClient()
    (root / "recorded").mkdir()
    experiment_id = client.create_experiment("/Users/me/my exp", tags={"team": "a"})
    client.set_experiment_tag(experiment_id, "owner", "b")
    found = client.get_experiment(experiment_id)
    assert (found.name, found.tags) == ("/Users/me/my exp", {"team": "a", "owner": "b"})
    assert client.get_experiment_by_name("/Users/me/my exp").experiment_id == experiment_id
    run = client.create_run(experiment_id)
    assert of(root, run).project == "Users-me-my exp-" + of(root, run).project[-6:]
    with pytest.raises(MlflowException, match="RESOURCE_ALREADY_EXISTS"):
        client.create_experiment("/Users/me/my exp")
    client.delete_experiment_tag(experiment_id, "owner")
    client.delete_experiment(experiment_id)
    names = {each.name for each in client.search_experiments()}
    assert names == {"Default", "recorded"}
    with pytest.raises(MlflowException, match="deleted: restore it first"):
        client.create_run(experiment_id)
    client.restore_experiment(experiment_id)
    assert [each.name for each in client.search_experiments(filter_string="name LIKE '/Users/%'")] == [
        "/Users/me/my exp"
    ]
    assert [each.name for each in client.search_experiments(filter_string="tags.team = 'a'")] == ["/Users/me/my exp"]
    with pytest.raises(MlflowException, match="cannot be renamed"):
        client.rename_experiment(experiment_id, "other")
    with pytest.raises(MlflowException, match="'Default' cannot be deleted"):
        client.delete_experiment("0")


def test_runs_are_renamed_restarted_deleted_and_restored(server, root):
    client = mlflow.MlflowClient()
    with pytest.raises(ValueError, match="oops"), mlflow.start_run() as run:
        raise ValueError("oops")
    run_id = run.info.run_id
    assert of(root, run).status == "failed"
    with mlflow.start_run(run_id):
        assert of(root, run).status == "running"
        mlflow.log_metric("loss", 1.0, step=3)
    client.update_run(run_id, name="renamed", status="KILLED")
    client.set_tag(run_id, "a", "b")
    client.delete_tag(run_id, "a")
    assert (of(root, run).status, of(root, run).name, of(root, run).step) == ("stopped", "renamed", 3)
    assert "a" not in client.get_run(run_id).data.tags
    client.delete_run(run_id)
    assert (of(root, run).archived, client.get_run(run_id).info.lifecycle_stage) == (True, "deleted")
    assert client.search_runs(["0"]) == []
    with pytest.raises(MlflowException, match="deleted: restore it first"):
        client.log_metric(run_id, "loss", 1.0)
    client.restore_run(run_id)
    assert (of(root, run).archived, len(client.search_runs(["0"]))) == (False, 1)


def test_param_that_was_logged_cannot_be_changed_and_nothing_of_the_batch_is_kept(server, root):
    from mlflow.entities import Metric, Param

    client = mlflow.MlflowClient()
    run = client.create_run("0")
    client.log_param(run.info.run_id, "lr", 0.1)
    client.log_param(run.info.run_id, "lr", 0.1)
    with pytest.raises(MlflowException, match=r"is '0.1' and cannot be changed to '0.2'"):
        client.log_batch(run.info.run_id, [Metric("loss", 1.0, 0, 0)], [Param("new", "1"), Param("lr", "0.2")])
    assert client.get_run(run.info.run_id).data.params == {"lr": "0.1"}
    assert recorded(root, run, "Metrics") == []


def test_autolog_of_sklearn_records_params_metrics_and_the_model(server, root):
    from sklearn.linear_model import LinearRegression

    mlflow.sklearn.autolog(log_models=False, log_datasets=True)
    try:
        data = np.arange(12.0).reshape(6, 2)
        with mlflow.start_run() as run:
            LinearRegression().fit(data, data @ [1.0, 2.0])
    finally:
        mlflow.sklearn.autolog(disable=True)
    found = mlflow.get_run(run.info.run_id)
    assert found.data.params["fit_intercept"] == "True"
    assert found.data.metrics["training_r2_score"] == pytest.approx(1.0)
    assert [each.dataset.name for each in found.inputs.dataset_inputs] == ["dataset"]
    assert of(root, run).config["fit_intercept"] is True


def test_logged_model_is_loaded_again_and_is_an_artifact_of_its_project(server, root):
    from sklearn.linear_model import LinearRegression

    data = np.arange(12.0).reshape(6, 2)
    model = LinearRegression().fit(data, data @ [1.0, 2.0])
    mlflow.set_experiment("models")
    with mlflow.start_run() as run:
        info = mlflow.sklearn.log_model(model, name="linear model", pip_requirements=["scikit-learn"], params={"a": 1})
        mlflow.log_metric("rmse", 0.5, model_id=info.model_id)
    loaded = mlflow.sklearn.load_model(info.model_uri)
    assert loaded.predict(data) == pytest.approx(model.predict(data))
    (listed,) = mlflow.search_logged_models(output_format="list", filter_string="metrics.rmse < 1")
    assert (listed.model_id, listed.status.value, listed.params["a"]) == (info.model_id, "READY", "1")
    assert [metric.value for metric in listed.metrics] == [0.5]
    assert [each.model_id for each in mlflow.get_run(run.info.run_id).outputs.model_outputs] == [info.model_id]
    artifact = hl.artifact("models/linear-model", root=root)
    assert artifact.kind == "model"
    names = {file.path for file in artifact.files}
    assert {"MLmodel", "requirements.txt"} < names
    assert any(name.startswith("model.") for name in names)
    client = mlflow.MlflowClient()
    client.set_logged_model_tags(info.model_id, {"stage": "prod"})
    assert client.get_logged_model(info.model_id).tags["stage"] == "prod"
    client.delete_logged_model_tag(info.model_id, "stage")
    client.delete_logged_model(info.model_id)
    assert mlflow.search_logged_models(output_format="list") == []


def test_model_without_a_run_gets_one(server, root):
    mlflow.set_experiment("external")
    model = mlflow.create_external_model(name="elsewhere", params={"a": "1"}, tags={"b": "c"})
    assert mlflow.get_logged_model(model.model_id).params == {"a": "1"}
    assert [(run.name, run.status) for run in hl.runs(root)] == [("elsewhere", "finished")]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda client: client.create_registered_model("m"), "does not keep a model registry"),
        (lambda client: client.search_traces(locations=["0"]), "does not keep traces"),
        (lambda client: client.list_webhooks(), "does not keep webhooks"),
    ],
    ids=["registry", "traces", "webhooks"],
)
def test_what_is_not_offered_is_refused_by_name(server, call, problem):
    with pytest.raises(MlflowException, match=problem):
        call(mlflow.MlflowClient())


def test_client_without_a_token_or_with_a_wrong_one_is_refused(server, root, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "wrong")
    with pytest.raises(MlflowException, match="UNAUTHENTICATED: This is not a write token"):
        mlflow.set_experiment("churn")
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    with pytest.raises(MlflowException, match="UNAUTHENTICATED: Give a write token"):
        mlflow.start_run()
    assert [path.name for path in root.iterdir() if path.name != ".hookline"] == []


def test_token_for_one_project_logs_to_it_and_sees_nothing_else(root, serve, monkeypatch):
    store = TokenStore(default_tokens_file(root))
    mine = store.create("mine", roles=["write", "read"], projects=["alpha"])
    writes = store.create("writes", roles=["write"], projects=["alpha"])
    everything = store.create("all", roles=["write", "read"])
    mlflow.set_tracking_uri(serve(root, tokens=Tokens(WRITE, read="read-token-of-a-test")).url.rstrip("/"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", everything.token)
    client = mlflow.MlflowClient()
    theirs = client.create_run(client.create_experiment("zebra"))
    client.log_text(theirs.info.run_id, "secret", "a.txt")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", mine.token)
    mlflow.set_experiment("alpha")
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 1.0)
        mlflow.log_text("hello", "a.txt")
    assert {each.name for each in client.search_experiments()} == {"alpha"}
    assert client.search_runs([theirs.info.experiment_id]) == []
    for call in (
        lambda: client.get_run(theirs.info.run_id),
        lambda: client.log_metric(theirs.info.run_id, "loss", 1.0),
        lambda: client.get_experiment(theirs.info.experiment_id),
        lambda: client.set_experiment_tag(theirs.info.experiment_id, "a", "b"),
        lambda: mlflow.artifacts.load_text(f"{theirs.info.artifact_uri}/a.txt"),
    ):
        with pytest.raises(Exception, match=r"RESOURCE_DOES_NOT_EXIST|404|not found|There is no"):
            call()
    for name in ("zebra", "other"):
        with pytest.raises(MlflowException, match="PERMISSION_DENIED: This token is not for the project"):
            mlflow.set_experiment(name)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", writes.token)
    with pytest.raises(MlflowException, match=r"has the role write; this needs the role read"):
        client.get_run(run.info.run_id)
    client.log_metric(run.info.run_id, "loss", 2.0)

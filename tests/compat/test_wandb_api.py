"""``wandb.Api`` of the drop-in: runs by filters, their histories, files and changes, projects, artifacts and sweeps."""

import re
from datetime import datetime, timedelta

import numpy as np
import pytest
from compat.wandb_support import drop_in, last_run, rows

import hookline as hl
import hookline.compat.wandb as wandb

__all__ = ["drop_in"]


def record_three():
    """Record three runs that differ in all that filters ask for."""
    for number, (lr, accuracy, tags, code) in enumerate(
        ((0.1, 0.5, ["a"], 0), (0.2, 0.9, ["a", "b"], 0), (0.3, 0.7, [], 1))
    ):
        config = {"lr": lr, "model": {"dim": number}, "a.b": number}
        about = {"tags": tags, "group": f"g{number % 2}", "job_type": "train"}
        run = wandb.init(project="p", id=f"r{number}", name=f"run {number}", config=config, **about)
        run.log({"acc": accuracy, "train": {"loss": 1 - accuracy}})
        run.finish(code)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The three runs, for tests that only read them."""
    root = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_CONSOLE", "off")
        patch.setenv("HOOKLINE_ROOT", str(root))
        record_three()
    return wandb.Api(overrides={"root": root, "project": "p"})


@pytest.fixture
def runs(drop_in):
    """The three runs, for tests that change them."""
    record_three()
    return drop_in.Api()


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, "012"),
        ({"config.lr": 0.1}, "0"),
        ({"config.lr.value": 0.2}, "1"),
        ({"config.model.dim": {"$gte": 1}}, "12"),
        ({"config.a.b": {"$lt": 1}}, "0"),
        ({"config.missing": {"$exists": False}}, "012"),
        ({"config.missing": None}, "012"),
        ({"config.lr": {"$gt": 0.1, "$lt": 0.3}}, "1"),
        ({"config.lr": {"$gt": "text"}}, ""),
        ({"summary_metrics.acc": {"$gte": 0.7}}, "12"),
        ({"summary.train.loss": {"$lte": 0.5}}, "012"),
        ({"state": "failed"}, "2"),
        ({"state": {"$ne": "failed"}}, "01"),
        ({"tags": "a"}, "01"),
        ({"tags": {"$in": ["b"]}}, "1"),
        ({"tags": {"$nin": ["a"]}}, "2"),
        ({"group": "g0", "jobType": "train"}, "02"),
        ({"display_name": {"$regex": "^run [12]$"}}, "12"),
        ({"displayName": {"$regex": "RUN", "$options": "i"}}, "012"),
        ({"displayName": re.compile("1$")}, "1"),
        ({"name": "r1"}, "1"),
        ({"$or": [{"config.lr": 0.1}, {"state": "failed"}]}, "02"),
        ({"$and": [{"tags": "a"}, {"group": "g1"}]}, "1"),
        ({"$nor": [{"tags": "a"}]}, "2"),
        ({"$not": {"tags": "a"}}, "2"),
        ({"config.lr": {"$not": {"$gt": 0.1}}}, "0"),
        ({"config.lr": {"$eq": 0.1}}, "0"),
        ({"created_at": {"$gt": "2020-01-01T00:00:00Z"}}, "012"),
        ({"createdAt": {"$lt": datetime.now() - timedelta(days=1)}}, ""),
        ({"config.lr": True}, ""),
    ],
)
def test_runs_filter_finds_those_that_match(recorded, filters, found):
    assert "".join(run.id[1] for run in recorded.runs("team/p", filters=filters)) == found


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"$xor": []}, "the operator '\\$xor'. Did you mean '\\$or'|the operator '\\$xor'"),
        ({"config.lr": {"$gtr": 1}}, "Did you mean '\\$gt'"),
        ({"$or": "x"}, "is not a list"),
        ({"created_at": {"$gt": "yesterday"}}, "is not a time"),
    ],
)
def test_runs_filter_that_is_none_is_refused(recorded, filters, message):
    with pytest.raises(wandb.UsageError, match=message):
        recorded.runs("p", filters)


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("+created_at", "012"),
        ("-created_at", "210"),
        ("-summary_metrics.acc", "120"),
        ("+summary_metrics.acc", "021"),
        ("-config.lr", "210"),
        ("+config.lr.value", "012"),
        ("display_name", "012"),
        ("-config.missing", "012"),
    ],
)
def test_runs_order_sorts_them(recorded, order, found):
    assert (
        "".join(run.id[1] for run in recorded.runs("p", order=order, per_page=10, include_sweeps=False, lazy=False))
        == found
    )


def test_runs_of_a_project_that_does_not_exist_are_an_error(recorded):
    with pytest.raises(ValueError, match="Could not find project"):
        recorded.runs("team/nothing")
    with pytest.raises(wandb.CommError, match="Could not find run"):
        recorded.run("p/nothing")


def test_run_of_the_api_says_what_it_is(recorded):
    run = recorded.run("team/p/r1")
    assert (run.id, run.name, run.state, run.group, run.job_type, run.tags) == (
        "r1",
        "run 1",
        "finished",
        "g1",
        "train",
        ["a", "b"],
    )
    assert (run.path, run.entity, run.project, run.notes) == (["team", "p", "r1"], "team", "p", None)
    assert (run.config["lr"], run.json_config, run.rawconfig["lr"]) == (
        0.2,
        '{"lr": {"value": 0.2}, "model": {"value": {"dim": 1}}, "a.b": {"value": 1}}',
        0.2,
    )
    assert (run.summary["acc"], run.summary["train"], run.lastHistoryStep, run.system_metrics) == (
        0.9,
        {"loss": pytest.approx(0.1)},
        0,
        {},
    )
    assert (run.metadata["host"], run.username != "", run.sweep, run.sweep_name) == (run.host, True, None, None)
    assert datetime.fromisoformat(run.created_at) <= datetime.fromisoformat(run.heartbeat_at)
    assert ("run 1" in run.to_html(height=1, hidden=False), run.url.endswith("/p/r1"), repr(run)) == (
        True,
        True,
        "<Run team/p/r1 (finished)>",
    )
    assert (run == recorded.run("p/r1"), len({run, recorded.run("p/r1")}), run.load(force=True)["name"]) == (
        True,
        1,
        "run 1",
    )
    run.wait_until_finished()


def test_history_samples_evenly_and_scan_history_gives_all(drop_in):
    with drop_in.init() as run:
        for step in range(1001):
            run.log({"a": step, **({"b": step} if step % 2 else {})})
    found = last_run()
    sampled = found.history(pandas=False)
    assert (len(sampled), sampled[0]["a"], sampled[-1]["a"]) == (500, 0, 1000)
    assert found.history(samples=3)["a"].tolist() == [0, 500, 1000]
    assert found.history(samples=5, keys=["b"], x_axis="_step", pandas=False)[0] == {"b": 1, "_step": 1}
    assert found.history(stream="system", pandas=False) == []
    assert len(list(found.scan_history(page_size=10))) == 1001
    assert [row["_step"] for row in found.scan_history(min_step=3, max_step=5, use_cache=False)] == [3, 4]
    assert next(iter(found.beta_scan_history(keys=["a", "b"]))) == {"a": 1, "b": 1}


def test_histories_of_several_runs_are_one_table(recorded):
    found = recorded.runs("p")
    rows = found.histories(samples=10, keys=["acc"], x_axis="_step", format="default", stream="default")
    assert [(row["run_id"], row["acc"]) for row in rows] == [("r0", 0.5), ("r1", 0.9), ("r2", 0.7)]
    assert found.histories(format="pandas")["acc"].tolist() == found.histories(format="polars")["acc"].to_list()
    assert (len(found), found[1].id, repr(found)) == (3, "r1", "<Runs (3)>")
    with pytest.raises(ValueError, match="Invalid format"):
        found.histories(format="csv")


def test_history_has_media_with_paths_that_are_files(drop_in, tmp_path):
    with drop_in.init() as run:
        images = [drop_in.Image(np.zeros((2, 3)), caption=str(number)) for number in range(2)]
        table = drop_in.Table(columns=["a"], data=[[1], [2]])
        run.log(
            {
                "one": images[0],
                "two": images,
                "t": table,
                "h": drop_in.Html("x"),
                "g": drop_in.Histogram([1, 2], num_bins=2),
            }
        )
    [row] = rows()
    assert (row["one"]["_type"], row["one"]["caption"], row["two"]["count"], row["two"]["captions"]) == (
        "image-file",
        "0",
        2,
        ["0", "1"],
    )
    assert (row["t"]["nrows"], row["g"]["bins"]) == (2, [1, 1.5, 2])
    with last_run().file(row["t"]["path"]).download(str(tmp_path / "out")) as opened:
        assert opened.read() == '{"columns":["a"],"data":[[1],[2]]}'
    file = last_run().file(row["one"]["path"])
    file.download(str(tmp_path / "out")).close()
    assert (file.size, file.mimetype, file.md5, repr(file)) == (
        row["one"]["size"],
        "image/png",
        row["one"]["sha256"],
        f"<File {file.name} (image/png)>",
    )
    with pytest.raises(wandb.UsageError, match="part of the run's record"):
        file.delete()


@pytest.mark.parametrize("key", ["../../../../outside", "a/../../../../../outside"])
def test_file_whose_name_leads_out_of_the_directory_is_not_downloaded(drop_in, tmp_path, key):
    run = drop_in.init()
    run.log({key: drop_in.Html("<p>text</p>", inject=False)})
    run.finish()
    [file] = [file for file in last_run().files() if "outside" in file.name]
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="leads out of"):
        file.download(str(tmp_path / "out"))
    assert [path for path in tmp_path.rglob("*outside*") if "runs" not in path.parts] == []


def test_files_describe_the_run_and_are_found_by_name_and_pattern(drop_in, tmp_path):
    run = drop_in.init(config={"lr": 0.1})
    (tmp_path / "a.txt").write_text("a")
    run.save("a.txt")
    run.log({"loss": 1})
    run.finish()
    found = last_run()
    assert [file.name for file in found.files(pattern="%.txt", per_page=5, order="name")] == ["a.txt"]
    texts = {}
    for name in ("config.yaml", "wandb-summary.json", "wandb-metadata.json", "output.log"):
        with found.file(name).download(str(tmp_path / "out")) as opened:
            texts[name] = opened.read()
    assert (texts["config.yaml"], '"loss": 1' in texts["wandb-summary.json"]) == (
        "lr:\n  value: 0.1\nwandb_version: 1\n",
        True,
    )
    file = found.file("a.txt")
    file.download(str(tmp_path / "out")).close()
    file.download(root=str(tmp_path / "out"), exist_ok=True, api=None).close()
    with pytest.raises(ValueError, match="already exists"):
        file.download(str(tmp_path / "out"))
    assert (
        file.url.startswith("file://"),
        datetime.fromisoformat(file.updated_at) is not None,
        len(found.files(["a.txt"])),
    ) == (True, True, 1)
    file.delete()
    with pytest.raises(wandb.CommError, match="There is no file 'a.txt'"):
        found.file("a.txt")
    (tmp_path / "up.txt").write_text("up")
    assert found.upload_file(str(tmp_path / "up.txt"), root=str(tmp_path)).size == 2


def test_files_that_lead_out_of_the_run_are_not_listed(drop_in, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    run = drop_in.init()
    folder = run.dir
    run.finish()
    (tmp_path / folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert [file.name for file in last_run().files() if file.name.endswith(".txt")] == []


def test_run_of_the_api_is_changed_and_deleted(runs, tmp_path):
    run = runs.run("p/r0")
    run.name, run.notes = "changed", "noted"
    run.tags.append("new")
    run.tags.remove("a")
    run.config["lr"] = 5
    run.summary["acc"], run.summary["extra"] = 0.75, {"x": 1}
    run.update()
    again = runs.run("p/r0")
    assert (again.name, again.notes, again.tags, again.config["lr"]) == ("changed", "noted", ["new"], 5)
    assert (again.summary["acc"], again.summary["extra"], hl.runs("runs")["p/r0"].summary["acc"]) == (
        0.75,
        {"x": 1},
        0.75,
    )
    again.summary.update({"late": 1})
    assert runs.run("p/r0").summary["late"] == 1
    again.tags = ["x" * 200]
    with pytest.raises(wandb.CommError, match="at most 100 characters"):
        again.update()
    again.delete()
    assert (tmp_path / "runs" / "p" / "r0").exists() is False


def test_run_of_the_api_is_deleted_with_its_artifacts_but_not_while_it_runs(drop_in, tmp_path):
    (tmp_path / "w").write_text("w")
    run = drop_in.init(id="x")
    run.log_artifact("w", name="weights")
    run.log({"a": 1})
    with pytest.raises(wandb.CommError, match="it is running"):
        drop_in.Api().run("p/x").delete()
    assert drop_in.Api().run("p/x").state == "running"
    run.finish()
    drop_in.Api().run("p/x").delete(delete_artifacts=True)
    assert drop_in.Api().artifact_exists("p/weights:v0") is False


def test_run_of_the_api_stops_a_run_that_is_running(drop_in):
    stopped = []
    run = drop_in.init(settings=drop_in.Settings(stop_fn=lambda: stopped.append(1)), id="x")
    drop_in.Api().run("p/x").stop()
    run.log({"a": 1})
    run.finish()
    assert (stopped, last_run().state) == ([1], "killed")
    with pytest.raises(wandb.CommError):
        drop_in.Api().run("p/x").stop()


def test_run_of_the_api_follows_a_run_that_is_running(drop_in):
    run = drop_in.init(id="x")
    run.log({"a": 1})
    found = drop_in.Api().run("p/x")
    assert [row["a"] for row in found.scan_history()] == [1]
    run.log({"a": 2})
    assert [row["a"] for row in found.scan_history()] == [1, 2]


def test_recorded_run_neither_uses_nor_saves_artifacts(recorded):
    for method in ("use_artifact", "log_artifact"):
        with pytest.raises(wandb.UsageError, match="A recorded run"):
            getattr(recorded.run("p/r0"), method)("weights")


def test_api_finds_projects_types_collections_and_versions(drop_in, tmp_path):
    (tmp_path / "w").write_text("w")
    run = drop_in.init(project="other")
    for name, kind in (("weights", "model"), ("data", "dataset")):
        run.log_artifact("w", name=name, type=kind)
    run.finish()
    drop_in.init(project="p").finish()
    api = drop_in.Api(overrides={"project": "other", "entity": "team"}, timeout=5, api_key="x")
    assert [project.name for project in api.projects("team", per_page=5)] == ["other", "p"]
    assert (
        [each.name for each in api.artifact_types()],
        api.artifact_type("model", project="other").collection("weights").type,
    ) == (["dataset", "model"], "model")
    assert [each.name for each in api.artifact_collections("team/other", "dataset")] == ["data"]
    assert [each.name for each in api.artifacts("model", "other/weights", per_page=5, tags=None)] == ["weights:v0"]
    assert (api.artifact_collection("model", "weights").project, api.artifact("weights:v0", type="model").name) == (
        "other",
        "weights:v0",
    )
    assert (
        api.artifact_exists("weights"),
        api.artifact_exists("x", type="model"),
        api.artifact_collection_exists("team/other/data", "dataset"),
    ) == (True, False, True)
    with pytest.raises(wandb.CommError, match="There is no artifact 'x'"):
        api.artifact_collection("model", "x")
    project = api.project("p", entity="team")
    assert (len(project.runs(order="-created_at")), project.path, project.sweeps(), repr(project)) == (
        1,
        ["team", "p"],
        [],
        "<Project team/p>",
    )
    assert (api.default_entity, api.viewer.username != "", project.url.endswith("/runs/p")) == ("team", True, True)
    assert (type(api.from_path(f"team/other/{run.id}")).__name__, api.from_path("team/p").name) == ("Run", "p")
    api.create_project("third", entity="team")
    api.flush()
    assert list(api.runs("third")) == []


def test_api_refuses_what_only_servers_have(drop_in, tmp_path):
    api = drop_in.Api(overrides={"root": tmp_path})
    with pytest.raises(wandb.UsageError, match="Api.create_team is a feature of W&B's servers"):
        api.create_team("x")
    for call in (api.create_run, lambda: api.sync_tensorboard("logs")):
        with pytest.raises(wandb.UsageError):
            call()
    with pytest.raises(AttributeError, match="no attribute 'rums'. Did you mean 'runs'"):
        _ = api.rums
    assert (api.projects(), api.root) == ([], tmp_path)


def test_api_reads_runs_that_hookline_recorded_itself(drop_in):
    with hl.run("mine", project="p", config={"lr": 1}, summary=False, console=False, code=False) as run:
        for step in run.steps(3):
            run.log(loss=step)
        run.summary["best"] = 0
    found = drop_in.Api().runs("p")[0]
    assert (found.name, found.config, found.summary["best"]) == ("mine", {"lr": 1}, 0)
    assert [(row["_step"], row["loss"]) for row in found.scan_history()] == [(1, 0), (2, 1), (3, 2)]

"""Artifacts and files of the drop-in: drafts, versions, aliases, links, downloads, saved files and code."""

from pathlib import Path

import numpy as np
import pytest
from compat.wandb_support import drop_in, last_run

import hookline as hl

__all__ = ["drop_in"]


@pytest.fixture
def weights(drop_in, tmp_path):
    """A run, and a file to save."""
    (tmp_path / "w.bin").write_bytes(b"1234")
    return drop_in.init(id="run")


def saved(drop_in, run, name="weights", content=b"1234", **options):
    artifact = drop_in.Artifact(name, type="model", **options.pop("about", {}))
    with artifact.new_file("w.bin", mode="wb") as file:
        file.write(content)
    return run.log_artifact(artifact, **options).wait()


def test_file_that_changes_after_it_was_added_is_saved_as_it_was(drop_in, weights, tmp_path):
    artifact = drop_in.Artifact("weights", type="model")
    artifact.add_file("w.bin")
    (tmp_path / "w.bin").write_bytes(b"changed")
    weights.log_artifact(artifact)
    (tmp_path / "w.bin").unlink()
    assert Path(artifact.wait().get_entry("w.bin").download("out")).read_bytes() == b"1234"


def test_artifact_that_hookline_saved_is_used(drop_in, weights):
    with hl.run("saves", project="p", summary=False, console=False, code=False) as run:
        run.save_artifact("data", "w.bin", kind="dataset").wait()
    used = weights.use_artifact("data:latest")
    assert (used.type, used.version, Path(used.download(), "w.bin").read_bytes()) == ("dataset", "v0", b"1234")


def test_artifact_that_is_logged_has_versions_and_aliases(drop_in, weights):
    first = saved(drop_in, weights, aliases=["best"], about={"metadata": {"acc": 0.5}, "description": "d"})
    again = saved(drop_in, weights, about={"metadata": {"acc": 0.5}, "description": "d"})
    second = saved(drop_in, weights, content=b"other", aliases=["best", "latest"], tags=["t"])
    assert (first.name, again.version, second.name, second.aliases) == (
        "weights:v0",
        "v0",
        "weights:v1",
        ["latest", "best"],
    )
    assert (first.aliases, first.metadata, first.description, first.qualified_name) == (
        [],
        {"acc": 0.5},
        "d",
        "p/weights:v0",
    )
    found = weights.use_artifact("weights:v0", type="model")
    assert (found.metadata, found.description, found.digest == first.digest, found.state) == (
        {"acc": 0.5},
        "d",
        True,
        "COMMITTED",
    )
    assert (found.file_count, found.size, found.history_step, found.commit_hash == found.id) == (1, 4, 0, True)


def test_artifact_aliases_change_in_place(drop_in, weights):
    artifact = saved(drop_in, weights, aliases=["a"])
    artifact.aliases.append("b")
    artifact.aliases.remove("a")
    assert sorted(artifact.aliases) == ["b", "latest"]
    artifact.aliases = ["c"]
    assert sorted(drop_in.Api().artifact("p/weights:c").aliases) == ["c", "latest"]


def test_draft_takes_directories_references_and_refuses_what_is_there(drop_in, weights, tmp_path):
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "a.txt").write_text("a")
    artifact = drop_in.Artifact("data", type="dataset", incremental=True, use_as=None, storage_region=None)
    artifact.add_dir("folder", name="dir", skip_cache=True, policy="immutable")
    artifact.add_file("w.bin", name="x/w.bin", is_tmp=False, policy="immutable")
    [entry] = artifact.add_reference("s3://bucket/key.bin", checksum=False, max_objects=10)
    assert sorted(artifact.manifest.entries) == ["dir/sub/a.txt", "key.bin", "x/w.bin"]
    assert (entry.ref_target(), entry.ref_url(), artifact.size) == ("s3://bucket/key.bin", "s3://bucket/key.bin", 5)
    artifact.add_dir("folder", name="dir", merge=True)
    for wrong, message in (
        (lambda: artifact.add_file("w.bin", name="x/w.bin"), "already exists"),
        (lambda: artifact.add_file("missing"), "is not a file"),
        (lambda: artifact.add_dir("missing"), "is not a directory"),
        (lambda: artifact.add_file("w.bin", name="../w.bin"), "is not a file's name"),
        (lambda: artifact.add_file("w.bin", policy="sometimes"), "Invalid policy"),
        (lambda: artifact.add_reference("no-scheme"), "References must be URIs"),
        (lambda: artifact.add_reference("file:///nothing/there"), "must be a valid file"),
        (lambda: artifact.get_entry("x/w.bin").ref_target(), "Only reference entries"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    artifact.remove("dir")
    artifact.add_file("w.bin", name="x/w.bin", overwrite=True)
    assert sorted(artifact.manifest.entries) == ["key.bin", "x/w.bin"]
    with pytest.raises(FileNotFoundError):
        artifact.remove("dir")


def test_draft_that_is_logged_takes_no_more_files(drop_in, weights):
    artifact = saved(drop_in, weights)
    with pytest.raises(drop_in.Error, match="Can't modify finalized artifact"):
        artifact.add_file("w.bin")


def test_artifact_that_was_not_logged_says_so(drop_in):
    artifact = drop_in.Artifact("weights", type="model")
    assert (artifact.is_draft(), artifact.name, artifact.id, artifact.state) == (True, "weights", None, "PENDING")
    for name in ("version", "project", "aliases", "commit_hash", "created_at", "collection"):
        with pytest.raises(drop_in.Error, match="used prior to logging artifact"):
            getattr(artifact, name)
    with pytest.raises(drop_in.Error, match="used prior to logging"):
        artifact.wait(timeout=1)
    with pytest.raises(drop_in.UsageError, match="has no files"):
        drop_in.init().log_artifact(artifact)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a/b", "type": "x"}, "Invalid name"),
        ({"name": "a", "type": "wandb-x"}, "reserved for internal use"),
        ({"name": "a", "type": "x", "metadata": {str(n): n for n in range(101)}}, "has 101 keys"),
    ],
)
def test_artifact_with_a_wrong_argument_is_refused(drop_in, arguments, message):
    with pytest.raises(ValueError, match=message):
        drop_in.Artifact(**arguments)


@pytest.mark.parametrize("alias", ["a/b", "a:b", "v3"])
def test_alias_that_is_none_is_refused(drop_in, weights, alias):
    with pytest.raises(ValueError, match="must not contain"):
        saved(drop_in, weights, aliases=[alias])


def test_stored_files_beside_local_references_are_refused_and_references_alone_kept(drop_in, weights, tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "a.bin").write_bytes(b"aa")
    mixed = drop_in.Artifact("mixed", type="dataset")
    mixed.add_file("w.bin")
    mixed.add_reference((tmp_path / "big").as_uri(), name="big")
    with pytest.raises(drop_in.UsageError, match="saves either"):
        weights.log_artifact(mixed)
    kept = drop_in.Artifact("kept", type="dataset")
    kept.add_reference((tmp_path / "big").as_uri(), name="big")
    found = weights.log_artifact(kept).wait()
    assert (found.get_path("big/a.bin").ref, Path(found.download("out"), "big/a.bin").read_bytes()) == (
        (tmp_path / "big" / "a.bin").as_uri(),
        b"aa",
    )


def test_download_replaces_files_keeps_others_and_does_not_follow_links(drop_in, weights, tmp_path):
    artifact = drop_in.Artifact("weights", type="model")
    artifact.add_file("w.bin", name="in/w.bin")
    weights.log_artifact(artifact).wait()
    (tmp_path / "out" / "in").mkdir(parents=True)
    (tmp_path / "out" / "in" / "w.bin").write_bytes(b"old")
    (tmp_path / "out" / "mine").write_text("mine")
    artifact.download("out", allow_missing_references=True, skip_cache=True, path_prefix="in", multipart=False)
    assert ((tmp_path / "out/in/w.bin").read_bytes(), (tmp_path / "out/mine").read_text()) == (b"1234", "mine")
    with pytest.raises(ValueError, match="not a member"):
        artifact.verify("out")
    artifact.checkout("out")
    artifact.verify(root="out")
    assert not (tmp_path / "out/mine").exists()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "in").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(drop_in.CommError, match="is a link"):
        artifact.download("linked")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_download_goes_to_the_directory_of_the_variable(drop_in, weights, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_ARTIFACT_DIR", str(tmp_path / "cache"))
    artifact = saved(drop_in, weights)
    assert (artifact.download(), artifact.file()) == (
        str(tmp_path / "cache/weights:v0"),
        str(tmp_path / "cache/weights:v0/w.bin"),
    )


def test_damaged_download_is_noticed(drop_in, weights, tmp_path):
    artifact = saved(drop_in, weights)
    artifact.download("out")
    (tmp_path / "out" / "w.bin").write_bytes(b"4321")
    with pytest.raises(ValueError, match="Digest mismatch"):
        artifact.verify("out")


def test_tables_and_images_are_added_and_read_back(drop_in, weights):
    table = drop_in.Table(columns=["i", "n"], data=[[drop_in.Image(np.full((2, 2, 3), 7, np.uint8), caption="c"), 1]])
    artifact = drop_in.Artifact("media", type="dataset")
    artifact.add(table, "rows")
    artifact["page"] = drop_in.Html("<b>x</b>")
    with pytest.raises(drop_in.UsageError, match="a Audio cannot be added"):
        artifact.add(drop_in.Audio(np.zeros(3), sample_rate=1), "a")
    found = weights.log_artifact(artifact).wait()
    read = found.get("rows")
    assert (read.columns, read.data[0][1], np.asarray(read.data[0][0].image).max(), read.data[0][0]._caption) == (
        ["i", "n"],
        1,
        7,
        "c",
    )
    assert (found["page"].html, found.get("nothing"), len(found.files())) == ("<b>x</b>", None, 4)


def test_log_artifact_of_a_path_is_named_after_the_run(drop_in, weights, tmp_path):
    assert weights.log_artifact("w.bin").wait().name == "run-run-w.bin:v0"
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_text("a")
    assert weights.log_artifact("d", name="data", type="dataset").wait().type == "dataset"
    for wrong, error in (("missing", ValueError), (3, TypeError)):
        with pytest.raises(error):
            weights.log_artifact(wrong)


def test_use_artifact_records_lineage(drop_in, weights):
    saved(drop_in, weights)
    weights.finish()
    user = drop_in.init(id="user")
    found = user.use_artifact("p/weights:latest", aliases=["used"], use_as="input")
    assert user.use_artifact(found, aliases=["used"]).aliases == ["latest", "used"]
    draft = drop_in.Artifact("new", type="dataset")
    draft.add_file("w.bin")
    assert user.use_artifact(draft).version == "v0"
    user.finish()
    assert (found.logged_by().id, [run.id for run in found.used_by()]) == ("run", ["user"])
    assert [each.name for each in drop_in.Api().run("p/user").used_artifacts()] == ["weights:v0"]
    assert [each.name for each in last_run().logged_artifacts()] == ["new:v0"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("weights:best", "has no version 'best'"),
        ("other", "There is no artifact"),
        ("a b", "does not name an artifact"),
    ],
)
def test_use_artifact_that_is_missing_is_an_error(drop_in, weights, name, error):
    saved(drop_in, weights)
    with pytest.raises(drop_in.CommError, match=error):
        weights.use_artifact(name)


def test_use_artifact_of_another_type_or_kind_is_refused(drop_in, weights):
    saved(drop_in, weights)
    with pytest.raises(ValueError, match="does not match type"):
        weights.use_artifact("weights:latest", type="dataset")
    with pytest.raises(ValueError, match="You must pass an artifact name"):
        weights.use_artifact(3)


def test_models_are_logged_used_and_linked(drop_in, weights, tmp_path):
    weights.log_model(path="w.bin", name="model", aliases=["first"])
    assert Path(weights.use_model("model:first")).read_bytes() == b"1234"
    linked = weights.link_model("w.bin", registered_model_name="best", name="model", aliases=["prod"])
    assert (linked.qualified_name, linked.aliases) == ("model-registry/best:v0", ["latest", "prod"])
    with pytest.raises(AssertionError, match="only the name"):
        weights.link_model("w.bin", "a/b")
    saved(drop_in, weights, name="data").wait()
    (tmp_path / "d.txt").write_text("d")
    weights.log_artifact("d.txt", name="data2", type="dataset")
    with pytest.raises(AssertionError, match="only use this method for 'model'"):
        weights.use_model("data2")
    linked.unlink()
    with pytest.raises(drop_in.CommError):
        drop_in.Api().artifact("model-registry/best:v0")


def test_version_is_deleted_and_drafted_again(drop_in, weights):
    artifact = saved(drop_in, weights, aliases=["keep"])
    draft = artifact.new_draft()
    with draft.new_file("more.txt") as file:
        file.write("more")
    assert weights.log_artifact(draft).wait().file_count == 2
    with pytest.raises(drop_in.CommError, match="has aliases"):
        artifact.delete()
    artifact.delete(delete_aliases=True)
    assert [each.version for each in draft.collection.artifacts()] == ["v1"]
    assert (draft.collection.name, draft.collection.aliases, draft.json_encode()["version"]) == (
        "weights",
        ["latest"],
        "v1",
    )
    with pytest.raises(ValueError, match="is not a linked artifact"):
        draft.unlink()


def test_artifact_in_the_configuration_is_used(drop_in, weights):
    artifact = saved(drop_in, weights)
    weights.finish()
    with drop_in.init(config={"data": "wandb-artifact://team/p/weights:v0", "lr": 1}) as run:
        assert run.config["data"].digest == artifact.digest
        with pytest.raises(ValueError, match="only be top level keys"):
            run.config["nested"] = {"data": artifact}
    assert last_run().config["data"]["_type"] == "artifactVersion"
    assert [each.name for each in last_run().used_artifacts()] == ["weights:v0"]


def test_save_of_an_artifact_without_a_run_begins_one(drop_in, tmp_path):
    artifact = drop_in.Artifact("weights", type="model")
    with artifact.new_file("a", mode="w", encoding="utf-8") as file:
        file.write("a")
    artifact.save(project="other", settings={"run_name": "n"})
    assert (artifact.qualified_name, artifact.logged_by().job_type) == ("other/weights:v0", "auto")


def test_artifact_that_cannot_be_saved_is_reported_and_does_not_stop_the_run(drop_in, weights, tmp_path, capfd):
    artifact = drop_in.Artifact("weights", type="model")
    artifact.add_file("w.bin", policy="immutable")
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        weights.log_artifact(artifact)
    assert weights.upsert_artifact.__name__ == "upsert_artifact"
    with pytest.raises(drop_in.UsageError, match="cannot add to one version"):
        weights.upsert_artifact(artifact)


def test_staged_files_of_a_dead_process_are_removed(drop_in, weights, tmp_path):
    left = tmp_path / "runs" / ".staging" / "999999999-abc"
    left.mkdir(parents=True)
    artifact = saved(drop_in, weights)
    weights.finish()
    assert (left.exists(), list((tmp_path / "runs" / ".staging").iterdir()), artifact.size) == (False, [], 4)


# Files


def test_saved_files_are_kept_listed_and_restored(drop_in, weights, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    found = weights.save("sub/*.txt", base_path=".", policy="now", glob=True)
    assert found == [f"{weights.dir}/sub/a.txt"]
    Path(weights.dir, "own.txt").write_text("own")
    (tmp_path / "live.txt").write_text("first")
    weights.save("live.txt", policy="live")
    (tmp_path / "live.new").write_text("second")
    (tmp_path / "live.new").replace(tmp_path / "live.txt")
    weights.finish()
    contents = {}
    for file in last_run().files():
        if file.name.endswith(".txt"):
            with file.download("out", replace=True) as opened:
                contents[file.name] = opened.read()
    assert contents == {"live.txt": "second", "own.txt": "own", "sub/a.txt": "a"}
    media = {each.name for each in hl.runs("runs").latest().media()}
    assert media == {"files/live.txt", "files/own.txt", "files/sub/a.txt"}
    with drop_in.restore("sub/a.txt", run_path="team/p/run", root="restored") as file:
        assert file.read() == "a"
    assert drop_in.restore("missing.txt", "p/run", replace=True) is None


def test_save_of_paths_that_do_not_fit(drop_in, weights, tmp_path, capfd):
    assert weights.save("s3://bucket/file") == []
    assert weights.save("missing*") == []
    assert weights.save(str(tmp_path / "w.bin"))[0].endswith(f"{tmp_path.name}/w.bin")
    (tmp_path / "a[1].txt").write_text("x")
    assert weights.save(b"a[1].txt", glob=False)[0].endswith("a[1].txt")
    for wrong in ({"policy": "sometimes"}, {"base_path": "/elsewhere"}):
        with pytest.raises(ValueError, match=r"policies|must be below"):
            weights.save("w.bin", **wrong)
    assert weights.save() is True


def test_restore_outside_of_a_run_needs_a_path(drop_in, weights):
    weights.finish()
    with pytest.raises(ValueError, match="run_path required"):
        drop_in.restore("a.txt")
    with pytest.raises(drop_in.CommError, match="There is no run"):
        drop_in.restore("a.txt", "p/nothing")


def test_restore_does_not_leave_the_files_of_the_run(drop_in, weights):
    weights.finish()
    with drop_in.init() as run:
        assert run.restore("../run.json", run_path="p/run", replace=True, root="out") is None


def test_code_is_logged_without_folders_of_other_programs(drop_in, weights, tmp_path):
    for name in ("train.py", "pkg/model.py", "wandb/old.py", "notes.txt", "requirements.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    artifact = weights.log_code(".", name="code")
    assert sorted(artifact.wait().manifest.entries) == ["pkg/model.py", "requirements.txt", "train.py"]
    only = weights.log_code(
        root="pkg", include_fn=lambda path: path.endswith("model.py"), exclude_fn=lambda path, root: False
    )
    assert (sorted(only.wait().manifest.entries), only.type) == (["model.py"], "code")
    assert weights.log_code("pkg", include_fn=lambda path, root: False) is None

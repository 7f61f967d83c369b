"""``hookline artifacts``, and what ``runs verify`` and ``runs delete`` do about stored files."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import hookline as hl
from hookline._record.blobs import BLOBS, BlobStore, find_blob
from hookline._record.records import Media


@pytest.fixture(autouse=True)
def saved(tmp_path, cli):
    """Two versions of an artifact, and a run that used the first."""
    for text in ("one", "two"):
        Path("weights.txt").write_text(text)
        with hl.run("train", project="p", summary=False) as run:
            aliases = ["best"] if text == "one" else []
            run.save_artifact("model", "weights.txt", kind="model", aliases=aliases, metadata={"text": text})
    with hl.run("user", project="p", summary=False) as user:
        user.use_artifact("model:best")
    return user


def blobs():
    return len(list(BlobStore(Path("runs") / BLOBS).digests()))


def image(*values, **more):
    """Log images in a run, and return its directory and the digests."""
    with hl.run("images", project="p", summary=False) as run:
        run.log({f"image{value}": hl.Image(np.full((4, 4), value, np.uint8)) for value in values}, **more)
    return run.dir, {record.name: record.blob for record in hl.read(run.dir) if isinstance(record, Media)}


def test_list_shows_versions_and_aliases(cli):
    text = cli("artifacts", "list")
    assert (text.exit_code, "p/model" in text.stdout, "latest=v1, best=v0" in text.stdout) == (0, True, True)
    (row,) = json.loads(cli("artifacts", "list", "--json").stdout)["artifacts"]
    assert (row["artifact"], row["versions"], row["aliases"]) == (
        "p/model",
        ["v0", "v1"],
        {"latest": "v1", "best": "v0"},
    )
    assert (row["latest"]["kind"], row["latest"]["files"], row["latest"]["bytes"]) == ("model", 1, 3)
    for wrong in (("--kind", "dataset"), ("--project", "other")):
        assert "no such artifacts" in cli("artifacts", "list", *wrong).stderr
    assert "p/model" in cli("artifacts", "list", "--project", "p", "--kind", "model").stdout


def test_show_names_files_metadata_and_runs(cli, saved):
    text = cli("artifacts", "show", "p/model:best").stdout
    assert all(part in text for part in ("p/model:v0", "weights.txt", "metadata.text", "used by", saved.dir.name))
    document = json.loads(cli("artifacts", "show", "p/model:best", "--json").stdout)
    assert [run["role"] for run in document["runs"]] == ["saved", "used"]
    assert (document["version"], document["content"][0]["path"]) == ("v0", "weights.txt")


@pytest.mark.parametrize("columns", ["40", None])
def test_show_shortens_no_name_and_no_digest(cli, monkeypatch, columns):
    monkeypatch.delenv("COLUMNS")
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    lines = cli("artifacts", "show", "p/model:best").stdout.splitlines()
    facts = [line.split() for line in lines[1:9]]
    names = ["kind", "aliases", "saved", "files", "digest", "versions", "saved", "used"]
    assert [words[0] for words in facts] == names
    assert facts[4] == ["digest", f"sha256:{hl.artifact('p/model:best').digest}"]
    assert lines[9].split() == ["metadata.text", "one"]
    (digest,) = (line.split()[-1] for line in lines if line.split()[:1] == ["weights.txt"])
    assert digest == hl.artifact("p/model:best").files[0].digest[:12]


def test_runs_show_lists_what_a_run_saved_and_used(cli):
    with hl.run("both", project="p", summary=False) as run:
        for _ in range(2):
            run.use_artifact("model:best")
        run.save_artifact("tuned", "weights.txt", kind="model")
    lines = [line.split() for line in cli("runs", "show", run.dir).stdout.splitlines()]
    begin = lines.index(["Artifacts"])
    assert sorted(lines[begin + 1 : begin + 3]) == [["saved", "p/tuned:v0", "model"], ["used", "p/model:v0", "model"]]
    listed = json.loads(cli("runs", "show", run.dir, "--json").stdout)["artifacts"]
    assert sorted((row["role"], row["artifact"], row["version"]) for row in listed) == [
        ("saved", "p/tuned", "v0"),
        ("used", "p/model", "v0"),
    ]


def test_get_copies_files_and_checks_them(cli):
    result = cli("artifacts", "get", "p/model:v0", "out")
    assert (result.exit_code, Path("out/weights.txt").read_text()) == (0, "one")
    hl.artifact("p/model", root="runs").path().write_text("bad")
    result = cli("artifacts", "get", "p/model")
    assert (result.exit_code, "is damaged" in result.stderr, Path("artifacts/model-v1").exists()) == (2, True, False)


def test_get_copies_references_only_when_asked(cli):
    with hl.run("data", project="p", summary=False) as run:
        run.save_artifact("data", "weights.txt", reference=True)
    left = cli("artifacts", "get", "p/data", "without")
    assert ("1 referenced file was not copied" in left.stderr, list(Path("without").iterdir())) == (True, [])
    cli("artifacts", "get", "p/data", "with", "--references")
    assert Path("with/weights.txt").read_text() == "two"


def test_verify_finds_the_damaged_version(cli):
    assert cli("artifacts", "verify").exit_code == 0
    hl.artifact("p/model", root="runs").path().write_text("bad")
    result = cli("artifacts", "verify", "--json")
    assert (result.exit_code, [each["ok"] for each in json.loads(result.stdout)]) == (1, [True, False])
    assert cli("artifacts", "verify", "p/model:best").exit_code == 0


def test_tag_moves_and_removes_aliases(cli):
    assert "best=v1" in cli("artifacts", "tag", "p/model:v1", "best", "production").stdout
    assert json.loads(cli("artifacts", "tag", "p/model:production", "newest", "--json").stdout)["aliases"] == {
        **dict.fromkeys(["latest", "best", "newest", "production"], "v1")
    }
    cli("artifacts", "tag", "p/model", "newest", "--remove")
    assert cli("artifacts", "tag", "p/model", "best", "--remove").stdout.strip() == "p/model: latest=v1, production=v1"
    for wrong in (("p/model", "v3"), ("p/model", "latest"), ("p/model:v9", "best")):
        assert cli("artifacts", "tag", *wrong).exit_code == 2


def test_delete_of_a_version_frees_only_its_own_files(cli):
    assert cli("artifacts", "delete", "p/model:v1", "--json").exit_code == 2
    document = json.loads(cli("artifacts", "delete", "p/model:v1", "--yes", "--json").stdout)
    assert (document["deleted"], document["versions"], document["files"]) == ("v1", ["v0"], 1)
    assert (hl.artifact("p/model", root="runs").version, blobs()) == ("v0", 1)
    assert cli("artifacts", "verify").exit_code == 0


def test_gc_removes_what_nothing_refers_to(cli):
    with BlobStore(Path("runs") / BLOBS).writing() as batch:
        batch.add(b"nobody's")
        batch.commit()
    dry = json.loads(cli("artifacts", "gc", "--dry-run", "--json").stdout)
    assert (dry, blobs()) == ({"removed": False, "files": 1, "bytes": 8}, 3)
    assert "1 file removed, 8 B." in cli("artifacts", "gc").stdout
    assert (blobs(), cli("artifacts", "verify").exit_code) == (2, 0)


def test_gc_keeps_what_has_just_arrived_from_another_machine(cli, saved):
    (saved.dir / "received.json").write_text("{}")
    with BlobStore(Path("runs") / BLOBS).writing() as batch:
        digest = batch.add(b"before its record").digest
        batch.commit()
    assert "0 files removed" in cli("artifacts", "gc").stdout
    old = time.time() - 7200
    os.utime(BlobStore(Path("runs") / BLOBS).path(digest), (old, old))
    assert "1 file removed" in cli("artifacts", "gc").stdout


def test_runs_verify_reports_missing_and_changed_media(cli):
    directory, digests = image(1, 2)
    table = hl.Table(["cell"])
    table.append([hl.Image(np.full((4, 4), 3, np.uint8))])
    with hl.run("table", project="p", summary=False) as run:
        run.log(table=table)
    assert cli("runs", "verify").exit_code == 0
    find_blob(directory, digests["image1"]).unlink()
    find_blob(directory, digests["image2"]).write_bytes(b"other")
    cells = set(BlobStore(Path("runs") / BLOBS).digests()) - {*digests.values()}
    for blob in cells:
        find_blob(directory, blob).write_bytes(b"")
    found = {each["directory"]: each["findings"] for each in json.loads(cli("runs", "verify", "--json").stdout)}
    texts = sorted(finding["what"] for finding in found[str(directory)])
    assert [text.partition(":")[0] for text in texts] == ["'image1'", "'image2'"]
    assert "is missing" in texts[0]
    assert "bytes instead of" in texts[1]
    assert "'table'" in found[str(run.dir)][0]["what"]


def test_runs_delete_removes_files_of_its_own_and_leaves_shared_ones(cli):
    before = blobs()
    (first, _), (second, kept) = image(1, 2), image(2, 3)
    assert blobs() == before + 3
    assert cli("runs", "delete", first.name, "--yes").exit_code == 0
    assert blobs() == before + 2
    assert all(find_blob(second, digest) for digest in kept.values())
    assert cli("runs", "verify").exit_code == cli("artifacts", "verify").exit_code == 0


def test_artifacts_of_a_missing_root_is_wrong_input(cli):
    for command in (["list"], ["show", "x"], ["gc"], ["verify"], ["tag", "x", "y"]):
        assert cli("artifacts", *command, "--root", "nowhere").exit_code == 2

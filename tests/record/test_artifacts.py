"""Artifacts: what a version holds, who gets which number, and what damage, attacks and kills leave behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pytest
from waiting import wait_until

import hookline as hl
from hookline._record.artifact_versions import ArtifactFolder, ArtifactRun, content_digest
from hookline._record.blobs import ARTIFACTS, BLOBS, BlobStore, root_references
from hookline._record.records import Event


def started(root, **options):
    return hl.run("train", root=root, project="p", summary=False, **options)


def saved(root, files, **options):
    """Save files as the artifact 'model' in a run of its own, and return the version."""
    with started(root) as run:
        handle = run.save_artifact("model", files, **options)
    return handle.wait()


def write(directory, **contents):
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (directory / name).write_text(text)
    return directory


def events(run_dir, name):
    return [record for record in hl.read(run_dir) if isinstance(record, Event) and record.name == name]


def folder_of(root):
    return ArtifactFolder(root, "p", "model")


def test_artifact_directory_holds_files_metadata_and_producer(tmp_path):
    write(tmp_path / "out", weights="abc", config="{}")
    write(tmp_path / "out" / "sub", vocab="words")
    with started(tmp_path / "runs") as run:
        for _ in run.steps(range(3)):
            pass
        handle = run.save_artifact("model", tmp_path / "out", kind="model", aliases=["best"], metadata={"acc": 0.5})
    model = hl.artifact("p/model:best", root=tmp_path / "runs")
    assert [(file.path, file.size) for file in model.files] == [("config", 2), ("sub/vocab", 5), ("weights", 3)]
    assert (model.kind, model.metadata, model.aliases) == ("model", {"acc": 0.5}, ["latest", "best"])
    assert (model.version, handle.version, model.run, model.step) == ("v0", "v0", f"p/{run.dir.name}", 3)
    assert model.path("sub/vocab").read_text() == "words"
    (event,) = events(run.dir, "artifact_saved")
    assert event.data["artifact"] == "p/model"
    assert (event.data["version"], event.data["files"], event.data["bytes"]) == ("v0", 3, 10)


@pytest.mark.parametrize(
    "reference", ["model", "model:latest", "model:v1", "model:best", "p/model", "p/model:best", "model@sha256:{}"]
)
def test_artifact_reference_names_a_version(tmp_path, reference):
    saved(tmp_path, write(tmp_path / "a", x="1"))
    newest = saved(tmp_path, write(tmp_path / "a", x="2"), aliases=["best"])
    with started(tmp_path) as run:
        found = run.use_artifact(reference.format(newest.digest))
    assert (found.id, found.get(tmp_path / "got").joinpath("x").read_text()) == ("p/model:v1", "2")


@pytest.mark.parametrize(
    ("files", "counts"), [({"x": "1"}, "1 file, 1 byte"), ({"x": "1", "y": "22"}, "2 files, 3 bytes")]
)
def test_artifact_repr_counts_files_and_bytes(tmp_path, files, counts):
    assert repr(saved(tmp_path, write(tmp_path / "a", **files))) == f"<Artifact p/model:v0: {counts}>"


def test_artifact_with_the_same_content_is_the_version_that_exists(tmp_path):
    first = saved(tmp_path, write(tmp_path / "a", x="1"), aliases=["best"])
    saved(tmp_path, write(tmp_path / "a", x="2"), aliases=["best", "newer"])
    again = saved(tmp_path, write(tmp_path / "a", x="1"), aliases=["best"])
    other = saved(tmp_path, write(tmp_path / "a", x="1"), metadata={"note": "other"})
    assert (first.version, again.version, other.version) == ("v0", "v0", "v2")
    assert folder_of(tmp_path).aliases() == {"latest": 2, "best": 0, "newer": 1}
    assert len(list(BlobStore(tmp_path / BLOBS).digests())) == 2


def test_artifact_latest_is_what_was_saved_last(tmp_path):
    for text in ("1", "2", "1"):
        saved(tmp_path, write(tmp_path / "a", x=text))
    assert hl.artifact("p/model", root=tmp_path).version == "v0"
    saved(tmp_path, write(tmp_path / "a", x="3"))
    assert hl.artifact("p/model", root=tmp_path).version == "v2"


def test_artifact_knows_the_runs_that_saved_and_used_it(tmp_path):
    model = saved(tmp_path, write(tmp_path / "a", x="1"))
    with started(tmp_path) as user:
        user.use_artifact("model")
        user.use_artifact("model:v0")
    used = f"p/{user.dir.name}"
    assert [(each.role, each.run) for each in model.runs] == [("saved", model.run), ("used", used)]
    assert [event.data["reference"] for event in events(user.dir, "artifact_used")] == ["model", "model:v0"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("a/b", "."), {}, "give a name of"),
        (("../x", "."), {}, "give a name of"),
        (("model", "missing"), {}, "missing cannot be read"),
        (("model", 3), {}, "give a file, a directory"),
        (("model", "empty"), {}, "there are no files"),
        (("model", "pipe"), {}, "neither a file nor a directory"),
        (("model", "links"), {}, "is a link to a directory"),
        (("model", {"": "file"}), {}, "is not a file's name in the artifact"),
        (("model", "file"), {"aliases": ["v3"]}, "is not an alias"),
        (("model", "file"), {"aliases": ["a/b"]}, "is not an alias"),
        (("model", "file"), {"aliases": ["best", "latest"]}, "choose another alias"),
        (("model", "file"), {"kind": ""}, "give a short word"),
        (("model", "file"), {"metadata": [1]}, "give a dict"),
    ],
)
def test_save_artifact_with_bad_input_is_an_error_at_the_call(tmp_path, monkeypatch, arguments, options, message):
    monkeypatch.chdir(write(tmp_path / "work", file="x"))
    Path("empty").mkdir()
    write(Path("links")).joinpath("up").symlink_to("..")
    os.mkfifo("pipe")
    with started(tmp_path / "runs") as run:
        with pytest.raises(hl.OptionError, match=message):
            run.save_artifact(*arguments, **options)
        assert run.save_artifact("model", "file").wait().version == "v0"


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("other", hl.UnknownNameError, "There is no artifact 'p/other'"),
        ("modle", hl.UnknownNameError, "'p/model'"),
        ("model:bets", hl.UnknownNameError, "'best'"),
        ("model:v9", hl.UnknownNameError, "has no version 'v9'"),
        ("model@sha256:00000000", hl.UnknownNameError, "has no version"),
        ("../../etc/passwd", hl.OptionError, "does not name an artifact"),
        ("..:v0", hl.OptionError, "does not name an artifact"),
        ("model@sha256:zz", hl.OptionError, "does not name an artifact"),
    ],
)
def test_use_artifact_of_an_unknown_reference_says_what_there_is(tmp_path, reference, error, message):
    saved(tmp_path, write(tmp_path / "a", x="1"), aliases=["best"])
    with started(tmp_path) as run, pytest.raises(error, match=message):
        run.use_artifact(reference)


class Gate:
    """Holds the thread that saves artifacts, until it is opened."""

    def __init__(self, run):
        self._opened = threading.Event()
        run.recorder._artifact_saver()._submit(self._opened.wait)

    def open(self):
        self._opened.set()


def test_files_deleted_or_replaced_after_the_call_are_saved_as_they_were(tmp_path):
    files = write(tmp_path / "a", deleted="1", replaced="2")
    with started(tmp_path / "runs") as run:
        gate = Gate(run)
        handle = run.save_artifact("model", files)
        (files / "deleted").unlink()
        (tmp_path / "new").write_text("other")
        (tmp_path / "new").replace(files / "replaced")
        gate.open()
        got = handle.wait().get(tmp_path / "got")
    assert {path.name: path.read_text() for path in got.iterdir()} == {"deleted": "1", "replaced": "2"}


def test_file_changed_in_place_before_it_is_saved_fails_and_training_continues(tmp_path, caplog):
    files = write(tmp_path / "a", weights="1")
    with started(tmp_path / "runs") as run:
        gate = Gate(run)
        handle = run.save_artifact("model", files)
        (files / "weights").write_text("changed")
        gate.open()
        with pytest.raises(hl.ArtifactError, match=r"was changed before it was saved.*wait\(\)"):
            handle.wait()
        run.log(loss=1.0)
    assert "is not saved" in caplog.text
    (event,) = events(run.dir, "artifact_failed")
    assert "was changed" in event.data["reason"]
    assert folder_of(tmp_path / "runs").versions() == []
    assert list(BlobStore(tmp_path / "runs" / BLOBS).digests()) == []


def test_more_files_than_may_be_open_are_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline._record.artifact_saving.OPEN_FILES", 3)
    files = write(tmp_path / "a", **{f"f{number}": str(number) for number in range(8)})
    model = saved(tmp_path, files)
    assert [model.path(file.path).read_text() for file in model.files] == [str(number) for number in range(8)]


def test_run_that_ends_waits_for_its_artifacts_before_its_status(tmp_path):
    with started(tmp_path / "runs") as run:
        gate = Gate(run)
        run.save_artifact("model", write(tmp_path / "a", x="1"))
        threading.Timer(0.05, gate.open).start()
    names = [record.name if isinstance(record, Event) else record.status for record in hl.read(run.dir)]
    assert names == ["running", "artifact_saved", "finished"]


def test_run_without_a_record_and_other_ranks_save_nothing(tmp_path, caplog):
    with hl.run("train", root=None, summary=False) as run:
        assert run.save_artifact("model", tmp_path).wait() is None
        with pytest.raises(hl.OptionError, match="give root="):
            run.use_artifact("model")
    assert "records nothing" in caplog.text
    with started(tmp_path / "runs") as run:
        run.rank = 1
        assert run.save_artifact("model", write(tmp_path / "a", x="1")).version is None
        run.rank = 0
    assert run.save_artifact("model", tmp_path / "a").wait() is None
    assert "the run has ended" in caplog.text
    assert not (tmp_path / "runs" / ARTIFACTS).exists()


def test_started_run_saves_artifacts(tmp_path):
    run = hl.start("train", root=tmp_path, project="p", summary=False)
    handle = run.save_artifact("model", {"w/a.txt": write(tmp_path / "a", x="1") / "x"})
    run.finish()
    assert [file.path for file in handle.wait().files] == ["w/a.txt"]


def test_metadata_is_redacted_as_every_recorded_text(tmp_path):
    (tmp_path / "p" / "run").mkdir(parents=True)
    recorder = hl.Recorder(tmp_path / "p" / "run", redact=lambda text: text.replace("secret", "***"))
    options = {"metadata": {"token": "secret", "nested": ["a secret", 3]}, "step": 2}
    found = recorder.save_artifact("model", write(tmp_path / "a", x="1"), **options).wait()
    recorder.close()
    assert (found.metadata, found.step) == ({"token": "[redacted]", "nested": ["a ***", 3]}, 2)


def test_reference_to_local_files_records_digests_and_copies_nothing(tmp_path):
    data = write(tmp_path / "data", train="rows")
    found = saved(tmp_path / "runs", data, reference=True, kind="dataset")
    (file,) = found.files
    assert (file.path, file.size, file.uri) == ("train", 4, (data / "train").as_uri())
    assert list(BlobStore(tmp_path / "runs" / BLOBS).digests()) == []
    assert list(found.get(tmp_path / "none").iterdir()) == []
    assert found.get(tmp_path / "got", references=True).joinpath("train").read_text() == "rows"
    (data / "train").write_text("rowz")
    assert "changed since it was saved" in found.verify()[0]
    with pytest.raises(hl.ArtifactError, match="changed since it was saved"):
        found.get(tmp_path / "again", references=True)


def test_reference_to_a_remote_file_is_looked_up_and_fetched(tmp_path):
    remote = fsspec.filesystem("memory")
    remote.pipe("/bucket/data/a.txt", b"remote")
    remote.pipe("/bucket/data/b/c.txt", b"more")
    found = saved(tmp_path, {"data": "memory://bucket/data"})
    listed = [("data/a.txt", 6, "memory://bucket/data/a.txt"), ("data/b/c.txt", 4, "memory://bucket/data/b/c.txt")]
    assert [(file.path, file.size, file.uri) for file in found.files] == listed
    assert found.get(tmp_path / "got", references=True).joinpath("data/b/c.txt").read_text() == "more"
    remote.pipe("/bucket/data/a.txt", b"changed!")
    with pytest.raises(hl.ArtifactError, match="its size or version is another"):
        found.get(tmp_path / "again", references=True)
    assert not (tmp_path / "again").exists()


def test_reference_to_a_store_that_cannot_be_asked_is_recorded_without_size(tmp_path, caplog):
    found = saved(tmp_path, "nosuchstore://bucket/file.bin")
    (file,) = found.files
    assert (file.path, file.size, file.etag, file.uri) == ("file.bin", None, "", "nosuchstore://bucket/file.bin")
    assert "saved without size and version" in caplog.text


def test_get_refuses_a_damaged_file_and_leaves_nothing(tmp_path):
    model = saved(tmp_path / "runs", write(tmp_path / "a", good="1", weights="abc"))
    model.path("weights").write_text("abd")
    for read in (lambda: model.path("weights"), lambda: model.get(tmp_path / "got")):
        with pytest.raises(hl.ArtifactError, match="'weights' of p/model:v0 is damaged"):
            read()
    assert len(model.verify()) == 1
    model.path("good").unlink()
    with pytest.raises(hl.ArtifactError, match="'good' of p/model:v0 is missing"):
        model.get(tmp_path / "got")
    assert [path.name for path in tmp_path.iterdir() if "got" in path.name] == []


def test_get_into_a_directory_with_other_files_is_refused_and_again_is_nothing_new(tmp_path):
    model = saved(tmp_path / "runs", write(tmp_path / "a", x="1"))
    target = model.get(tmp_path / "got")
    inode = (target / "x").stat().st_ino
    assert model.get(target).joinpath("x").stat().st_ino == inode
    (target / "x").write_text("mine")
    with pytest.raises(hl.ArtifactError, match="has files that are not those of"):
        model.get(target)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(hl.ArtifactError, match="is not a directory"):
        model.get(tmp_path / "link")
    assert (target / "x").read_text() == "mine"


def forge(root, files):
    """Replace the manifest of v0 by one with other files and a digest that matches."""
    path = folder_of(root).directory / "v0.json"
    manifest = json.loads(path.read_bytes())
    made = [hl.Artifact(folder_of(root), 0).files[0].__class__(**file) for file in files]
    manifest |= {"files": files, "digest": content_digest(manifest["kind"], manifest["metadata"], made)}
    path.write_text(json.dumps(manifest))


BLOB = {"blob": "0" * 64, "size": 1}


@pytest.mark.parametrize(
    "files",
    [
        [{"path": "../evil", **BLOB}],
        [{"path": "/etc/evil", **BLOB}],
        [{"path": "a/../../evil", **BLOB}],
        [{"path": "a//b", **BLOB}],
        [{"path": "", **BLOB}],
        [{"path": "a\\..\\evil", **BLOB}],
        [{"path": "a\0b", **BLOB}],
        [{"path": "x" * 300, **BLOB}],
        [{"path": "a", **BLOB}, {"path": "a", **BLOB}],
        [{"path": "a", **BLOB}, {"path": "a/b", **BLOB}],
        [{"path": "a", "blob": "../../../../etc/passwd", "size": 1}],
        [{"path": "a", "blob": "0" * 64, "size": -1}],
        [{"path": "a", "blob": "0" * 64}],
        [{"path": "a"}],
    ],
)
def test_forged_manifest_is_refused(tmp_path, files):
    saved(tmp_path, write(tmp_path / "a", x="1"))
    forge(tmp_path, files)
    with pytest.raises(hl.ArtifactError, match="is damaged"):
        hl.artifact("p/model", root=tmp_path)


@pytest.mark.parametrize("metadata", ["[" * 100_000 + "]" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "3", "{"])
def test_manifest_that_no_save_writes_is_refused(tmp_path, metadata):
    saved(tmp_path, write(tmp_path / "a", x="1"))
    path = folder_of(tmp_path).directory / "v0.json"
    path.write_text(path.read_text().replace('"metadata":{}', f'"metadata":{metadata}'))
    with pytest.raises(hl.ArtifactError, match="is damaged"):
        hl.artifact("p/model", root=tmp_path)


def test_changed_manifest_and_linked_places_are_refused(tmp_path):
    model = saved(tmp_path / "runs", write(tmp_path / "a", x="1"))
    blob = model.path()
    (tmp_path / "secret").write_text("1")
    blob.unlink()
    blob.symlink_to(tmp_path / "secret")
    with pytest.raises(hl.ArtifactError, match="is missing"):
        model.get(tmp_path / "got")
    manifest = folder_of(tmp_path / "runs").directory / "v0.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"kind":"artifact"', b'"kind":"other"'))
    with pytest.raises(hl.ArtifactError, match="its content does not match its digest"):
        hl.artifact("p/model", root=tmp_path / "runs")
    moved = manifest.parent.rename(tmp_path / "moved")
    manifest.parent.symlink_to(moved)
    with pytest.raises(hl.UnknownNameError):
        hl.artifact("p/model", root=tmp_path / "runs")


def test_deleted_version_number_is_not_given_again(tmp_path):
    saved(tmp_path, write(tmp_path / "a", x="1"))
    saved(tmp_path, write(tmp_path / "a", x="2"), aliases=["best"])
    folder_of(tmp_path).delete(1)
    assert folder_of(tmp_path).aliases() == {"latest": 0}
    assert list((folder_of(tmp_path).directory / "aliases").iterdir()) == []
    assert saved(tmp_path, write(tmp_path / "a", x="2")).version == "v2"


SAVER = """
import sys
from pathlib import Path
import hookline as hl

root, name, count, content = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
with hl.run(name, root=root, project="p", summary=False) as run:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        path = root / f"{name}-{number}.txt"
        path.write_text(content or f"{name} {number} " * 5000)
        run.save_artifact("model", path if content == "" else {"x": path}, aliases=[name]).wait()
"""


def start_saver(root, name, count, content=""):
    command = [sys.executable, "-c", SAVER, str(root), name, str(count), content]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def go(*processes):
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def test_two_processes_that_save_at_once_share_the_numbers(tmp_path):
    both = [start_saver(tmp_path, name, 15) for name in ("one", "two")]
    go(*both)
    assert [process.communicate(timeout=100) and process.returncode for process in both] == [0, 0]
    folder = folder_of(tmp_path)
    assert folder.versions() == list(range(30))
    versions = [hl.Artifact(folder, number) for number in folder.versions()]
    assert [version.verify() for version in versions] == [[]] * 30
    assert len({version.digest for version in versions}) == 30
    assert folder.aliases() == {"latest": 29, **{n: folder.aliases()[n] for n in ("one", "two")}}


def test_two_processes_that_save_the_same_get_one_version(tmp_path):
    both = [start_saver(tmp_path, name, 1, content="same") for name in ("one", "two")]
    go(*both)
    assert [process.communicate(timeout=100) and process.returncode for process in both] == [0, 0]
    assert folder_of(tmp_path).aliases() == {"latest": 0, "one": 0, "two": 0}
    assert len([run for run in folder_of(tmp_path).runs(0) if run.role == "saved"]) == 2


@pytest.mark.parametrize("after", [1, 3])
def test_kill_while_saving_leaves_whole_versions_and_nothing_else(tmp_path, after):
    process = start_saver(tmp_path, "one", 1000)
    go(process)
    folder = folder_of(tmp_path)
    wait_until(lambda: len(folder.versions()) >= after)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    versions = [hl.Artifact(folder, number) for number in folder.versions()]
    assert [version.verify() for version in versions] == [[] for _ in versions]
    store = BlobStore(tmp_path / BLOBS)
    store.collect_garbage(lambda: root_references(tmp_path))
    assert set(store.digests()) == {file.blob for version in versions for file in version.files}
    assert saved(tmp_path, write(tmp_path / "a", x="after")).number == len(versions)


def test_collection_of_unused_blobs_never_takes_those_of_a_save(tmp_path):
    process = start_saver(tmp_path, "one", 40)
    go(process)
    store = BlobStore(tmp_path / BLOBS)
    rounds = 0
    while process.poll() is None:
        store.collect_garbage(lambda: root_references(tmp_path))
        rounds += 1
    process.communicate()
    folder = folder_of(tmp_path)
    assert rounds
    assert folder.versions() == list(range(40))
    assert [hl.Artifact(folder, number).verify() for number in folder.versions()] == [[]] * 40


def test_linked_files_survive_their_deletion_and_a_collection(tmp_path):
    files = write(tmp_path / "a", weights="abc")
    with started(tmp_path / "runs") as run:
        model = run.save_artifact("model", files, link=True).wait()
        assert model.path().stat().st_nlink == 2
        (files / "weights").unlink()
        again = run.save_artifact("model", write(tmp_path / "b", weights="abc"), link=True).wait()
    BlobStore(tmp_path / "runs" / BLOBS).collect_garbage(lambda: root_references(tmp_path / "runs"))
    assert (again.version, model.path().read_text(), model.verify()) == ("v0", "abc", [])


def test_run_noted_beside_an_artifact_is_checked_when_read(tmp_path):
    model = saved(tmp_path, write(tmp_path / "a", x="1"))
    notes = folder_of(tmp_path).directory / "runs" / "v0"
    (notes / "bad.json").write_text('{"run": 3}')
    (notes / "long.json").write_text('{"run": "' + "x" * 5000 + '", "role": "used", "time": 0}')
    assert model.runs == [ArtifactRun(model.run, "saved", model.runs[0].time)]

"""The search index of samples: the same answers as a scan, whatever happens to its file."""

import contextlib
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import hookline as hl
from hookline.store import search
from hookline.store.run_summary import Liveness
from hookline.store.search import SearchIndex
from hookline.store.store import open_store

TEXTS = [
    "The quick brown Fox",
    'a "quoted" 50% AND (NOT) text*',
    "你好,世界",
    "שלום עולם",
    "ÄRGER und ärger",
    "back\\slash under_score",
    "needle in a long text " + "x " * 2000,
]


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    with hl.run("ended", root=root, summary=False, console=False) as run:
        chat = [{"role": "tool", "content": "from a tool"}, {"role": "assistant", "content": "done"}]
        run.log_samples([*({"prompt": f"prompt {i}", "completion": text} for i, text in enumerate(TEXTS))])
        run.log_samples([{"prompt": "p", "completion": chat}])
    return root


def build(root):
    """Index all runs, as the background thread of a server does; returns the store."""
    store = open_store(root)
    infos = store.list_runs(Liveness())
    store.ingest(infos)
    store.search.update(infos, lambda info: store.snapshot([info], "samples"), lambda: True)
    return store


@pytest.mark.parametrize(
    "text",
    [
        "quick",
        "FOX",
        '"quoted"',
        "50%",
        "AND (NOT)",
        "好,世",
        "עולם",
        "ärger",
        "\\slash",
        "needle",
        "a tool",
        "ab",
        "no such",
    ],
)
def test_search_finds_the_same_samples_with_the_index_as_without(root, text):
    runs = hl.runs(root)
    scanned = [row["id"] for row in runs.samples(text=text).rows()]
    store = build(root)
    assert (store.search.find(text, list(runs)) is None) == (len(text) < 3)
    assert [row["id"] for row in runs.samples(text=text).rows()] == scanned
    assert bool(scanned) == (text not in ("no such", "ab"))


def test_live_runs_and_runs_that_are_not_indexed_yet_are_searched_too(root):
    build(root)
    with hl.run("later", root=root, summary=False, console=False) as run:
        run.log_samples([{"completion": "a quick one"}])
        assert hl.runs(root).samples(text="quick").total() == 2
    assert hl.runs(root).samples(text="quick").total() == 2
    build(root)
    assert hl.runs(root).samples(text="quick").total() == 2


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "missing", "link"])
def test_damaged_index_is_not_used_and_is_rebuilt(root, damage, tmp_path):
    path = build(root).search.path
    content = path.read_bytes()
    path.unlink()
    if damage == "link":
        (tmp_path / "other").write_bytes(b"of somebody else")
        path.symlink_to(tmp_path / "other")
    elif damage != "missing":
        kept = {"garbage": b"x" * len(content), "truncated": content[: len(content) // 2], "empty": b""}
        path.write_bytes(kept[damage])
    assert hl.runs(root).samples(text="quick").total() == 1
    store = build(root)
    store = build(root)  # damage that only a search noticed is repaired by the next update
    assert store.search.find("quick", list(hl.runs(root))).found
    assert not path.is_symlink()
    if damage == "link":
        assert (tmp_path / "other").read_bytes() == b"of somebody else"


def test_damage_is_logged_once_and_a_locked_index_is_not_damage(root, caplog):
    caplog.set_level("INFO", logger="hookline")
    path = build(root).search.path
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert hl.runs(root).samples(text="quick").total() == 1
    assert "is damaged" not in caplog.text
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert [hl.runs(root).samples(text=text).total() for text in ("quick", "FOX")] == [1, 1]
    assert caplog.text.count("is damaged and will be rebuilt") == 1


@pytest.mark.parametrize("kind", ["view", "wal", "linked journal", "journal of another file"])
def test_index_that_somebody_else_prepared_is_not_opened_and_is_rebuilt(root, kind, tmp_path):
    path = build(root).search.path
    journal, other = path.with_name(f"{path.name}-journal"), tmp_path / "other"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if kind == "view":
            connection.executescript("ALTER TABLE runs RENAME TO own; CREATE VIEW runs AS SELECT * FROM own")
        elif kind == "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        elif kind == "linked journal":
            journal.symlink_to(other)
        else:
            other.write_text("of somebody else")
            connection.executescript("PRAGMA cache_size = 2; BEGIN")
            rows = [(number, 1, "x" * 500) for number in range(100, 5000)]
            connection.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
            written, name = path.read_bytes(), bytes(other)
            # As SQLite writes it for a transaction over several databases: the file is deleted after a rollback.
            end = struct.pack(f">I{len(name)}sII", (1 << 30) // 8192 + 1, name, len(name), sum(name))
            hot = journal.read_bytes() + end + bytes.fromhex("d9d505f920a163d7")
            connection.execute("ROLLBACK")
    if kind == "journal of another file":
        path.write_bytes(written)
        journal.write_bytes(hot)
    assert hl.runs(root).samples(text="quick").total() == 1
    store = build(root)
    assert store.search.find("quick", list(hl.runs(root))).found
    assert (os.path.lexists(journal), other.exists()) == (False, kind == "journal of another file")
    assert path.read_bytes()[18:20] == b"\1\1"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall() == []


def test_process_killed_while_it_indexes_leaves_a_usable_index(root):
    code = (
        "import os, sys\n"
        "from hookline.store import search\n"
        "from hookline.store.run_summary import Liveness\n"
        "from hookline.store.store import open_store\n"
        "search._BATCH_BYTES = search._BATCH_ROWS = 1\n"
        "store = open_store(sys.argv[1])\n"
        "infos = store.list_runs(Liveness())\n"
        "store.ingest(infos)\n"
        "calls = []\n"
        "def proceed():\n"
        "    calls.append(1)\n"
        "    if len(calls) == 4: os.kill(os.getpid(), 9)\n"
        "    return True\n"
        "store.search.update(infos, lambda info: store.snapshot([info], 'samples'), proceed)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(root)], check=False).returncode == -9
    runs = hl.runs(root)
    assert runs.samples(text="quick").total() == 1
    store = build(root)
    assert len(store.search.find("quick", list(runs)).found) == 1
    assert store.search.pending == 0


def test_deleted_run_is_not_found_and_its_rows_are_dropped_in_time(root, monkeypatch):
    monkeypatch.setattr(search, "_MIN_REBUILD_ROWS", 1)
    store = build(root)
    [info] = hl.runs(root)
    shutil.rmtree(info.directory)
    with hl.run("new", root=root, summary=False, console=False) as run:
        run.log_samples([{"completion": "another quick one"}])
    build(root)
    assert [row["run"] for row in hl.runs(root).samples(text="quick").rows()] == [hl.runs(root)[0].id]
    with sqlite3.connect(store.search.path) as connection:
        assert connection.execute("SELECT count(*) FROM samples").fetchall() == [(1,)]


def test_text_in_very_many_samples_is_left_to_the_scan(root, monkeypatch):
    monkeypatch.setattr(search, "MAX_MATCHES", 3)
    store = build(root)
    runs = hl.runs(root)
    assert store.search.find("prompt", list(runs)) is None
    assert runs.samples(text="prompt").total() == len(TEXTS)


def test_read_only_root_is_searched_and_a_full_disk_is_reported(root, monkeypatch):
    store = build(root)
    monkeypatch.setattr(search, "MAX_BYTES", 0)
    with hl.run("later", root=root, summary=False, console=False) as run:
        run.log_samples([{"completion": "a quick one"}])
    build(root)
    assert "as large as the disk allows" in store.search.note
    folder = Path(store.index.folder)
    reader = SearchIndex(folder)
    modes = {path: path.stat().st_mode for path in (folder, store.search.path)}
    try:
        for path in modes:
            path.chmod(0o500 if path.is_dir() else 0o400)
        assert len(reader.find("quick", list(hl.runs(root))).found) == 1
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert hl.runs(root).samples(text="quick").total() == 2


def test_python_without_fts5_scans_and_says_so(root, monkeypatch):
    monkeypatch.setattr(search, "has_fts5", lambda: False)
    index = SearchIndex(open_store(root).index.folder)
    assert "no FTS5" in index.note
    assert index.find("quick", list(hl.runs(root))) is None
    assert hl.runs(root).samples(text="quick").total() == 1

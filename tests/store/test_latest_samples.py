"""The latest samples from the ends of journals are those of the tables."""

import importlib

import pytest
from recorded_runs import append, ended, finished_run, make_run

import hookline as hl
from hookline._record.records import Sample
from hookline.store import runs
from hookline.store.latest_samples import latest_samples


def sample(step, **more):
    return Sample(time=100.0 + step, step=step, prompt=f"p{step}", completion=f"c{step}", **more)


def test_latest_samples_are_the_rows_of_the_table(tmp_path):
    directory = make_run(tmp_path, "r0")
    rewards = {"exact": float("nan"), "format": 0.5}
    chat = [{"role": "user", "content": "hi"}]
    append(directory, *[sample(step, rewards=rewards, extra={"a": [step]}, prompt_messages=chat) for step in range(50)])
    append(make_run(tmp_path, "r1"), sample(60, total=float("inf")), ended(1))
    finished_run(tmp_path, "none")
    found = runs(tmp_path)
    latest = latest_samples(found, 10)
    table = {row["id"]: row for row in found.samples(order="-step", limit=10)}
    assert [row["step"] for row in latest] == [60, *range(49, 40, -1)]
    assert [row["id"] for row in latest] == [*table]
    texts = [name for name in latest[0] if name not in ("rewards", "total", "reward")]
    assert [[row[name] for name in texts] for row in latest] == [
        [table[row["id"]][name] for name in texts] for row in latest
    ]
    assert [latest[0]["reward"], latest[1]["rewards"]] == [float("inf"), {"exact": "NaN", "format": 0.5}]


def test_latest_samples_of_a_long_or_damaged_file_are_its_whole_last_lines(tmp_path):
    directory = make_run(tmp_path, "r0")
    append(directory, *[sample(step, reasoning="x" * 3000) for step in range(200)])
    with (directory / "journal" / "main-0000-1-abc-000000.jsonl").open("ab") as file:
        file.write(b'{"kind":"sample","step":"seven"}\n{"kind":"sample","step":900')
    assert [row["step"] for row in latest_samples(runs(tmp_path), 3)] == [199, 198, 197]
    assert 50 < len(latest_samples(runs(tmp_path), 1000)) < 100


@pytest.mark.parametrize("size", [0, 1 << 40])
def test_unread_samples_are_there_only_while_reading_takes_long(tmp_path, monkeypatch, size):
    monkeypatch.setattr(importlib.import_module("hookline.store.runs"), "_LONG_READING_BYTES", size)
    append(make_run(tmp_path, "r0"), sample(1), ended(1))
    found = runs(tmp_path)
    assert len(found.unread_samples(5)) == (0 if size else 1)
    found.ingest()
    assert found.unread_samples(5) == []


def test_latest_samples_of_a_live_run_are_those_before_the_zeros(tmp_path):
    with hl.run("live", root=tmp_path, summary=False, console=False, code=False) as run:
        run.log_samples([{"prompt": "a", "completion": "b", "step": 3}])
        (row,) = latest_samples(runs(tmp_path), 5)
        assert (row["step"], row["completion"], row["run"]) == (3, "b", f"default/{run.dir.name}")

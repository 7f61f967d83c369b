"""The sink `file`: one line per record, and files that are exchanged without a line lost or doubled."""

import re
import subprocess
import sys
import textwrap

import pytest

import hookline as hl
from hookline._record.delivery import Delivery
from hookline._record.recorder import Recorder
from hookline.sinks import FileSink


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path, clock=lambda: 1e9 + 0.25)
    yield recorder
    recorder.close()


def deliver(tmp_path, sink):
    delivery = Delivery(tmp_path, "file", sink)
    delivery.round()
    delivery.close(0)
    delivery.run()
    return delivery


def steps(tmp_path):
    """The steps of all lines in all files, the oldest first."""
    older = sorted(tmp_path.glob("run.log.*"), key=lambda path: int(path.suffix[1:]))
    text = "".join(path.read_text() for path in [*older, tmp_path / "run.log"] if path.exists())
    return [int(step) for step in re.findall(r"^.* metrics step=(\d+) .*$", text, re.MULTILINE)]


def test_file_records_are_one_readable_line_each(recorder, tmp_path):
    recorder.log({"loss": 0.1, "nan": float("nan"), "odd name": 1}, step=3)
    recorder.samples([{"prompt": "1 + 1", "completion": "two\nlines \u2028", "rewards": {"right": 1.0}}], step=3)
    recorder.status("finished", step=3)
    deliver(tmp_path, FileSink())
    lines = (tmp_path / "run.log").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"2001-09-0\d \d\d:\d\d:\d\d\.250 ", line) for line in lines)
    assert [line[24:] for line in lines] == [
        'metrics step=3 axis="train" loss=0.1 nan=NaN "odd name"=1',
        'sample  step=3 axis="train" prompt="1 + 1" completion="two\\nlines \\u2028" rewards/right=1.0',
        'status  step=3 status="finished"',
    ]


def test_file_kinds_are_those_asked_for(recorder, tmp_path):
    recorder.log(loss=0.1, step=3)
    recorder.event("checkpoint", step=3)
    deliver(tmp_path, FileSink(kinds=("event",)))
    assert [line.split()[2] for line in (tmp_path / "run.log").read_text().splitlines()] == ["event"]


def test_file_full_one_is_set_aside_under_the_next_number(recorder, tmp_path):
    for step in range(1, 6):
        recorder.log(loss=0.1, step=step)
        deliver(tmp_path, FileSink(max_bytes=150))
    assert sorted(path.name for path in tmp_path.glob("run.log*")) == ["run.log", "run.log.1", "run.log.2"]
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


def test_file_only_so_many_backups_are_kept(recorder, tmp_path):
    (tmp_path / "17").write_text("somebody else's")
    for step in range(1, 11):
        recorder.log(loss=0.1, step=step)
        deliver(tmp_path, FileSink(max_bytes=1, backups=3))
    assert steps(tmp_path) == [7, 8, 9, 10]
    assert (tmp_path / "17").exists()


def test_file_that_is_there_is_appended_to(recorder, tmp_path):
    (tmp_path / "mine.log").write_text("from before\n")
    recorder.log(loss=0.1, step=1)
    deliver(tmp_path, FileSink(tmp_path / "mine.log"))
    before, line = (tmp_path / "mine.log").read_text().splitlines()
    assert (before, line[24:]) == ("from before", 'metrics step=1 axis="train" loss=0.1')


def test_file_with_other_kinds_from_now_on_has_every_record_once(recorder, tmp_path):
    for step in (1, 2, 3):
        recorder.log(loss=0.1, step=step)
        deliver(tmp_path, FileSink(max_bytes=1))
    deliver(tmp_path, FileSink(kinds=("metrics",)))  # other settings: from the beginning
    assert steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("rotations", [1, 2, 3])
def test_file_exchange_that_does_not_count_yet_is_taken_back(recorder, tmp_path, rotations):
    recorder.log(loss=0.1, step=1)
    before = deliver(tmp_path, FileSink(max_bytes=1, backups=2)).progress.path
    saved = before.read_text()
    for step in range(2, 2 + rotations):
        recorder.log(loss=0.1, step=step)
        deliver(tmp_path, FileSink(max_bytes=1, backups=2))
    before.write_text(saved)  # as if the process had died before any of it was saved
    deliver(tmp_path, FileSink(max_bytes=1, backups=2))
    expected = list(range(1, 2 + rotations))
    assert steps(tmp_path)[-2:] == expected[-2:]
    assert len(set(steps(tmp_path))) == len(steps(tmp_path))


def test_file_crash_between_the_exchange_and_the_first_line_loses_nothing(recorder, tmp_path):
    recorder.log(loss=0.1, step=1)
    deliver(tmp_path, FileSink(max_bytes=1))
    (tmp_path / "run.log").rename(tmp_path / "run.log.1")
    recorder.log(loss=0.1, step=2)
    deliver(tmp_path, FileSink(max_bytes=1))
    assert steps(tmp_path) == [1, 2]


KILLER = """
    import os, random, signal, sys, time
    from pathlib import Path
    from hookline._record.delivery import Delivery
    from hookline.sinks import FileSink

    FileSink.batch_records = 3
    rng, kills, code = random.Random(1), 0, 1
    while code != 0:
        child = os.fork()
        if child == 0:
            delivery = Delivery(Path(sys.argv[1]), "file", FileSink(max_bytes=400, backups=10_000))
            delivery.round()
            os._exit(0 if delivery.is_done() else 1)
        time.sleep(rng.uniform(0, 0.02 + kills / 1000))  # longer and longer: on a busy machine none would get anywhere
        os.kill(child, signal.SIGKILL)
        _, code = os.waitpid(child, 0)
        kills += code != 0
    print(kills)
"""


def test_file_deliverer_killed_at_any_moment_leaves_every_line_once(recorder, tmp_path):
    for step in range(1000):
        recorder.log(loss=0.1, step=step)
    command = [sys.executable, "-c", textwrap.dedent(KILLER), str(tmp_path)]
    kills = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert kills > 3
    assert steps(tmp_path) == list(range(1000))


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"backups": 0}, {"backups": True}, {"max_bytes": 1.5}])
def test_file_wrong_setting_is_refused(wrong):
    with pytest.raises(hl.OptionError, match=f"{next(iter(wrong))}="):
        FileSink(**wrong)


def test_file_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(hl.OptionError, match="Did you mean 'metrics'"):
        FileSink(kinds=("metric",))

"""The sink `jsonl`: the journal in one file, line by line."""

import json
import math
import re

import pytest

import hookline as hl
from hookline._record.delivery import Delivery
from hookline._record.recorder import Recorder
from hookline.sinks import JsonlSink


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path, clock=lambda: 1.0)
    yield recorder
    recorder.close()


def deliver(tmp_path, sink=None):
    delivery = Delivery(tmp_path, "jsonl", sink or JsonlSink())
    delivery.round()
    delivery.close(0)
    delivery.run()
    assert delivery.progress.error == ""
    return delivery.progress.path


def lines(tmp_path, name="records.jsonl"):
    return [json.loads(line) for line in (tmp_path / name).read_bytes().split(b"\n")[:-1]]


def test_jsonl_is_the_journal_without_numbers_and_checksums(recorder, tmp_path):
    recorder.log({"loss": math.nan, "n": 2**63, "text": "ü🐟"}, step=1)
    recorder.samples([{"prompt": "p", "completion": "c", "rewards": {"r": -math.inf}}], step=1)
    recorder.status("finished", step=1)
    recorder.close()
    deliver(tmp_path)
    (journal,) = (tmp_path / "journal").glob("*.jsonl")
    without = re.sub(rb',"#":\d+,"crc":"[0-9a-f]+"\}\n', b"}\n", journal.read_bytes())
    assert (tmp_path / "records.jsonl").read_bytes() == without


def test_jsonl_kinds_are_those_asked_for(recorder, tmp_path):
    recorder.log(loss=1.0, step=1)
    recorder.event("checkpoint", step=1)
    recorder.line("INFO", "a", "b")
    deliver(tmp_path, JsonlSink(kinds=("event", "log")))
    assert [line["kind"] for line in lines(tmp_path)] == ["event", "log"]


def test_jsonl_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(hl.OptionError, match="Did you mean 'sample'"):
        JsonlSink(kinds=("samples",))


def test_jsonl_left_behind_half_a_line_is_cut_off(recorder, tmp_path):
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path)
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"kind":"metr')
    recorder.log(loss=1.0, step=2)
    deliver(tmp_path)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_jsonl_file_that_is_there_is_appended_to(recorder, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"before": 1}\n')
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path, JsonlSink(tmp_path / "mine.jsonl"))
    assert [line.get("step") for line in lines(tmp_path, "mine.jsonl")] == [None, 1]


def test_jsonl_file_whose_last_line_has_no_end_is_appended_to_on_a_new_line(recorder, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"before": 1}')
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path, JsonlSink(tmp_path / "mine.jsonl"))
    assert [line.get("step") for line in lines(tmp_path, "mine.jsonl")] == [None, 1]


def test_jsonl_keeps_what_a_resume_makes_obsolete_and_the_mark(tmp_path):
    for start in (0, 2):
        recorder = Recorder(tmp_path)
        recorder.resume(start)
        recorder.log(loss=1.0, step=start + 1)
        recorder.close()
        deliver(tmp_path)
    assert [line.get("step", line.get("name")) for line in lines(tmp_path)] == ["resume", 1, "resume", 3]


def test_jsonl_with_other_kinds_from_now_on_has_every_record_once(recorder, tmp_path):
    recorder.log(loss=1.0, step=1)
    recorder.event("checkpoint", step=1)
    deliver(tmp_path)
    deliver(tmp_path, JsonlSink(kinds=("metrics",)))  # other settings: from the beginning
    assert [line["kind"] for line in lines(tmp_path)].count("metrics") == 1

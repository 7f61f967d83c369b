"""What TensorBoard shows of a run: by its own reader of event files, and by the program itself."""

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
import threading
import time
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookline._engine.errors import MissingExtraError, OptionError
from hookline._record.delivery import Delivery
from hookline._record.recorder import Recorder
from hookline.sinks import TensorboardSink


def deliver(run_dir, **settings):
    delivery = Delivery(run_dir, "tensorboard", TensorboardSink(**settings))
    delivery.round()
    delivery.close(0)
    delivery.run()
    assert delivery.progress.status == "ok", delivery.progress.error


def read(directory):
    return EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0}).Reload()


def scalars(directory, tag):
    return [(event.step, event.value) for event in read(directory).Scalars(tag)]


def texts(directory, tag):
    return [event.tensor_proto.string_val[0].decode() for event in read(directory).Tensors(tag)]


def samples(count, **facts):
    return [{"prompt": "p", "completion": f"c{n}", "rewards": {"right": n % 2}, **facts} for n in range(count)]


@pytest.fixture
def record(tmp_path):
    """Opens a session of a writer; each is closed when the next begins."""
    opened = []

    def session(name="main"):
        for recorder in opened:
            recorder.close()
        opened.append(Recorder(tmp_path, name=name))
        return opened[-1]

    yield session
    for recorder in opened:
        recorder.close()


def test_values_of_every_kind_are_shown_as_scalars_or_texts(record, tmp_path):
    record().log({"loss": 0.5, "done": True, "none": None, "phase": "warm-up", "ü 🐟": 2}, step=3)
    deliver(tmp_path)
    found = read(tmp_path / "tensorboard")
    assert {tag: found.Scalars(tag)[0].value for tag in found.Tags()["scalars"]} == {"loss": 0.5, "done": 1, "ü 🐟": 2}
    assert texts(tmp_path / "tensorboard", "phase/text_summary") == ["warm-up"]


def test_time_of_an_event_is_the_time_of_its_record(tmp_path):
    recorder = Recorder(tmp_path, clock=lambda: 1234.5)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    deliver(tmp_path)
    assert read(tmp_path / "tensorboard").Scalars("loss")[0].wall_time == 1234.5


def test_axes_and_writers_get_directories_of_their_own(record, tmp_path):
    record().log(loss=1.0, step=10)
    record().log({"val/loss": 2.0}, step=10, axis="eval")
    record("rank1").log(loss=3.0, step=10)
    record("rank1").log(loss=4.0, step=7, axis="../roll out")
    deliver(tmp_path)
    place = tmp_path / "tensorboard"
    assert sorted(str(file.parent.relative_to(place)) for file in place.rglob("*tfevents*")) == [
        ".",
        "eval",
        "rank1",
        "rank1/_roll_out",
    ]
    assert scalars(place / "eval", "val/loss") == [(10, 2.0)]
    assert scalars(place / "rank1" / "_roll_out", "loss") == [(7, 4.0)]


def test_run_that_was_resumed_twice_shows_each_step_once(record, tmp_path):
    for value, first, last in ((1.0, 1, 10), (2.0, 6, 12), (3.0, 11, 14)):
        recorder = record()
        if first > 1:
            recorder.resume(first - 1)
        for step in range(first, last + 1):
            recorder.log(loss=value, step=step)
        deliver(tmp_path)
    expected = [(step, 1.0 if step <= 5 else 2.0 if step <= 10 else 3.0) for step in range(1, 15)]
    assert scalars(tmp_path / "tensorboard", "loss") == expected


def test_evaluation_done_again_where_a_run_was_resumed_is_shown_once(record, tmp_path):
    recorder = record()
    for step in (5, 10):
        recorder.log({"val/loss": 1.0}, step=step, axis="eval")
    recorder = record()
    recorder.resume(10)
    for step in (10, 15):
        recorder.log({"val/loss": 2.0}, step=step, axis="eval")
    deliver(tmp_path)
    assert scalars(tmp_path / "tensorboard" / "eval", "val/loss") == [(5, 1.0), (10, 2.0), (15, 2.0)]


def test_resume_of_one_axis_leaves_the_others_and_other_writers_alone(record, tmp_path):
    for name in ("main", "rank1"):
        recorder = record(name)
        for step in (1, 2):
            recorder.log(loss=float(step), step=step)
            recorder.log(speed=float(step), step=step, axis="rollout")
    record().resume(train=1)
    deliver(tmp_path)
    place = tmp_path / "tensorboard"
    found = [scalars(place, "loss"), scalars(place / "rollout", "speed"), scalars(place / "rank1", "loss")]
    assert [len(steps) for steps in found] == [1, 2, 2]


def test_torn_event_after_what_was_delivered_is_cut_off(record, tmp_path):
    recorder = record()
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path)
    (file,) = (tmp_path / "tensorboard").glob("*tfevents*")
    with file.open("ab") as end:
        end.write(b"\x20\0\0\0\0\0\0\0 half of an event")
    recorder.log(loss=2.0, step=2)
    deliver(tmp_path)
    assert scalars(tmp_path / "tensorboard", "loss") == [(1, 1.0), (2, 2.0)]


def test_same_records_give_the_same_bytes_in_whatever_batches_they_come(record, tmp_path):
    recorder = record()
    for step in range(1, 4):
        recorder.log(loss=float(step), step=step)
        deliver(tmp_path, log_dir=tmp_path / "piecewise")
    deliver(tmp_path, log_dir=tmp_path / "at once")
    one, other = (next((tmp_path / name).glob("*tfevents*")).read_bytes() for name in ("piecewise", "at once"))
    assert one == other


def test_other_settings_write_the_file_afresh(record, tmp_path):
    recorder = record()
    recorder.log(loss=1.0, step=1)
    deliver(tmp_path)
    deliver(tmp_path, samples_per_step=0)
    assert scalars(tmp_path / "tensorboard", "loss") == [(1, 1.0)]


def test_samples_of_a_step_are_shown_up_to_a_number_also_over_batches(record, tmp_path):
    recorder = record()
    for _ in range(2):
        recorder.samples(samples(3, lesson="sums"), 1)
        deliver(tmp_path, samples_per_step=4)
    recorder.samples(samples(2), 2)
    deliver(tmp_path, samples_per_step=4)
    shown = sorted(read(tmp_path / "tensorboard").Tags()["tensors"])
    assert shown == [*(f"samples/sums/{n}" for n in (1, 2, 3, 4)), "samples/train/1", "samples/train/2"]


def test_sample_reads_as_blocks_of_text_and_its_rewards(record, tmp_path):
    record().samples([{"prompt": "1+1?", "completion": "# 2\n\nok", "rewards": {"right": 1.0}, "advantage": 0.5}], 1)
    deliver(tmp_path)
    (text,) = texts(tmp_path / "tensorboard", "samples/train/1")
    blocks = "**prompt**\n\n    1+1?\n\n**completion**\n\n    # 2\n    \n    ok"
    assert text == f"{blocks}\n\n**rewards** right 1.0, advantage 0.5"


def test_rewards_of_samples_of_a_step_are_one_distribution_in_the_end(record, tmp_path):
    recorder = record()
    for count in (3, 5):
        recorder.samples(samples(count), 1)
        deliver(tmp_path)
    *_, last = read(tmp_path / "tensorboard").Histograms("rewards/right/histogram")
    assert (last.step, last.histogram_value.num, last.histogram_value.sum) == (1, 8, 3)


def test_rewards_recorded_by_themselves_are_shown_once_with_their_mean(record, tmp_path):
    recorder = record()
    recorder.rewards("right", [1.0, 0.0, None, float("nan"), 0.5], step=1)
    recorder.rewards("empty", [None], step=1)
    recorder.samples(samples(4), 1)
    deliver(tmp_path)
    (event,) = read(tmp_path / "tensorboard").Histograms("rewards/right/histogram")
    value = event.histogram_value
    assert (value.num, value.min, value.max, sum(value.bucket)) == (3, 0.0, 1.0, 3)
    assert scalars(tmp_path / "tensorboard", "rewards/right") == [(1, 0.5)]


def test_rewards_recorded_one_by_one_are_one_point_of_their_step(record, tmp_path):
    recorder = record()
    for value in (1.0, 0.0, 0.5):
        recorder.rewards("right", [value], step=1)
    deliver(tmp_path)
    assert scalars(tmp_path / "tensorboard", "rewards/right") == [(1, 0.5)]


def test_negative_number_of_samples_is_an_error():
    with pytest.raises(OptionError, match="samples_per_step=-1"):
        TensorboardSink(samples_per_step=-1)


def test_missing_package_is_an_error_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[tensorboard\]'"):
        TensorboardSink().check()


@pytest.fixture(params=["true", "false"], ids=["its data server", "its Python reader"])
def page(request, tmp_path):
    """Asks a running TensorBoard for data, until there is some."""
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(tmp_path),
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [*command, "--load_fast", request.param, "--samples_per_plugin", "scalars=9999"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/", line)))
        yield lambda path, **query: json.load(urlopen(f"{address}data/plugin/{path}?{urlencode(query)}"))
        process.terminate()
        process.stderr.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()  # TensorBoard may ignore the first signal while it reloads


def wait_for(ask, holds, seconds=120):
    deadline = time.monotonic() + seconds
    while not holds(answer := ask()):
        assert time.monotonic() < deadline, answer
        threading.Event().wait(0.1)
    return answer


@pytest.fixture
def resumed_run(record, tmp_path):
    recorder = record()
    for step in range(1, 2001):
        recorder.log({"loss": 1.0, "ü 🐟/x": step}, step=step)
    recorder.samples(samples(3), 5)
    recorder = record()
    recorder.resume(1000)
    for step in range(1001, 1501):
        recorder.log({"loss": 2.0, "ü 🐟/x": step}, step=step)
    deliver(tmp_path)


def test_running_tensorboard_shows_a_resumed_run_without_what_was_done_again(resumed_run, page):
    tags = wait_for(lambda: page("scalars/tags"), lambda tags: "loss" in tags.get("tensorboard", {}))
    assert set(tags["tensorboard"]) == {"loss", "ü 🐟/x"}
    losses = wait_for(
        lambda: page("scalars/scalars", run="tensorboard", tag="loss"), lambda rows: rows[-1:] and rows[-1][1] == 1500
    )
    assert [(step, value) for _, step, value in losses] == [(n, 1.0 + (n > 1000)) for n in range(1, 1501)]
    (text,) = page("text/text", run="tensorboard", tag="samples/train/2")
    assert "<code>c1\n</code>" in text["text"]
    ((_, step, buckets),) = page("histograms/histograms", run="tensorboard", tag="rewards/right/histogram")
    assert (step, sum(count for _, _, count in buckets)) == (5, 3)

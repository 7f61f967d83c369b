"""The hookline sink: a server ends up with identical journals, despite faults."""

import base64
import importlib.util
import json
import logging
import os
import random
import shutil

import pytest
from destinations.http_server import ANSWERS
from destinations.journal_server import TOKEN, JournalServer

import hookline as hl
import hookline.logging as hookline_logging
from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline._record import run_directory
from hookline._record.delivery import Delivery, Pace, sink_states
from hookline._record.delivery_manager import sync
from hookline._record.recorder import Recorder
from hookline._record.records import LogLine
from hookline._record.sink import make_sink
from hookline.server import limits, receive_api
from hookline.server.endpoint import WriteContext
from hookline.sinks import HooklineSink
from hookline.sinks.hookline import pieces, wire_name
from hookline.sinks.hookline_upload import MOST_FACTS_BYTES, MOST_PACKED_BYTES

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)


@pytest.fixture
def servers(tmp_path):
    """Makes servers, which end with the test."""
    made = []

    def server(name="received"):
        made.append(JournalServer(tmp_path / name))
        return made[-1]

    yield server
    for each in made:
        each.end()


@pytest.fixture
def server(servers, monkeypatch):
    monkeypatch.setenv("HOOKLINE_TOKEN", TOKEN)
    return servers()


@pytest.fixture
def deliver():
    """Starts deliveries by one round, which end with the test."""
    started = []

    def start(run_dir, sink, *, name="hookline"):
        started.append(Delivery(run_dir, name, sink, PACE))
        started[-1].round()
        return started[-1]

    yield start
    for delivery in started:
        finish(delivery)


@pytest.fixture
def run_dir(tmp_path):
    """A run that records, on another machine for all the server knows."""
    return run_directory.create(tmp_path / "runs", "sums", {"name": "sft", "project": "sums"}, run_id="a-run")


@pytest.fixture
def recorder(run_dir):
    recorder = Recorder(run_dir)
    yield recorder
    recorder.close()


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def finish(delivery):
    delivery.close(0)
    delivery.run()


def log_steps(recorder, *steps):
    for step in steps:
        recorder.log(loss=1.0 / step, step=step)


def rounds(delivery, most=50):
    """Rounds until everything is delivered."""
    for _ in range(most):
        delivery.round()
        if delivery.is_done():
            return
    raise AssertionError(delivery.progress)


def journals(run_dir):
    """The bytes of a run's journals by name, without the zeros that a segment in use has."""
    return {path.name: path.read_bytes().rstrip(b"\0") for path in (run_dir / "journal").glob("*.jsonl")}


def received(server, run="sums/a-run"):
    return server.root / run


def appends(server):
    return [line for line in server.passed if ".jsonl" in line]


def test_run_arrives_byte_for_byte(server):
    with hl.run("sft", project="sums", sinks=[{"hookline": {"url": server.url}}], summary=False) as run:
        for step in run.steps(30):
            run.log(loss=1.0 / (step + 1))
            run.log_samples([{"prompt": "2 + 2", "completion": "4", "rewards": {"exact": 1.0}}])
    there = received(server, f"sums/{run.dir.name}")
    assert [state.status for state in run.sinks()] == ["ok"]
    assert journals(there) == journals(run.dir)
    assert list(hl.read(there)) == list(hl.read(run.dir))
    assert (there / "run.json").read_bytes() == (run.dir / "run.json").read_bytes()


def test_settings_summary_and_notes_that_change_while_the_run_is_open_arrive(server, run_dir, recorder, deliver):
    delivery = deliver(run_dir, HooklineSink(server.url))
    run_directory.update(run_dir, "summary", ({"best": 0.9}, ()))
    run_directory.update(run_dir, "notes", "Better.")
    recorder.event("summary", values={"best": 0.9}, removed=[])
    delivery.round()
    received = json.loads((server.root / "sums" / "a-run" / "run.json").read_text())
    assert (received["summary"], received["notes"]) == ({"best": 0.9}, "Better.")


def test_what_was_not_committed_arrives_once(server, run_dir, recorder, deliver):
    (run_dir / "git.diff").write_text("+ a line\n")
    log_steps(recorder, 1)
    finish(deliver(run_dir, HooklineSink(server.url)))
    finish(deliver(run_dir, HooklineSink(server.url)))
    assert (received(server) / "git.diff").read_text() == "+ a line\n"
    assert sum("git.diff" in line for line in server.passed) == 1


def test_ids_are_those_of_the_server(server, tmp_path):
    sink = HooklineSink(server.url + "/")
    with hl.run("sft", project="sums", sinks=[sink], summary=False) as run:
        name = run.dir.name
        assert run.recording.sinks.ids() == {
            "hookline_project": "sums",
            "hookline_run": name,
            "hookline_url": f"{server.url}/#/charts?run=sums%2F{name}",
        }


def test_journals_of_several_ranks_and_sessions_arrive(server, run_dir, recorder, deliver):
    log_steps(recorder, 1, 2, 3)
    others = [Recorder(run_dir, name="rank1"), Recorder(run_dir, name="worker_0")]
    for other in others:
        log_steps(other, 1, 2)
    again = Recorder(run_dir)
    again.resume(2)
    log_steps(again, 3, 4)
    deliver(run_dir, HooklineSink(server.url))
    for each in (*others, again):
        each.close()
    assert journals(received(server)) == journals(run_dir)
    assert list(hl.read(received(server))) == list(hl.read(run_dir))
    assert len(journals(run_dir)) == 4


def test_damaged_line_between_records_does_not_stop_the_rest(server, run_dir, recorder, deliver):
    log_steps(recorder, 1)
    recorder.journal.append(b'{"kind":"metr')
    log_steps(recorder, 2)
    deliver(run_dir, HooklineSink(server.url))
    assert journals(received(server)) == journals(run_dir)


def test_hole_between_records_arrives_as_blanks_and_does_not_stop_the_rest(server, run_dir, recorder, deliver):
    log_steps(recorder, *range(1, 10))
    (file,) = (run_dir / "journal").glob("*.jsonl")
    data = file.read_bytes()
    ends = [place for place, byte in enumerate(data) if byte == 10]
    with file.open("r+b") as changed:
        os.pwrite(changed.fileno(), bytes(ends[5] - ends[2]), ends[2] + 1)
    rounds(deliver(run_dir, HooklineSink(url=server.url)))
    assert [record.step for record in hl.read(server.root / "sums" / "a-run")] == [1, 2, 3, 7, 8, 9]


def test_two_servers_get_the_same_run(servers, server, tmp_path):
    other = servers("elsewhere")
    with hl.run("sft", project="sums", sinks=[HooklineSink(server.url), HooklineSink(other.url)], summary=False) as run:
        for _ in run.steps(5):
            run.log(loss=1.0)
    assert [(state.name, state.status) for state in run.sinks()] == [("hookline", "ok"), ("hookline_2", "ok")]
    for each in (server, other):
        assert journals(received(each, f"sums/{run.dir.name}")) == journals(run.dir)


def test_run_without_a_description_arrives_under_its_name(server, tmp_path, deliver):
    with_none = tmp_path / "somewhere" / "bare run"
    recorder = Recorder(with_none)
    log_steps(recorder, 1, 2)
    finish(deliver(with_none, HooklineSink(server.url)))
    log_steps(recorder, 3)
    finish(deliver(with_none, HooklineSink(server.url)))
    recorder.close()
    assert list(hl.read(received(server, "default/bare run"))) == list(hl.read(with_none))
    assert [path.name for path in (server.root / "default").iterdir()] == ["bare run"]


def test_runs_of_one_name_from_several_machines_are_kept_apart(server, tmp_path, deliver):
    losses = {"a": 1.0, "b": 2.0, "c": 3.0}
    for _ in range(2):
        for machine, loss in losses.items():
            home = tmp_path / machine
            if not home.exists():
                run_directory.create(home, "sums", {"name": machine, "project": "sums"}, run_id="a-run")
            recorder = Recorder(home / "sums" / "a-run")
            recorder.log(loss=loss, step=1)
            finish(deliver(home / "sums" / "a-run", HooklineSink(server.url)))
            recorder.close()
    found = {path.name: path for path in (server.root / "sums").iterdir()}
    assert sorted(found) == ["a-run", "a-run-2", "a-run-3"]
    for machine, name in zip(losses, sorted(found), strict=True):
        assert journals(found[name]) == journals(tmp_path / machine / "sums" / "a-run")


def test_sink_with_other_settings_continues_with_the_same_run(server, run_dir, recorder, deliver):
    log_steps(recorder, 1, 2)
    finish(deliver(run_dir, HooklineSink(server.url)))
    sent = appends(server)
    deliver(run_dir, HooklineSink(server.url, timeout_seconds=20.0))
    assert (appends(server), len(list(server.root.glob("sums/*")))) == (sent, 1)


def test_server_down_at_the_start_gets_everything_later(server, run_dir, recorder, deliver):
    server.fail("unreachable")
    log_steps(recorder, 1, 2)
    delivery = deliver(run_dir, HooklineSink(server.url))
    assert (delivery.progress.status, delivery.progress.delivered) == ("lagging", 0)
    server.heal()
    rounds(delivery)
    assert journals(received(server)) == journals(run_dir)


def test_server_restarted_in_between_gets_the_rest(server, run_dir, recorder, deliver):
    delivery = deliver(run_dir, HooklineSink(server.url))
    for step in range(1, 5):
        log_steps(recorder, step)
        rounds(delivery)
        server.restart()
    assert journals(received(server)) == journals(run_dir)


@pytest.mark.parametrize("fault", ["half_closed", "truncated", "hanging", "error"])
def test_fault_in_the_middle_of_an_upload_leaves_every_line_once(server, fault, run_dir, recorder, deliver):
    log_steps(recorder, 1, 2)
    delivery = deliver(run_dir, HooklineSink(server.url, timeout_seconds=1.0))
    log_steps(recorder, 3, 4)
    server.fail(fault)
    delivery.round()
    assert delivery.progress.status == "lagging"
    server.heal()
    rounds(delivery)
    assert journals(received(server)) == journals(run_dir)


def test_answer_lost_after_the_bytes_were_taken_sends_nothing_twice(server, run_dir, recorder, deliver):
    log_steps(recorder, 1)
    delivery = deliver(run_dir, HooklineSink(server.url))
    log_steps(recorder, 2)
    server.fail("half_closed")
    delivery.round()
    server.heal()
    sent = appends(server)
    rounds(delivery)
    assert appends(server) == sent
    assert journals(received(server)) == journals(run_dir)


def test_server_that_lost_the_run_gets_everything_again(server, run_dir, recorder, deliver):
    other = Recorder(run_dir, name="rank1")
    log_steps(other, 1)
    other.close()
    log_steps(recorder, 1, 2)
    delivery = deliver(run_dir, HooklineSink(server.url))
    shutil.rmtree(received(server))
    log_steps(recorder, 3)
    rounds(delivery)
    assert journals(received(server)) == journals(run_dir)
    assert len(journals(run_dir)) == 2


def test_server_that_lost_one_file_or_the_end_of_one_gets_them_again(server, run_dir, deliver):
    writer = Recorder(run_dir, segment_bytes=4096)
    for step in range(1, 201):
        writer.log(loss=1.0 / step, text="x" * 40, step=step)
    writer.close()
    finish(deliver(run_dir, HooklineSink(server.url)))
    files = sorted((received(server) / "journal").iterdir())
    assert len(files) >= 4
    files[1].unlink()
    files[-1].write_bytes(files[-1].read_bytes()[:100])  # a piece of a line
    finish(deliver(run_dir, HooklineSink(server.url)))
    assert journals(received(server)) == journals(run_dir)


def test_server_that_holds_other_bytes_refuses_and_keeps_them(server, run_dir, tmp_path, deliver):
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    for directory, message in ((run_dir, "a"), (copy, "b")):
        line = {"kind": "log", "time": 1.0, "level": "INFO", "logger": "x", "message": message}
        (directory / "journal").mkdir()
        (directory / "lines").write_text(json.dumps(line) + "\n")
    late = deliver(copy, HooklineSink(server.url))  # hears that nothing is held
    for directory in (run_dir, copy):
        (directory / "lines").rename(directory / "journal" / "main-0000-1-abcdef-000000.jsonl")
    assert deliver(run_dir, HooklineSink(server.url)).progress.status == "ok"
    late.round()
    assert (late.progress.status, "has different bytes" in late.progress.error) == ("refused", True)
    assert journals(received(server)) == journals(run_dir)


def noise(size):
    """Text that hardly gets smaller when it is packed."""
    return base64.b64encode(random.Random(0).randbytes(size * 3 // 4)).decode()


def test_record_that_is_too_large_is_left_out_and_those_after_it_arrive(server, run_dir, recorder, deliver, caplog):
    log_steps(recorder, 1)
    recorder.event("table", step=1, rows=noise(12 << 20))
    log_steps(recorder, 2)
    delivery = deliver(run_dir, HooklineSink(server.url))
    assert (delivery.progress.status, delivery.is_done()) == ("ok", True)
    before, left_out, behind = hl.read(received(server))
    assert [before.step, behind.step] == [1, 2]
    sizes = {name: len(text) for name, text in journals(run_dir).items()}
    assert {name: len(text) for name, text in journals(received(server)).items()} == sizes
    assert (left_out.name, left_out.step) == ("left_out", 1)
    assert left_out.data == {"kind": "event", "name": "table", "bytes": max(sizes.values())}
    reported = [record.getMessage() for record in caplog.records if record.name == "hookline"]
    assert [f"{max(sizes.values()):,} bytes, is more than {server.url} accepts" in line for line in reported] == [True]


def test_metrics_beyond_the_limits_of_the_server_stay_in_the_run_and_the_rest_arrives(
    server, run_dir, recorder, deliver, monkeypatch, caplog
):
    monkeypatch.setattr(limits, "ROW_NAMES", 3)
    monkeypatch.setattr(limits, "RUN_NAMES", 4)
    recorder.log(loss=0.5, a=1.0, b=2.0, c=3.0, d=4.0, step=1)
    for step in (2, 3, 4):
        recorder.log({"loss": float("nan"), f"new {step}": "text"}, step=step)
    delivery = deliver(run_dir, HooklineSink(server.url))
    assert (delivery.progress.status, delivery.is_done()) == ("ok", True)
    there = [(record.step, list(record.values)) for record in hl.read(received(server))]
    assert there == [(1, ["loss", "a", "b"]), (2, ["loss", "new 2"]), (3, ["loss"]), (4, ["loss"])]
    sizes = {name: len(text) for name, text in journals(run_dir).items()}
    assert {name: len(text) for name, text in journals(received(server)).items()} == sizes
    assert [state.left_out for state in sink_states(run_dir)] == [4]
    reported = [record.getMessage().partition(".jsonl: ")[2].partition(" They")[0] for record in caplog.records]
    assert reported == [
        "A row has 5 metrics; at most 3 are accepted.",
        "The run has 4 metric names; no others are accepted.",
    ]


def test_metrics_that_were_left_out_are_left_out_again_after_a_lost_answer_and_a_restart(
    server, run_dir, recorder, deliver, monkeypatch
):
    monkeypatch.setattr(limits, "RUN_NAMES", 2)
    for step in (1, 2, 3):
        recorder.log({"loss": 1.0 / step, f"new {step}": 1.0}, step=step)
    first = deliver(run_dir, HooklineSink(server.url))
    finish(first)
    server.restart()
    (run_dir / "sinks" / "hookline.json").unlink()  # the server holds it all, and the sink knows nothing of it
    recorder.log({"loss": 0.25, "new 4": 1.0}, step=4)
    rounds(deliver(run_dir, HooklineSink(server.url)))
    names = [list(record.values) for record in hl.read(received(server))]
    assert names == [["loss", "new 1"], ["loss"], ["loss"], ["loss"]]


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_line_with_a_flipped_bit_costs_that_line_on_the_server(run_dir, recorder, server, deliver, bit, caplog):
    log_steps(recorder, 1, 2, 3)
    recorder.close()
    (file,) = (run_dir / "journal").glob("*.jsonl")
    data = bytearray(file.read_bytes())
    data[data.index(b"loss", data.index(b"\n"))] ^= bit  # with the highest one it is no UTF-8 any more
    file.write_bytes(data)
    rounds(deliver(run_dir, HooklineSink(server.url)))
    here, there = (list(hl.read(each, writer="main")) for each in (run_dir, received(server)))
    assert ([record.step for record in there], there) == ([1, 3], here)


def test_status_or_broken_line_that_is_too_large_is_left_out_but_the_word_is_kept(
    server, run_dir, recorder, deliver, monkeypatch
):
    monkeypatch.setattr("hookline.sinks.hookline_upload.MOST_PACKED_BYTES", 2000)
    monkeypatch.setattr("hookline.sinks.hookline.PIECE_BYTES", 1000)
    recorder.journal.append(b'{"kind":"metr' + noise(4000).encode())
    recorder.event("fits", text="a" * 4000)
    recorder.status("finished", rows=noise(4000))
    broken_line = next(run_dir.glob("journal/*.jsonl")).read_bytes().split(b"\n", 1)[0]
    deliver(run_dir, HooklineSink(server.url))
    fits, status = hl.read(run_dir)
    broken, same, word = hl.read(received(server), writer="main")
    assert (broken.name, broken.data) == ("left_out", {"kind": "unknown", "bytes": len(broken_line) + 1})
    assert (same, word.status, word.time) == (fits, "finished", status.time)
    assert word.data["left_out"]["kind"] == "status"


def test_limits_are_those_of_the_server():
    assert (MOST_PACKED_BYTES, MOST_FACTS_BYTES) == (limits.MAX_BODY_BYTES, receive_api.MAX_FACTS_BYTES)


def test_environment_arrives_with_the_run_and_changes_its_description(server):
    with hl.run("sft", project="sums", sinks=[HooklineSink(server.url)], summary=False) as run:
        run.log(loss=1.0, step=1)
    there = received(server, f"sums/{run.dir.name}")
    for name in ("environment.json", "run.json"):
        assert (there / name).read_bytes() == (run.dir / name).read_bytes()


def test_configuration_that_is_too_large_is_left_out_of_the_description(server, caplog):
    with hl.run(
        "sft", project="sums", config={"prompts": "x" * (5 << 20)}, sinks=[HooklineSink(server.url)], summary=False
    ) as run:
        run.log(loss=1.0, step=1)
    assert [state.status for state in run.sinks()] == ["ok"]
    homes = run.dir, received(server, f"sums/{run.dir.name}")
    here, there = (json.loads((home / "run.json").read_text()) for home in homes)
    size = len(json.dumps(here.pop("config")))
    assert there == here | {"left_out": {"config": size}}
    reported = [record.getMessage() for record in caplog.records if "run.json" in record.getMessage()]
    assert ["it is left out there" in line for line in reported] == [True]


@pytest.mark.parametrize("content", [b"secret-one\nsecret-two\n", b"", b"  \n", b"secret two", "sécret".encode()])
def test_token_file_that_holds_no_token_is_refused_and_never_repeated(
    server, content, run_dir, recorder, deliver, tmp_path, caplog
):
    path = tmp_path / "token"
    path.write_bytes(content)
    delivery = deliver(run_dir, HooklineSink(server.url, token_file=path))
    assert (delivery.progress.status, delivery.progress.error.startswith(f"{path} holds no token")) == ("refused", True)
    kept = caplog.text + (run_dir / "sinks" / "hookline.json").read_text()
    assert [word for word in ("cret", "two") if word in kept.replace(str(tmp_path), "")] == []
    path.write_text(TOKEN + "\n")
    rounds(delivery)
    assert delivery.progress.status == "ok"


def test_token_of_the_environment_that_changed_to_none_is_refused_and_never_repeated(
    server, run_dir, recorder, deliver, monkeypatch, caplog
):
    monkeypatch.setenv("HOOKLINE_TOKEN", "secret-one\nsecret-two")
    delivery = deliver(run_dir, HooklineSink(server.url))
    assert (delivery.progress.status, "cannot be sent" in delivery.progress.error) == ("refused", True)
    assert "secret" not in caplog.text + (run_dir / "sinks" / "hookline.json").read_text()


@pytest.mark.parametrize("code", [421, 418, 451])
def test_answer_that_this_is_not_accepted_is_reported_in_the_words_of_the_server(
    server, code, run_dir, recorder, deliver, monkeypatch
):
    monkeypatch.setitem(ANSWERS, "unwilling", code)
    server.fail("unwilling")
    delivery = deliver(run_dir, HooklineSink(server.url))
    assert delivery.progress.status == "refused"
    assert f"answers {code}" in delivery.progress.error
    assert "to sums/a-run: " in delivery.progress.error
    assert "skip_rejected" not in delivery.progress.error


def test_requests_that_are_logged_are_not_recorded_and_delivered_in_turn(server, deliver, caplog):
    caplog.set_level(logging.INFO, "httpx")  # which other libraries turn down
    with hl.run("sft", project="sums", summary=False) as run:
        hookline_logging.initialize({"version": 1, "root": {"level": "INFO"}}, run=run)
        try:
            delivery = deliver(run.dir, HooklineSink(server.url))
            logging.getLogger("httpx").info("HTTP is mine, too")
            rounds(delivery)
        finally:
            hookline_logging.shutdown()
        assert delivery.is_done()
    lines = [each.message for each in hl.read(run.dir) if isinstance(each, LogLine)]
    assert [line for line in lines if "HTTP" in line] == ["HTTP is mine, too"]


def test_wrong_token_is_an_error_at_the_start_that_says_what_to_do(server, tmp_path):
    sink = HooklineSink(server.url, token="some-other-token-of-somebody")
    with pytest.raises(RefusedError, match="401 Unauthorized. Give the write token of its `hookline serve`"):
        hl.run("sft", sinks=[sink], summary=False).__enter__()


def test_address_of_something_else_is_an_error_at_the_start(server, tmp_path):
    server.fail("missing")
    with pytest.raises(RefusedError, match="404 Not Found. Check the address"):
        hl.run("sft", sinks=[HooklineSink(server.url)], summary=False).__enter__()


def test_busy_server_is_left_alone_as_long_as_it_asks(server, run_dir, recorder, deliver):
    sink = HooklineSink(server.url)
    sink.clock = clock = Clock()
    server.retry_after = "30"
    server.fail("busy")
    delivery = deliver(run_dir, sink)
    server.heal()
    server.retry_after = ""
    asked = list(server.passed)
    delivery.round()
    assert (server.passed, delivery.progress.status) == (asked, "lagging")
    clock.now += 30
    rounds(delivery)
    assert delivery.progress.status == "ok"


def test_beats_come_at_the_start_and_every_five_seconds_in_which_nothing_else_was_sent(
    server, run_dir, recorder, deliver
):
    sink = HooklineSink(server.url)
    sink.clock = clock = Clock()
    delivery = deliver(run_dir, sink)
    beaten = []
    for second in range(1, 21):
        clock.now += 1
        if second == 8:
            log_steps(recorder, 1)
        delivery.round()
        beaten.append(sum("/beat" in line for line in server.passed))
    assert beaten == [1] * 4 + [2] * 8 + [3] * 5 + [4] * 3
    assert json.loads((received(server) / "received.json").read_text())["every_seconds"] == 5.0


@pytest.mark.parametrize(("wanted", "beats"), [(20.0, 3), (1e9, 1), (0.1, 9)])
def test_beats_come_as_seldom_as_a_server_with_many_runs_wants(wanted, beats, server, run_dir, deliver, monkeypatch):
    monkeypatch.setattr(WriteContext, "beat_seconds", lambda self, name, every: wanted)
    sink = HooklineSink(server.url, control=False)
    sink.clock = clock = Clock()
    delivery = deliver(run_dir, sink)
    for _ in range(40):
        clock.now += 1
        delivery.round()
    assert sum("/beat" in line for line in server.passed) == beats


def test_sync_delivers_what_a_run_left_behind(server, run_dir, recorder, deliver):
    server.fail("unreachable")
    log_steps(recorder, *range(1, 11))
    finish(deliver(run_dir, HooklineSink(server.url)))
    recorder.close()
    server.heal()
    (state,) = sync(run_dir, seconds=30, pace=PACE)
    assert (state.status, state.behind_bytes) == ("ok", 0)
    assert journals(received(server)) == journals(run_dir)
    assert [record.status for record in hl.read(received(server)) if record.__struct_config__.tag == "status"] == [
        "failed"
    ]


@pytest.mark.parametrize("lost", ["the run", "the end of its journal", "nothing"])
def test_sync_that_repairs_sends_again_what_the_server_lost_of_a_run_that_was_delivered(
    lost, server, run_dir, recorder, deliver
):
    log_steps(recorder, *range(1, 11))
    recorder.status("finished", step=10)
    recorder.close()
    finish(deliver(run_dir, HooklineSink(server.url)))
    (journal,) = (received(server) / "journal").iterdir()
    whole = journal.stat().st_size
    kept = {"the run": 0, "the end of its journal": len(journal.read_bytes().splitlines(keepends=True)[0])}.get(
        lost, whole
    )
    journal.write_bytes(journal.read_bytes()[:kept])
    if lost == "the run":
        shutil.rmtree(received(server))
    (left,), (repaired,) = (sync(run_dir, seconds=30, repair=repair, pace=PACE) for repair in (False, True))
    assert (left.sent_again_bytes, repaired.sent_again_bytes, repaired.status) == (0, whole - kept, "ok")
    assert journals(received(server)) == journals(run_dir)


def test_literal_token_is_written_down_nowhere(server, tmp_path, monkeypatch):
    sink = HooklineSink(server.url, token=TOKEN)
    with hl.run("sft", sinks=[sink], root=tmp_path / "runs", summary=False) as run:
        run.log(loss=1.0, step=1)
    kept = [path for folder in (tmp_path / "runs", server.root) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in kept if TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN not in repr(sink)
    assert sink.spec() == {"use": "hookline", "with": {"url": server.url}}


def test_token_of_a_file_or_of_the_environment_is_named_in_the_spec(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    of_file = HooklineSink("http://host:1", token_file=tmp_path / "token").spec()
    named = HooklineSink("http://host:1", token="${MY_TOKEN}").spec()
    assert of_file["with"] == {"url": "http://host:1", "token_file": str(tmp_path / "token")}
    assert named["with"] == {"url": "http://host:1", "token": "${MY_TOKEN}"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "host:8765"}, "give an address"),
        ({"url": "http://me:secret@host"}, "password"),
        ({"url": "http://host", "token": "a b"}, "token: it is empty, or has spaces"),
        ({"url": "http://host", "token": ""}, "token: it is empty"),
        ({"url": "http://host", "token": "abc", "token_file": "file"}, "give one of them"),
        ({"url": "http://host", "timeout_seconds": 0}, "timeout_seconds=0"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_it_is_made(settings, said):
    with pytest.raises(OptionError, match=said):
        HooklineSink(**settings)


def test_token_that_is_nowhere_is_an_error_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.delenv("HOOKLINE_TOKEN", raising=False)
    with pytest.raises(RefusedError, match="export HOOKLINE_TOKEN"):
        hl.run("sft", sinks=[HooklineSink("http://127.0.0.1:9")], root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_httpx_missing_names_the_extra(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "httpx" else found(name))
    with pytest.raises(MissingExtraError, match=r"hookline\[status\]"):
        HooklineSink("http://host").check()


def test_configuration_makes_the_sink(tmp_path):
    sink = make_sink({"hookline": {"url": "http://host:8765/", "token": "${HOOKLINE_TOKEN}"}})
    assert (type(sink), sink.url) == (HooklineSink, "http://host:8765")  # type: ignore[attr-defined]


def test_pieces_are_whole_lines_up_to_a_size_and_to_the_end_that_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.sinks.hookline.PIECE_BYTES", 10)
    path = tmp_path / "file"
    path.write_bytes(b"aaa\nbbb\nccc\na long line of its own\nd\ne\ntorn")
    assert list(pieces(path, 4)) == [(4, b"bbb\nccc\n"), (12, b"a long line of its own\n"), (35, b"d\ne\n")]
    assert list(pieces(path, 0, 8)) == [(0, b"aaa\nbbb\n")]
    assert list(pieces(path, 39)) == []


@pytest.mark.parametrize("name", ["a-run", "lr=0.1 café", "v1.2_x"])
def test_name_that_the_server_takes_is_kept(name):
    assert wire_name(name) == name


def test_names_that_the_server_does_not_take_become_different_ones_that_it_takes(server, tmp_path, deliver):
    odd = ["a\\b", ".hidden", "..", "tab\there", " x", "cafe\u0301", "café", "n" * 400, "n" * 401, "ü" * 200, "\ud800"]
    odd.append("a\ufffdb")
    assert len({wire_name(name) for name in odd}) == len(odd)
    for number, name in enumerate(odd):
        run_dir = run_directory.create(tmp_path / "runs", "p", {"project": name, "git": None}, run_id=f"run-{number}")
        recorder = Recorder(run_dir)
        log_steps(recorder, 1)
        recorder.close()
        assert deliver(run_dir, HooklineSink(server.url)).progress.status == "ok"
    assert len(list(server.root.glob("*/*/run.json"))) == len(odd)

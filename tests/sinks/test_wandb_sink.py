"""What a W&B run holds, as wandb writes it down without a network, and as it sends it to a server on loopback."""

import importlib.util
import json
import logging
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import wandb
from destinations.wandb import end_wandb
from wandb.errors import term

from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline._record.delivery import Delivery
from hookline._record.reader import JournalEntry
from hookline._record.recorder import Recorder
from hookline._record.records import Metrics, Sample
from hookline._record.segment import JournalFile
from hookline.sinks import WandbSink, wandb_run
from hookline.sinks.wandb_run import RowNumbers, WandbFile

KEY = "k" * 40


@pytest.fixture(autouse=True)
def wandb_alone(monkeypatch, tmp_path):
    """wandb with no settings but those of a test, and no process of its own left behind."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NETRC", str(tmp_path / "no netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    end_wandb()
    yield
    end_wandb()


@pytest.fixture
def record(tmp_path):
    """Opens a writer of the run, once."""
    opened = {}

    def writer(name="main"):
        if name not in opened:
            opened[name] = Recorder(tmp_path, name=name)
        return opened[name]

    yield writer
    for recorder in opened.values():
        recorder.close()


def deliver(run_dir, **settings):
    delivery = Delivery(run_dir, "wandb", WandbSink(**({"mode": "offline"} | settings)))
    delivery.round()
    delivery.close(0)
    delivery.run()
    assert delivery.progress.status == "ok", delivery.progress.error
    return delivery


def records(run_dir, kind):
    """The records of a kind that wandb wrote down, in order."""
    files = sorted(run_dir.glob("wandb/*run-*/*.wandb"), key=lambda file: file.stat().st_ctime_ns)
    found = [record for file in files for record in WandbFile(file).new()]
    return [getattr(record, kind) for record in found if record.HasField(kind)]


def rows(run_dir):
    return [values(row) for row in records(run_dir, "history")]


def values(row):
    """The values of a row without wandb's own; of what is more than a number, its parts."""
    items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item}
    return {name: value for name, value in items.items() if not name.startswith("_")}


def tables(run_dir):
    return [json.loads(file.read_text()) for file in run_dir.glob("wandb/*run-*/files/media/table/**/*.json")]


def test_values_of_every_axis_and_writer_are_shown_over_their_own_steps(record, tmp_path):
    record().log({"loss": 0.5, "good": True, "none": None, "note": "x"}, step=10)
    record().log({"val/loss": 0.7}, step=10, axis="eval")
    record().log({"speed": 2.0, "rollout/length": 7}, step=3, axis="rollout")
    record("rank1").log({"loss": 0.6}, step=9)
    deliver(tmp_path)
    assert rows(tmp_path) == [
        {"loss": 0.5, "good": 1, "note": "x", "train/step": 10},
        {"val/loss": 0.7, "train/step": 10},
        {"rollout/speed": 2.0, "rollout/length": 7, "rollout/step": 3},
        {"rank1/loss": 0.6, "train/step": 9},
    ]
    shown = {metric.name: metric.step_metric for metric in records(tmp_path, "metric")}
    assert {shown[name] for name in ("loss", "val/loss", "rank1/loss", "note")} == {"train/step"}
    assert {shown[name] for name in ("rollout/speed", "rollout/length")} == {"rollout/step"}


def test_names_that_wandb_has_no_charts_for_do_no_harm(record, tmp_path):
    record().log({"a*b": 1.0, "*": 2.0, "_hidden": 3.0, "ü 🐟.x": 5.0}, step=1)
    deliver(tmp_path)
    assert rows(tmp_path) == [{"a*b": 1.0, "*": 2.0, "ü 🐟.x": 5.0, "train/step": 1}]


def test_row_has_the_time_of_its_record(tmp_path):
    recorder = Recorder(tmp_path, clock=lambda: 1234.5)
    recorder.log(loss=1.0, step=1)
    recorder.close()
    deliver(tmp_path)
    (row,) = records(tmp_path, "history")
    assert [item.value_json for item in row.item if item.key == "_timestamp" or item.nested_key == ["_timestamp"]] == [
        "1234.5"
    ]


def test_run_is_described_by_what_is_known_of_it(record, tmp_path):
    facts = {"id": "2026-brave-otter", "project": "sums", "config": {"lr": 0.1}, "command": ["train.py", "--fast"]}
    facts["tags"] = ["nightly", "fast", "x" * 65]  # the last is too long for W&B
    (tmp_path / "run.json").write_text(json.dumps(facts))
    record().log(loss=1.0, step=1)
    delivery = deliver(tmp_path, tags=("fast",), group="arms", entity="me")
    (run,) = records(tmp_path, "run")
    assert (run.project, run.entity, run.display_name) == ("sums", "me", "2026-brave-otter")
    assert (run.run_group, list(run.tags)) == ("arms", ["fast", "nightly"])
    assert run.run_id == delivery.progress.state["id"] != "2026-brave-otter"
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["lr"], config["hookline"]["command"]) == (0.1, "train.py --fast")


def test_settings_summary_and_notes_that_a_user_sets_are_those_of_the_wandb_run(record, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"id": "r", "config": {"lr": 0.1}, "notes": "Why."}))
    record().event("hyperparameters", values={"lr": 0.2, "gpus": 8})
    record().event("summary", values={"best": 0.9}, removed=[])
    record().event("notes", text="Why not.")
    record().log(loss=1.0, step=1)
    deliver(tmp_path)
    wandb.teardown()  # its process finishes the file on its own time
    runs = records(tmp_path, "run")
    updates = [update for config in records(tmp_path, "config") for update in config.update]
    assert [runs[0].notes, runs[-1].notes] == ["Why.", "Why not."]
    assert {item.key: json.loads(item.value_json) for item in updates}.items() >= {"lr": 0.2, "gpus": 8}.items()
    summary = [update for each in records(tmp_path, "summary") for update in each.update]
    assert [item.value_json for item in summary if item.key == "best" or item.nested_key == ["best"]][-1] == "0.9"


def test_settings_win_over_what_is_known_of_the_run(record, tmp_path):
    record().log(loss=1.0, step=1)
    deliver(tmp_path, project="other", id="mine", run_name="my run", directory=tmp_path / "elsewhere")
    (run,) = records(tmp_path / "elsewhere", "run")
    assert (run.project, run.run_id, run.display_name) == ("other", "mine", "my run")


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("stopped", 0), ("failed", 1)])
def test_end_of_the_run_is_reported_to_wandb(record, tmp_path, status, code):
    record().status("running", step=1)
    record().status(status, step=1)
    deliver(tmp_path)
    wandb.teardown()  # its process finishes the file on its own time
    assert [end.exit_code for end in records(tmp_path, "exit")] == [code]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([("main", "failed"), ("rank1", "heartbeat"), ("main", "heartbeat")], 1),
        ([("main", "finished"), ("rank1", "failed")], 0),
        ([("main", "running"), ("courier", "failed")], 1),
    ],
)
def test_end_reported_to_wandb_is_the_status_of_the_main_writer(record, tmp_path, said, code):
    for writer, status in said:
        record(writer).status(status, step=1)
    deliver(tmp_path)
    wandb.teardown()  # its process finishes the file on its own time
    assert [end.exit_code for end in records(tmp_path, "exit")] == [code]


def test_end_of_a_dead_run_stays_failed_when_older_words_come_later(tmp_path):
    for name, word, when in (("courier", "failed", 20.0), ("main", "running", 10.0)):
        recorder = Recorder(tmp_path, name=name, clock=lambda when=when: when)
        recorder.status(word)
        recorder.close()
        delivery = deliver(tmp_path)
    assert (delivery.progress.state["failed"], delivery.progress.state["status_time"]) == (True, 20.0)


def test_every_start_continues_the_same_run(record, tmp_path):
    for step in (1, 2):
        record().log(loss=float(step), step=step)
        deliver(tmp_path)
    assert len({run.run_id for run in records(tmp_path, "run")}) == 1
    assert [row.step.num for row in records(tmp_path, "history")] == [0, 1]


def test_rewards_are_a_mean_and_a_distribution(record, tmp_path):
    record().rewards("right", [1.0, 0.0, None, float("nan"), 0.5], step=1)
    record().rewards("empty", [None], step=1)
    deliver(tmp_path)
    (row,) = rows(tmp_path)
    assert row["rewards/right"] == 0.5
    assert (row["rewards/right/histogram/_type"], sum(row["rewards/right/histogram/values"])) == ("histogram", 3)


def test_samples_of_a_batch_are_a_table_with_some_of_each_step(record, tmp_path):
    for step in (1, 2):
        record().samples([{"prompt": "p", "completion": f"c{n}", "rewards": {"right": n}} for n in range(5)], step)
    record().log(loss=1.0, step=2)
    deliver(tmp_path, samples_per_step=2)
    (table,) = tables(tmp_path)
    assert table["columns"] == ["step", "prompt", "completion", "rewards/right"]
    assert table["data"] == [[step, "p", f"c{n}", n] for step in (1, 2) for n in range(2)]
    assert [row["train/step"] for row in rows(tmp_path)] == [2, 2]


def test_samples_that_are_not_wanted_are_left_out(record, tmp_path):
    record().samples([{"prompt": "p", "completion": "c"}], 1)
    deliver(tmp_path, samples_per_step=0)
    assert (tables(tmp_path), rows(tmp_path)) == ([], [])


def test_disabled_wandb_takes_everything_and_writes_nothing(record, tmp_path):
    record().log(loss=1.0, step=1)
    deliver(tmp_path, mode="disabled")
    assert not (tmp_path / "wandb").exists()


def entry(writer, end, record=None):
    return JournalEntry(record or Metrics(step=end, values={}), JournalFile(None, writer, 1, f"{writer}-1", 1), end, 1)


def test_batch_that_comes_again_in_another_order_gets_the_same_numbers(tmp_path):
    first = [entry("main", 1), entry("main", 2), entry("rank1", 1), entry("rank1", 2)]
    RowNumbers(tmp_path / "rows", 7).assign(first)
    again = [entry("main", 1), entry("main", 2), entry("main", 3), entry("rank1", 1), entry("rank1", 2)]
    numbered = RowNumbers(tmp_path / "rows", 7).assign(again)
    assert [(number, each.id) for number, (each,) in numbered] == [
        *((7 + place, each.id) for place, each in enumerate(first)),
        (11, "main-1-1-3"),
    ]


def test_numbers_only_rise_even_if_a_part_of_a_batch_comes_late(tmp_path):
    RowNumbers(tmp_path / "rows", 0).assign([entry("main", 1), entry("rank1", 1)])
    numbers = RowNumbers(tmp_path / "rows", 0)
    given = []
    for batch in ([entry("main", 1), entry("main", 2)], [entry("rank1", 1)]):
        given += numbers.assign(batch)
        numbers.next = given[-1][0] + 1
    assert [(number, each.id) for number, (each,) in given] == [
        (0, "main-1-1-1"),
        (2, "main-1-1-2"),
        (3, "rank1-1-1-1"),
    ]


def test_table_that_comes_again_with_more_samples_keeps_its_number(tmp_path):
    samples = [entry("main", end, Sample(step=1)) for end in (1, 2, 3)]
    RowNumbers(tmp_path / "rows", 0).assign(samples[:2])
    numbered = RowNumbers(tmp_path / "rows", 0).assign(samples)
    assert [(number, len(row)) for number, row in numbered] == [(0, 2), (1, 1)]


def test_ways_in_which_the_process_ends_are_left_as_they_were(tmp_path):
    before = sys.exit, sys.excepthook, signal.getsignal(signal.SIGINT), wandb.run
    sink = WandbSink(mode="offline")
    sink.open(tmp_path, None)
    sink.close()
    assert (sys.exit, sys.excepthook, signal.getsignal(signal.SIGINT), wandb.run) == before


def test_run_of_the_users_own_in_the_same_process_is_left_alone(record, tmp_path):
    with wandb.init(mode="offline", dir=tmp_path / "own", settings=wandb.Settings(silent=True)) as own:
        record().log(loss=1.0, step=1)
        deliver(tmp_path)
        own.log({"mine": 1})
    wandb.teardown()  # its process finishes the files on its own time
    assert rows(tmp_path / "own") == [{"mine": 1}]
    assert rows(tmp_path) == [{"loss": 1.0, "train/step": 1}]


TRAINING = """
import os, signal, sys
import hookline as hl

with hl.run("t", root=sys.argv[1], sinks=[{"wandb": {"mode": "offline"}}], delivery=sys.argv[2], summary=False) as run:
    for step in run.steps(1000):
        run.log(loss=step)
        if step == 99:
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("delivery", ["thread", "process"])
def test_training_that_is_interrupted_ends_at_once_and_its_rows_arrive(tmp_path, delivery):
    command = [sys.executable, "-c", TRAINING, str(tmp_path), delivery]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    (run_dir,) = tmp_path.glob("default/*")
    assert [row["train/step"] for row in rows(run_dir)] == list(range(1, 101)), result.stderr
    assert "wandb" not in result.stdout + result.stderr


class Server(ThreadingHTTPServer):
    """As much of W&B's server as wandb needs: runs with rows, and files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.rows, self.asked = 200, [], []
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A process that was ended while it was connected is no error."""

    def stop(self):
        self.shutdown()
        self.server_close()

    def answer(self, operation, variables):
        self.asked.append(operation)
        project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}
        bucket = {"id": "b", "name": variables.get("name"), "displayName": "d", "config": "{}", "project": project}
        if operation == "RunResumeStatus":
            return {"model": project | {"bucket": bucket | self.history() if self.rows else None}}
        if operation == "UpsertBucket":
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.address}/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}

    def history(self):
        lines = {"historyLineCount": len(self.rows), "logLineCount": 0, "eventsLineCount": 0}
        tail = json.dumps([json.dumps(self.rows[-1])])
        return lines | {"historyTail": tail, "eventsTail": "[]", "summaryMetrics": "{}", "wandbConfig": '{"t": 1}'}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        answer = {}
        if self.path == "/graphql":
            query = json.loads(body)
            operation = re.search(r"(?:query|mutation)\s+(\w+)", query["query"])[1]  # type: ignore[index]
            answer = {"data": self.server.answer(operation, query.get("variables") or {})}  # type: ignore[attr-defined]
        elif self.path.endswith("/file_stream"):
            lines = json.loads(body).get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            self.server.rows += [json.loads(line) for line in lines]  # type: ignore[attr-defined]
        data = json.dumps(answer).encode()
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    server = Server()
    monkeypatch.setenv("WANDB_BASE_URL", server.address)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield server
    server.stop()


def test_rows_reach_the_server_once_when_a_batch_comes_again(server, record, tmp_path):
    for step in (1, 2):
        record().log(loss=float(step), step=step)
    before = deliver(tmp_path, mode="online").progress.path.read_text()
    record().log(loss=3.0, step=3)
    delivery = deliver(tmp_path, mode="online")
    delivery.progress.path.write_text(before)  # as if the process had died before it was saved
    record().log(loss=4.0, step=4)
    deliver(tmp_path, mode="online")
    assert [(row["_step"], row["loss"]) for row in server.rows] == [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]


def test_key_that_the_server_does_not_know_is_refused_with_the_fix(server, tmp_path):
    server.status = 401
    with pytest.raises(RefusedError, match="401.*wandb login.*WANDB_API_KEY.*mode='offline'"):
        WandbSink(mode="online").open(tmp_path, None)


def test_sink_that_was_refused_opens_once_the_server_accepts_it(server, tmp_path):
    sink = WandbSink(mode="online")
    server.status = 403
    with pytest.raises(RefusedError):
        sink.open(tmp_path, None)
    server.status = 200
    assert sink.open(tmp_path, None)["rows"] == 0
    sink.close()


def test_server_that_cannot_be_reached_is_a_fault_that_may_pass(server, tmp_path, monkeypatch):
    monkeypatch.setitem(wandb_run._QUIET, "init_timeout", 0.5)
    server.stop()
    with pytest.raises(wandb.errors.CommError):
        WandbSink(mode="online").open(tmp_path, None)


def test_missing_key_is_refused_without_a_question_at_the_terminal(server, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setattr(term, "can_use_terminput", lambda: True)
    monkeypatch.setattr(term, "terminput", lambda *args, **options: pytest.fail("it asked"))
    with pytest.raises(RefusedError, match=f"no API key for {server.address}.*wandb login"):
        WandbSink(mode="online").open(tmp_path, None)


def test_server_that_is_gone_at_the_end_holds_nobody_up(server, record, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(wandb_run._QUIET, "finish_timeout", 0.5)
    record().log(loss=1.0, step=1)
    delivery = Delivery(tmp_path, "wandb", WandbSink(mode="online"))
    delivery.round()
    server.stop()
    with caplog.at_level(logging.WARNING, logger="hookline"):
        delivery.close(0)
        delivery.run()
    (place,) = tmp_path.glob("wandb/run-*")
    assert f"wandb sync {place}" in caplog.text
    assert rows(tmp_path) == [{"loss": 1.0, "train/step": 1}]


@pytest.mark.parametrize(
    ("settings", "said"), [({"mode": "ofline"}, "Did you mean 'offline'"), ({"samples_per_step": -1}, "of at least 0")]
)
def test_settings_that_cannot_be_are_errors(settings, said):
    with pytest.raises(OptionError, match=said):
        WandbSink(**settings)


@pytest.mark.parametrize("settings", [{"project": "a/b"}, {"id": "a:b"}, {"tags": ("x" * 100,)}])
def test_settings_that_wandb_does_not_accept_are_refused(settings, tmp_path):
    with pytest.raises(RefusedError, match="Change the sink's settings"):
        WandbSink(mode="offline", **settings).open(tmp_path, None)


def test_missing_package_is_an_error_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[wandb\]'"):
        WandbSink().check()

"""Status messages of programs that know nothing of hookline: each kind becomes records of an ordinary run."""

import json
import shutil

import pytest
from sending import ORIGIN, WRITE, ask, claim, tree

import hookline as hl
from hookline._record.reader import JournalEntry
from hookline._record.records import Event, Metrics, Status
from hookline._record.segment import JournalFile
from hookline.server import status_runs
from hookline.server.received_runs import ReceivedRuns
from hookline.server.root_tokens import Tokens
from hookline.server.status_runs import StatusRuns
from hookline.sinks.run_progress import RunMetadata, RunProgress
from hookline.sinks.status import FORMATS, Message


@pytest.fixture
def monitor(root, serve):
    return serve(root, tokens=Tokens(WRITE))


def post(server, *messages, headers=None, **query):
    body = "\n".join(message if isinstance(message, str) else json.dumps(message) for message in messages)
    return ask(server, "POST", "/api/status", body=body, headers=headers, **query)


def recorded(root, run="status/night"):
    """The records of a run, without their times."""
    records = list(hl.read(root / run))
    assert all(record.time > 0 for record in records)
    for record in records:
        record.time = 0.0
    return records


def test_plain_messages_become_a_run_with_its_progress(root, monitor):
    first = {"run": "night", "status": "running", "step": 3, "max_step": 10, "metrics": {"loss": 0.5}}
    assert post(monitor, first).facts == (200, {"project": "status", "run": "night", "records": 2})
    post(monitor, {"step": 6, "metrics": {"loss": float("nan"), "val": {"acc": 1}}}, run="night")
    post(monitor, {"run": "night", "status": "done", "message": "all well"})
    [run] = hl.runs(root)
    assert (run.id, run.status, run.message) == ("status/night", "finished", "all well")
    assert (run.step, run.num_steps, run.metrics["val/acc"]) == (6, 10, 1)
    assert [type(record).__name__ for record in recorded(root)] == ["Status", "Metrics", "Metrics", "Status"]


def test_tao_lines_become_statuses_and_metrics(root, monitor):
    lines = [
        {"date": "11/15/2026", "time": "1:2:3", "status": "STARTED", "verbosity": "INFO", "message": "Starting."},
        {"status": "RUNNING", "verbosity": "INFO", "graphical": {"loss": 0.5}, "step": 1, "max_step": 4, "epoch": 1},
        {"status": "RUNNING", "verbosity": "INFO", "kpi": {"val_acc": 0.9}, "step": 1, "max_step": 4},
        {"status": "FAILURE", "verbosity": "ERROR", "message": "no memory"},
    ]
    assert post(monitor, *lines, run="night", project="tao").status == 200
    reported = [
        (type(record).__name__, getattr(record, "status", None) or record.values)
        for record in recorded(root, "tao/night")
    ]
    assert reported == [
        ("Status", "running"),
        ("Status", "running"),
        ("Metrics", {"loss": 0.5}),
        ("Metrics", {"val_acc": 0.9}),
        ("Status", "failed"),
    ]
    [run] = hl.runs(root)
    assert (run.status, run.message, run.num_steps) == ("failed", "no memory", 4)


def test_trainer_status_of_kubeflow_becomes_progress_and_metrics(root, monitor):
    metrics = [{"name": "currentStep", "value": "40"}, {"name": "totalSteps", "value": "80"}]
    metrics += [{"name": "loss", "value": "0.25"}, {"name": "mode", "value": "fast"}]
    reported = {"progressPercentage": 50, "metrics": metrics, "lastUpdatedTime": "2026-11-15T12:00:00Z"}
    assert post(monitor, {"trainerStatus": reported}, run="job").status == 200
    [run] = hl.runs(root)
    assert (run.step, run.num_steps, run.metrics) == (40, 80, {"loss": 0.25, "mode": "fast"})
    post(monitor, {"trainerStatus": {"progressPercentage": 100}}, run="job")
    assert hl.runs(root).latest().status == "finished"


@pytest.mark.parametrize(
    "path",
    [
        "api/status?project=jobs&run=finetune",
        "apis/trainer.kubeflow.org/v1alpha1/namespaces/jobs/trainjobs/finetune/status",
    ],
    ids=["status", "trainjob"],
)
def test_trainer_of_hugging_face_in_a_trainjob_reports_to_the_server_by_itself(
    root, monitor, tmp_path, monkeypatch, path
):
    transformers = pytest.importorskip("transformers")
    import torch
    from transformers.integrations import KubeflowCallback

    (tmp_path / "token").write_text(f"{WRITE}\n")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"{monitor.url}{path}")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
    monkeypatch.setattr(KubeflowCallback, "_MIN_UPDATE_INTERVAL", 0.0)  # it reports every five seconds

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return {"loss": ((self.weight - x) ** 2).mean()}

    options = {"output_dir": str(tmp_path / "out"), "report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(max_steps=4, logging_steps=2, save_strategy="no", **options)
    data = [{"x": torch.ones(1)} for _ in range(8)]
    transformers.Trainer(Model(), arguments, train_dataset=data).train()
    [run] = hl.runs(root)
    assert (run.id, run.status, run.step, run.num_steps) == ("jobs/finetune", "finished", 4, 4)
    found = [record for record in recorded(root, "jobs/finetune") if isinstance(record, Metrics)]
    assert [record.step for record in found] == [1, 2, 3, 4, 4]
    assert {"loss", "learning_rate", "grad_norm", "epoch"} <= found[-2].values.keys()
    assert all(isinstance(value, float) for value in found[-2].values.values())


RECORDS = [
    Status(time=1000.0, status="running", step=0, data={"num_steps": 10}),
    Metrics(time=1001.0, step=1, values={"loss": 0.5}),
    Metrics(time=1001.5, step=1, axis="eval", values={"val/loss": 0.7}),
    Event(time=1002.0, name="checkpoint", step=1, data={"path": "x"}),
    None,
    Status(time=1003.0, status="finished", step=2, message="done"),
]


@pytest.mark.parametrize("dialect", list(FORMATS))
def test_what_the_status_sink_posts_is_understood_in_each_format(root, monitor, dialect):
    standing, sender = RunProgress(), RunMetadata("night", "night", "lab")
    for number, record in enumerate(RECORDS):
        if record is not None:
            standing.add(JournalEntry(record, JournalFile(root, "main", 0, "main-0000-1-abc", 0), 0, 0))
        payload = FORMATS[dialect](Message(str(number), 1000.0 + number, record, standing, sender, ""))
        if payload is not None:
            assert post(monitor, payload, run="night", project="lab").status == 200
    [run] = hl.runs(root)
    assert (run.id, run.status, run.num_steps, run.step) == ("lab/night", "finished", 10, 2)
    assert {"loss": 0.5, "val/loss": 0.7}.items() <= run.metrics.items()


def test_message_with_the_same_key_is_kept_once(root, monitor):
    for _ in range(3):
        answer = post(monitor, {"run": "night", "metrics": {"a": 1}}, headers={"Idempotency-Key": "k1"})
        assert answer.json["records"] == 1
    assert len(recorded(root)) == 1


def test_heartbeats_that_say_nothing_new_record_no_metrics_again(root, monitor):
    alive = {"kind": "heartbeat", "run": "night", "status": "running", "step": 3, "metrics": {"loss": 0.5}}
    for _ in range(3):
        post(monitor, alive)
    names = [type(record).__name__ for record in recorded(root)]
    assert (names.count("Metrics"), names.count("Status")) == (1, 3)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"status": "running"}', "?run=<name>"),
        ('{"run": "../x", "status": "running"}', "not a valid name"),
        ('{"run": "x", "project": "a/b", "status": "running"}', "not a valid name"),
        ('{"run": "x"}', "is empty"),
        ('{"run": "x", "loss": 0.5}', "is empty"),
        ('{"run": "x", "status": "running", "step": 1e300}', "53 bits"),
        ('[{"run": "a", "status": "running"}, {"run": "b", "status": "failed"}]', "name 2 runs"),
        ('[{"run": "a", "status": "x"}, {"run": "a", "status": "y", "project": "p"}, {"project": "q"}]', "is empty"),
        ('[{"run": "a", "message": "x", "project": "p"}, {"message": "y", "project": "q"}]', "?project=<name>"),
        ('{"run": "x", "trainerStatus": {"metrics": [{"name": "currentStep", "value": "1e300"}]}}', "53 bits"),
        ("[1]", "JSON object"),
        ("[]", "0 messages"),
        ("", "0 messages"),
        ("{", "neither JSON"),
        ("\xff", "neither JSON"),
        ("[" * 100_000, "neither JSON"),
        ('{"run": "x", "status": "a", "metrics": ' + '{"a":' * 150 + "1" + "}" * 151, "nested"),
    ],
)
def test_message_that_is_not_valid_is_refused_with_the_reason(root, monitor, body, words):
    answer = ask(monitor, "POST", "/api/status", body=body.encode("latin-1"))
    assert (answer.status, words in answer.json["error"]) == (400, True)
    assert tree(root) == {}


def test_messages_that_name_no_run_are_about_the_one_that_is_named(root, monitor):
    lines = [{"message": "hello"}, {"run": "night", "metrics": {"a": 1}}, {"message": "bye"}]
    assert post(monitor, *lines).facts == (200, {"project": "status", "run": "night", "records": 3})
    lines = [{"run": "a", "message": "x"}, {"run": "b", "message": "y"}]
    assert post(monitor, *lines, run="night").facts == (200, {"project": "status", "run": "night", "records": 2})


@pytest.mark.parametrize("ends", ["by a server that is no more", "by another server"])
def test_message_about_a_finished_run_does_not_undo_its_end(root, serve, ends):
    first, second = serve(root, tokens=Tokens(WRITE)), serve(root, tokens=Tokens(WRITE))
    asked = second if ends == "by a server that is no more" else first
    post(first, {"run": "night", "status": "running", "step": 3, "max_step": 10, "metrics": {"loss": 0.5}})
    post(first if asked is second else second, {"run": "night", "status": "done", "step": 7})
    post(asked, {"run": "night", "message": "uploaded"})
    post(asked, {"run": "night", "max_step": 10, "metrics": {"size": 2}})
    [run] = hl.runs(root)
    assert (run.status, run.message, run.num_steps) == ("finished", "", 10)
    assert [record.status for record in recorded(root) if isinstance(record, Status)] == ["running"] + ["finished"] * 3
    assert [record.step for record in recorded(root) if isinstance(record, Metrics)] == [3, 7]


def test_end_that_lies_far_back_is_found_again(root, serve):
    first = serve(root, tokens=Tokens(WRITE))
    post(first, {"run": "night", "status": "done", "step": 7})
    post(first, *({"step": step, "metrics": {"long-" * 30: step}} for step in range(3000)), run="night")
    post(serve(root, tokens=Tokens(WRITE)), {"run": "night", "message": "uploaded"})
    assert [record.status for record in recorded(root) if isinstance(record, Status)] == ["finished"] * 2


LATER = [
    [],
    [{"message": "saved"}],
    [{"kind": "heartbeat", "status": "running", "step": 3, "metrics": {"loss": 1}}, {"status": "evaluating"}],
    [{"step": step, "metrics": {"long-" * 30: step}} for step in range(3000)] + [{"message": "saved", "step": 3000}],
]


@pytest.mark.parametrize("later", LATER, ids=["nothing", "a message", "another status", "much"])
@pytest.mark.parametrize("first", [[], [{"metrics": {"loss": 2}}]], ids=["counts", "no counts"])
def test_counts_said_before_a_restart_do_not_begin_the_run_again(root, serve, later, first):
    before = serve(root, tokens=Tokens(WRITE))
    post(before, {"status": "running", "step": 1, "max_step": 9000, "metrics": {"loss": 1}}, *later, run="night")
    after = serve(root, tokens=Tokens(WRITE))
    for message in [*first, {"step": 4000, "max_step": 9000, "metrics": {"loss": 3}}]:
        assert post(after, message, run="night").json["records"] == 1
    assert post(after, {"step": 4001, "max_step": 9500, "metrics": {"loss": 4}}, run="night").json["records"] == 2
    said = [record.data.get("num_steps") for record in recorded(root) if isinstance(record, Status)]
    assert [count for count in said if count] == [9000, 9500]


def test_journal_is_not_read_through_for_counts_that_no_message_says(root):
    read, reported = [], {"project": "status", "run": "night", "key": None}

    class Watched(ReceivedRuns):
        def lines_reversed(self, *names, **place):
            for line in super().lines_reversed(*names, **place):
                read.append(line)
                yield line

    rows = [{"step": step, "metrics": {"loss": 1}} for step in range(500)] + [{"status": "running", "step": 500}]
    StatusRuns(ReceivedRuns(root)).record(json.dumps(rows).encode(), **reported)
    statuses = StatusRuns(Watched(root))
    for step in (501, 502):
        statuses.record(b'{"step": %d, "metrics": {"loss": 1}}' % step, **reported)
    assert len(read) <= 3
    for step in (503, 504):  # the first that says it looks for it, and then it is known
        statuses.record(b'{"step": %d, "max_step": 900, "metrics": {"loss": 1}}' % step, **reported)
    assert len(read) <= 3 + 503


@pytest.mark.parametrize("word", ["running", "uploading"])
def test_progress_without_metrics_is_shown_and_counts_as_moving(root, word):
    now = [1e9]
    statuses = StatusRuns(ReceivedRuns(root), clock=lambda: now[0])
    for step in (7, 8, 9):
        now[0] += 1000
        message = {"status": word, "step": step, "max_step": 100}
        statuses.record(json.dumps(message).encode(), project=None, run="night", key=None)
    [run] = hl.runs(root)
    assert (run.status, run.step, run.num_steps) == ("running", 9, 100)
    assert [record.step for record in recorded(root)] == [7, 8, 9]
    assert run.eta_seconds == 91_000


def test_word_with_a_step_shows_the_step(root, monitor):
    post(monitor, {"run": "night", "status": "uploading", "step": 7})
    assert [run.step for run in hl.runs(root)] == [7]


def test_progress_in_an_event_or_heartbeat_is_shown(root, monitor):
    shared = {"run": "night", "status": "running"}
    post(monitor, shared | {"kind": "event", "phase": "checkpoint", "step": 5})
    assert hl.runs(root).latest().step == 5
    post(monitor, shared | {"kind": "heartbeat", "step": 6})
    assert hl.runs(root).latest().step == 6
    names = [type(record).__name__ for record in recorded(root)]
    assert names == ["Event", "Metrics", "Status", "Metrics"]


def test_message_that_says_nothing_new_is_a_sign_of_life(root, monitor):
    for _ in range(2):
        assert post(monitor, {"run": "night", "status": "running", "step": 3, "max_step": 10}).json["records"] == 1
    assert [record.status for record in recorded(root)] == ["running", "heartbeat"]


def test_number_of_epochs_alone_is_kept_once_also_after_a_restart(root, serve):
    epochs = {"run": "night", "status": "RUNNING", "verbosity": "INFO", "max_epoch": 5, "graphical": {"loss": 1}}
    first, second = serve(root, tokens=Tokens(WRITE)), serve(root, tokens=Tokens(WRITE))
    counts = [post(first, epochs | {"step": step}).json["records"] for step in (1, 2)]
    counts += [post(second, epochs | {"step": step}).json["records"] for step in (3, 4)]
    post(second, {"run": "night", "max_step": 50, "message": "counted"})
    post(first, epochs | {"step": 5})
    said = [record.data for record in recorded(root) if isinstance(record, Status)]
    assert [(each.get("num_steps"), each.get("num_epochs")) for each in said] == [(None, 5), (50, 5)]
    assert (counts, hl.runs(root).latest().step) == ([2, 1, 1, 1], 5)


def test_counts_that_come_late_do_not_take_the_step_back(root, monitor):
    post(monitor, {"run": "night", "step": 30, "metrics": {"loss": 1}})
    post(monitor, {"run": "night", "status": "running", "max_step": 50})
    assert [(run.step, run.num_steps) for run in hl.runs(root)] == [(30, 50)]


def test_counts_that_an_event_says_are_kept_by_the_status_after_it(root, monitor):
    shared = {"run": "night", "status": "running", "num_steps": 10}
    post(monitor, shared | {"kind": "event", "phase": "checkpoint"})
    post(monitor, shared | {"kind": "metrics", "step": 1, "metrics": {"loss": 1}})
    assert [run.num_steps for run in hl.runs(root)] == [10]
    assert [type(record).__name__ for record in recorded(root)] == ["Event", "Status", "Metrics"]


def test_run_that_was_deleted_starts_over(root, monitor):
    post(monitor, {"run": "night", "status": "done", "step": 7})
    shutil.rmtree(root / "status" / "night")
    assert post(monitor, {"run": "night", "message": "again", "metrics": {"a": 1}}).status == 200
    assert recorded(root) == [Metrics(step=0, values={"a": 1})]


def test_names_that_are_no_text_are_kept_as_far_as_they_are(root, monitor):
    answer = post(monitor, '{"run": "night", "status": "running", "metrics": {"\\ud800": 1, "a": {"\\udfff": 2}}}')
    assert answer.status == 200
    assert recorded(root)[-1] == Metrics(step=0, values={"?": 1, "a/?": 2})


@pytest.mark.parametrize("count", ["Infinity", "-inf", "nan", "NaN", "many", "", None, [1], True])
def test_counts_of_kubeflow_that_are_none_are_left_out(root, monitor, count):
    metrics = [{"name": name, "value": count} for name in ("currentStep", "totalSteps", "totalEpochs")]
    assert post(monitor, {"run": "night", "trainerStatus": {"metrics": metrics}}).status == 200
    assert recorded(root) == [Status(status="running")]


@pytest.mark.parametrize(
    "given", [9e15, 1e12, 0, -1, 1, True, float("inf"), "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "now"]
)
def test_time_that_can_be_none_of_a_training_counts_as_not_given(root, given):
    statuses = StatusRuns(ReceivedRuns(root), clock=lambda: 1.8e9)
    message = {"status": "done", "step": 1, "timestamp": given}
    statuses.record(json.dumps(message).encode(), project=None, run="night", key=None)
    assert [run.ended for run in hl.runs(root)] == [1.8e9]


@pytest.mark.parametrize("given", [1.7e9, "2023-11-14T22:13:20Z"])
def test_time_of_the_sender_is_kept(root, given):
    message = {"status": "done", "step": 1, "timestamp": given}
    StatusRuns(ReceivedRuns(root)).record(json.dumps(message).encode(), project=None, run="night", key=None)
    assert [run.ended for run in hl.runs(root)] == [1.7e9]


@pytest.mark.parametrize("count", [-1, 0, -(10**9)])
def test_counts_below_one_count_as_not_given(root, monitor, count):
    post(monitor, {"run": "night", "status": "running", "max_step": count, "max_epoch": count})
    kubeflow = [{"name": name, "value": str(count)} for name in ("totalSteps", "totalEpochs")]
    post(monitor, {"run": "night", "trainerStatus": {"metrics": kubeflow}})
    assert [record.data for record in recorded(root) if record.status != "heartbeat"] == [{}]
    post(monitor, {"run": "night", "status": "running", "num_steps": count, "max_steps": 8})
    assert [run.num_steps for run in hl.runs(root)] == [8]


def test_message_that_could_not_be_written_is_reported_by_the_next(root, monkeypatch):
    statuses = StatusRuns(ReceivedRuns(root))
    reported = {"project": "status", "run": "night", "key": None}

    def broken(record):
        raise ValueError("no text")

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="no text"):
        patch.setattr(status_runs, "encode", broken)
        statuses.record(b'{"status": "running", "max_step": 10}', **reported)
    assert statuses.record(b'{"status": "running", "max_step": 10}', **reported).records == 1


def test_run_of_a_sender_takes_no_status_messages_and_the_other_way_round(root, monitor):
    claim(monitor, "sent", "status")
    assert post(monitor, {"run": "sent", "status": "running"}).facts == (409, {"taken": True})
    post(monitor, {"run": "monitored", "status": "running"})
    assert claim(monitor, "monitored", "status", origin=ORIGIN).facts == (409, {"taken": True})


def test_data_that_looks_like_a_report_does_not_break_the_listing(root, monitor):
    odd = {"kind": "status", "run": "night", "status": "running", "data": {"report": {}, "metrics": 5, "epoch": "x"}}
    assert post(monitor, odd).status == 200
    assert post(monitor, {"run": "night", "status": 7, "message": [1], "step": "2", "metrics": [1]}).status == 200
    assert [run.status for run in hl.runs(root)] == ["running"]

"""Experiments of which only the journals are there: received from another machine, or left by a process that died."""

import random
from urllib.parse import urlencode

import pytest
from sending import READ, TOKENS, WRITE, ask

import hookline as hl
from hookline._record.reader import read
from hookline._record.records import RUN_RESULT, Event
from hookline.rl.types import Task
from hookline.server import WebServer

QUESTIONS = [
    ("experiments", {}),
    ("experiment", {"project": "letters"}),
    ("experiment", {"project": "letters", "metric": "loss"}),
    ("experiment", {"project": "letters", "metric": "result"}),
]
RUNS = [("run", f"letters/{arm}-r{repeat}") for arm in ("slow", "fast") for repeat in (0, 1)]
OF_RUNS = [
    ("metrics", []),
    ("bands", [("name", "loss"), ("by", "arm")]),
    ("samples", [("axis", "final"), ("order", "reward")]),
    ("samples/choices", []),
]


class Echo(hl.Benchmark):
    name = "echo"

    def tasks(self):
        return [Task(text, expected=text, metadata={"tags": {"length": len(text)}}) for text in ("a", "b", "cc", "dd")]

    def score(self, task, output):
        return {"right": float(task.expected == output), "length": len(output)}


def train(ctx, run):
    run.answers = lambda prompts: [prompt if random.random() < 1 - run.config["lr"] else "?" for prompt in prompts]
    for _ in run.steps(5):
        run.log(loss=run.config["lr"] * random.random())
    if run.config["lr"] > 1:
        raise RuntimeError("it diverged")
    return {"result": run.config["lr"] + run.config["seed"]}


def letters(home, rates=(0.2, 0.6), **options):
    arms = [hl.Arm(name, {"lr": rate}, train=train) for name, rate in zip(("slow", "fast"), rates, strict=False)]
    settings = {"benchmarks": [Echo()], "repeats": 2, "output_dir": home / "letters"}
    return hl.Experiment("letters", arms, **settings | options).run()


def send_letters(central, home, **options):
    """Have an experiment send its runs. Who asks afterwards asks another server: this one knows how it was just now."""
    with WebServer(central, tokens=TOKENS) as server:
        letters(home, sinks=[{"hookline": {"url": server.url, "token": WRITE}}], **options)


def answers(server, token=None):
    """Everything that the view of an experiment asks for."""
    asked = [(name, list(about.items())) for name, about in QUESTIONS]
    asked += [(name, [*RUNS, *about]) for name, about in OF_RUNS]
    return [answer(server, name, about, token) for name, about in asked]


def answer(server, name, about=(), token=None):
    reply = ask(server, "GET", f"/api/{name}?{urlencode(list(about))}", token=token)
    assert reply.status == 200, reply.body
    return reply.json


def leave_only_journals(home):
    for path in [*home.glob("*/experiment.json"), *home.glob("*/*/result.json")]:
        path.unlink()


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The page of an experiment on its own machine, and on a server that received its runs."""
    home, central = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("central")
    send_letters(central, home)
    with WebServer(central, tokens=TOKENS) as server:
        received = answers(server, READ)
    with WebServer(home) as server:
        local = answers(server)
    leave_only_journals(home)
    with WebServer(home) as server:
        left = answers(server)
    return local, received, left


def test_received_experiment_is_shown_as_where_it_was_made(reported):
    local, received, _ = reported
    assert received == local


def test_experiment_whose_results_were_not_written_down_is_shown_from_its_journals(reported):
    local, _, left = reported
    assert left == local


def test_received_experiment_has_arms_differences_benchmarks_and_predictions(reported):
    experiments, whole, *_, bands, predictions, _ = reported[1]
    assert experiments["experiments"][0]["statuses"] == {"finished": 4}
    assert (whole["metric"], whole["mode"], whole["problems"]) == ("echo/right", "max", [])
    assert [(row["arm"], row["n"], row["std"] is not None) for row in whole["table"]] == [
        ("slow", 2, True),
        ("fast", 2, True),
    ]
    assert [(row["a"], row["b"]) for row in whole["differences"]] == [("slow", "fast")]
    assert [score["run"] for score in whole["benchmarks"]] == ["slow-r0", "slow-r1", "fast-r0", "fast-r1"]
    assert set(whole["benchmarks"][0]["breakdowns"]) == {"length=1", "length=2"}
    assert [(band["key"], len(band["x"]), set(band["n"])) for band in bands["bands"]] == [
        (["fast"], 5, {2}),
        (["slow"], 5, {2}),
    ]
    assert predictions["total"] == 16


def test_run_that_failed_counts_as_failed_from_its_journal_alone(tmp_path):
    letters(tmp_path, rates=(0.2, 2.0), repeats=1)
    leave_only_journals(tmp_path)

    with WebServer(tmp_path) as server:
        whole = answer(server, "experiment", [("project", "letters")])

    assert [(row["arm"], row["runs"], row["n"], row["failed"]) for row in whole["table"]] == [
        ("slow", 1, 1, 0),
        ("fast", 1, 0, 1),
    ]


def test_run_that_continues_after_its_result_has_none_until_it_ends_again(tmp_path):
    letters(tmp_path, repeats=1)
    leave_only_journals(tmp_path)
    with hl.run("slow-r0", project="letters", root=tmp_path, resume=tmp_path / "letters/slow-r0", summary=False) as run:
        with WebServer(tmp_path) as server:
            whole = answer(server, "experiment", [("project", "letters")])
        run.log(loss=1.0)

    assert [(row["arm"], row["runs"]) for row in whole["table"]] == [("slow", 0), ("fast", 1)]


def test_experiments_of_one_name_from_two_machines_are_not_mixed(tmp_path):
    central = tmp_path / "central"
    central.mkdir()
    for machine in ("one", "two"):
        send_letters(central, tmp_path / machine, repeats=1)

    with WebServer(central, tokens=TOKENS) as server:
        rows = answer(server, "experiments", token=READ)["experiments"]
        found = [answer(server, "experiment", [("project", row["project"])], READ) for row in rows]

    assert [(row["runs"], row["project"].partition("@")[0]) for row in rows] == [(2, "letters"), (2, "letters")]
    assert [sorted(each["runs"]) for each in found] == [
        ["letters/fast-r0-2", "letters/slow-r0-2"],
        ["letters/fast-r0", "letters/slow-r0"],
    ]


def test_run_of_an_experiment_records_its_result_before_it_says_how_it_ended(tmp_path):
    letters(tmp_path, repeats=1)

    records = list(read(tmp_path / "letters/slow-r0"))
    [result] = [record for record in records if isinstance(record, Event) and record.name == RUN_RESULT]
    assert (result.data["metrics"]["result"], result.data["returned"], result.data["attempts"]) == (0.2, ["result"], 1)
    assert records.index(result) < len(records) - 1

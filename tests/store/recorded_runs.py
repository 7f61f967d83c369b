"""Runs for the tests of the store: journals written line by line, and what `hl.read` makes of them."""

import json
import math

import hookline as hl
from hookline._record import run_directory
from hookline._record.recorder import cleaned
from hookline._record.records import Event, LogLine, Metrics, Rewards, Sample, Status, clean, encode
from hookline.store.store import open_store


def make_run(root, run_id="r0", project="p", **facts):
    """The directory of a run that has recorded nothing."""
    known = {"name": facts.pop("name", run_id), "project": project, "git": None, "config": None}
    directory = run_directory.create(root, project, known | facts, run_id=run_id)
    (directory / "journal").mkdir(exist_ok=True)
    return directory


def journal(directory, name="main", session=0, number=0):
    return directory / "journal" / f"{name}-{session:04d}-1-abc-{number:06d}.jsonl"


def append(directory, *records, name="main", session=0, number=0):
    """Write records as a writer's session does."""
    with journal(directory, name, session, number).open("ab") as file:
        for record in records:
            file.write(encode(cleaned(record)) + b"\n")


def row(step, axis="train", time=None, **values):
    return Metrics(time=float(step) if time is None else time, step=step, axis=axis, values=values)


def ended(step=0, status="finished", message="", time=1e6):
    return Status(time=time, status=status, step=step, message=message)


def resumed(step, time=0.0, **axes):
    steps = axes if step is None else {"*": step, **axes}
    return Event(time=time, name="resume", data={"steps": steps})


def finished_run(root, run_id="r0", losses=(3.0, 2.0, 1.0), project="p", **facts):
    directory = make_run(root, run_id, project, **facts)
    append(directory, *[row(step, loss=loss) for step, loss in enumerate(losses, start=1)], ended(len(losses)))
    return directory


def plain(value):
    """A value that equals itself: NaN does not."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def what_read_says(directory):
    """The rows that the records of a run stand for, by the reader, sorted."""
    rows = []
    for record in hl.read(directory):
        match record:
            case Metrics():
                rows += [
                    ("metrics", record.axis, record.step, record.time, name, *value_and_text(value))
                    for name, value in record.values.items()
                ]
            case Sample():
                rewards = {name: plain(value) for name, value in record.rewards.items()}
                rows.append(("samples", record.axis, record.step, record.time, record.prompt, str(rewards)))
            case Rewards():
                rows += [
                    ("rewards", record.step, record.time, record.name, position, plain(value))
                    for position, value in enumerate(record.values)
                ]
            case Status():
                rows.append(("events", record.time, record.step, record.status, record.message))
            case Event():
                rows.append(
                    ("events", record.time, record.step, record.name, json.dumps(clean(record.data), sort_keys=True))
                )
            case LogLine():
                rows.append(("logs", record.time, record.step, record.level, record.message))
    return sorted(rows, key=str)


def value_and_text(value):
    return (None, value) if isinstance(value, str) else (None if value is None else plain(float(value)), None)


def what_store_says(found, run):
    """The same by the store."""
    only = found.filter(id=run)
    rows = [
        ("metrics", r["axis"], r["step"], r["time"], r["name"], plain(r["value"]), r["text"]) for r in only.metrics()
    ]
    for r in only.samples():
        rewards = {name: plain(value) for name, value in r["rewards"].items()}
        rows.append(("samples", r["axis"], r["step"], r["time"], r["prompt"], str(rewards)))
    rows += [("rewards", r["step"], r["time"], r["name"], r["position"], plain(r["value"])) for r in only.rewards()]
    for r in only.events():
        data = json.dumps(json.loads(r["data"]), sort_keys=True)
        rows.append(("events", r["time"], r["step"], r["name"], r["message"] if r["kind"] == "status" else data))
    rows += [("logs", r["time"], r["step"], r["level"], r["message"]) for r in only.logs()]
    return sorted(rows, key=str)


def close(root):
    """Let go of a root's index, as a process that ends does."""
    open_store(root).close()

"""Runs for the tests of the page: journals written line by line."""

import time

from hookline._record import run_directory
from hookline._record.recorder import cleaned
from hookline._record.records import Event, LogLine, Metrics, Sample, Status, encode

NOW = time.time()
HOSTILE = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'


def make_run(root, run_id="r0", project="p", **facts):
    """The directory of a run that has recorded nothing."""
    known = {"name": facts.pop("name", run_id), "project": project, "git": None, "config": facts.pop("config", None)}
    directory = run_directory.create(root, project, known | facts, run_id=run_id)
    (directory / "journal").mkdir(exist_ok=True)
    return directory


def append(directory, *records):
    """Write records as the main writer of a run does."""
    with (directory / "journal" / "main-0000-1-abc-000000.jsonl").open("ab") as file:
        for record in records:
            file.write(encode(cleaned(record)) + b"\n")


def row(step, axis="train", **values):
    return Metrics(time=NOW + step / 1000, step=step, axis=axis, values=values)


def rows(values, name="loss", first=1):
    return [row(step, **{name: value}) for step, value in enumerate(values, start=first)]


def sample(step, completion, reward, **more):
    return Sample(time=NOW + step / 1000, step=step, completion=completion, total=reward, **more)


def event(name, step=1, **data):
    return Event(time=NOW + step / 1000, name=name, step=step, data=data)


def line(message, level="INFO", step=1):
    return LogLine(time=NOW + step / 1000, level=level, logger="trainer", message=message, step=step)


def begun(num_steps=100):
    return Status(time=NOW, status="running", step=0, data={"num_steps": num_steps})


def ended(step=0, status="finished", message=""):
    return Status(time=NOW + 60, status=status, step=step, message=message)


def finished_run(root, run_id="r0", losses=(3.0, 2.0, 1.0), project="p", more=(), **facts):
    directory = make_run(root, run_id, project, **facts)
    append(directory, begun(len(losses)), *rows(losses), *more, ended(len(losses)))
    return directory


def live_run(root, run_id="live", project="p", **facts):
    """A run whose process, this one, is alive."""
    directory = make_run(root, run_id, project, **facts)
    run_directory.acquire(directory)
    append(directory, begun())
    return directory


def repeats(root, arms=("low", "high"), number=3, steps=30, stage=None, has_tokens=False):
    """The finished runs of an experiment."""
    for place, arm in enumerate(arms):
        for repeat in range(number):
            belongs = {"name": "sweep", "id": "x", "group": arm, "arm": arm, "repeat": repeat, "stage": stage}
            losses = [1.0 / (step + 1) + place + 0.1 * repeat for step in range(steps)]
            tokens = [row(step + 1, tokens=100.0 * step + repeat) for step in range(steps)] if has_tokens else []
            name = f"{arm}-r{repeat}" + (f"-{stage}" if stage else "")
            began = NOW + 1e-5 * len(list(root.glob("*/*")))  # one after another, and almost at the same time
            finished_run(root, name, losses, "sweep", experiment=belongs, more=tokens, started=began)

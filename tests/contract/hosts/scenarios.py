"""The actions tested in every host: functions of the host that return plain facts.

They run wherever the host's callbacks run, which for Ray Train is a worker of its own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from waiting import wait_until

import hookline as hl
from hookline._engine.hooks import MetricsHook
from hookline._record.reader import last_status, read
from hookline._record.records import Event, Media, Metrics, TableRows
from hookline.callbacks import CheckpointCallback
from hookline.testing import RecordingCallback
from hosts.base import BATCHES, STEPS, Host

Facts = dict[str, Any]
PIXELS = np.zeros((2, 2, 3), np.uint8)
AT = 3
"""After how many steps something is asked for: in the middle of an epoch."""


class Speak(hl.Callback):
    """Runs an action after a number of steps, and offers a command of its own."""

    def __init__(self, at: int, action: Callable[[Any], object]) -> None:
        self.at, self.action = at, action

    def on_step_end(self, loop: Any, step_idx: int) -> None:
        if loop.step == self.at:
            self.action(loop)

    def tell(self, loop: Any, word: str) -> str:
        """Return the word."""
        return word

    commands: ClassVar = {"tell": tell}


class Tally(hl.Callback):
    """Counts steps, with the count in its state."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: dict[str, Any]) -> dict[str, Any]:
        self.steps += 1
        return {"double": 2 * metrics["loss"]}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Artist(hl.Callback):
    """Returns an image, logs a histogram and a table, and lets the table grow; keeps what `on_log` is given."""

    def __init__(self) -> None:
        self.answers = hl.Table(["step", "answer"])
        self.seen: list[str] = []

    def on_step_end(self, loop: Any, step_idx: int) -> dict[str, Any]:
        if loop.step not in (AT, BATCHES + 1):
            return {}
        self.answers.append([loop.step, "yes"])
        loop.log({"weights": hl.Histogram([1.0, 2.0]), "answers": self.answers})
        return {"picture": hl.Image(PIXELS), "shade": 0.5}

    def on_eval(self, loop: Any, step_idx: int, eval_name: str) -> None:
        loop.log(evaluated=hl.Image(PIXELS))

    def on_log(self, loop: Any, step: int, metrics: dict[str, Any]) -> None:
        self.seen += [name for name, value in metrics.items() if not isinstance(value, int | float | str | None)]


def draw(loop: Any, step_idx: int) -> dict[str, Any]:
    """A function that returns an image at one step."""
    return {"sketch": hl.Image(PIXELS)} if loop.step == AT else {}


def moments(host: Host) -> Facts:
    """A whole training, with a checkpoint at its end."""
    seen = RecordingCallback()
    host.train(seen, CheckpointCallback(every_n_steps=STEPS))
    return {
        "fired": seen.names(),
        "counts": counts(seen),
        "evaluations": [
            [name, any(key.startswith(f"{name}/") for key in metrics)] for name, metrics in evaluations(seen)
        ],
        "predictions": [predictions_in(outputs) for outputs in arguments(seen, "on_validation_batch_end")],
        "losses": [row["loss"] for row in rows(host) if "loss" in row],
    }


def stop(host: Host) -> Facts:
    """A stop requested in the middle of an epoch."""
    seen = RecordingCallback()
    host.train(seen, Speak(AT, lambda loop: loop.request_stop("enough")))
    return {
        "step": host.loop.step,
        "recorded": recorded_end(host),
        "last": seen.names()[-1],
        "validations": seen.names().count("on_validation_start"),
        "fired": seen.names(),
    }


def checkpoint(host: Host) -> Facts:
    """A checkpoint requested in the middle of an epoch."""
    seen = RecordingCallback()
    host.train(seen, Speak(AT, lambda loop: loop.request_checkpoint()))
    saved = [event.arguments[0] for event in seen.events if event.moment == "on_checkpoint"]
    return {"saved": [row.step for row in saved], "there": [row.path.exists() for row in saved], "fired": seen.names()}


def metric(host: Host) -> Facts:
    """A metric that a callback returns at the end of each step."""
    host.train(Tally())
    steps: dict[int, dict[str, Any]] = {}
    for record in read(host.loop.dir):
        if isinstance(record, Metrics) and record.axis == "train":  # several processes have a row for each part
            steps.setdefault(record.step, {}).update(record.values)
    both = [(row["loss"], row["tally/double"]) for row in steps.values() if "tally/double" in row]
    return {"rows": len(both), "right": all(double == 2 * loss for loss, double in both), "fired": []}


def media(host: Host) -> Facts:
    """Media from a callback that returns and logs them, from a hook and from a function."""
    artist = Artist()
    hook = MetricsHook(AT, lambda context: {"map": [hl.Image(PIXELS), hl.Image(PIXELS)]})
    host.train(artist, hook, hl.on("step_end", draw))
    found = [record for record in read(host.loop.dir) if isinstance(record, Media | TableRows)]
    own = [(record.name, record.step) for record in found if record.name != "evaluated"]
    tables = [record.rows for record in found if isinstance(record, TableRows)]
    return {
        "media": sorted(map(list, set(own))),
        "of evaluations": sorted({record.step for record in found if record.name == "evaluated"}),
        "rows": sorted(row for rows in tables for row in rows),
        "in on_log": artist.seen,
        "failing": [failure.subscriber for failure in host.loop.callbacks.failures],
        "fired": [],
    }


def error(host: Host) -> Facts:
    """An error of a critical callback."""
    seen = RecordingCallback()
    caught = ""
    try:
        host.train(seen, breaking())
    except Exception as error:
        caught = type(error).__name__
    return {
        "raised": caught,
        "step": host.loop.step,
        "recorded": recorded_end(host),
        "last": seen.names()[-1],
        "fired": seen.names(),
    }


def resume(host: Host) -> Facts:
    """A training that is stopped at the end of an epoch, and one that resumes from its checkpoint."""
    seen, again, tally = RecordingCallback(), RecordingCallback(), Tally()
    host.train(seen, Tally(), leaving())
    first = host.loop
    other = type(host)(host.directory)
    other.train(again, tally, resume=checkpoint_of(seen) if "on_checkpoint" in seen.names() else None)
    return {
        "steps": [event.arguments[0] for event in again.events if event.moment == "on_step_end"],
        "counted": tally.steps,
        "begins": again.names()[:2],
        "in the same run": other.loop.dir == first.dir,
        "fired": [*seen.names(), *again.names()],
    }


COMMANDS: dict[str, Facts] = {
    "set": {"name": "learning_rate", "value": 0.01},
    "checkpoint": {},
    "validate": {},
    "hooks.disable": {"name": "tally"},
    "hooks.schedule": {"name": "last", "every": 1},
    "hooks.add": {"use": "timer", "with": {"seconds": 900.0}},
    "hooks.remove": {"name": "timer"},
    "hooks.enable": {"name": "last"},
    "tell": {"word": "loud"},
    "pause": {"limit": 60.0},
    "continue": {},
    "stop": {"reason": "enough"},
}


def commands(host: Host) -> Facts:
    """Commands from outside, sent in the middle of an epoch; what became of each, and how the training ended."""
    answers: dict[str, str] = {}

    def send(loop: Any, names: list[str]) -> None:
        control = hl.control(loop) if loop.rank == 0 else None
        for name in names if control is not None else ():
            try:
                control.send(name, COMMANDS[name])
            except hl.HooklineError as error:
                answers[name] = str(error)

    first, last = (
        Speak(2, lambda loop: send(loop, [*COMMANDS][:-1])),
        Speak(BATCHES + 2, lambda loop: send(loop, ["stop"])),
    )
    tally = Tally()
    host.train(tally, first, last.configure(name="last"))
    recorded = [record for record in read(host.loop.dir) if isinstance(record, Event) and record.name == "command"]
    done = {each.data["command"]: each.data["state"] for each in recorded}
    failed = {each.data["command"]: each.data["result"] for each in recorded if each.data["state"] != "applied"}
    return {
        "answers": done | failed | answers,
        "counted": tally.steps,
        "ended": [host.loop.step, *recorded_end(host)],
        "fired": [],
    }


def builtins(host: Host) -> Facts:
    """All built-in callbacks, through a stop at the end of an epoch and a resume; which fail, and which do nothing."""
    from hosts.effects import EFFECTS, PARTS, Bench, Found, records_of

    other = type(host)(host.directory)
    first, second = (Bench(host.directory, leaves, host.monitor) for leaves in (True, False))
    with first.listening():
        host.train(*first.make())
    saved = [e.arguments[0] for e in first.seen.events if e.moment == "on_checkpoint"]
    left = next((Path(row.path) for row in saved if row.step == BATCHES), None)
    with second.listening():
        other.train(*second.make(), resume=left)  # from the beginning, in a host that saves nothing
    failing = {failure.subscriber for each in (host, other) for failure in each.loop.callbacks.failures}
    found = Found(first, second, records_of(host.loop.dir, other.loop.dir), host.loop.stop_reason)
    return {
        "failing": sorted(failing),
        "idle": sorted(name for name, shows in EFFECTS.items() if not shows(found)),
        "partly": [name for name, shows in PARTS.items() if not shows(found)],
        "steps": [host.loop.step, other.loop.step],
    }


SCENARIOS: dict[str, Callable[[Host], Facts]] = {
    "moments": moments,
    "stop": stop,
    "checkpoint": checkpoint,
    "metric": metric,
    "media": media,
    "error": error,
    "resume": resume,
    "commands": commands,
}


def breaking() -> Any:
    """A critical callback that raises."""
    return Speak(AT, lambda loop: 1 / 0).configure(critical=True)


def leaving() -> Speak:
    """Saves a checkpoint and stops at the end of the first epoch."""

    def leave(loop: Any) -> None:
        loop.request_checkpoint()
        loop.request_stop("for now")

    return Speak(BATCHES, leave)


def checkpoint_of(seen: RecordingCallback) -> Path:
    """Return the path of the first reported checkpoint."""
    first = next(event for event in seen.events if event.moment == "on_checkpoint")
    return Path(first.arguments[0].path)


def arguments(seen: RecordingCallback, moment: str) -> list[Any]:
    """The first argument of a moment after the loop, each time."""
    return [event.arguments[0] for event in seen.events if event.moment == moment]


def evaluations(seen: RecordingCallback) -> list[tuple[str, dict[str, Any]]]:
    """The name and the metrics of each evaluation."""
    return [event.arguments[1:] for event in seen.events if event.moment == "on_eval"]


def predictions_in(outputs: Any) -> bool:
    """Whether there are predictions for each of the two samples of a batch."""
    given = outputs if isinstance(outputs, dict) else {}
    return any(len(given[name]) == 2 for name in ("predictions", "logits", "rollouts") if name in given)


def counts(seen: RecordingCallback) -> dict[str, list[int]]:
    """Return the steps, batches and indices of the moments, in order."""
    reported: dict[str, list[int]] = {}
    for event in seen.events:
        reported.setdefault(event.moment, []).extend(each for each in event.arguments if type(each) is int)
    return reported


def rows(host: Host) -> list[dict[str, Any]]:
    """The rows of steps in the record."""
    return [record.values for record in read(host.loop.dir) if isinstance(record, Metrics) and record.axis == "train"]


def recorded_end(host: Host) -> list[str]:
    """Return the recorded end of the training; with several processes, another one writes it."""
    wait_until(lambda: last_status(host.loop.dir).status != "running")
    status = last_status(host.loop.dir)
    return [status.status, status.message]

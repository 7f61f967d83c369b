"""Steers a training of two processes with many commands at random moments, and counts the faults: none.

``PYTHONPATH=tests python tests/loops/steer_many.py DIRECTORY COMMANDS [SEED] [--harmless]`` prints one JSON object.
Commands come through the run's own directory and through a server, some of them twice under the same id. At moments of
chance, both processes are killed and resume from their last checkpoint, and the server is restarted.

Audited: both processes are equal after every step; what was set is what they have; each command that was sent has one
end and was applied at most once, which the journal has as well; the journal has each step once. With ``--harmless``,
only checkpoints, validations and pauses are asked for, and each step is compared with that of a training that nobody
disturbed.
"""

import json
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from fork_server import GLOO, ForkServer, Program
from loopback_server import free_port

import hookline as hl
from hookline._engine.errors import HooklineError
from hookline._record import run_directory
from hookline._record.commands import Mailbox, Outcome, RunControl, new_command
from hookline._record.delivery_manager import sync
from hookline._record.reader import JOURNAL, Reader
from hookline._record.records import Metrics
from hookline.cli.runs.verify import verify
from hookline.server import Tokens, WebServer
from hookline.store.run_info import find_runs

TOKEN = "a-token-of-a-test"
PER_SESSION = 100
"""About how many commands are sent before the processes are killed, unless there are few."""
HARMLESS = ("checkpoint", "validate", "pause", "continue")
EACH_SECONDS = 120.0


class Seen(hl.Callback):
    def on_step_end(self, loop, step_idx):
        pass

    def shout(self, loop, word="loud"):
        """Do nothing, in words."""
        return word

    commands: ClassVar = {"shout": shout}


def rank(directory: Path, number: int, session: int, url: str, ends: int = 10**9) -> None:
    """Train as one of two processes, and write down the state after each step boundary."""
    import torch.distributed as dist

    from hookline.integrations.torch import run

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store-{session}", rank=number, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sinks = [{"hookline": {"url": url, "token": TOKEN}}] if url else []
    options = {"resume": "auto"} if session else {}
    with (
        (directory / f"states-{number}.jsonl").open("ab", buffering=0) as states,
        run(model, optimizer, name="ranks", root=directory / "runs", callbacks=[Seen()], sinks=sinks, summary=False,
            console=False, code=False, strict=True, **options) as loop,
    ):  # fmt: skip
        clip = loop.tunable("clip", 1.0, min=0, max=1)
        for step in loop.steps(ends):
            facts = {
                "session": session,
                "step": loop.step,
                "time": time.time(),
                "rate": optimizer.param_groups[0]["lr"],
                "clip": clip.value,
                "off": loop.callbacks.find("seen")[0].disabled,
                "weights": [each.detach().flatten().tolist() for each in model.parameters()],
            }
            states.write(json.dumps(facts).encode() + b"\n")
            loss = model(torch.full((2, 1), float(step % 3))).square().mean() * clip.value
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss.detach())
            if loop.validation_requested:
                with loop.validate() as validation:
                    validation.log(loss=loss.detach())
    dist.destroy_process_group()


class Person:
    """Sends commands at random moments, through one of two directories."""

    def __init__(self, directory: Path, draw: random.Random, *, is_harmless: bool) -> None:
        self.directory, self.draw, self.is_harmless = directory, draw, is_harmless
        self.sent: Counter[str] = Counter()
        self.ids: list[str] = []

    def send(self) -> None:
        places = [path.parent for root in ("runs", "received") for path in self.directory.glob(f"{root}/*/*/run.json")]
        control = RunControl(self.draw.choice(places))
        name, arguments = self._command()
        try:
            control.send(name, arguments, id=(used := f"id-{self.sent.total():06d}"))
            if self.draw.random() < 0.2:  # once more, as after a lost answer, perhaps by the other way
                again = new_command(name, arguments, author=run_directory.user_name(), id=used)
                Mailbox(self.draw.choice(places)).post(again)
            self.sent["sent"] += 1
            self.ids.append(used)
        except HooklineError:  # out of bounds, too many at once, or the run is being started
            self.sent["refused on sending"] += 1

    def _command(self):
        commands = [each for each in self._commands() if not self.is_harmless or each[0] in HARMLESS]
        return self.draw.choice(commands)

    def _commands(self):
        return [
            ("set", {"name": "learning_rate", "value": self.draw.choice([0.01, 0.02, 0.03])}),
            ("set", {"name": "clip", "value": self.draw.random()}),
            ("set", {"name": "clip", "value": 7}),
            ("checkpoint", {}),
            ("validate", {}),
            ("pause", {"limit": 0.2}),
            ("continue", {}),
            ("hooks.disable", {"name": "seen"}),
            ("hooks.enable", {"name": "seen"}),
            ("hooks.schedule", {"name": "seen", "every": self.draw.randint(1, 9)}),
            ("shout", {"word": "louder"}),
        ]


def wait_for(holds, processes) -> None:
    deadline = time.monotonic() + EACH_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        assert all(process.poll() is None for process in processes), "a process ended"
        threading.Event().wait(0.01)


def begin(programs: ForkServer, directory: Path, session: int, url: str) -> list[Program]:
    """Start both processes, and wait until the run takes commands and has a checkpoint of this session."""
    environment = {**GLOO, "HOOKLINE_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).parents[1])}
    arguments = [[__file__, "--rank", directory, str(number), str(session), url] for number in (0, 1)]
    processes = [programs.start(*each, env=environment) for each in arguments]
    controls = []

    def is_ready():
        controls[:] = [RunControl(path.parent) for path in directory.glob("runs/*/*/run.json")]
        offer = controls[0].offer() if controls else None
        return offer is not None and offer.get("pid") == processes[0].pid and offer.get("listens")

    wait_for(is_ready, processes)
    saved = controls[0].checkpoint(wait=EACH_SECONDS)
    assert saved.state == "applied", saved
    return processes


def steer(
    programs: ForkServer, directory: Path, commands: int, seed: int = 0, *, is_harmless: bool = False
) -> dict[str, object]:
    """Send the commands, and return the findings at the end."""
    draw = random.Random(seed)
    per_session = min(PER_SESSION, commands // 2 + 1)
    person = Person(directory, draw, is_harmless=is_harmless)
    next_kill, next_restart = per_session, per_session // 2
    (directory / "received").mkdir(parents=True)
    tokens = Tokens(write=TOKEN)
    port, session = free_port(), 0
    server = WebServer(directory / "received", tokens=tokens, port=port).__enter__()
    processes = begin(programs, directory, session, server.url)
    try:
        while person.sent["sent"] < commands:
            person.send()
            threading.Event().wait(draw.uniform(0, 0.02))
            if person.sent["sent"] >= next_kill:
                next_kill += draw.randint(per_session // 2, per_session * 3 // 2)
                for process in draw.sample(processes, 2):
                    process.close()
                session += 1
                processes = begin(programs, directory, session, server.url)
            if person.sent["sent"] >= next_restart:
                next_restart += draw.randint(per_session // 2, per_session * 3 // 2)
                server.stop()
                server = WebServer(directory / "received", tokens=tokens, port=port).__enter__()
        (run,) = (path.parent for path in directory.glob("runs/*/*/run.json"))
        (copy,) = (path.parent for path in directory.glob("received/*/*/run.json"))
        wait_for(lambda: not Mailbox(copy).waiting(), processes)  # all of them were passed on
        RunControl(run).stop("the end", wait=EACH_SECONDS)
        assert [process.wait(EACH_SECONDS) for process in processes] == [0, 0]
        sync(run, seconds=EACH_SECONDS)  # a slow machine may not have delivered the end
        result = {"sessions": session + 1, **person.sent, **found(directory, run, copy, person.ids)}
        return result | ({"other than undisturbed": undisturbed(programs, directory)} if is_harmless else {})
    finally:
        for process in processes:
            process.close()
        server.stop()


def found(directory: Path, run: Path, copy: Path, sent: list[str]) -> dict[str, object]:
    """Compare the states of the processes with each other, with the log of commands and with the journal."""
    zero, one = ([json.loads(line) for line in path.read_text().splitlines()] for path in states_of(directory))
    others = {(each["session"], each["step"]): each for each in one}
    compared = [(each, others[key]) for each in zero if (key := (each["session"], each["step"])) in others]
    outcomes = Mailbox(run).outcomes()
    received = Counter(each.id for each in outcomes if each.state == "received")
    applied = Counter(each.id for each in outcomes if each.state == "applied" and not each.again)
    ends = Counter(each.id for each in outcomes if each.is_final and not each.again)
    recorded = Counter(
        record.data["id"]
        for record in (entry.record for entry in Reader(run / JOURNAL).new())
        if getattr(record, "name", "") == "command"
        and record.data["state"] == "applied"
        and not record.data.get("again")
    )
    rows = Counter(record.step for record in hl.read(run) if isinstance(record, Metrics) and "loss" in record.values)
    (place,) = find_runs(directory / "runs")
    verdict = verify(place)
    return {
        "compared": len(compared),
        "different": sum(a | {"time": 0} != b | {"time": 0} for a, b in compared),
        "steps": zero[-1]["step"],
        "steps not once in the journal": sum(rows[step] != 1 for step in range(1, zero[-1]["step"] + 2)),
        "applied": len(applied),
        "more than once": sum(count > 1 for count in (*received.values(), *applied.values(), *recorded.values())),
        "without one end": sum(ends[each] != 1 for each in sent),
        "not in the journal": len(applied.keys() - recorded.keys()),
        "settings checked": len(checked := list(settings(zero, outcomes))),
        "settings not as set": sum(not is_right for is_right in checked),
        "damage": [str(each) for each in verdict.findings if each.kind == "damage"],
        "copied": Mailbox(copy).log.read_bytes() == Mailbox(run).log.read_bytes(),
    }


def settings(states: list[dict[str, Any]], outcomes: list[Outcome]) -> Iterator[bool]:
    """Whether the parameters of each state are those that were set last in the same session, if one was."""
    began = {session: min(each["time"] for each in states if each["session"] == session) for session in
             {each["session"] for each in states}}  # fmt: skip
    sets = [each for each in outcomes if each.state == "applied" and each.command and each.command.name == "set"]
    for state in states:
        last: dict[str, Any] = {}
        for each in sets:
            if began[state["session"]] <= each.time <= state["time"] and each.command is not None:
                last[each.command.arguments["name"]] = each.command.arguments["value"]
        for name, key in (("learning_rate", "rate"), ("clip", "clip")):
            if name in last:
                yield math.isclose(state[key], last[name], rel_tol=1e-12)


def undisturbed(programs: ForkServer, directory: Path) -> int:
    """Train as long again without any command; returns how many steps of the disturbed training differ from it."""
    zero = [json.loads(line) for line in states_of(directory)[0].read_text().splitlines()]
    ends = max(each["step"] for each in zero) + 1
    (directory / "alone").mkdir()
    environment = {**GLOO, "PYTHONPATH": str(Path(__file__).parents[1])}
    arguments = [[__file__, "--rank", directory / "alone", str(number), "0", "", str(ends)] for number in (0, 1)]
    processes = [programs.start(*each, env=environment) for each in arguments]
    try:
        assert [process.wait(EACH_SECONDS * 10) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.close()
    alone = [json.loads(line) for line in states_of(directory / "alone")[0].read_text().splitlines()]
    weights = {each["step"]: each["weights"] for each in alone}
    assert len(weights) == ends
    return sum(weights[each["step"]] != each["weights"] for each in zero)


def states_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("states-*.jsonl"))


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], *map(int, sys.argv[6:]))
    else:
        harmless = "--harmless" in sys.argv
        place, count, *given = (each for each in sys.argv[1:] if each != "--harmless")
        with ForkServer("torch") as programs:
            result = steer(programs, Path(place), int(count), *map(int, given), is_harmless=harmless)
        print(json.dumps(result))

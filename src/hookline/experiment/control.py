"""`ExperimentControl`: commands to an experiment that is being run: stop an arm, skip it, add repeats.

Commands go through a mailbox in the experiment's directory, like those to a run (`hookline._record.commands`). A thread
looks at its flag, because a run may train on the experiment's own thread for hours. It asks running runs of a stopped
arm to stop, through their mailboxes. Everything else happens on the experiment's thread, between two runs.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hookline._engine.errors import HooklineError, OptionError, closest
from hookline._record.commands import BUILT_IN, Command, Flag, Mailbox, Outcome, RunControl, State
from hookline.loops.control import is_switched_off

logger = logging.getLogger("hookline")

POLL_SECONDS = 0.25
MOST_REPEATS = 10_000
COMMANDS: dict[str, dict[str, Any]] = {
    "stop_arm": {
        "description": "Stop the running runs of an arm at their next step, and do not start its others.",
        "arguments": {"arm": None, "reason": ""},
    },
    "skip": {"description": "Do not start the waiting runs of an arm.", "arguments": {"arm": None, "reason": ""}},
    "repeats": {"description": "The total number of runs of each arm.", "arguments": {"count": None}},
}
_CANNOT = "this is an experiment, which takes skip, stop_arm and repeats. Send it to one of its runs."


class ExperimentControl:
    """The commands of one experiment.

    Args:
        directory: The experiment's directory.
        arms: The names of its arms.
        repeats: How many repeats each has.
        running: Returns the directories of the runs of an arm that are running.
    """

    def __init__(
        self, directory: Path, arms: Collection[str], repeats: int, running: Callable[[str], list[Path]]
    ) -> None:
        self._mailbox = Mailbox(directory)
        self._arms, self._repeats, self._running = arms, repeats, running
        self._flag: Flag | None = None
        self._known: dict[str, Outcome] = {}
        self._received: deque[Command] = deque()
        self._stopping: dict[str, str] = {}
        self._requested: set[Path] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="hookline-experiment-control", daemon=True)

    def open(self) -> None:
        """Create the mailbox, and listen; an experiment that cannot is not controlled, and warns."""
        if is_switched_off():
            return
        try:
            self._flag = self._mailbox.create()
            self._known = {each.id: each for each in self._mailbox.outcomes()}
            self._flag.map[0] = 1  # commands that were sent while it did not run
        except (OSError, ValueError) as error:
            logger.warning("%s does not listen to commands: %s", self._mailbox.run_dir, error)
            return
        self._offer(listens=True)
        self._thread.start()

    def received(self) -> Command | None:
        """Return the next command, which the experiment's thread answers; None if there is none."""
        return self._received.popleft() if self._received else None

    def set_repeats(self, count: int) -> None:
        """Note how many repeats each arm has now."""
        self._repeats = count
        if self._flag is not None:
            self._offer(listens=True)

    def answer(self, command: Command, state: State, result: str) -> None:
        """Say what became of a command."""
        log = logger.info if state == "applied" else logger.warning
        verb = f"was {state}" if state in ("applied", "refused") else state
        log("%s by %s %s: %s", command, command.author, verb, result)
        self._note(command, state, result)

    def close(self) -> None:
        """Refuse the remaining commands, and stop listening."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        flag, self._flag = self._flag, None
        if flag is None:
            return
        while (command := self.received()) is not None:
            self.answer(command, "failed", "The experiment ended first.")
        flag.close()
        self._offer(listens=False)

    def _follow(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            flag = self._flag
            try:
                if flag is not None and flag.map[0]:
                    self._take(flag)
                self._stop_runs()
            except Exception:  # the experiment continues without control
                logger.exception("The commands to the experiment cannot be read.")

    def _take(self, flag: Flag) -> None:
        flag.map[0] = 0  # first: a command that is written from here on sets it again
        (commands, refused), has_more = self._mailbox.take(self._known)
        for command, reason in refused:
            self.answer(command, "refused", reason)
        for command in commands:
            problem = self._problem(command)
            if command.expires <= time.time():
                self.answer(command, "expired", "It expired before the experiment received it.")
            elif problem is not None:
                self.answer(command, "refused", problem)
            else:
                self._note(command, "received", "")  # before it is done: it is not done twice
                if command.name == "stop_arm":
                    self._stopping[command.arguments["arm"]] = _reason(command)
                self._received.append(command)
        self._mailbox.forget(self._known)
        if has_more:
            flag.map[0] = 1
        self._offer(listens=True)

    def _stop_runs(self) -> None:
        """Ask the running runs of stopped arms to stop; one that does not listen yet is asked again."""
        for arm, reason in self._stopping.items():
            for directory in self._running(arm):
                if directory not in self._requested:
                    with contextlib.suppress(HooklineError):
                        RunControl(directory).stop(reason)
                        self._requested.add(directory)

    def _problem(self, command: Command) -> str | None:
        arguments, name = command.arguments, command.name
        if name not in COMMANDS:
            return f"{name}: {_CANNOT}"
        accepted = COMMANDS[name]["arguments"]
        unknown = next((key for key in arguments if key not in accepted), None)
        if unknown is not None:
            return f"{name}: there is no argument {unknown!r:.80}; it takes {', '.join(accepted)}."
        if name == "repeats":
            count = arguments.get("count")
            if isinstance(count, bool) or not isinstance(count, int) or not self._repeats <= count <= MOST_REPEATS:
                return f"repeats: count={count!r:.80}: give a whole number of {self._repeats} to {MOST_REPEATS:,}."
            return None
        arm, reason = arguments.get("arm"), arguments.get("reason", "")
        if arm not in self._arms:
            return f"{name}: there is no arm {arm!r:.80}. {closest(str(arm), self._arms)}"
        return None if isinstance(reason, str) else f"{name}: reason={reason!r:.80}: give a text."

    def _note(self, command: Command, state: State, result: str) -> None:
        outcome = Outcome(id=command.id, state=state, result=result, time=time.time(), command=command)
        self._known[command.id] = outcome
        try:
            self._mailbox.write(outcome)
        except OSError as error:
            logger.warning("The end of a command cannot be noted: %s", error)

    def _offer(self, *, listens: bool) -> None:
        facts = {"listens": True, "cannot": dict.fromkeys(BUILT_IN, _CANNOT), "commands": COMMANDS}
        facts |= {"arms": list(self._arms), "repeats": self._repeats}
        offer = facts if listens else {"listens": False, "reason": "it has ended."}
        try:
            self._mailbox.write_offer({"time": time.time(), "pid": os.getpid(), **offer})
        except OSError as error:
            logger.warning("What the experiment offers cannot be written: %s", error)


def _reason(command: Command) -> str:
    reason = command.arguments.get("reason")
    return f"{reason} ({command.author})" if reason else f"the arm was stopped by {command.author}"


def skip_reason(command: Command) -> str:
    """Return why the waiting runs of an arm are not executed."""
    if command.name not in ("skip", "stop_arm"):
        raise OptionError(f"{command.name}: it skips no arm.")
    reason = command.arguments.get("reason")
    return f"skipped by {command.author}{f': {reason}' if reason else ''}"

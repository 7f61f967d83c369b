"""`Control`: receives commands from outside at the step boundary, and applies them on all processes together.

Rank zero reads the mailbox (`hookline._record.commands`) and shares what it finds. Every rank checks a command before
any applies it, so one that a rank would refuse changes nothing anywhere. Subscribers see it in `on_command`, where rank
zero's changes count.

A loop reads one byte of mapped memory at each boundary, ``loop.command_flag[0]``. Only if it is set does the training
thread look further, so a loop that nobody controls pays for nothing else.

Settings belong to checkpoints: those in force when one was saved are part of it. Commands that were applied behind the
checkpoint that a resume begins from are applied again at the same steps, unless ``resume_commands="drop"``.
"""

import inspect
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import CheckpointError, HooklineError, OptionError, closest
from hookline._engine.factories import Source, plan_subscriber
from hookline._engine.state import ManifestRow
from hookline._engine.subscriber_list import SubscriberList
from hookline._record.commands import (
    BUILT_IN,
    BUSY,
    OFF,
    Command,
    Flag,
    Mailbox,
    Outcome,
    State,
    problem_of,
    problem_of_value,
    unknown_parameter,
)

if TYPE_CHECKING:
    from hookline.loops.session import Session

logger = logging.getLogger("hookline")

IDLE = b"\0"
"""The flag of a loop that has no mailbox."""
PAUSE_SECONDS = 3600.0
"""How long a pause lasts if its command does not say."""
PAUSE_POLL = 0.05
"""How often a paused process looks at its flag. With several processes, each look is a collective, which keeps their
groups from timing out."""
COMMAND = "command"
"""The event of a command in the journal."""
LOST = "The process ended before it was done. It is not applied again."


@dataclass(slots=True)
class Tunable:
    """A parameter that a person may change while the program runs; the program reads ``value`` where it uses it.

    Attributes:
        name: Its name.
        value: Its present value.
        min, max: The bounds, both included; None for none.
        choices: The accepted values, if they are listed.
    """

    name: str
    value: Any
    min: float | None = None
    max: float | None = None
    choices: tuple[Any, ...] | None = None

    @property
    def kind(self) -> str:
        """The type of its values: ``float``, ``int``, ``bool`` or ``str``."""
        return type(self.value).__name__

    def set(self, value: Any) -> str:
        """Set it to a checked value, and return what that did."""
        before = self.value
        self.value = type(before)(value)
        return f"{self.name}: {before!r} -> {self.value!r}."

    def offer(self) -> dict[str, Any]:
        """Return its type, bounds and value, as senders see them."""
        facts: dict[str, Any] = {"type": self.kind, "value": self.value}
        bounds = {"min": self.min, "max": self.max, "choices": self.choices and list(self.choices)}
        return facts | {name: bound for name, bound in bounds.items() if bound is not None}


class LearningRate:
    """The learning rate of groups of an optimizer of torch, offered like a `Tunable`.

    Of several groups it is the rate of the first; the others keep their ratio to it.
    """

    def __init__(self, name: str, groups: Mapping[int, dict[str, Any]], scheduler: Any) -> None:
        self.name = name
        self._groups, self._scheduler = groups, scheduler

    @property
    def _rate(self) -> float:
        return float(next(iter(self._groups.values()))["lr"])

    def offer(self) -> dict[str, Any]:
        """Return its type, bounds and value, as senders see them."""
        return {"type": "float", "value": self._rate, "min": 0.0, "scheduled": self._scheduler is not None}

    def problem(self) -> str | None:
        """Return why the rate cannot be set now, or None."""
        if self._rate == 0.0 and (self._scheduler is not None or len(self._groups) > 1):
            return f"{self.name} is 0 at this step, which cannot be scaled. Set it at a later step of its schedule."
        return None

    def set(self, value: Any) -> str:
        """Set the rate; where there is a schedule, scale all of it."""
        before = self._rate
        factor = float(value) / before if before else 0.0
        for index, group in self._groups.items():
            own = float(group["lr"])
            rate = float(value) if own == before else own * factor
            if hasattr(group["lr"], "fill_"):  # a tensor, for a captured optimizer
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
            if self._scheduler is not None:
                self._scale(index, group, factor)
        done = f"{self.name}: {before:g} -> {float(value):g}."
        if self._scheduler is None:
            return done
        return f"{done} The base rate of the schedule is scaled by {factor:g}; the schedule continues from there."

    def _scale(self, index: int, group: dict[str, Any], factor: float) -> None:
        for name in ("initial_lr", "max_lr", "min_lr"):  # the last two are those of OneCycleLR
            if name in group:
                group[name] = group[name] * factor
        for scheduler in _schedulers(self._scheduler):
            for attribute in ("base_lrs", "_last_lr"):
                rates = getattr(scheduler, attribute, None)
                if isinstance(rates, list) and index < len(rates):
                    rates[index] = rates[index] * factor


class AssignedRate:
    """The learning rate of an optimizer that has it as an attribute, as Keras's have."""

    def __init__(self, name: str, optimizer: Any) -> None:
        self.name, self._optimizer = name, optimizer

    def offer(self) -> dict[str, Any]:
        """Return its type, bounds and value, as senders see them."""
        return {"type": "float", "value": float(self._optimizer.learning_rate), "min": 0.0}

    def problem(self) -> str | None:
        """Return why the rate cannot be set now, or None."""
        schedule = getattr(self._optimizer, "_learning_rate", None)
        if callable(schedule) and not hasattr(schedule, "assign"):
            return f"{self.name} follows a schedule that this optimizer computes itself, and cannot be set."
        return None

    def set(self, value: Any) -> str:
        """Set the rate."""
        before = float(self._optimizer.learning_rate)
        self._optimizer.learning_rate = value
        return f"{self.name}: {before:g} -> {float(value):g}."


Rate = LearningRate | AssignedRate


def _schedulers(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and those that it wraps or runs one after the other."""
    yield scheduler
    inner = getattr(scheduler, "scheduler", None)  # Accelerate's wrapper
    for each in [*([] if inner is None else [inner]), *(getattr(scheduler, "_schedulers", None) or ())]:
        yield from _schedulers(each)


def learning_rates(session: "Session") -> dict[str, Rate]:
    """Return the learning rates that a loop offers by default, by name."""
    optimizer = session.optimizer
    optimizer = getattr(session.native, "optimizer", None) if optimizer is None else optimizer
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list) and all(isinstance(group, dict) and "lr" in group for group in groups):
        numbered = dict(enumerate(groups))
        offered = {"learning_rate": numbered}
        if len(groups) > 1:
            offered |= {f"learning_rate/{index}": {index: group} for index, group in numbered.items()}
        return {name: LearningRate(name, own, session.scheduler) for name, own in offered.items() if own}
    if hasattr(optimizer, "learning_rate") and hasattr(optimizer, "apply_gradients"):
        return {"learning_rate": AssignedRate("learning_rate", optimizer)}
    return {}


def is_switched_off() -> bool:
    """Whether the environment switches control off."""
    value = os.environ.get(OFF, "")
    if value.lower() not in ("", "on", "1", "true", "off", "0", "false"):
        raise OptionError(f"{OFF}={value!r}: give 'on' or 'off'.")
    return value.lower() in ("off", "0", "false")


class Control:
    """The commands of one session.

    Args:
        session: The session.
        mode: Whether it listens; ``"own"`` offers no learning rates by itself.
        resume_commands: Whether a resume applies commands again that were applied behind its checkpoint.

    Attributes:
        is_paused: Whether the loop waits at a step boundary.
    """

    def __init__(self, session: "Session", *, mode: Any = True, resume_commands: str = "apply") -> None:
        if mode not in (True, False, "own"):
            raise OptionError(f"control={mode!r}: give True, False, or 'own' to offer no learning rates by default.")
        if resume_commands not in ("apply", "drop"):
            raise OptionError(f"resume_commands={resume_commands!r}: give 'apply' or 'drop'.")
        self._session = session
        self._mode = False if is_switched_off() else mode
        self._drops = resume_commands == "drop"
        self.is_paused = False
        self.tunables: dict[str, Tunable] = {}
        self._restored: dict[str, Any] = {}  # values in the resumed checkpoint, until the program offers them
        self._hooks: list[Command] = []  # what was changed about subscribers, in order
        self._changed: set[str] = set()  # the tunables that commands have set
        self._mailbox: Mailbox | None = None
        self._flag: Flag | None = None
        self._writing = threading.Lock()
        self._latest: tuple[Mailbox, dict[str, Any]] | None = None  # what is offered, until it is written
        self._known: dict[str, Outcome] = {}  # rank zero's: the latest state of each command in the log
        self._lost: list[Command] = []  # rank zero's: received by an earlier session, which did not answer them
        self._replays: list[Outcome] = []  # rank zero's: to be applied again, by step
        self._awaited: dict[str, list[Command]] = {"checkpoint": [], "validate": []}
        self._queue: deque[tuple[Command, Outcome | None]] = deque()  # taken, and not applied yet
        self._pausing: Command | None = None  # waits for the checkpoint that the host saves first

    # From the beginning of the session to its end

    def open(self) -> None:
        """Create the mailbox, on rank zero; a session that cannot is not controlled, and warns."""
        session = self._session
        if session.rank != 0 or session.output_dir is None or not self._mode:
            return
        mailbox = Mailbox(session.output_dir)
        try:
            flag = mailbox.create()
            outcomes = mailbox.outcomes()
        except (OSError, ValueError) as error:
            logger.warning("%r does not listen to commands: %s", session.name, error)
            return
        self._known = {each.id: each for each in outcomes}
        self._lost = [each.command for each in self._known.values() if each.state == "received" and each.command]
        if session.control_refusal is not None:
            flag.close()
            self._write_offer(mailbox, {"listens": False, "reason": session.control_refusal})
            return
        self._mailbox, self._flag = mailbox, flag
        self._reset_flag()
        # What was sent while no process ran is still applied, unless it has expired.
        flag.map[0] = 1

    def started(self) -> None:
        """Write the offer, once the loop knows its optimizer."""
        while self._lost:
            self._answer(self._lost.pop(0), "failed", LOST)
        if self._mailbox is not None:
            self._write_offer(self._mailbox, self.offer())

    def resumed(self, step: int) -> None:
        """Plan to apply again what was applied behind the checkpoint of a resume, or drop it.

        Args:
            step: The completed steps in the checkpoint; -1 for a run that starts over.
        """
        if self._mailbox is None:
            return
        if self._drops:
            self._log(Outcome(id="-", state="applied", time=time.time(), resumed_at=step))
            return
        self._replays = sorted(
            (each for each in _in_force(self._mailbox.outcomes()).values() if (each.step or 0) > step),
            key=lambda each: each.step or 0,
        )
        self._reset_flag()

    def close(self) -> None:
        """Refuse the remaining commands, and stop listening."""
        self._session.command_flag = IDLE
        mailbox, flag, self._mailbox, self._flag = self._mailbox, self._flag, None, None
        if mailbox is None or flag is None:
            return
        self._mailbox = mailbox
        for kind, commands in self._awaited.items():
            why = "the loop did not validate; a loop of your own has to check run.validation_requested"
            for command in commands:
                self._answer(
                    command, "failed", f"The run ended first: {why if kind == 'validate' else 'nothing was saved'}."
                )
            commands.clear()
        if self._pausing is not None:
            self._answer(self._pausing, "failed", "The run ended first.")
        self._mailbox = None
        flag.close()
        with self._writing:  # the last one, whatever the other thread was about to write
            self._latest = None
            self._write_offer(mailbox, {"listens": False, "reason": "it has ended."})

    def _reset_flag(self) -> None:
        """Make the loop look at the mapped flag, or look further at the next boundary whatever it says."""
        if self._flag is not None:
            is_busy = bool(self._replays) or self._pausing is not None
            self._session.command_flag = BUSY if is_busy else self._flag.map

    # What is offered

    def tunable(self, name: str, value: Any, bounds: tuple[Any, Any], choices: Any) -> Tunable:
        """Offer a parameter; see `Session.tunable`."""
        if name in self.tunables:
            return self.tunables[name]
        listed = None if choices is None else tuple(choices)
        given = Tunable(name, value, *bounds, listed)
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 100:
            raise OptionError(f"tunable({name!r:.120}): give a name of 1 to 100 printable characters.")
        if not isinstance(value, bool | int | float | str):
            raise OptionError(f"tunable({name!r}, {value!r:.80}): give a number, a text, True or False.")
        for what, bound in zip(("min", "max"), bounds, strict=True):
            if bound is not None and (given.kind not in ("int", "float") or not isinstance(bound, int | float)):
                raise OptionError(
                    f"tunable({name!r}, {value!r}, {what}={bound!r}): bounds are numbers, and of numbers."
                )
        problem = problem_of_value(name, given.offer(), value)
        if problem is not None:
            raise OptionError(f"tunable(): {problem}")
        self.tunables[name] = given
        if name in self._restored and problem_of_value(name, given.offer(), self._restored[name]) is None:
            given.set(self._restored[name])
            self._changed.add(name)
        if self._session.has_started:
            self.started()
        return given

    def _parameters(self) -> dict[str, Tunable | Rate]:
        rates: Mapping[str, Rate] = {} if self._mode == "own" else learning_rates(self._session)
        return {**rates, **self.tunables}

    def offer(self) -> dict[str, Any]:
        """Return the run's offer, as senders and the page see it."""
        session = self._session
        cannot = {name: why for name in BUILT_IN if (why := session.command_refusal(name)) is not None}
        return {
            "listens": True,
            "step": session.step,
            "paused": self.is_paused,
            "cannot": cannot,
            "tunables": {name: each.offer() for name, each in self._parameters().items()},
            "commands": {name: _described(function) for name, function in self._own_commands().items()},
            "subscribers": [each for listed in session.subscriber_lists() for each in _subscribers(listed)],
        }

    def _offer_soon(self, mailbox: Mailbox) -> None:
        """Write what is offered now, on the thread of the journal: replacing a file may take milliseconds."""
        self._latest = mailbox, self.offer()
        recorder = self._session.recorder
        if recorder is None or not recorder.journal.run_soon(self._write_latest):
            self._write_latest()

    def _write_latest(self) -> None:
        with self._writing:
            latest, self._latest = self._latest, None
            if latest is not None:
                self._write_offer(*latest)

    def _write_offer(self, mailbox: Mailbox, offer: dict[str, Any]) -> None:
        try:
            mailbox.write_offer({"time": time.time(), "pid": os.getpid(), **offer})
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%r cannot write what its control offers: %s", self._session.name, error)

    def _own_commands(self) -> dict[str, Callable[..., Any]]:
        """Return the commands that subscribers offer in their ``commands``."""
        found: dict[str, Callable[..., Any]] = {}
        for listed in self._session.subscriber_lists():
            for flat in listed.flatten():
                subscriber = flat.registration.subscriber
                offered = getattr(subscriber, "commands", None)
                if flat.registration.disabled or not isinstance(offered, Mapping):
                    continue
                for name, function in offered.items():
                    if isinstance(name, str) and name.isidentifier() and name not in BUILT_IN:
                        found.setdefault(name, _bound(function, subscriber))
        return found

    # At a step boundary, on all ranks

    def receive(self, *, refusal: str | None = None) -> None:
        """Receive and apply commands; a collective where several processes train together.

        Args:
            refusal: Refuse everything, for this reason.
        """
        session = self._session
        self._queue.extend(self._exchanged(refusal))
        while self._queue:
            self._handle(*self._queue.popleft())
        if self._pausing is not None and self._is_saved(self._pausing):
            command, self._pausing = self._pausing, None
            self._pause(command, None)
        if self._mailbox is not None:
            self._reset_flag()
            self._offer_soon(self._mailbox)
        session.commit_held_back()

    def _exchanged(self, refusal: str | None = None) -> list[tuple[Command, Outcome | None]]:
        """Return the commands to apply now, the same on all ranks, each with its earlier outcome if it had one."""
        taken: list[tuple[Command, Outcome | None]] = []
        if self._mailbox is not None and self._flag is not None:
            now = self._session.step
            due = [each for each in self._replays if (each.step or 0) <= now]
            self._replays = self._replays[len(due) :]
            taken = [(each.command, each) for each in due if each.command is not None]
            try:
                taken += [(command, None) for command in self._take(self._mailbox, self._flag, refusal)]
            except OSError as error:  # a full disk: what cannot be noted as received is not applied
                logger.warning("%r cannot read its commands: %s", self._session.name, error)
        shared: list[tuple[Command, Outcome | None]] = self._session.processes.share(taken)
        return shared

    def _take(self, mailbox: Mailbox, flag: Flag, refusal: str | None) -> list[Command]:
        # Cleared first: a command that is written from here on sets it again.
        flag.map[0] = 0
        (commands, refused), has_more = mailbox.take(self._known)
        for command, reason in [*refused, *((command, refusal) for command in commands if refusal is not None)]:
            self._answer(command, "refused", reason)
        accepted = []
        for command in commands if refusal is None else ():
            if command.expires <= time.time():
                self._answer(command, "expired", "It expired before the run received it.")
            else:
                # Before it is applied: if the process dies in between, it is not applied a second time.
                self._log(
                    Outcome(id=command.id, state="received", time=time.time(), step=self._session.step, command=command)
                )
                accepted.append(command)
        mailbox.forget(self._known)
        if has_more:
            flag.map[0] = 1
        return accepted

    def _handle(self, command: Command, again: Outcome | None) -> None:
        session, processes = self._session, self._session.processes
        refusal = self._agreed_problem(command)
        if refusal is None and again is None:
            session.callbacks.on_command(session, command)
            # Rank zero's: subscribers of the other ranks may have changed it in another way.
            command = processes.share(command)
            refusal = command.refusal or problem_of(command) or self._agreed_problem(command)
        if refusal is not None:
            self._answer(command, "refused", refusal, again=again)
            return
        result, failure = "", None
        try:
            if self._problem(command) is None:  # a rank without the subscriber has nothing to change
                result = self._apply(command)
        except Exception as error:
            logger.exception("The command %s failed.", command)
            failure = f"{type(error).__name__}: {error}"
        failures = [each for each in processes.gather(failure) if each is not None]
        if failures:
            self._answer(command, "failed", failures[0], again=again)
        elif command.name in self._awaited:
            self._awaited[command.name].append(command)
        elif self._pausing is not command and command.name != "pause":
            self._answer(command, "applied", result, again=again)

    def _agreed_problem(self, command: Command) -> str | None:
        problems = self._session.processes.gather(self._problem(command))
        found = [each for each in problems if each is not None]
        if command.name.startswith("hooks.") and len(found) < len(problems):
            return None  # a subscriber that only some ranks have
        return found[0] if found else None

    def _problem(self, command: Command) -> str | None:
        """Return why this process refuses a command, or None; changes nothing."""
        arguments, name = command.arguments, command.name
        refusal = self._session.command_refusal(name)
        if refusal is not None:
            return refusal
        try:
            if name == "set":
                return self._problem_of_setting(arguments["name"], arguments["value"])
            if name.startswith("hooks."):
                return self._problem_of_hooks(name, arguments)
            if name in ("pause", "continue"):
                pauses = self.is_paused or self._pausing is not None
                if (name == "pause") == pauses:
                    return "The run is paused already." if pauses else "The run is not paused."
            if name not in BUILT_IN:
                own = self._own_commands()
                if name not in own:
                    return f"There is no command {name!r}. {closest(name, [*BUILT_IN, *own])}"
                inspect.signature(own[name]).bind(self._session, **arguments)
        except (HooklineError, TypeError, ValueError) as error:
            return f"{name}: {error}"
        return None

    def _problem_of_hooks(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        if name != "hooks.add":
            self._list_of(arguments["name"])
            return None
        plan_subscriber(_entry(arguments), Source(()), "hooks.add")
        taken = arguments.get("name") in self._session.callbacks.names()
        return f"The name {arguments['name']!r} is taken." if taken else None

    def _problem_of_setting(self, name: str, value: Any) -> str | None:
        parameters = self._parameters()
        if name not in parameters:
            return unknown_parameter(name, parameters)
        parameter = parameters[name]
        problem = problem_of_value(name, parameter.offer(), value)
        return problem or (None if isinstance(parameter, Tunable) else parameter.problem())

    def _list_of(self, name: str) -> SubscriberList:
        """Return the list that has a subscriber.

        Raises:
            UnknownNameError: None has.
        """
        lists = self._session.subscriber_lists()
        for listed in lists:
            if any(name in (flat.path, flat.chain[0].name) for flat in listed.flatten()):
                return listed
        lists[0].unregister(name)  # raises, with the names that there are
        raise AssertionError(name)

    def _apply(self, command: Command) -> str:
        session, arguments, name = self._session, command.arguments, command.name
        match name:
            case "stop":
                reason = arguments.get("reason")
                session.request_stop(f"{reason} ({command.author})" if reason else f"stopped by {command.author}")
                return f"The training stops at step {session.step}."
            case "checkpoint":
                session.request_checkpoint()
            case "validate":
                session.request_validation()
            case "set":
                return self._set(arguments["name"], arguments["value"])
            case "pause":
                self._begin_pause(command)
            case "continue":
                self.is_paused = False
                if self._pausing is not None:
                    waiting, self._pausing = self._pausing, None
                    self._answer(waiting, "applied", "It was continued before the pause began.")
                return f"The training continues at step {session.step}."
            case _ if name.startswith("hooks."):
                result = self._change_hooks(name.removeprefix("hooks."), arguments)
                self._remember(command)
                return result
            case _:
                result = self._own_commands()[name](session, **arguments)
                return "" if result is None else str(result)[:1000]
        return ""

    def _set(self, name: str, value: Any) -> str:
        parameter = self._parameters()[name]
        if isinstance(parameter, Tunable):
            self._changed.add(name)
        return parameter.set(value)

    def _change_hooks(self, what: str, arguments: Mapping[str, Any]) -> str:
        callbacks = self._session.callbacks
        if what == "add":
            before = set(callbacks.names())
            callbacks.add(_entry(arguments))
            return f"Added {', '.join(name for name in callbacks.names() if name not in before)}."
        name = arguments["name"]
        listed = self._list_of(name)
        if what == "remove":
            listed.unregister(name)
            return f"Removed {name}."
        if what == "schedule":
            every, start = arguments["every"], arguments.get("start", 0)
            listed.reschedule(name, every, start=start)
            return f"{name} runs every {every} steps{f' after the first {start}' if start else ''}."
        listed.switch(name, enabled=what == "enable")
        return f"{name} is {'on' if what == 'enable' else 'off'}."

    def _remember(self, command: Command) -> None:
        """Keep what checkpoints have to hold about subscribers; only the last of equal settings counts."""
        key = _key(command)
        self._hooks = [each for each in self._hooks if key is None or _key(each) != key]
        self._hooks.append(command)

    # Pauses

    def _begin_pause(self, command: Command) -> None:
        try:
            row = self._session.save_at_boundary()
        except CheckpointError as error:
            self._pause(command, f"No checkpoint was saved: {error}")
            return
        if row is not None:
            self._pause(command, f"Saved {row.path}.")
        elif self._session.checkpoint_requested:
            self._pausing = command  # the host saves at this boundary, and the next one pauses
        else:
            self._pause(command, "No checkpoint was saved: this loop cannot save one here.")

    def _is_saved(self, command: Command) -> bool:
        return not self._session.checkpoint_requested

    def _pause(self, command: Command, saved: str | None) -> None:
        """Wait at the step boundary until a command continues, a stop is requested, or the limit is over."""
        session, limit = self._session, float(command.arguments.get("limit", PAUSE_SECONDS))
        self.is_paused = True
        began = time.monotonic()
        self._answer(command, "applied", f"Paused at step {session.step}. {saved or ''}".strip())
        self._report_pause("paused", f"by {command.author}")
        reason = "continued"
        try:
            while self.is_paused:
                if self._queue:  # what was sent together with the pause, perhaps its end
                    self._handle(*self._queue.popleft())
                    continue
                # Each turn is a collective where several processes wait, so their groups do not time out.
                agreed = session.processes.agree(
                    session.stop_reason, time.monotonic() - began >= limit, self._has_mail()
                )
                if agreed.stop_reason is not None or agreed.wishes[0]:
                    reason = "the limit is over" if agreed.stop_reason is None else "stop"
                    break
                if agreed.wishes[1]:
                    self._queue.extend(self._exchanged())
                    if self._mailbox is not None:
                        self._offer_soon(self._mailbox)
                else:
                    time.sleep(PAUSE_POLL)
        finally:
            self.is_paused = False
        self._report_pause("running", f"after a pause of {time.monotonic() - began:.1f} s: {reason}")

    def _has_mail(self) -> bool:
        return self._flag is not None and self._flag.map[0] != 0

    def _report_pause(self, status: str, message: str) -> None:
        session = self._session
        if session.recorder is not None and session.rank == 0:
            session.recorder.status(status, message, step=session.step)
        if self._mailbox is not None:
            self._offer_soon(self._mailbox)

    # Answers

    def completed(self, kind: str, result: str) -> None:
        """Answer the commands that wait for a checkpoint or a validation, which is done now."""
        waiting = self._awaited[kind]
        while waiting:
            self._answer(waiting.pop(0), "applied", result)

    def saved(self, row: ManifestRow) -> None:
        """Answer the commands that wait for a checkpoint."""
        self.completed("checkpoint", f"Saved {row.path} at step {row.step}.")

    def _answer(self, command: Command, state: State, result: str, *, again: Outcome | None = None) -> None:
        """Record the end of a command, in the journal and in the mailbox's log."""
        session = self._session
        if self._mailbox is None:
            return
        superseded = self._superseded(command) if again is None and state == "applied" else []
        if session.recorder is not None:
            session.recorder.event(
                COMMAND,
                step=session.step,
                id=command.id,
                command=command.name,
                arguments=command.arguments,
                author=command.author,
                sent=command.time,
                state=state,
                result=result,
                **({"via": command.via} if command.via else {}),
                **({"again": True} if again is not None else {}),
            )
        if state == "applied":
            logger.info("%s applied %s by %s: %s", session.name, command, command.author, result)
        else:
            verb = "was refused" if state == "refused" else state
            logger.warning("%s: the command %s by %s %s: %s", session.name, command, command.author, verb, result)
        outcome = Outcome(
            id=command.id, state=state, result=result, time=time.time(), step=session.step, command=command
        )
        outcome.again, outcome.supersedes = again is not None, superseded
        try:
            self._log(outcome)
        except OSError as error:  # a full disk: the command is done, and the training continues
            logger.warning("%r cannot note the end of a command: %s", session.name, error)

    def _superseded(self, command: Command) -> list[str]:
        """Forget commands that were to be applied again, and that a new one replaces; return their ids."""
        key = _key(command)
        replaced = [each for each in self._replays if key is not None and each.command and _key(each.command) == key]
        self._replays = [each for each in self._replays if each not in replaced]
        return [each.id for each in replaced]

    def _log(self, outcome: Outcome) -> None:
        if self._mailbox is not None:
            self._known[outcome.id] = outcome
            self._mailbox.write(outcome)

    # What a checkpoint holds

    def state_dict(self) -> dict[str, Any]:
        """Return the settings in force; empty where no command has changed anything."""
        settings = {name: self.tunables[name].value for name in sorted(self._changed)}
        unused = {name: value for name, value in self._restored.items() if name not in self.tunables}
        hooks = [{"name": each.name, "arguments": each.arguments} for each in self._hooks]
        state = {"tunables": unused | settings, "hooks": hooks}
        return {name: value for name, value in state.items() if value}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the settings of a checkpoint in force, before the states of subscribers are loaded."""
        self._restored = dict(state.get("tunables", {}))
        for name, value in self._restored.items():
            if name in self.tunables and problem_of_value(name, self.tunables[name].offer(), value) is None:
                self._set(name, value)
        if self._session.has_started:  # its subscribers are those of now, not those of the checkpoint
            return
        for number, each in enumerate(state.get("hooks", ())):
            command = Command(id=f"restored-{number}", name=each["name"], arguments=dict(each["arguments"]))
            problem = problem_of(command) or self._problem(command)
            try:
                if problem is None:
                    self._apply(command)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                logger.warning("The checkpoint was saved after %s, which cannot be applied again: %s", command, problem)


def _entry(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a configuration for a subscriber to add."""
    return {name: value for name, value in arguments.items() if name != "with" or value}


def _key(command: Command) -> tuple[str, str] | None:
    """Return the key of a command's setting; a later command with the same key replaces it."""
    kind = {"set": "set", "hooks.enable": "switch", "hooks.disable": "switch", "hooks.schedule": "schedule"}
    return (kind[command.name], str(command.arguments["name"])) if command.name in kind else None


def _repeats(command: Command) -> bool:
    """Whether a resume from before a command applies it again; the others leave no setting behind."""
    return command.name not in ("stop", "checkpoint", "validate", "pause", "continue")


def _in_force(outcomes: list[Outcome]) -> dict[str, Outcome]:
    """Return the applied commands that the log has not taken back, by id, in order."""
    found: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.resumed_at is not None:
            found = {key: each for key, each in found.items() if (each.step or 0) <= outcome.resumed_at}
        elif outcome.state == "applied" and outcome.command is not None and _repeats(outcome.command):
            if problem_of(outcome.command) is not None:  # the run did not write this: its directory came from elsewhere
                continue
            found = {key: each for key, each in found.items() if key not in outcome.supersedes}
            found[outcome.id] = outcome
    return found


def _bound(function: Any, subscriber: Any) -> Callable[..., Any]:
    """Return a command of a callback as a function of the loop and its arguments."""
    if isinstance(function, str):
        return getattr(subscriber, function)  # type: ignore[no-any-return]
    # In the body of a class, ``commands = {"lower": lower}`` holds the function before it is a method.
    is_method = inspect.isfunction(function) and getattr(type(subscriber), function.__name__, None) is function
    return function.__get__(subscriber) if is_method else function  # type: ignore[no-any-return]


def _described(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the first line of a command's documentation and its arguments, for a form."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        parameters = []
    plain = (bool, int, float, str)
    arguments = {each.name: each.default if isinstance(each.default, plain) else None for each in parameters}
    text = (inspect.getdoc(function) or "").strip().partition("\n")[0]
    return {"description": text, "arguments": arguments}


def _subscribers(listed: SubscriberList) -> Iterator[dict[str, Any]]:
    costs = {cost.name: cost for cost in listed.costs()}
    for flat in listed.flatten():
        options, cost = flat.registration.options, costs.get(flat.path)
        schedules = [repr(each.options.schedule) for each in flat.chain if each.options.schedule is not None]
        yield {
            "name": flat.path,
            "kind": type(flat.registration.subscriber).__name__,
            "enabled": not flat.registration.disabled,
            "schedule": " & ".join(schedules),
            "priority": options.priority,
            "critical": flat.critical,
            "background": flat.background,
            "calls": 0 if cost is None else cost.calls,
            "seconds": 0.0 if cost is None else cost.total_seconds,
            "errors": 0 if cost is None else cost.errors,
        }

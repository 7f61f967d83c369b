"""Control of live runs and experiments from the page: what one accepts, what was sent to it, and sending more.

A command goes into the mailbox beside the run's journal. A run of this machine reads it there; the sender of another
machine's run fetches it (`hookline.server.received_control`). Sending takes a token with the role ``control`` on a
server with tokens. An experiment is named by its directory, a run by its id.
"""

import inspect
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hookline._engine.errors import HooklineError, RefusedError, UnknownNameError
from hookline._engine.registry import REGISTRY
from hookline._record import run_directory
from hookline._record.commands import MOST_SECONDS, Outcome, RunControl, new_command
from hookline.server.access import CONTROL_PREFIX
from hookline.server.actions import ActionContext, ActionEndpoint, ActionRequest
from hookline.server.audit import local_user
from hookline.server.endpoint import Endpoint, Parameter, Values, check_project
from hookline.server.listing import Listing
from hookline.store.edits import run_directory_of

MOST_SHOWN = 200
SENT_SECONDS = 600.0
OFFER_SECONDS = 10.0
"""How old the values and costs that are shown may be."""
STUCK_SECONDS = 20.0
"""After how long without the end of a step the page says so."""


class SentCommand(msgspec.Struct):
    """A command and the latest state that it reached."""

    id: str
    name: str
    arguments: dict[str, Any]
    author: str
    time: float
    state: str
    result: str = ""
    step: int | None = None


class RunCommands(msgspec.Struct):
    """What a run accepts, and what was sent to it, newest first.

    Attributes:
        listens: Whether commands can be sent now.
        reason: Why not; or that the run has not come to the end of a step for a while, where they wait.
        offer: Its parameters, subscribers and commands, as it last reported them.
    """

    listens: bool
    reason: str
    offer: dict[str, Any]
    commands: list[SentCommand]


class AddableCallback(msgspec.Struct):
    """A callback or hook that can be added to a live run.

    Attributes:
        name: Its registered name.
        description: The first line of its documentation.
        arguments: Its arguments with their defaults, without those that take a function; null for those without one.
    """

    name: str
    description: str
    arguments: dict[str, bool | int | float | str | None]


class AddableCallbacks(msgspec.Struct):
    """The callbacks and hooks of this installation; a run may have others."""

    callbacks: list[AddableCallback]


class CommandRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A command to a run or an experiment; with an id that was used before, it is not sent again."""

    run: str
    name: str
    arguments: dict[str, Any] = {}
    id: str | None = None
    expires: Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)] = SENT_SECONDS


def _shown(outcome: Outcome) -> SentCommand:
    command = outcome.command
    if command is None:
        return SentCommand(outcome.id, "", {}, "", outcome.time, outcome.state, outcome.result, outcome.step)
    facts = (command.name, command.arguments, command.author, command.time)
    return SentCommand(outcome.id, *facts, outcome.state, outcome.result, outcome.step)


def _experiment_directory(root: Path, name: str) -> Path:
    """The directory of an experiment.

    Raises:
        UnknownNameError: There is none. Links and hidden directories are no experiments.
    """
    directory = root / name
    is_plain = bool(name) and name[0] != "." and not {"/", "\\", "\0"} & set(name)
    if not is_plain or directory.is_symlink() or not (directory / run_directory.EXPERIMENT_LOCK).is_file():
        raise UnknownNameError(f"There is no experiment {name!r:.200}. It may have been deleted.")
    return directory


def _commands(listing: Listing, values: Values) -> RunCommands:
    wanted = values["id"]
    if "/" in wanted:
        directory = listing.find(lambda listed: listed.runs.read(wanted)).directory
    else:
        check_project(listing.scope, wanted)
        try:
            directory = _experiment_directory(listing.now().runs.root, wanted)
        except UnknownNameError as error:  # of another machine, or by a version without control
            return RunCommands(False, str(error), {}, [])
    target = RunControl(directory)
    reason = ""
    try:
        offer = target.require_offer()
        listens = True
        waited = time.time() - target.mailbox.flag_changed_at()
        if not target.mailbox.is_flagged():
            if time.time() - offer.get("time", 0.0) > OFFER_SECONDS:
                target.mailbox.wake()  # the run brings its offer up to date at its next step
        elif waited > STUCK_SECONDS:
            reason = f"The run has not come to the end of a step for {waited:,.0f} s: commands wait until it does."
    except (RefusedError, OSError) as error:
        listens, offer, reason = False, target.offer() or {}, str(error)
    waiting = target.mailbox.waiting()  # first: a command that is received meanwhile is in both, never in none
    history = target.history()
    if not listens and target.is_over:
        for each in history:
            if each.state == "received":  # if it is resumed, its next session answers the same
                each.state, each.result = "failed", "The process ended before it was done."
    received = {each.id for each in history}
    history = [*history, *(each for each in waiting if each.id not in received)][-MOST_SHOWN:]
    return RunCommands(listens, reason, offer, [_shown(each) for each in reversed(history)])


def _send(context: ActionContext, request: ActionRequest) -> SentCommand:
    given: CommandRequest = request.body
    context.check_projects(request.principal, [given.run.partition("/")[0]])
    find = run_directory_of if "/" in given.run else _experiment_directory
    directory = find(context.root, given.run)
    name = request.principal.name if context.needs_token else local_user().name
    # The mailbox's author is the user of this server; a token's name needs the mark that it came through a server.
    via = "hookline serve" if context.needs_token else ""
    author = name if via else run_directory.user_name()
    command = new_command(given.name, given.arguments, author=author, via=via, expires=given.expires, id=given.id)
    try:
        outcome = RunControl(directory).deliver(command)
    except RefusedError as error:
        context.record(f"control.{given.name}", request, [given.run], result=f"refused: {error}"[:200])
        raise
    context.record(f"control.{given.name}", request, [given.run])
    return _shown(outcome)


def _default(parameter: inspect.Parameter) -> bool | int | float | str | None:
    return parameter.default if isinstance(parameter.default, bool | int | float | str) else None


def _addable(listing: Listing, values: Values) -> AddableCallbacks:
    found = []
    for name in REGISTRY.names():
        try:
            factory = REGISTRY.find(name)
            parameters = inspect.signature(factory).parameters.values()
        except (HooklineError, TypeError, ValueError, SystemExit):
            continue  # one of another package that cannot be imported here
        arguments = {each.name: _default(each) for each in parameters if "Callable" not in str(each.annotation)}
        lines = (inspect.getdoc(factory) or "").splitlines()
        found.append(AddableCallback(name, lines[0] if lines else "", arguments))
    return AddableCallbacks(found)


ENDPOINTS = (
    Endpoint(
        "/api/run_commands",
        "What a live run accepts, and the commands that were sent to it.",
        RunCommands,
        _commands,
        (Parameter("id", "string", "The id of a run, or the directory of an experiment.", required=True),),
    ),
    Endpoint(
        "/api/addable_callbacks",
        "The callbacks and hooks that can be added to a live run.",
        AddableCallbacks,
        _addable,
    ),
)
ACTIONS = (
    ActionEndpoint(f"{CONTROL_PREFIX}send", "Send a command to a live run.", CommandRequest, SentCommand, _send),
)

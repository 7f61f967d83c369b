"""``hookline control``: sends commands to a live run, and shows what it accepts and what was sent before."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hookline._engine.errors import OptionError, closest
from hookline._record.commands import BUILT_IN, EXPIRES_SECONDS, FINAL, Outcome, RunControl
from hookline._record.run_directory import EXPERIMENT_LOCK
from hookline._record.terminal import one_line
from hookline.cli.output import FAILED, AsJson, console, print_footer, print_json, table, wrong_input
from hookline.cli.runs.reference import Root, RunArgument, locate
from hookline.cli.runs.text import clock_text

HOOKS = ("enable", "disable", "schedule", "add", "remove")
_WAIT = 10.0
_BAD = frozenset({"refused", "failed", "expired"})
_ARGUMENTS = {"stop": "reason", "pause": "limit"}
"""The argument of a command that may be given by itself."""


def control(
    run: RunArgument,
    action: Annotated[
        str | None,
        typer.Argument(help="stop, checkpoint, validate, pause, continue, set, hooks, or a callback's own command."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...",
            help="Its arguments: stop [REASON], pause [SECONDS], set NAME VALUE, hooks enable|disable|remove NAME, "
            "hooks schedule NAME every=10 [start=100], hooks add NAME [argument=value]...",
            show_default=False,
        ),
    ] = None,
    *,
    root: Root = Path("runs"),
    wait: Annotated[float, typer.Option(min=0, help="How many seconds to wait for the result.")] = _WAIT,
    expires: Annotated[
        float, typer.Option(min=0.001, help="After how many seconds the command is no longer to be applied.")
    ] = EXPIRES_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Send a command to a live run, or, without one, show what the run accepts and what was sent before."""
    with wrong_input(as_json=as_json):
        is_experiment = (Path(run) / EXPERIMENT_LOCK).is_file()
        target = RunControl(Path(run) if is_experiment else locate(root, run).directory)
        if action is None:
            _show(target, as_json=as_json)
            return
        name, arguments = parsed(target, action, values or [])
        outcome = target.send(name, arguments, wait=wait, expires=expires)
    if as_json:
        print_json(outcome)
    else:
        console().print(_sentence(outcome, wait), markup=False, soft_wrap=True)
    if outcome.state in _BAD:
        raise typer.Exit(FAILED)


def parsed(target: RunControl, action: str, values: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a command and its arguments.

    Raises:
        OptionError: They cannot be understood.
    """
    values = list(values)
    if action == "set":
        if len(values) != 2:
            raise OptionError("set takes a name and a value: hookline control RUN set learning_rate 1e-4.")
        name, value = values
        offered = target.require_offer().get("tunables", {}).get(name, {})
        return "set", {"name": name, "value": value if offered.get("type") == "str" else plain_value(value)}
    if action == "hooks":
        what = values.pop(0) if values else ""
        if what not in HOOKS or not values:
            raise OptionError(
                f"hooks {what}".strip() + f": give one of {', '.join(HOOKS)}, and the name of a subscriber."
            )
        name = values.pop(0)
        named = _named(f"hooks {what}", values)
        if what == "add":
            options: dict[str, Any] = {key: named.pop(key) for key in ("every", "start", "name") if key in named}
            return "hooks.add", {"use": name, "with": named, **options}
        return f"hooks.{what}", {"name": name, **named}
    if action in _ARGUMENTS and values and "=" not in values[0]:
        text = " ".join(values)
        return action, {_ARGUMENTS[action]: text if action == "stop" else plain_value(text)}
    if action not in BUILT_IN and "." in action:
        raise OptionError(f"There is no command {action!r}. {closest(action, [*BUILT_IN, 'hooks'])}")
    return action, _named(action, values)


def _named(action: str, values: Sequence[str]) -> dict[str, Any]:
    named = {}
    for each in values:
        key, sign, value = each.partition("=")
        if not sign or not key:
            raise OptionError(f"{action}: {each!r:.80} is not argument=value.")
        named[key] = plain_value(value)
    return named


def plain_value(text: str) -> Any:
    """Return the number, list, mapping or truth value that a text stands for; otherwise the text.

    >>> [plain_value(text) for text in ("1e-4", "3", "true", "cosine")]
    [0.0001, 3, True, 'cosine']
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _sentence(outcome: Outcome, wait: float) -> str:
    if outcome.state == "sent":
        return f"sent: the run has not received it after {wait:g} s; it does when its step ends. ({outcome.id})"
    if outcome.state not in FINAL:
        return f"received: not done after {wait:g} s. ({outcome.id})"
    return one_line(f"{outcome.state}: {outcome.result}".removesuffix(": "))


def _show(target: RunControl, *, as_json: bool) -> None:
    offer, history = target.offer(), target.history()
    if as_json:
        print_json({"offer": offer, "commands": msgspec.to_builtins(history)})
        return
    out = console()
    if offer is None or not offer.get("listens"):
        why = "" if offer is None else offer.get("reason", "")
        out.print(one_line(f"The run does not listen to commands{f': {why}' if why else '.'}"), markup=False)
    else:
        target.mailbox.wake()  # for an offer that is up to date the next time
        listing = table("parameter", "value", "type", "bounds", whole=["parameter"])
        for name, each in offer.get("tunables", {}).items():
            bounds = [f"{key} {each[key]}" for key in ("min", "max", "choices") if key in each]
            listing.add_row(*map(one_line, map(str, (name, each["value"], each["type"], ", ".join(bounds)))))
        out.print(listing)
        listing = table("subscriber", "on", "schedule", "calls", "seconds", whole=["subscriber"], numbers=["calls"])
        for each in offer.get("subscribers", []):
            on = "yes" if each["enabled"] else "no"
            cells = (each["name"], on, each["schedule"], each["calls"], f"{each['seconds']:.3g}")
            listing.add_row(*map(one_line, map(str, cells)))
        out.print(listing)
        for name, each in offer.get("commands", {}).items():
            out.print(one_line(f"{name}({', '.join(each['arguments'])})  {each['description']}"), markup=False)
        for name, why in offer.get("cannot", {}).items():
            out.print(one_line(f"not {name}: {why}"), markup=False)
    if history:
        listing = table("time", "step", "command", "author", "state", "result")
        for outcome in history:
            command = outcome.command
            if command is not None:
                step = "" if outcome.step is None else str(outcome.step)
                answer = (step, str(command), command.author, outcome.state, outcome.result)
                listing.add_row(*map(one_line, (clock_text(command.time), *answer)))
        out.print(listing)
    print_footer(f"{len(history):,} {'command' if len(history) == 1 else 'commands'}")

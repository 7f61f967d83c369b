"""``hookline alerts``: lists, acknowledges and mutes the alerts of a root, and tests where they are delivered.

Alerts are raised and delivered by ``hookline ui --alerts FILE`` and ``hookline serve --alerts FILE``.
"""

import getpass
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hookline._record.terminal import one_line, plural
from hookline.callbacks.timer import seconds_in
from hookline.cli.output import FAILED, AsJson, CommandGroup, console, print_footer, print_json, table, wrong_input
from hookline.cli.runs.reference import Root
from hookline.cli.runs.text import clock_text
from hookline.store.alert_book import AlertBook, Mute, RaisedAlert

app = CommandGroup(help="List, acknowledge and mute alerts, and test their delivery.")

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Alert ids, or their beginnings.", show_default=False)]
Rule = Annotated[str, typer.Option(help="The name of the rule.", show_default=False)]
RunId = Annotated[str, typer.Option("--run", help="The id of the run.", show_default=False)]
For = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long, such as 2h or 1d.", show_default=False)
]


@app.command("list")
def list_(
    *,
    root: Root = Path("runs"),
    every: Annotated[bool, typer.Option("--all", help="Also list acknowledged alerts.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of alerts.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List alerts, the latest first, and what is muted."""
    with wrong_input(as_json=as_json):
        book = AlertBook(root).read()
    found = [alert for alert in book.alerts.values() if every or not alert.acknowledged]
    found.sort(key=lambda alert: alert.time, reverse=True)
    now = time.time()
    mutes = [mute for mute in book.mutes if not mute.until or mute.until > now]
    if as_json:
        alerts = [msgspec.to_builtins(alert) | {"state": alert.state} for alert in found[:limit]]
        print_json({"alerts": alerts, "mutes": msgspec.to_builtins(mutes)})
        return
    if found:
        listing = table("id", "time", "run", "rule", "message", "state", whole=("id", "time"))
        for alert in found[:limit]:
            listing.add_row(*_cells(alert))
        console().print(listing)
    for mute in mutes:
        console().print(f"muted: {_mute_text(mute)}", markup=False, highlight=False)
    print_footer(plural(len(found), "alert"))


@app.command("ack")
def acknowledge(ids: Ids, *, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Acknowledge alerts: they are no longer listed, and what was not delivered yet is not sent."""
    with wrong_input(as_json=as_json):
        done = AlertBook(root).acknowledge(ids, by=getpass.getuser())
    if as_json:
        print_json({"acknowledged": done})
        return
    console().print(f"Acknowledged: {', '.join(done)}", markup=False, highlight=False)


@app.command("mute")
def mute(
    *,
    rule: Rule = "",
    run: RunId = "",
    duration: For = None,
    off: Annotated[bool, typer.Option("--off", help="Unmute: deliver them again.")] = False,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Stop delivering the alerts of a rule, of a run, or of a rule in a run. They are still listed."""
    with wrong_input(as_json=as_json):
        seconds = None if duration is None else seconds_in("--for", duration)
        mutes = AlertBook(root).mute(rule=rule, run=run, seconds=seconds, off=off)
    if as_json:
        print_json({"mutes": msgspec.to_builtins(mutes)})
        return
    for each in mutes:
        console().print(f"muted: {_mute_text(each)}", markup=False, highlight=False)
    if not mutes:
        console().print("Nothing is muted.")


@app.command("test")
def send_test(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The alert file.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Check an alert file, and send a test alert to each of its destinations, once."""
    from hookline.server.alerts import load_alerts

    with wrong_input(as_json=as_json):
        settings = load_alerts(file)
        rules = settings.rules()
    sent = RaisedAlert("test", "test/run", "test", "this is a test of hookline alerts", time.time(), severity="info")
    results = {}
    for name, destination in settings.destinations.items():
        try:
            destination.send(sent)
            results[name] = ""
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
        finally:
            destination.close()
    if as_json:
        print_json({"rules": rules.names(), "silence_seconds": settings.silence_seconds, "destinations": results})
    else:
        console().print(f"rules: {', '.join(rules.names()) or 'none'}", markup=False, highlight=False)
        for name, problem in results.items():
            console().print(f"{name}: {one_line(problem) or 'sent'}", markup=False, highlight=False, soft_wrap=True)
    rules.close()
    if any(results.values()):
        raise typer.Exit(FAILED)


def _cells(alert: RaisedAlert) -> list[str]:
    texts = (alert.run, alert.rule, alert.message, alert.state)
    return [alert.id, clock_text(alert.time), *map(one_line, texts)]


def _mute_text(mute: Mute) -> str:
    what = [text for text in (mute.rule and f"rule {mute.rule}", mute.run and f"run {mute.run}") if text]
    return one_line(" in ".join(what) + (f" until {clock_text(mute.until)}" if mute.until else ""))

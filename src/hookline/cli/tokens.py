"""``hookline tokens``: creates, lists, revokes and rotates the tokens of a server, and shows its audit log.

The commands change the tokens file. A running server notices it within seconds.
"""

import re
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hookline._engine.errors import OptionError
from hookline._record.terminal import one_line
from hookline.cli.output import AsJson, CommandGroup, console, print_footer, print_json, table, wrong_input
from hookline.cli.runs.reference import Root
from hookline.cli.runs.text import clock_text
from hookline.server.audit import AuditEvent, AuditLog, local_user
from hookline.server.tokens import (
    NewToken,
    StoredToken,
    TokenStore,
    default_tokens_file,
    token_info,
)

app = CommandGroup(help="Manage a server's tokens: who may send to, view and control which projects.")

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])")

File = Annotated[
    Path | None,
    typer.Option("--tokens", help="The tokens file; by default .hookline/tokens.json in the directory of the runs."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id of a token, as listed.", show_default=False)]


def parse_duration(option: str, text: str) -> float:
    """The seconds of a duration such as ``30d`` or ``1h``.

    Raises:
        OptionError: It is none.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{option} {text!r:.40}: give a number and s, m, h, d or w, e.g. 30d.")
    return float(match[1]) * _SECONDS[match[2]]


def _store(root: Path, file: Path | None) -> TokenStore:
    return TokenStore(default_tokens_file(root.resolve()) if file is None else file.absolute())


def _existing_store(root: Path, file: Path | None) -> TokenStore:
    # A mistyped directory must not be created: no server would ever read the tokens in it.
    if file is None and not root.is_dir():
        shown = one_line(root)
        raise OptionError(f"There is no directory {shown}. Start `hookline serve {shown}` first, or give --root.")
    return _store(root, file)


def _record(root: Path, action: str, stored: StoredToken) -> None:
    audit = AuditLog(root.resolve())
    audit.record(action, local_user(), target=f"{stored.id} ({stored.name})")
    audit.close()


def _print_new(new: NewToken, *, as_json: bool) -> None:
    facts: dict[str, Any] = msgspec.to_builtins(token_info(new.stored))
    if as_json:
        print_json(facts | {"token": new.token})
        return
    out = console()
    roles, projects = ", ".join(new.stored.roles), ", ".join(new.stored.projects)
    out.print(f"{new.stored.id}  {one_line(new.stored.name)}: {roles} in {one_line(projects)}", soft_wrap=True)
    if facts["expires"] is not None:
        out.print(f"It expires at {clock_text(facts['expires'])}.")
    if facts["rotating_until"] is not None:
        out.print(f"The old value is accepted until {clock_text(facts['rotating_until'])}.")
    out.print("The token is not stored and not shown again:")
    typer.echo(new.token)


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The holder: a person or a program.", show_default=False)],
    *,
    role: Annotated[
        list[str],
        typer.Option(
            help="write: send runs; read: see runs; control: send commands to live runs; admin: see the tokens, the "
            "audit log, and runs. May be repeated."
        ),
    ],
    project: Annotated[
        list[str] | None,
        typer.Option(help="Only these projects; * matches anything. May be repeated.", show_default="all"),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Expire after this long, e.g. 30d or 12h.")
    ] = None,
    root: Root = Path("runs"),
    tokens: File = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. Its value is printed once and cannot be shown again."""
    with wrong_input(as_json=as_json):
        seconds = None if expires is None else parse_duration("--expires", expires)
        new = _existing_store(root, tokens).create(name, roles=role, projects=project or ["*"], expires_seconds=seconds)
    _record(root, "token.created", new.stored)
    _print_new(new, as_json=as_json)


@app.command("list")
def list_command(*, root: Root = Path("runs"), tokens: File = None, as_json: AsJson = False) -> None:
    """List the tokens, without their values."""
    with wrong_input(as_json=as_json):
        store = _store(root, tokens)
        found = [token_info(token) for token in store.read()]
    if as_json:
        print_json({"file": str(store.path), "tokens": found})
        return
    if not found:
        print_footer(f"There are no tokens in {store.path}. Create one: hookline tokens create NAME --role read")
        return
    now = time.time()
    # Only while a token is in its grace period: the column would be empty most of the time.
    grace = {token.id: token.rotating_until for token in found if (token.rotating_until or 0) > now}
    last = ["old value accepted until"] if grace else []
    listing = table("id", "name", "roles", "projects", "created", "expires", *last, whole=("id",))
    for token in found:
        expires = "never" if token.expires is None else clock_text(token.expires)
        if token.expires is not None and token.expires <= now:
            expires = f"{expires} (expired)"
        names = one_line(token.name), ", ".join(token.roles), one_line(", ".join(token.projects))
        until = [clock_text(grace.get(token.id))] if grace else []
        listing.add_row(token.id, *names, clock_text(token.created), expires, *until)
    console().print(listing)


@app.command("revoke")
def revoke_command(token: Id, *, root: Root = Path("runs"), tokens: File = None, as_json: AsJson = False) -> None:
    """Revoke a token. Servers refuse it within seconds, and end its live streams and logins."""
    with wrong_input(as_json=as_json):
        stored = _existing_store(root, tokens).revoke(token)
    _record(root, "token.revoked", stored)
    if as_json:
        print_json({"revoked": token_info(stored)})
    else:
        console().print(f"Revoked {stored.id} ({one_line(stored.name)}).")


@app.command("rotate")
def rotate_command(
    token: Id,
    *,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Keep accepting the old value for this long, e.g. 1h.")
    ] = "0s",
    root: Root = Path("runs"),
    tokens: File = None,
    as_json: AsJson = False,
) -> None:
    """Give a token a new value and print it, once. Its id, roles and projects stay."""
    with wrong_input(as_json=as_json):
        new = _existing_store(root, tokens).rotate(token, grace_seconds=parse_duration("--grace", grace))
    _record(root, "token.rotated", new.stored)
    _print_new(new, as_json=as_json)


@app.command("audit")
def audit_command(
    *,
    root: Root = Path("runs"),
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="The number of entries to print.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Print the audit log of a server: who did what, oldest first."""
    with wrong_input(as_json=as_json):
        log = AuditLog(root.resolve())
        found = log.read(limit)[::-1]
    if as_json:
        print_json({"file": str(log.path), "entries": found})
        return
    if not found:
        print_footer(f"There are no entries in {log.path}.")
        return
    listing = table("time", "action", "token", "from", "target", "result", whole=("time", "action"))
    for event in found:
        listing.add_row(*_cells(event))
    console().print(listing)


def _cells(event: AuditEvent) -> list[str]:
    who = " ".join(filter(None, (event.token, event.name)))
    target = "/".join(filter(None, (event.project, event.target)))
    result = event.result if event.count == 1 else f"{event.result} ({event.count} times)"
    texts = (event.action, who or "-", event.address or "this machine", target or "-", result)
    return [clock_text(event.time), *(one_line(text) for text in texts)]

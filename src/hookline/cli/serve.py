"""``hookline serve``: takes the runs of other machines, and shows them."""

import errno
import os
import socket
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hookline.cli.output import AsJson, console
from hookline.cli.token_handover import READ_OPTION, WRITE_OPTION, handed_over
from hookline.cli.ui import PORT, Stall
from hookline.core.errors import ConfigError
from hookline.server.tokens import KEPT, Given, Settled, from_environment, from_file, settle
from hookline.server.web_server import WebServer, allowed_name, check_host, is_loopback, raise_descriptor_limit
from hookline.store.liveness import STALL_SECONDS

Root = Annotated[Path, typer.Argument(help="Where the runs are kept; made if need be.")]
Host = Annotated[str, typer.Option(help="The address to serve on; 0.0.0.0 is every address of this machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to serve on; 0 takes any that is free.")]
Token = Annotated[
    str | None,
    typer.Option(WRITE_OPTION, help="What machines that send runs must show. Better: HOOKLINE_WRITE_TOKEN, or a file."),
]
ReadToken = Annotated[
    str | None,
    typer.Option(READ_OPTION, help="What people who look must show. Better: HOOKLINE_READ_TOKEN, or a file."),
]
TokenFile = Annotated[
    Path | None, typer.Option(help='A file with {"write": "...", "read": "..."}, or with the write token alone.')
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A name that a proxy is reached by, with its port if need be. May be given again."),
]


def serve(
    root: Root = Path("runs"),
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    read_token: ReadToken = None,
    token_file: TokenFile = None,
    allow_host: AllowHost = None,
    stall_seconds: Stall = STALL_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take runs that other machines send, and show them, live, in a browser. Ctrl-C ends it.

    Sending needs the write token. Viewing needs the read token, unless only this machine reaches the server and
    nobody gave one. Tokens that nobody gives are made, shown once, and kept in the directory for the next start.
    """
    given = handed_over(Given(token, read_token)).or_else(from_environment(os.environ))
    given = given.or_else(from_file(token_file)) if token_file is not None else given
    names = allow_host or []
    check_host(host)
    for name in names:
        allowed_name(name)
    _make(root)
    settled = settle(root, given, needs_read=bool(names) or not is_loopback(host))
    raise_descriptor_limit()
    server = WebServer(
        root, host=host, port=port, stall_seconds=stall_seconds, tokens=settled.tokens, allow_hosts=names
    )
    facts = _facts(server, settled, _address(server.url, names))
    with server.ended_by_interrupt():
        if as_json:
            typer.echo(msgspec.json.encode(facts).decode())
        else:
            _say(facts)
        server.serve()


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{root} cannot be made: {error.strerror}. Give another directory.") from error
    try:
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # there may be room later
            raise ConfigError(
                f"{root} cannot be written: {error.strerror}. Give a directory that you may write to; to look at runs "
                "only, use: hookline ui"
            ) from error


def _facts(server: WebServer, settled: Settled, address: str) -> dict[str, Any]:
    tokens = {"write": settled.tokens.write, "read": settled.tokens.read}
    return {
        "url": server.url,
        "root": str(server.runs.root),
        "runs": len(server.runs),
        "made": {name: tokens[name] for name in settled.made},
        "kept": list(settled.kept),
        "token_file": str(server.runs.root / KEPT) if settled.is_kept else None,
        "reading_needs_token": settled.tokens.read is not None,
        "sinks": sinks_line(address),
    }


def sinks_line(address: str) -> str:
    """What a machine that trains writes into its configuration."""
    return f'sinks: [{{hookline: {{url: "{address}", token: "${{HOOKLINE_TOKEN}}"}}}}]'


def _say(facts: dict[str, Any]) -> None:
    out = console()
    count = facts["runs"]
    out.print(f"{count} {'run' if count == 1 else 'runs'} in {facts['root']} at {facts['url']}", soft_wrap=True)
    out.print(f"Viewing needs {'the read token' if facts['reading_needs_token'] else 'no token on this machine'}.")
    if facts["made"]:
        out.print(f"These tokens are new, and kept in {facts['token_file']}:", soft_wrap=True)
        for name, token in facts["made"].items():
            out.print(f"  {name:<5}  {token}", soft_wrap=True)
    for name in facts["kept"]:
        if name not in facts["made"]:
            out.print(f"The {name} token is the one in {facts['token_file']}.", soft_wrap=True)
    out.print("A machine that trains needs the write token in HOOKLINE_TOKEN, and in its configuration:")
    out.print(f"  {facts['sinks']}", soft_wrap=True)


def _address(url: str, names: list[str]) -> str:
    """Where others reach the server: by a proxy's name, which speaks TLS, or by this machine's."""
    if names:
        is_bare = names[0].count(":") > 1 and not names[0].startswith("[")
        return f"https://[{names[0]}]" if is_bare else f"https://{names[0]}"
    for anywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(anywhere, f"//{socket.gethostname()}:")
    return url.rstrip("/")

"""``hookline serve`` receives and shows runs of other machines; ``hookline ui`` shows recorded runs.

Every user of a machine can read the command lines of its processes. So a server that was given a token on its command
line replaces itself, with the same process id, by one without it, and passes the token through a pipe. For a fraction
of a second the token is visible: to avoid that, pass it by the environment or a file.
"""

import contextlib
import errno
import os
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hookline._engine.errors import ConfigError
from hookline.cli.output import AsJson, console
from hookline.server.tokens import (
    TOKENS_FILE,
    OptionalTokens,
    ResolvedTokens,
    check_token,
    resolve_tokens,
    tokens_from_environment,
    tokens_from_file,
)
from hookline.server.web_server import WebServer, allowed_name, check_host, is_loopback, raise_descriptor_limit
from hookline.store.run_summary import STALL_SECONDS

WRITE_OPTION, READ_OPTION = "--token", "--read-token"
_PIPE = "_HOOKLINE_TOKEN_PIPE"


def hide_tokens(given: OptionalTokens) -> OptionalTokens:
    """Return the given tokens; first replace this process if they are on its command line.

    Raises:
        OptionError: One of them is not a valid token.
    """
    if _PIPE in os.environ:
        return _read_pipe().or_else(given)
    for what, token in (("The write token", given.write), ("The read token", given.read)):
        if token is not None:
            check_token(what, token)
    if any(token and token in argument for token in (given.write, given.read) for argument in sys.orig_argv):
        _restart_without_tokens(given)
    return given


def without_tokens(arguments: Sequence[str]) -> Iterator[str]:
    """A command line without the token options."""
    rest = iter(arguments)
    for argument in rest:
        if argument in (WRITE_OPTION, READ_OPTION):
            next(rest, None)
        elif not argument.startswith((f"{WRITE_OPTION}=", f"{READ_OPTION}=")):
            yield argument


def _restart_without_tokens(given: OptionalTokens) -> None:
    reading, writing = os.pipe()
    os.write(writing, msgspec.json.encode([given.write, given.read]))  # short enough for the pipe's buffer
    os.close(writing)
    os.set_inheritable(reading, True)
    os.environ[_PIPE] = str(reading)
    os.execv(sys.executable, list(without_tokens(sys.orig_argv)))  # noqa: S606 - this program


def _read_pipe() -> OptionalTokens:
    text = os.environ.pop(_PIPE)
    with contextlib.suppress(OSError, ValueError, msgspec.DecodeError), os.fdopen(int(text), "rb") as pipe:
        return OptionalTokens(*msgspec.json.decode(pipe.read(), type=tuple[str | None, str | None]))
    return OptionalTokens()


PORT = 8765

UiRoot = Annotated[Path, typer.Option(help="The directory of the runs.")]
UiPort = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")]
UiHost = Annotated[str, typer.Option(help="The loopback address.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")]
Stall = Annotated[float, typer.Option(min=0.1, help="How long without progress until a run counts as stalled.")]


def ui(
    *,
    root: UiRoot = Path("runs"),
    port: UiPort = PORT,
    host: UiHost = "127.0.0.1",
    open_page: Open = True,
    stall_seconds: Stall = STALL_SECONDS,
) -> None:
    """Show recorded runs live in a browser on this machine. Ctrl-C ends it."""
    raise_descriptor_limit()
    server = WebServer(root, host=host, port=port, stall_seconds=stall_seconds)
    with server.stopped_by_interrupt():
        _print_ui(server)
        if open_page:
            webbrowser.open(server.url)
        server.serve()


def _print_ui(server: WebServer) -> None:
    out, count = console(), len(server.runs)
    out.print(f"{count} {'run' if count == 1 else 'runs'} in {server.runs.root} at {server.url}", soft_wrap=True)
    if server.runs.note:
        out.print(server.runs.note)


Root = Annotated[Path, typer.Argument(help="The directory of the runs; created if necessary.")]
Host = Annotated[str, typer.Option(help="The address; 0.0.0.0 means every address of this machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")]
Token = Annotated[
    str | None,
    typer.Option(WRITE_OPTION, help="The token for sending runs. Better: HOOKLINE_WRITE_TOKEN, or a file."),
]
ReadToken = Annotated[
    str | None,
    typer.Option(READ_OPTION, help="The token for viewing runs. Better: HOOKLINE_READ_TOKEN, or a file."),
]
TokenFile = Annotated[
    Path | None, typer.Option(help='A file with {"write": "...", "read": "..."}, or with the write token alone.')
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A host name of a proxy, with its port if necessary. May be repeated."),
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
    """Receive runs from other machines, and show them live in a browser. Ctrl-C ends it.

    Sending needs the write token. Viewing needs the read token, unless only this machine can reach the server and no
    read token was given. Missing tokens are created, shown once, and kept in the directory for the next start.
    """
    given = hide_tokens(OptionalTokens(token, read_token)).or_else(tokens_from_environment(os.environ))
    given = given.or_else(tokens_from_file(token_file)) if token_file is not None else given
    names = allow_host or []
    check_host(host)
    for name in names:
        allowed_name(name)
    _make_writable(root)
    settled = resolve_tokens(root, given, needs_read=bool(names) or not is_loopback(host))
    raise_descriptor_limit()
    server = WebServer(
        root, host=host, port=port, stall_seconds=stall_seconds, tokens=settled.tokens, allow_hosts=names
    )
    facts = _facts(server, settled, _address(server.url, names))
    with server.stopped_by_interrupt():
        if as_json:
            typer.echo(msgspec.json.encode(facts).decode())
        else:
            _print_facts(facts)
        server.serve()


def _make_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{root} cannot be created: {error.strerror}. Give another directory.") from error
    try:
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # there may be space later
            raise ConfigError(
                f"{root} cannot be written: {error.strerror}. Give a writable directory; to only view "
                "runs, use: hookline ui"
            ) from error


def _facts(server: WebServer, settled: ResolvedTokens, address: str) -> dict[str, Any]:
    tokens = {"write": settled.tokens.write, "read": settled.tokens.read}
    return {
        "url": server.url,
        "root": str(server.runs.root),
        "runs": len(server.runs),
        "made": {name: tokens[name] for name in settled.created},
        "kept": list(settled.saved),
        "token_file": str(server.runs.root / TOKENS_FILE) if settled.saved else None,
        "reading_needs_token": settled.tokens.read is not None,
        "sinks": sinks_line(address),
    }


def sinks_line(address: str) -> str:
    """The configuration line for a machine that trains."""
    return f'sinks: [{{hookline: {{url: "{address}", token: "${{HOOKLINE_TOKEN}}"}}}}]'


def _print_facts(facts: dict[str, Any]) -> None:
    out = console()
    count = facts["runs"]
    out.print(f"{count} {'run' if count == 1 else 'runs'} in {facts['root']} at {facts['url']}", soft_wrap=True)
    out.print(f"Viewing needs {'the read token' if facts['reading_needs_token'] else 'no token on this machine'}.")
    if facts["made"]:
        out.print(f"These tokens are new and saved in {facts['token_file']}:", soft_wrap=True)
        for name, token in facts["made"].items():
            out.print(f"  {name:<5}  {token}", soft_wrap=True)
    for name in facts["kept"]:
        if name not in facts["made"]:
            out.print(f"The {name} token is the one in {facts['token_file']}.", soft_wrap=True)
    out.print("A machine that trains needs the write token in HOOKLINE_TOKEN, and in its configuration:")
    out.print(f"  {facts['sinks']}", soft_wrap=True)


def _address(url: str, names: list[str]) -> str:
    """The server's address for others: a proxy's name, over TLS, or this machine's."""
    if names:
        is_bare = names[0].count(":") > 1 and not names[0].startswith("[")
        return f"https://[{names[0]}]" if is_bare else f"https://{names[0]}"
    for anywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(anywhere, f"//{socket.gethostname()}:")
    return url.rstrip("/")

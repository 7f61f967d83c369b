"""``hookline ui``: recorded runs in a browser."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from hookline.cli.output import console
from hookline.server.web_server import WebServer, raise_descriptor_limit
from hookline.store.liveness import STALL_SECONDS

PORT = 8765

Root = Annotated[Path, typer.Option(help="Where runs are recorded.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to serve on; 0 takes any that is free.")]
Host = Annotated[str, typer.Option(help="The loopback address to serve on.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")]
Stall = Annotated[float, typer.Option(min=0.1, help="After how long without progress a run counts as stalled.")]


def ui(
    *,
    root: Root = Path("runs"),
    port: Port = PORT,
    host: Host = "127.0.0.1",
    open_page: Open = True,
    stall_seconds: Stall = STALL_SECONDS,
) -> None:
    """Show recorded runs, live, in a browser on this machine. Ctrl-C ends it."""
    raise_descriptor_limit()
    server = WebServer(root, host=host, port=port, stall_seconds=stall_seconds)
    with server.ended_by_interrupt():
        _say(server)
        if open_page:
            webbrowser.open(server.url)
        server.serve()


def _say(server: WebServer) -> None:
    out, count = console(), len(server.runs)
    out.print(f"{count} {'run' if count == 1 else 'runs'} in {server.runs.root} at {server.url}", soft_wrap=True)
    if server.runs.note:
        out.print(server.runs.note)

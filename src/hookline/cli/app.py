"""The ``hookline`` program: its commands and exit statuses.

Results go to standard output. An error that hookline raises on purpose is one message on standard error, without a
traceback. Exit status 2 means wrong input; status 1 is a command's negative result, or a missing package.

A command is imported when it is used: most of them need the store or the server, which take longer to import than many
commands take to run.
"""

from typing import Annotated, Any

import typer

import hookline
from hookline._engine.errors import HooklineError
from hookline.cli.output import CommandGroup, PlainGroup, end_with


class _ErrorsAsMessages(PlainGroup):
    """Ends the program with a message for a `HooklineError`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HooklineError as error:
            end_with(error)


app = CommandGroup(
    cls=_ErrorsAsMessages,
    pretty_exceptions_show_locals=False,  # locals may hold tokens
    places={
        "demo": "hookline.cli.demo:demo",
        "run": "hookline.cli.run:run",
        "exec": "hookline.cli.execute:exec_command",
        "replay": "hookline.cli.replay:replay_command",
        "control": "hookline.cli.control:control",
        "sql": "hookline.cli.sql:sql_command",
        "bench": "hookline.cli.bench:bench_command",
        "ui": "hookline.cli.serve:ui",
        "serve": "hookline.cli.serve:serve",
        "hooks": "hookline.cli.hooks:app",
        "runs": "hookline.cli.runs:app",
        "artifacts": "hookline.cli.artifacts:app",
        "samples": "hookline.cli.samples:app",
        "alerts": "hookline.cli.alerts:app",
        "mcp": "hookline.cli.mcp:mcp_command",
        "tokens": "hookline.cli.tokens:app",
    },
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hookline {hookline.__version__}")
        raise typer.Exit


@app.callback(epilog="Begin with: hookline demo")
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hooks, callbacks and logging for every training loop."""

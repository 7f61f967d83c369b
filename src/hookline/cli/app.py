"""The ``hookline`` program: its commands and exit statuses.

Results go to standard output. An error that hookline raises on purpose is one message on standard error, without a
traceback. Exit status 2 means wrong input; status 1 is a command's negative result, or a missing package.
"""

from typing import Annotated, Any

import typer

import hookline
from hookline._engine.errors import HooklineError
from hookline.cli import bench, demo, hooks, run, runs, serve, sql
from hookline.cli.output import CommandGroup, PlainGroup, end_with


class _ErrorsAsMessages(PlainGroup):
    """Ends the program with a message for a `HooklineError`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HooklineError as error:
            end_with(error)


app = CommandGroup(cls=_ErrorsAsMessages, pretty_exceptions_show_locals=False)  # may be tokens
app.add_typer(hooks.app, name="hooks")
app.add_typer(runs.app, name="runs")
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("sql")(sql.sql_command)
app.command("bench")(bench.bench_command)
app.command("ui")(serve.ui)
app.command("serve")(serve.serve)


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

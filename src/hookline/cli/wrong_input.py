"""How commands end that were given something that is not there, or cannot be: a message, and exit status 2."""

import contextlib
from collections.abc import Iterator

import typer

from hookline.cli.output import print_json
from hookline.core.errors import HooklineError

USAGE_ERROR = 2


@contextlib.contextmanager
def wrong_input(*, as_json: bool = False) -> Iterator[None]:
    """What hookline refuses here was given wrongly; status 1 is left for what a command found out."""
    try:
        yield
    except HooklineError as error:
        if as_json:
            print_json({"error": str(error)})
        typer.secho("Error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE_ERROR) from error

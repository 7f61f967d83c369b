"""How commands end that cannot do what was asked: one message on standard error, and one exit status for each cause."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer

from hookline.cli.output import print_json
from hookline.core.errors import HooklineError, MissingExtraError
from hookline.record.terminal import printable

FAILED = 1
USAGE_ERROR = 2


def end_with(error: HooklineError, *, as_json: bool = False, status: int | None = None) -> NoReturn:
    """Report an error that hookline raised on purpose, and end the program.

    Args:
        status: The exit status. By default 2, because something given cannot be used; 1 where a package is missing,
            which no other argument would change.
    """
    if status is None:
        status = FAILED if isinstance(error, MissingExtraError) else USAGE_ERROR
    if as_json:
        print_json({"error": str(error)})
    typer.secho("Error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
    typer.echo(printable(str(error)), err=True)
    raise typer.Exit(status) from error


@contextlib.contextmanager
def wrong_input(*, as_json: bool = False) -> Iterator[None]:
    """Report what hookline refuses here, also as a JSON document."""
    try:
        yield
    except HooklineError as error:
        end_with(error, as_json=as_json)

"""What the commands print on standard output: text and tables for people, or one JSON document.

Names, docstrings and paths are printed as they are; brackets in them are no markup, and control characters in them are
shown, not obeyed.

How commands end that cannot do what was asked: one message on standard error, and one exit status for each cause.

How the commands show themselves in their help: flags take no value, and arguments are written in capitals.

Typer may show a flag as ``--json <bool>`` and an argument as ``{run}``. Here it is ``--json`` and ``RUN``, or ``[RUN]``
where it may be left off, in the usage line, in the list below it and in messages.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from hookline._engine.errors import HooklineError, MissingExtraError
from hookline._record.terminal import printable, printable_json, terminal_console

_UNLIMITED = 100_000

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def console(*, width: int | None = None) -> Console:
    """Standard output, as it is now, for people; as wide as the terminal by default."""
    return terminal_console(width=width)


def print_footer(text: str) -> None:
    """Print a remark about a listing on standard error: what is piped has the listing alone."""
    terminal_console(stderr=True).print(text, style="dim", soft_wrap=True)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    typer.echo(printable_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()))


def indented(text: str, columns: int = 2) -> Padding:
    """A paragraph with all of its lines indented, also those that a narrow terminal makes of it."""
    return Padding(text, (0, 0, 0, columns), expand=False)


def table(*columns: str, whole: Collection[str] = (), numbers: Collection[str] = ()) -> Table:
    """An empty table.

    Args:
        whole: The columns whose cells are kept on one line, because people copy from them.
        numbers: The columns that are aligned to the right.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: JustifyMethod = "right" if column in numbers else "left"
        made.add_column(column, no_wrap=column in whole, justify=justify, overflow="fold")
    return made


def width_of(out: Console, listing: Table) -> int:
    """How many columns of a terminal a table takes where there is room."""
    return Measurement.get(out, out.options.update(max_width=_UNLIMITED), listing).maximum


def cut_front(out: Console, text: str, width: int) -> str:
    """A text with an ellipsis for its beginning where it is too long: names differ mostly in their ends."""
    if cell_len(text) <= width:
        return text
    mark = ".." if out.options.ascii_only else "…"
    kept = text
    while kept and cell_len(kept) > width - len(mark):
        kept = kept[1:]
    return mark + kept


def cut_end(out: Console, text: str, width: int) -> str:
    """A text with an ellipsis for its end where it is too long."""
    if cell_len(text) <= width:
        return text
    mark = ".." if out.options.ascii_only else "…"
    kept = text
    while kept and cell_len(kept) > width - len(mark):
        kept = kept[:-1]
    return kept + mark


def foreign_code() -> contextlib.AbstractContextManager[Any]:
    """Where code of others is imported or run: what it prints goes to standard error, not into our output."""
    return contextlib.redirect_stdout(sys.stderr)


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


Function = TypeVar("Function", bound=Callable[..., Any])


class _PlainHelp:
    """What a command and a group do alike; what typer itself adds, as ``--help``, is among the parameters here."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.param_type_name == "argument" and param.metavar is None:
                param.metavar = _spelling(param)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument"]
        others = [] if arguments else super().collect_usage_pieces(ctx)[1:]  # type: ignore[misc]
        return ["[OPTIONS]", *arguments, *others]


def _spelling(argument: Any) -> str:
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


class PlainCommand(_PlainHelp, TyperCommand):
    """A command with plain help."""


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands with plain help."""


class CommandGroup(typer.Typer):
    """A group whose commands have plain help, as it has itself; without a command it shows that."""

    def __init__(self, *, cls: type[PlainGroup] = PlainGroup, **options: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """As typer's."""
        return super().command(name, cls=PlainCommand, **options)

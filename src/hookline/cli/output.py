"""Output of the commands: text and tables, JSON documents, errors with exit statuses, and help.

Names, docstrings and paths are printed literally: brackets in them are not markup, and control characters are escaped.
In help texts, flags have no value and arguments are written in capitals: typer may show ``--json <bool>`` and
``{run}``, here it is ``--json`` and ``RUN``, or ``[RUN]`` if it is optional.
"""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

import msgspec
import typer
import typer.main
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from hookline._engine.errors import HooklineError, MissingExtraError
from hookline._record.terminal import one_line, printable, printable_json, terminal_console

_UNLIMITED = 100_000

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def console(*, width: int | None = None) -> Console:
    """A console on the current standard output: as wide as the terminal, or as its content in a pipe.

    Args:
        width: Another width. The variable COLUMNS sets it for terminals and pipes.
    """
    if width is None and not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        width = _UNLIMITED
    return terminal_console(width=width)


def print_footer(text: str) -> None:
    """Print a remark about a listing on standard error, so that a pipe gets only the listing."""
    terminal_console(stderr=True).print(text, style="dim", soft_wrap=True)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    typer.echo(printable_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()))


def indented(text: str, columns: int = 2) -> Padding:
    """A paragraph with all lines indented, also wrapped ones."""
    return Padding(text, (0, 0, 0, columns), expand=False)


def print_facts(out: Console, facts: Iterable[tuple[str, object]]) -> None:
    """Print one line for each name with its value; empty values are left out."""
    for name, value in facts:
        if value:
            out.print(Text.assemble((f"  {one_line(name):<10} ", "dim"), one_line(value)), soft_wrap=True)


def table(*columns: str, whole: Collection[str] = (), numbers: Collection[str] = ()) -> Table:
    """An empty table.

    Args:
        whole: Columns whose cells are never wrapped, because people copy them.
        numbers: Right-aligned columns.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: JustifyMethod = "right" if column in numbers else "left"
        made.add_column(column, no_wrap=column in whole, justify=justify, overflow="fold")
    return made


def width_of(out: Console, listing: Table) -> int:
    """The natural width of a table."""
    return Measurement.get(out, out.options.update(max_width=_UNLIMITED), listing).maximum


def cut_front(out: Console, text: str, width: int) -> str:
    """Shorten text from the front, with an ellipsis: names differ mostly at their ends."""
    if cell_len(text) <= width:
        return text
    mark = ".." if out.options.ascii_only else "…"
    kept = text
    while kept and cell_len(kept) > width - len(mark):
        kept = kept[1:]
    return mark + kept


def cut_end(out: Console, text: str, width: int) -> str:
    """Shorten text from the end, with an ellipsis."""
    return cut_front(out, text[::-1], width)[::-1] if cell_len(text) > width else text


def relative_path(path: Path) -> Path:
    """A path relative to the current directory, if it is inside."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def foreign_code() -> contextlib.AbstractContextManager[Any]:
    """Redirect the output of imported user code to standard error."""
    return contextlib.redirect_stdout(sys.stderr)


FAILED = 1
USAGE_ERROR = 2


def end_with(error: HooklineError, *, as_json: bool = False, status: int | None = None) -> NoReturn:
    """Print an error, and end the program.

    Args:
        status: The exit status; by default 2, or 1 for a missing package, which no other argument would change.
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
    """End the program on a `HooklineError`, with a JSON document if wanted."""
    try:
        yield
    except HooklineError as error:
        end_with(error, as_json=as_json)


Function = TypeVar("Function", bound=Callable[..., Any])


class _PlainHelp:
    """The help of commands and groups; their parameters here include those that typer adds, such as ``--help``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # typer joins the lines of the first paragraph only, and the terminal wraps those of a docstring once more.
        self.help: str | None = self.help and re.sub(r"(?<=\S)\n(?=[^\s*-])", " ", self.help)

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.param_type_name == "argument" and param.metavar is None:
                name = param.name.upper()
                param.metavar = name if param.required else f"[{name}]"
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument"]
        others = [] if arguments else super().collect_usage_pieces(ctx)[1:]  # type: ignore[misc]
        return ["[OPTIONS]", *arguments, *others]


class PlainCommand(_PlainHelp, TyperCommand):
    """A command with plain help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's; the error for a wrong choice is without the prefix of the library that checks it."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands with plain help.

    Attributes:
        places: Where the commands are that are imported when they are used, by name: ``"module:function"``, or
            ``"module:app"`` for a group.
    """

    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(self.places, self.commands)


class _Commands(dict[str, Any]):
    """Commands by name; one that is not imported yet is when it is looked up. Names alone import nothing."""

    def __init__(self, places: Mapping[str, str], commands: Mapping[str, Any]) -> None:
        super().__init__({**dict.fromkeys(places), **commands})
        self._places = places

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if command is None:
            command = self[name] = _imported_command(name, self._places[name])
        return command

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - dict.get does not look up

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


def _imported_command(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
    else:
        single = CommandGroup(add_completion=False)
        single.command(name, context_settings=getattr(found, "context_settings", None))(found)
        command = typer.main.get_command(single)
    command.name = name
    return command


class CommandGroup(typer.Typer):
    """A group of commands with plain help; without a command it prints its help.

    Args:
        places: The commands that are imported when they are used; see `PlainGroup`.
    """

    def __init__(
        self, *, cls: type[PlainGroup] = PlainGroup, places: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        own = type(cls.__name__, (cls,), {"places": places}) if places else cls
        super().__init__(cls=own, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """As typer's."""
        return super().command(name, cls=PlainCommand, **options)

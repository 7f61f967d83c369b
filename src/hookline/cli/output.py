"""What the commands print on standard output: text and tables for people, or one JSON document.

Names, docstrings and paths are printed as they are; brackets in them are no markup, and control characters in them are
shown, not obeyed.
"""

import contextlib
import sys
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table

from hookline.record.terminal import printable_json, terminal_console

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

"""The blocks of a report and their rendering as HTML and Markdown; the result of an experiment on a terminal.

Blocks hold plain text without markup. The HTML page loads nothing from elsewhere, runs no script, and escapes every
name. In Markdown, special characters of names are escaped too.
"""

import base64
import contextlib
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from hookline._engine.state import ExperimentResult
from hookline._record.terminal import plural
from hookline.experiment.results.tables import (
    Leaderboard,
    error_line,
    failed_benchmarks,
    incomplete_text,
    time_text,
    unfinished_runs,
)
from hookline.loops.summary import LOG_FILE_WIDTH

if TYPE_CHECKING:
    from rich.console import Group, RenderableType


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: of the report (1), a section (2) or a subsection (3)."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list of ``(head, rest)``; a head that is not empty is emphasized."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        numbers: The indexes of right-aligned columns.
        strong: The index of the emphasized row.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int] = ()
    strong: int | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted lines with a title."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG: its bytes, the file beside the report, and a description."""

    png: bytes
    file: str
    shows: str


Block: TypeAlias = Heading | Paragraph | Items | Table | Code | Picture


_STRONG = ' class="strong"'
_NUMBER = ' class="number"'
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #57606a; --line: #d8dee4; --tint: #f3f6f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0f1419; --soft: #9aa7b3; --line: #2c343d; --tint: #1a2129; }
}
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p, li { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .75rem 0; font-size: .94rem; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; text-align: left; border-bottom: 2px solid var(--line); }
th, td { padding: .35rem .9rem .35rem 0; vertical-align: top; }
td { border-bottom: 1px solid var(--line); }
.number { text-align: right; white-space: nowrap; }
tr.strong td { font-weight: 650; background: var(--tint); }
img { max-width: 100%; height: auto; border-radius: 6px; background: #ffffff; }
details { margin: .6rem 0; border: 1px solid var(--line); border-radius: 6px; padding: .4rem .8rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .75rem; border-radius: 4px; background: var(--tint);
  font: 13px/1.45 ui-monospace, monospace; }
"""


def html(title: str, blocks: Iterable[Block]) -> str:
    """Render blocks as an HTML page."""
    body = "\n".join(map(_html_block, blocks))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html_block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Items(items):
            heads = (f"<strong>{escape(head)}</strong>: " if head else "" for head, _ in items)
            rows = "".join(f"<li>{head}{escape(rest)}</li>\n" for head, (_, rest) in zip(heads, items, strict=True))
            return f"<ul>\n{rows}</ul>"
        case Table():
            return _html_table(block)
        case Code(title, text):
            return f"<details><summary>{escape(title)}</summary>\n<pre>{escape(text)}</pre></details>"
        case Picture(png, _, shows):
            data = base64.b64encode(png).decode()
            return f'<p><img alt="{escape(shows)}" src="data:image/png;base64,{data}"></p>'


def _html_table(table: Table) -> str:
    heads = "".join(_cell("th", index in table.numbers, text) for index, text in enumerate(table.columns))
    rows = "\n".join(
        f"<tr{_STRONG if place == table.strong else ''}>"
        f"{''.join(_cell('td', index in table.numbers, text) for index, text in enumerate(row))}</tr>"
        for place, row in enumerate(table.rows)
    )
    return f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _cell(tag: str, is_number: bool, text: str) -> str:
    return f"<{tag}{_NUMBER if is_number else ''}>{escape(text)}</{tag}>"


_SPECIAL = re.compile(r"[\\`*|<>\[\]~$]|(?<!\w)_|_(?!\w)")
_BEGINNING = re.compile(r"^(?=[#+=-])")
_SPACE = re.compile(r"\s+")
_FENCES = re.compile(r"`{3,}")


def markdown(blocks: Iterable[Block]) -> str:
    """Render blocks as Markdown."""
    return "\n\n".join(map(_markdown_block, blocks)) + "\n"


def _markdown_block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_literal(text)}"
        case Paragraph(text):
            return _line_start(text)
        case Items(items):
            return "\n".join(
                f"- **{_literal(head)}**: {_literal(rest)}" if head else f"- {_line_start(rest)}"
                for head, rest in items
            )
        case Table():
            return _markdown_table(block)
        case Code(title, text):
            fence = "`" * max(3, 1 + max(map(len, _FENCES.findall(text)), default=0))
            return f"{_line_start(title)}\n\n{fence}text\n{text.rstrip()}\n{fence}"
        case Picture(_, file, shows):
            return f"![{_literal(shows)}]({file})"


def _markdown_table(table: Table) -> str:
    rules = ["---:" if index in table.numbers else "---" for index in range(len(table.columns))]
    rows = [
        [f"**{_literal(cell)}**" if index == table.strong and cell else _literal(cell) for cell in row]
        for index, row in enumerate(table.rows)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in ([*map(_literal, table.columns)], rules, *rows))


def _line_start(text: str) -> str:
    """Text at the beginning of a line, where some characters would start a heading or a list."""
    return _BEGINNING.sub(r"\\", _literal(text))


def _literal(text: str) -> str:
    """Text on one line, with special characters escaped."""
    line = _SPACE.sub(" ", text).strip().replace("&", "&amp;")
    return _SPECIAL.sub(lambda sign: "\\" + sign.group(), line)


MOST_FAILURES = 20


def render(result: ExperimentResult, board: Leaderboard, *, note: str = "") -> "Group":
    """Render a result; brackets in names are not markup.

    Args:
        note: A line below the table.
    """
    from rich import box, table
    from rich.console import Group
    from rich.text import Text

    runs = [run for arm in result.arms for run in arm.runs]
    stage = f", stage {board.stage}" if board.stage else ""
    took = time_text(sum(run.seconds for run in runs))
    about = f": {plural(len(result.arms), 'arm')}, {plural(len(runs), 'run')}{stage}, {took} in all"
    parts: list[RenderableType] = [Text.assemble((result.name, "bold"), about)]
    if board.rows:
        shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for index, column in enumerate((*board.columns, "time")):
            head = f"{column} (95% interval)" if column.startswith("difference") else column
            shown.add_column(Text(head), justify="right" if index else "left", overflow="fold")
        for row in board.rows:
            style = "bold" if row.arm == board.best else "red" if row.mean is None else ""
            shown.add_row(*map(Text, (*board.cells(row), time_text(row.seconds))), style=style)
        parts.append(shown)
    if note:
        parts.append(Text(f"  {note}"))
    if board.left_out:
        parts.append(f"  and {plural(board.left_out, 'more arm')}; all of them: result.table()")
    return Group(*parts, *_failures(result))


def print_rendered(shown: "Group") -> None:
    """Print to standard output, ignoring a closed pipe (``| head``)."""
    from hookline._record.terminal import terminal_console

    console = terminal_console(markup=True)
    if not console.is_terminal:
        console.width = LOG_FILE_WIDTH
    with console.capture() as captured:
        console.print(shown)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = captured.get().encode(encoding, "replace").decode(encoding)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _failures(result: ExperimentResult) -> "Sequence[RenderableType]":
    from rich.text import Text

    missing = incomplete_text(result.arms)
    lines = [Text(f"  {missing}", style="yellow")] if missing else []
    lines += [
        Text(
            f"  {run.status}: {run.run_key}: {error_line(run.error) or 'no reason is known'}",
            style="red" if run.status == "failed" else "yellow",
        )
        for run in unfinished_runs(result.arms)
    ]
    lines += [
        Text(f"  no result: {key}, benchmark {name}: {error_line(why)}", style="yellow")
        for key, name, why in failed_benchmarks(result.arms)
    ]
    rest = len(lines) - MOST_FAILURES
    return lines if rest <= 0 else [*lines[:MOST_FAILURES], Text(f"  and {rest:,} more", style="red")]

"""Renders an experiment's result for a terminal: the table of its arms, and failures."""

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookline._engine.state import ExperimentResult
from hookline.experiment.results.tables import (
    Leaderboard,
    error_line,
    failed_benchmarks,
    incomplete_text,
    plural,
    time_text,
    unfinished_runs,
)
from hookline.loops.summary import LOG_FILE_WIDTH

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table


MOST_FAILURES = 20


def render(result: ExperimentResult, board: Leaderboard) -> "Group":
    """Render a result; brackets in names are not markup."""
    from rich.console import Group

    parts: list[RenderableType] = [_headline(result, board)]
    if board.rows:
        parts.append(_table(board))
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


def _headline(result: ExperimentResult, board: Leaderboard) -> "RenderableType":
    from rich.text import Text

    runs = [run for arm in result.arms for run in arm.runs]
    stage = f", stage {board.stage}" if board.stage else ""
    took = time_text(sum(run.seconds for run in runs))
    about = f": {plural(len(result.arms), 'arm')}, {plural(len(runs), 'run')}{stage}, {took} in all"
    return Text.assemble((result.name, "bold"), about)


def _table(board: Leaderboard) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, column in enumerate((*board.columns, "time")):
        head = f"{column} (95% interval)" if column.startswith("difference") else column
        made.add_column(Text(head), justify="right" if index else "left", overflow="fold")
    for row in board.rows:
        style = "bold" if row.arm == board.best else "red" if row.mean is None else ""
        made.add_row(*map(Text, (*board.cells(row), time_text(row.seconds))), style=style)
    return made


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

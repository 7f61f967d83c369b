"""Shows a run: printed at its end, with its last metrics and the cost of each subscriber; as HTML in notebooks."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from hookline._engine import notebook
from hookline._engine.costs import Costs, duration
from hookline._record.terminal import plural, terminal_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hookline.loops.session import Session

LOG_FILE_WIDTH = 120
_SHOWN_METRICS, _CHART_POINTS = 6, 120
"""How many metrics a notebook shows, and how many points of each."""


def print_summary(run: "Session") -> None:
    """Print a run's summary to standard error, so that a script's own output stays clean.

    Where that is closed (``| head``), nothing is printed: the run itself went well.
    """
    console = terminal_console(stderr=True, markup=True)
    if not console.is_terminal:
        console.width = LOG_FILE_WIDTH
    with console.capture() as captured:
        _print(console, run)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(captured.get())
        sys.stderr.flush()


def _print(console: "Console", run: "Session") -> None:
    from rich.markup import escape

    console.print(_headline(run), soft_wrap=True)
    metrics = {name: value for name, value in run.metrics.items() if not name.startswith("hooks/")}
    if metrics:
        shown = [f"{escape(name)} [bold]{escape(_shown(value))}[/]" for name, value in metrics.items()]
        console.print("  " + "  ".join(shown), soft_wrap=True)
    if len(run.callbacks):
        console.print(cost_table(run.callbacks.costs()))
    _print_sinks(console, run)
    if run.recorder is not None and run.recorder.journal.lost:
        console.print(f"{run.recorder.journal.lost:,} RECORDS WERE LOST: the disk was full", style="bold red")
    if run.dir is not None:
        console.print(f"recorded in {run.dir}", style="dim", markup=False, soft_wrap=True)
    for failure in run.callbacks.failures[-3:]:
        prefix, style = ("DISABLED: ", "red") if failure.disabled else ("", "yellow")
        console.print(f"{prefix}{failure}", style=style, markup=False, soft_wrap=True)


def _print_sinks(console: "Console", run: "Session") -> None:
    states = run.sinks()
    for state in states:
        colour = {"ok": "green", "lagging": "yellow"}.get(state.status, "red")
        behind = f", {plural(state.behind_bytes, 'byte')} wait" if state.behind_bytes else ""
        console.print(
            f"  [{colour}]{state.status}[/] {state.name}: {plural(state.delivered, 'record')} delivered{behind}"
        )
        if state.error:
            console.print(f"    {state.error}", style=colour, markup=False, soft_wrap=True)
    if any(state.behind_bytes for state in states):
        console.print(f"  the rest is delivered by: hookline runs sync {run.dir}", markup=False, soft_wrap=True)


def cost_table(costs: Costs) -> "Table":
    """Return the costs as a table for a terminal."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in costs.COLUMNS:
        table.add_column(column, justify="left" if column in ("subscriber", "") else "right", overflow="fold")
    for cost, row in zip(costs, costs.rows(), strict=True):
        table.add_row(*map(escape, row), style="red" if cost.disabled else "yellow" if cost.errors else "")
    return table


def _headline(run: "Session") -> str:
    from rich.markup import escape

    colour = {"finished": "green", "stopped": "yellow"}.get(run.ending, "red")
    reason = f" ({escape(run.stop_reason)})" if run.stop_reason else ""
    how = f"[{colour}]{run.ending}[/]{reason}"
    return f"[bold]{escape(run.name)}[/] {how} after {run.step} steps in {duration(run.seconds)}"


def summary_html(run: "Session") -> str:
    """A run as a notebook shows it, also while it is running: how it goes, and its last metrics with small charts."""
    step = f"step {run.step:,}" + (f" of {run.num_steps:,}" if run.num_steps else "")
    reason = f" ({run.stop_reason})" if run.stop_reason else ""
    parts = [f"<div><b>{notebook.text(run.name)}</b> {notebook.text(f'{run.ending}{reason}, {step}')}</div>"]
    metrics = {name: value for name, value in run.metrics.items() if not name.startswith("hooks/")}
    shown = list(metrics)[:_SHOWN_METRICS]
    if shown:
        history = run.history
        rows = []
        for name in shown:
            points = [
                (row.step, row.metrics[name]) for row in history if isinstance(row.metrics.get(name), int | float)
            ]
            points = points[:: max(1, len(points) // _CHART_POINTS)]
            chart = notebook.line_chart([x for x, _ in points], [y for _, y in points], name)
            rows.append((notebook.text(name), notebook.text(_shown(metrics[name])), chart))
        parts.append(notebook.table(("metric", "last", ""), rows, numbers=[1]))
    if len(metrics) > len(shown):
        parts.append(notebook.note(f"{len(metrics) - len(shown):,} more metrics are not shown."))
    if run.dir is not None:
        parts.append(notebook.note(f"recorded in {run.dir}"))
    return "".join(parts)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

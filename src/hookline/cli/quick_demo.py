"""``hookline demo --quick``: a bare loop with callbacks, hooks and one broken observer, and what came of it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

import hookline as hl
from hookline.callbacks import ProgressBar
from hookline.cli.output import console, indented, print_json
from hookline.demo.bare_loop import VALIDATE_EVERY, train
from hookline.loops.signals import exit_status
from hookline.record.records import clean
from hookline.record.terminal import terminal_console


def quick_demo(root: Path, *, as_json: bool = False) -> None:
    """Train, and say what happened: in words, or as one JSON document."""
    terminal = terminal_console(stderr=True, markup=True)
    if not as_json:
        _introduce(console())
    with _one_line_logs(terminal), _told_of_the_root(root):
        run = train([ProgressBar(console=terminal)], root=root)
    if as_json:
        print_json(_document(run))
    else:
        _explain(console(), run)
    status = exit_status(run.stop_reason)
    if status is not None:
        raise typer.Exit(status)


def _document(run: hl.Run) -> dict[str, Any]:
    facts = {"directory": str(run.dir), "state": run.state, "step": run.step, "num_steps": run.num_steps}
    facts |= {"stop_reason": run.stop_reason, "seconds": run.seconds, "metrics": dict(run.metrics)}
    document: dict[str, Any] = clean(facts)
    return document | {"costs": [asdict(cost) for cost in run.callbacks.costs()]}


def _introduce(out: Console) -> None:
    out.print("A plain Python loop trains a logistic regression. Beside it run", style="bold")
    for line in (
        "progress_bar     a callback that shows how far it is",
        "early_stopping   a callback that ends the run when val/loss no longer improves",
        f"overfitting      a function, called every {VALIDATE_EVERY} steps, that adds a metric",
        "weight_norm      a hook, asked after each step, that runs at every 50th",
        "broken_pager     an observer that is broken on purpose, to show isolation",
    ):
        out.print(indented(line))
    out.print()


def _explain(out: Console, run: hl.Run) -> None:
    costs = run.callbacks.costs()
    share = sum(cost.total_seconds for cost in costs) / run.seconds
    lines = [f"The run {run.state} at step {run.step} of {run.num_steps}: {run.stop_reason or 'all steps are done'}."]
    lines += [
        f"{cost.name} ({cost.note}) hurt nobody: errors are counted, not passed on." for cost in costs if cost.errors
    ]
    lines += [f"All {len(costs)} subscribers together took {share:.1%} of the run's time."]
    out.print("What happened", style="bold")
    for line in lines:
        out.print(indented(line))
    out.print("\nNext", style="bold")
    out.print("  hookline hooks list            what there is to add to a loop")
    out.print("  hookline hooks new my-hook     a hook of your own, as a package with tests")
    out.print("  hookline demo                  SFT and GRPO as an experiment of two arms")


@contextmanager
def _told_of_the_root(root: Path) -> Iterator[None]:
    """Say where a directory cannot be written what helps on a command line, which always records."""
    try:
        yield
    except hl.ConfigError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise hl.ConfigError(
            f"{root.resolve()} cannot be written: {error.__cause__.strerror}. Give another --root."
        ) from error


@contextmanager
def _one_line_logs(terminal: Console) -> Iterator[None]:
    """Show what hookline logs above the progress bar, a line each; in a real run tracebacks are part of it."""
    logger, handler = logging.getLogger("hookline"), _OneLine(terminal)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _OneLine(logging.Handler):
    def __init__(self, terminal: Console) -> None:
        super().__init__()
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        # A Text rather than a style for the whole print, which would colour the progress bar below it too.
        self.terminal.print(Text(record.getMessage(), style="yellow"))

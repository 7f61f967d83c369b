"""`ExperimentResult`: the results of an experiment, as tables, intervals, curves and files.

Only completed runs count. If there are stages, everything is about the last one unless stated otherwise. A metric's
direction is taken from its name (a benchmark's metric is a score unless its name suggests a loss), unless ``mode`` is
``"min"`` or ``"max"``.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline._engine import notebook, state
from hookline._engine.errors import MissingExtraError, OptionError, UnknownNameError, closest
from hookline._engine.metrics import plain
from hookline._engine.state import ArmResult, RunResult
from hookline._record.files import write_atomically
from hookline._record.records import clean
from hookline._record.settings import describe
from hookline._record.terminal import plural
from hookline.experiment.results.curves import (
    MOST_ARMS,
    Curve,
    curve_metric,
    curves,
    draw_curves,
    main_metric,
    metric_mode,
)
from hookline.experiment.results.rendering import Paragraph, Table, markdown, print_rendered, render
from hookline.experiment.results.statistics import (
    Difference,
    Mode,
    arm_differences,
    last_stage,
    metric_names,
    run_metrics,
    stages,
)
from hookline.experiment.results.tables import ArmRow, leaderboard, ranked, stage_table, table
from hookline.experiment.results.trials import SearchResult, Trial

if TYPE_CHECKING:
    from rich.console import Console, Group

COMPARED_ARMS = 10
"""How many of the best arms are compared in pairs by default."""
CURVES_FILE = "curves.png"
_CHART_POINTS = 60
"""How many points the chart of an arm has in a notebook."""


@dataclass(frozen=True, slots=True, repr=False)
class ExperimentResult(state.ExperimentResult):
    """The results of an experiment, with its arms in the order given.

    Attributes:
        search: The trials of a search; None if the experiment is none.
    """

    search: SearchResult | None = None

    @property
    def best_trial(self) -> Trial | None:
        """The best trial of a search; see `SearchResult.best_trial`."""
        return None if self.search is None else self.search.best_trial

    @property
    def runs(self) -> list[RunResult]:
        """The runs of all arms."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def main_metric(self) -> str | None:
        """The metric of the tables.

        The experiment's ``metric``; or the first one of the first benchmark; without benchmarks, of the results that
        functions returned; a validation metric; one that all arms have and that looks like a result. None if no run
        completed with a number.
        """
        return self.metric or main_metric(self.arms)

    @property
    def failed(self) -> list[RunResult]:
        """The runs that failed, have a failed benchmark, or were skipped because the run before them failed."""
        return [run for run in self.runs if run.status in ("failed", "incomplete", "skipped")]

    def __repr__(self) -> str:
        counts = f"{plural(len(self.arms), 'arm')}, {plural(len(self.runs), 'run')}"
        return f"ExperimentResult({self.name!r}, {self.status}: {counts})"

    def __str__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return notebook.display(self._html)

    def _html(self) -> str:
        about = self.main_metric
        board = leaderboard(self.arms, about, self.mode(about))
        curve = self.curve_metric()
        found = self.curves(curve, arms=[row.arm for row in board.rows]) if curve else []
        drawn = {each.arm: _small_chart(each) for each in found}
        cells = [list(map(notebook.text, board.cells(row))) for row in board.rows]
        rows = [[*own, drawn.get(row.arm, "")] for own, row in zip(cells, board.rows, strict=True)]
        left = f"The best {len(board.rows)} arms; {board.left_out:,} more are not shown."
        return "".join(
            [
                notebook.note(f"{self.name}, {self.status}: {plural(len(self.runs), 'run')}"),
                notebook.table([*board.columns, curve or ""], rows, numbers=range(1, 6)),
                *([notebook.note(left)] if board.left_out else ()),
                *(
                    [notebook.note(f"{plural(len(self.failed), 'run')} failed.", is_problem=True)]
                    if self.failed
                    else ()
                ),
            ]
        )

    def metric_names(self) -> list[str]:
        """The metrics of trained runs; those of benchmarks are ``<benchmark>/<metric>``."""
        return metric_names(run for run in self.runs if run.is_trained)

    def stages(self) -> list[str]:
        """The names of the stages in order; empty if there are none."""
        return stages(self.arms)

    def mode(self, metric: str | None = None, mode: str | None = None) -> Mode:
        """Whether smaller (``"min"``) or larger (``"max"``) values of a metric are better."""
        about = self.main_metric if metric is None else metric
        return metric_mode(about, mode or (self.direction if about == self.metric else None), self.runs)

    def table(self, metric: str | None = None, *, by_stage: bool = False, mode: str | None = None) -> list[ArmRow]:
        """A row for each arm, in order; with ``by_stage``, one for each arm and stage.

        Raises:
            UnknownNameError: No completed run has the metric.
        """
        about = self._metric(metric)
        make = stage_table if by_stage else table
        return make(self.arms, about, self.mode(about, mode))

    def best_arms(self, number: int, metric: str | None = None, *, mode: str | None = None) -> list[str]:
        """The names of the best arms, best first, without those that have no result."""
        rows = self.table(metric, mode=mode)
        there = [row for row in rows if row.mean is not None]
        about = rows[0].metric if rows else None
        return [row.arm for row in ranked(there, self.mode(about, mode))[:number]]

    def differences(
        self,
        metric: str | None = None,
        *,
        arms: Sequence[str] | None = None,
        limit: int | None = COMPARED_ARMS,
        mode: str | None = None,
    ) -> list[Difference]:
        """The differences of all pairs of arms, with a 95% interval (Welch's: repeats are independent samples).

        Args:
            arms: The arms to compare; a difference is the later one minus the earlier one.
            limit: Without ``arms``, compare this many of the best arms, in the order given; None compares all.

        Raises:
            UnknownNameError: There is no such metric or arm.
        """
        about = self._metric(metric)
        known = [arm.name for arm in self.arms]
        for name in arms or ():
            if name not in known:
                raise UnknownNameError(f"arms={name!r}: there is no such arm. {closest(name, known)}")
        if about is None:
            return []
        if arms is None:
            chosen = set(self.best_arms(len(known) if limit is None else limit, about, mode=mode))
            arms = [name for name in known if name in chosen]
        return arm_differences(self.arms, list(combinations(arms, 2)), about)

    def curves(
        self, metric: str | None = None, *, arms: Sequence[str] | None = None, stage: str | None = None
    ) -> list[Curve]:
        """A metric over the steps, for each arm that recorded it; reads the runs' journals.

        Args:
            metric: Any recorded metric; by default the main one, or a likely one that was recorded over time.
            arms: Only these arms.
            stage: The stage; by default the last one.
        """
        about = stage or last_stage(self.arms)
        name = metric or self.curve_metric(stage=about)
        chosen = [arm for arm in self.arms if arms is None or arm.name in arms]
        return [] if name is None else curves(chosen, name, about)

    def curve_metric(self, *, stage: str | None = None) -> str | None:
        """The default metric of curves; None if none was recorded over time."""
        return curve_metric(self.arms, stage or last_stage(self.arms), self.main_metric)

    def picture(self, metric: str | None = None, *, mode: str | None = None) -> bytes:
        """Draw the curves of the best arms, at most 12, as a PNG, each with a band of one standard deviation.

        Raises:
            UnknownNameError: No completed run recorded the metric.
            MissingExtraError: matplotlib is not installed.
        """
        name = metric or self.curve_metric()
        chosen = self._arms_to_draw(name, mode)
        found = self.curves(name, arms=chosen) if name else []
        if not found or name is None:
            what = f"metric={metric!r}: no" if metric else "No"
            raise UnknownNameError(f"{what} completed run of {self.name!r} recorded it over its steps.")
        left = len(self.arms) - len(chosen)
        which = f", the best {len(chosen)} of {len(self.arms):,} arms" if left > 0 else ""
        return draw_curves(found, title=f"{self.name}{which}", metric=name)

    def plot(
        self, metric: str | None = None, path: str | os.PathLike[str] | None = None, *, mode: str | None = None
    ) -> Path:
        """Write `picture` to a file; by default ``curves.png`` in the experiment's directory."""
        if path is None and self.output_dir is None:
            raise OptionError("path=None: the experiment has no directory. Give the path of the PNG.")
        target = Path(path) if path is not None else Path(self.output_dir or "") / CURVES_FILE
        write_atomically(target, self.picture(metric, mode=mode), parents=True)
        return target

    def to_pandas(self) -> Any:
        """A DataFrame with one row for each run: arm, repeat, stage, seed, status, seconds and every metric.

        A metric with the name of one of those columns is called ``metrics/<name>``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise MissingExtraError("A DataFrame of an experiment", "experiment") from error
        own = ("arm", "run", "repeat", "stage", "seed", "status", "seconds")
        rows = [_frame_row(arm, run) for arm in self.arms for run in arm.runs]
        metrics = dict.fromkeys(name for row in rows for name in row if name not in own)
        return pandas.DataFrame(rows, columns=[*own, *metrics])

    def to_dict(self, metric: str | None = None, *, mode: str | None = None) -> dict[str, Any]:
        """Everything as JSON-compatible values; non-finite numbers are ``"NaN"`` and ``"Infinity"``."""
        about = self._metric(metric)
        made: dict[str, Any] = clean(
            {
                "name": self.name,
                "output_dir": None if self.output_dir is None else str(self.output_dir),
                "metric": about,
                "mode": self.mode(about, mode),
                "table": [asdict(row) for row in self.table(about, mode=mode)],
                "search": None if self.search is None else asdict(self.search),
                "differences": [asdict(row) for row in self.differences(about, mode=mode)],
                "arms": [
                    {"name": arm.name, "config": describe(arm.config), "runs": [_run_dict(run) for run in arm.runs]}
                    for arm in self.arms
                ],
            }
        )
        return made

    def to_markdown(self, metric: str | None = None, *, mode: str | None = None) -> str:
        """The table of arms in Markdown: of all of them, or of the best 20."""
        about = self._metric(metric)
        board = leaderboard(self.arms, about, self.mode(about, mode))
        shown = Table(board.columns, [board.cells(row) for row in board.rows], numbers=range(1, 6))
        rest = [Paragraph(f"The best {len(board.rows)} arms; {board.left_out:,} more are not shown.")]
        return markdown([shown, *(rest if board.left_out else ())])

    def print(self, console: "Console | None" = None, *, metric: str | None = None, mode: str | None = None) -> None:
        """Print the table of arms and failures, to a `rich` console or to standard output."""
        shown = self._view(metric, mode)
        if console is not None:
            console.print(shown)
        else:
            print_rendered(shown)

    def __rich__(self) -> "Group":
        return self._view(None, None)

    def _view(self, metric: str | None, mode: str | None) -> "Group":
        about = self._metric(metric)
        note = "" if self.search is None else str(self.search)
        return render(self, leaderboard(self.arms, about, self.mode(about, mode)), note=note)

    def _metric(self, metric: str | None) -> str | None:
        """The given or main metric; an unknown name is an error, unless there are no metrics at all."""
        if metric is None:
            return self.main_metric
        known = self.metric_names()
        if known and metric not in known:
            raise UnknownNameError(f"metric={metric!r}: no completed run has it. {closest(metric, known)}")
        return metric

    def _arms_to_draw(self, metric: str | None, mode: str | None) -> list[str]:
        names = [arm.name for arm in self.arms]
        if len(names) <= MOST_ARMS:
            return names
        judged_by = metric if metric in self.metric_names() else None
        return self.best_arms(MOST_ARMS, judged_by, mode=mode)


def _frame_row(arm: ArmResult, run: RunResult) -> dict[str, Any]:
    own = {
        "arm": arm.name,
        "run": run.run_key,
        "repeat": run.repeat,
        "stage": run.stage,
        "seed": run.seed,
        "status": run.status,
        "seconds": run.seconds,
    }
    return own | {
        (f"metrics/{name}" if name in own else name): value for name, value in plain(run_metrics(run)).items()
    }


def _run_dict(run: RunResult) -> dict[str, Any]:
    return {
        "run": run.run_key,
        "status": run.status,
        "repeat": run.repeat,
        "stage": run.stage,
        "seed": run.seed,
        "seconds": run.seconds,
        "attempts": run.attempts,
        "metrics": plain(run_metrics(run)),
        "evals": [{each.name: getattr(result, each.name) for each in fields(result)} for result in run.evals],
        "failed_evals": dict(run.failed_evals),
        "error": run.error,
        "output_dir": None if run.output_dir is None else str(run.output_dir),
    }


def _small_chart(curve: Curve) -> str:
    """The mean of an arm, at evenly spaced steps."""
    every = max(1, len(curve.steps) // _CHART_POINTS)
    return notebook.line_chart(curve.steps[::every], curve.mean[::every], curve.metric)

"""Writes the report of an experiment: ``report.md``, ``report.html`` and ``curves.png`` in its directory.

The same result gives the same bytes: nothing depends on the clock or the machine. The length is limited: with many
arms, the report shows the best ones and how many it leaves out.
"""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from hookline._engine.errors import MissingExtraError, OptionError
from hookline._engine.state import ArmResult, EvalResult, RunResult
from hookline._record.files import write_atomically
from hookline._record.records import valid_text
from hookline._record.run_directory import METADATA
from hookline._record.terminal import plural
from hookline.experiment.results.rendering import (
    MOST_FAILURES,
    Block,
    Code,
    Heading,
    Items,
    Paragraph,
    Picture,
    Table,
    html,
    markdown,
)
from hookline.experiment.results.result import COMPARED_ARMS, CURVES_FILE, ExperimentResult
from hookline.experiment.results.statistics import completed, number, spread
from hookline.experiment.results.tables import (
    NOTHING,
    Leaderboard,
    config_differences,
    count_text,
    difference_text,
    error_line,
    failed_benchmarks,
    incomplete_text,
    leaderboard,
    mean_text,
    number_text,
    time_text,
    unfinished_runs,
)

logger = logging.getLogger("hookline")

MOST_RUNS = 100
MOST_SETTINGS = 30
MOST_METRICS = 6
MOST_TAGS = 20
_COUNT = "n"
_ERROR_LINES = 100
_VALUE_LENGTH = 80


def write_report(result: ExperimentResult) -> list[Path]:
    """Write the report into the experiment's directory, each file atomically; return the files.

    Without matplotlib, or if no metric was recorded over steps, there is no picture, and the report says why.

    Raises:
        OptionError: The experiment has no directory.
    """
    if result.output_dir is None:
        raise OptionError(f"output_dir=None: {result.name!r} has no directory for the report. Give it one.")
    curves = _curves(result)
    blocks = _report(result, curves)
    files = {
        "report.md": valid_text(markdown(blocks)).encode(),
        "report.html": valid_text(html(result.name, blocks)).encode(),
    }
    if isinstance(curves, Picture):
        files[CURVES_FILE] = curves.png
    for name, content in files.items():
        write_atomically(Path(result.output_dir) / name, content, parents=True)
    return [Path(result.output_dir) / name for name in files]


def _report(result: ExperimentResult, curves: Picture | Paragraph) -> list[Block]:
    metric = result.main_metric
    board = leaderboard(result.arms, metric, result.mode(metric))
    by_name = {arm.name: arm for arm in result.arms}
    shown_arms = [by_name[row.arm] for row in board.rows]
    blocks: list[Block] = [Heading(result.name, 1), Paragraph(_overview(result))]
    if missing := incomplete_text(result.arms):
        blocks.append(Paragraph(missing))
    if result.search is not None:
        blocks.append(Paragraph(f"Search for {', '.join(result.search.metrics)}: {result.search}."))
    blocks += _results(result, board)
    blocks += _differences(result, board)
    blocks += [Heading("Curves"), curves]
    blocks += _settings(result, shown_arms, board)
    blocks += _benchmarks(shown_arms, board.stage)
    blocks += _failures(result)
    blocks += _runs(result)
    return blocks


def _overview(result: ExperimentResult) -> str:
    runs = result.runs
    states = {status: sum(run.status == status for run in runs) for status in dict.fromkeys(r.status for r in runs)}
    counted = ", ".join(f"{number:,} {status}" for status, number in states.items()) or "none"
    parts = [f"{plural(len(result.arms), 'arm')}, {plural(len(runs), 'run')} ({counted})"]
    if named := result.stages():
        parts.append(f"stages: {', '.join(named)}")
    if (begun := _begun(runs)) is not None:
        parts.append(f"begun {datetime.fromtimestamp(begun, UTC):%Y-%m-%d %H:%M} UTC")
    parts.append(f"{time_text(sum(run.seconds for run in runs))} of run time in all")
    return "; ".join(parts) + "."


def _begun(runs: list[RunResult]) -> float | None:
    """When the first run began, from the run directories."""
    started = []
    for run in runs:
        if run.output_dir is not None:
            try:
                facts = json.loads((Path(run.output_dir) / METADATA).read_text(encoding="utf-8"))
                started.append(float(facts["started"]))
            except (OSError, ValueError, KeyError, TypeError):  # it never began, or was deleted
                continue
    return min(started, default=None)


def _results(result: ExperimentResult, board: Leaderboard) -> list[Block]:
    blocks: list[Block] = [Heading("Result")]
    if board.best is None:
        return [*blocks, Paragraph("No run completed with a result to compare.")]
    best = next(row for row in result.table() if row.arm == board.best)
    better = "larger" if board.mode == "max" else "smaller"
    stage = f" after stage {board.stage}" if board.stage else ""
    so_far = " so far" if incomplete_text(result.arms) else ""
    blocks.append(
        Paragraph(
            f"{board.best} is best{so_far} by {board.metric} ({better} is better){stage}: "
            f"{mean_text(best.mean, best.std)} over {plural(best.n, 'repeat')}."
        )
    )
    strong = next((place for place, row in enumerate(board.rows) if row.arm == board.best), None)
    blocks.append(Table(board.columns, [board.cells(row) for row in board.rows], range(1, 6), strong))
    if board.left_out:
        blocks.append(Paragraph(f"The best {len(board.rows)} are shown; {board.left_out:,} more are not."))
    blocks.append(
        Paragraph(
            "Mean ± standard deviation over the repeats that completed; n is their number. Differences have the "
            "95% interval (Welch's t) in brackets, if both arms have at least two repeats."
        )
    )
    return blocks + _stages(result, board)


def _stages(result: ExperimentResult, board: Leaderboard) -> list[Block]:
    if len(result.stages()) < 2:
        return []
    chosen = {row.arm for row in board.rows}
    rows = [
        (
            row.arm,
            row.stage or NOTHING,
            mean_text(row.mean, row.std),
            count_text(row),
            number_text(row.best),
            str(row.failed or ""),
        )
        for row in result.table(by_stage=True)
        if row.arm in chosen
    ]
    columns = ("arm", "stage", board.metric or "result", "n", "best run", "failed")
    return [Heading("Stage by stage", 3), Table(columns, rows, range(2, 6))]


def _differences(result: ExperimentResult, board: Leaderboard) -> list[Block]:
    rows = result.differences()
    if not rows:
        return []
    blocks: list[Block] = [
        Heading("Differences between the arms"),
        Items([("", difference_text(row, board.mode)) for row in rows]),
    ]
    note = "Each interval stands alone: of twenty pairs of arms that do not differ, about one looks as if it did."
    if len(result.arms) > COMPARED_ARMS:
        note = f"Only the best {COMPARED_ARMS} arms are compared. {note}"
    return [*blocks, Paragraph(note)] if len(rows) > 1 else blocks


def _curves(result: ExperimentResult) -> Picture | Paragraph:
    """The picture, or a paragraph about why there is none: a failure here must not cost the report."""
    metric = result.curve_metric()
    if metric is None:
        return Paragraph("No completed run recorded a metric at more than one step.")
    shows = f"{metric} over the steps, by arm: the mean, and a band of one standard deviation where there are repeats"
    try:
        return Picture(result.picture(metric), CURVES_FILE, shows)
    except MissingExtraError as error:
        return Paragraph(f"{error} Then write the report again.")
    except Exception as error:
        logger.warning("The curves of experiment %r could not be drawn: %s", result.name, error, exc_info=True)
        return Paragraph(f"The curves could not be drawn: {type(error).__name__}: {error}")


def _settings(result: ExperimentResult, arms: list[ArmResult], board: Leaderboard) -> list[Block]:
    differing = config_differences(result.arms)
    if not any(differing.values()):
        return []
    items = [(arm.name, _setting_text(differing[arm.name])) for arm in arms]
    blocks: list[Block] = [Heading("Settings that differ between the arms"), Items(items)]
    return [*blocks, Paragraph(f"{board.left_out:,} more arms are not shown.")] if board.left_out else blocks


def _setting_text(settings: dict[str, object]) -> str:
    texts = []
    for path, value in settings.items():
        shown = json.dumps(value, ensure_ascii=False)
        texts.append(f"{path} = {shown if len(shown) <= _VALUE_LENGTH else shown[: _VALUE_LENGTH - 1] + '…'}")
    if len(texts) > MOST_SETTINGS:
        texts = [*texts[:MOST_SETTINGS], f"and {len(texts) - MOST_SETTINGS} more"]
    return ", ".join(texts) or NOTHING


def _benchmarks(arms: Sequence[ArmResult], stage: str | None) -> list[Block]:
    """A section with a table for each benchmark; empty if none ran."""
    results = {arm.name: [given for run in completed(arm, stage) for given in run.evals] for arm in arms}
    benchmarks = dict.fromkeys(given.name for of_arm in results.values() for given in of_arm)
    if not benchmarks:
        return []
    note = (
        "Mean ± standard deviation over repeats. In brackets is the benchmark's 95% interval for one run, which shows "
        "how much the choice of tasks matters; for several repeats, the mean of its ends."
    )
    blocks: list[Block] = [Heading("Benchmarks"), Paragraph(note)]
    for name in benchmarks:
        blocks += _benchmark_table(
            name, {arm: [r for r in of_arm if r.name == name] for arm, of_arm in results.items()}
        )
    return blocks


def _benchmark_table(name: str, results: dict[str, list[EvalResult]]) -> list[Block]:
    every = [result for of_arm in results.values() for result in of_arm]
    metrics = list(dict.fromkeys(metric for result in every for metric in result.metrics))
    tags = list(dict.fromkeys(tag for result in every for tag in result.breakdowns))
    rows = [
        row
        for arm, of_arm in results.items()
        for row in _benchmark_rows(arm, of_arm, metrics[:MOST_METRICS], tags[:MOST_TAGS])
    ]
    columns = ("arm", "tasks", *metrics[:MOST_METRICS])
    blocks: list[Block] = [Heading(name, 3), Table(columns, rows, range(2, len(columns)))]
    left_out = [f"{len(metrics) - MOST_METRICS} more metrics"] if len(metrics) > MOST_METRICS else []
    left_out += [f"{len(tags) - MOST_TAGS} more tags"] if len(tags) > MOST_TAGS else []
    return [*blocks, Paragraph(f"Not shown: {', '.join(left_out)}.")] if left_out else blocks


def _benchmark_rows(
    arm: str, results: Sequence[EvalResult], metrics: Sequence[str], tags: Sequence[str]
) -> list[tuple[str, ...]]:
    rows = [(arm, "all", *(_mean_with_interval(results, metric) for metric in metrics))]
    for tag in tags:
        parts = [result.breakdowns[tag] for result in results if tag in result.breakdowns]
        if parts:
            tasks = number(parts[0].get(_COUNT))
            label = tag if tasks is None else f"{tag} ({plural(int(tasks), 'task')})"
            rows.append((arm, label, *(_mean_cell([part.get(metric) for part in parts]) for metric in metrics)))
    return rows


def _mean_with_interval(results: Sequence[EvalResult], metric: str) -> str:
    text = _mean_cell([result.metrics.get(metric) for result in results])
    ends = [result.intervals[metric] for result in results if metric in result.intervals]
    if text == NOTHING or not ends:
        return text
    low, high = (sum(end[side] for end in ends) / len(ends) for side in (0, 1))
    return f"{text} ({low:.3g} to {high:.3g})"


def _mean_cell(values: Sequence[float | None]) -> str:
    over = spread([value for value in map(number, values) if value is not None])
    return mean_text(over.mean, over.std)


def _failures(result: ExperimentResult) -> list[Block]:
    runs = unfinished_runs(result.arms)
    broken = [(f"{key}, {name}", error_line(why)) for key, name, why in failed_benchmarks(result.arms)]
    blocks: list[Block] = []
    if runs:
        blocks += [Heading("Runs that did not complete"), *map(_failure, runs[:MOST_FAILURES])]
        if len(runs) > MOST_FAILURES:
            blocks.append(Paragraph(f"{len(runs) - MOST_FAILURES:,} more are not shown."))
    if broken:
        blocks += [Heading("Benchmarks that failed"), Items(broken[:MOST_FAILURES])]
        if len(broken) > MOST_FAILURES:
            blocks.append(Paragraph(f"{len(broken) - MOST_FAILURES:,} more are not shown."))
    return blocks


def _failure(run: RunResult) -> Block:
    title = f"{run.run_key}: {run.status}{f', {error_line(run.error)}' if run.error else ''}"
    lines = (run.error or "").rstrip().splitlines()
    if len(lines) <= 1:
        return Paragraph(title)
    kept = lines if len(lines) <= _ERROR_LINES else ["…", *lines[-_ERROR_LINES:]]
    return Code(title, "\n".join(kept))


def _runs(result: ExperimentResult) -> list[Block]:
    runs = result.runs
    rows = [
        (
            run.run_key,
            run.status,
            NOTHING if run.seed is None else str(run.seed),
            time_text(run.seconds),
            _relative_directory(result, run),
        )
        for run in runs[:MOST_RUNS]
    ]
    blocks: list[Block] = [Heading("Runs"), Table(("run", "status", "seed", "time", "directory"), rows, (2, 3))]
    if len(runs) > MOST_RUNS:
        blocks.append(Paragraph(f"{len(runs) - MOST_RUNS:,} more are not shown."))
    advice = (
        "Run the experiment again with the same output directory to continue it: completed runs are kept. "
        "Read the record of a run with hookline.read(directory)."
    )
    return [*blocks, Paragraph(advice)]


def _relative_directory(result: ExperimentResult, run: RunResult) -> str:
    if run.output_dir is None:
        return NOTHING
    home, directory = Path(result.output_dir or ""), Path(run.output_dir)
    return str(directory.relative_to(home) if directory.is_relative_to(home) else directory)

"""The table of an experiment: what each arm reached.

The arms as they stand by one metric, for people: a limited number of them, with their distance from the best.

Up to `MOST_ROWS` arms are shown in the order given; of more, the best ones, best first. All of it takes time in
proportion to the number of runs.

What the benchmarks gave, by arm: every metric with its interval, and the breakdowns by tag.

What differs between the configurations of arms: only those settings, by their dotted paths.

What went wrong in an experiment: runs that did not complete, and benchmarks that gave nothing.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hookline._engine.state import ArmResult, EvalResult, RunResult
from hookline._record.settings import describe
from hookline.experiment.results.report_formats import Block, Heading, Paragraph, Table
from hookline.experiment.results.statistics import (
    Difference,
    against,
    completed,
    last_stage,
    number,
    spread,
    stages,
    values,
)
from hookline.experiment.results.text import NOTHING, count, mean_text, shown, signed


@dataclass(frozen=True, slots=True)
class ArmRow:
    """What an arm reached, in a stage where there are stages.

    Attributes:
        stage: The stage that the numbers are about; None where the experiment has none.
        metric: What was measured; None where no run of the experiment has a metric.
        mean: Over the repeats that completed; None where none did.
        std: The standard deviation of the sample; None for fewer than two repeats.
        n: How many repeats the mean is of.
        best: The best of the repeats, and the worst.
        runs: How many repeats there are.
        failed: How many runs failed, in any stage of it where the row is about the whole arm.
        seconds: How long the runs took, all together.
    """

    arm: str
    stage: str | None
    metric: str | None
    mean: float | None
    std: float | None
    n: int
    best: float | None
    worst: float | None
    runs: int
    failed: int
    seconds: float


def table(arms: Sequence[ArmResult], metric: str | None, mode: Literal["min", "max"]) -> list[ArmRow]:
    """A row for each arm, in the order given; of the last stage where there are stages."""
    stage = last_stage(arms)
    return [_row(arm, arm.runs, metric, mode, stage) for arm in arms]


def stage_table(arms: Sequence[ArmResult], metric: str | None, mode: Literal["min", "max"]) -> list[ArmRow]:
    """A row for each arm and stage; without stages, one for each arm."""
    every: Sequence[str | None] = stages(arms) or [None]
    return [
        _row(arm, [run for run in arm.runs if run.stage == stage], metric, mode, stage)
        for arm in arms
        for stage in every
    ]


def ranked(rows: Iterable[ArmRow], mode: Literal["min", "max"]) -> list[ArmRow]:
    """The rows with the best mean first; those without one, or with one that is no number, last."""
    return sorted(rows, key=lambda row: _rank(row.mean, mode))


def best_row(rows: Iterable[ArmRow], mode: Literal["min", "max"]) -> ArmRow | None:
    """The row with the best mean; None where no row has one."""
    first = min(rows, key=lambda row: _rank(row.mean, mode), default=None)
    return None if first is None or first.mean is None or math.isnan(first.mean) else first


def _rank(value: float | None, mode: Literal["min", "max"]) -> tuple[int, float]:
    if value is None or math.isnan(value):
        return (2 if value is None else 1), 0.0
    return 0, value if mode == "min" else -value


def _row(
    arm: ArmResult, runs: Sequence[RunResult], metric: str | None, mode: Literal["min", "max"], stage: str | None
) -> ArmRow:
    found = values(arm, metric, stage)
    over = spread(found)
    ordered = sorted(found, key=lambda value: _rank(value, mode))
    return ArmRow(
        arm=arm.name,
        stage=stage,
        metric=metric,
        mean=over.mean,
        std=over.std,
        n=over.n,
        best=ordered[0] if ordered else None,
        worst=ordered[-1] if ordered else None,
        runs=len({run.repeat for run in runs}),
        failed=sum(run.status == "failed" for run in runs),
        seconds=math.fsum(run.seconds for run in runs),
    )


MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The rows to show, how many are left out, the name of the best arm, and how far each other arm is from it."""

    metric: str | None
    mode: Literal["min", "max"]
    rows: Sequence[ArmRow]
    left_out: int
    best: str | None
    gaps: dict[str, Difference]

    @property
    def stage(self) -> str | None:
        """The stage that the numbers are about."""
        return self.rows[0].stage if self.rows else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The heads of `cells`."""
        return ("arm", self.metric or "result", "n", "best run", "difference to the best arm", "failed")

    def cells(self, row: ArmRow) -> tuple[str, ...]:
        """What stands in a row."""
        result = mean_text(row.mean, row.std)
        return (row.arm, result, count_text(row), shown(row.best), self._gap(row), str(row.failed or ""))

    def _gap(self, row: ArmRow) -> str:
        if row.arm == self.best:
            return "best"
        gap = self.gaps.get(row.arm)
        if gap is None or gap.difference is None:
            return NOTHING
        return signed(gap.difference) + (f" ({gap.interval[0]:.3g} to {gap.interval[1]:.3g})" if gap.interval else "")


def count_text(row: ArmRow) -> str:
    """How many repeats count, and of how many where that is fewer."""
    return str(row.n) if row.n == row.runs else f"{row.n} of {row.runs}"


def leaderboard(arms: Sequence[ArmResult], metric: str | None, mode: Literal["min", "max"]) -> Leaderboard:
    """The arms as they stand by a metric."""
    rows = table(arms, metric, mode)
    shown_rows = rows if len(rows) <= MOST_ROWS else ranked(rows, mode)[:MOST_ROWS]
    best = best_row(rows, mode)
    gaps: dict[str, Difference] = {}
    if best is not None and metric is not None:
        others = [row.arm for row in shown_rows if row.arm != best.arm]
        gaps = {gap.b: gap for gap in against(arms, best.arm, others, metric)}
    return Leaderboard(metric, mode, shown_rows, len(rows) - len(shown_rows), best.arm if best else None, gaps)


MOST_METRICS = 6
MOST_TAGS = 20
_COUNT = "n"


def benchmark_blocks(arms: Sequence[ArmResult], stage: str | None) -> list[Block]:
    """A section with a table for each benchmark; nothing where none ran."""
    results = {arm.name: [given for run in completed(arm, stage) for given in run.evals] for arm in arms}
    benchmarks = dict.fromkeys(given.name for of_arm in results.values() for given in of_arm)
    if not benchmarks:
        return []
    note = (
        "Mean ± standard deviation over repeats. In brackets is the interval that the benchmark gives for one run, "
        "which says how much the choice of tasks matters; of several repeats the mean of its ends."
    )
    blocks: list[Block] = [Heading("Benchmarks"), Paragraph(note)]
    for name in benchmarks:
        blocks += _benchmark(name, {arm: [r for r in of_arm if r.name == name] for arm, of_arm in results.items()})
    return blocks


def _benchmark(name: str, results: dict[str, list[EvalResult]]) -> list[Block]:
    every = [result for of_arm in results.values() for result in of_arm]
    metrics = list(dict.fromkeys(metric for result in every for metric in result.metrics))
    tags = list(dict.fromkeys(tag for result in every for tag in result.breakdowns))
    rows = [
        row for arm, of_arm in results.items() for row in _rows(arm, of_arm, metrics[:MOST_METRICS], tags[:MOST_TAGS])
    ]
    columns = ("arm", "tasks", *metrics[:MOST_METRICS])
    blocks: list[Block] = [Heading(name, 3), Table(columns, rows, range(2, len(columns)))]
    left_out = [f"{len(metrics) - MOST_METRICS} more metrics"] if len(metrics) > MOST_METRICS else []
    left_out += [f"{len(tags) - MOST_TAGS} more tags"] if len(tags) > MOST_TAGS else []
    return [*blocks, Paragraph(f"Not shown: {', '.join(left_out)}.")] if left_out else blocks


def _rows(
    arm: str, results: Sequence[EvalResult], metrics: Sequence[str], tags: Sequence[str]
) -> list[tuple[str, ...]]:
    rows = [(arm, "all", *(_whole(results, metric) for metric in metrics))]
    for tag in tags:
        parts = [result.breakdowns[tag] for result in results if tag in result.breakdowns]
        if parts:
            tasks = number(parts[0].get(_COUNT))
            label = tag if tasks is None else f"{tag} ({count(int(tasks), 'task')})"
            rows.append((arm, label, *(_mean([part.get(metric) for part in parts]) for metric in metrics)))
    return rows


def _whole(results: Sequence[EvalResult], metric: str) -> str:
    text = _mean([result.metrics.get(metric) for result in results])
    ends = [result.intervals[metric] for result in results if metric in result.intervals]
    if text == NOTHING or not ends:
        return text
    low, high = (sum(end[side] for end in ends) / len(ends) for side in (0, 1))
    return f"{text} ({low:.3g} to {high:.3g})"


def _mean(values: Sequence[float | None]) -> str:
    over = spread([value for value in map(number, values) if value is not None])
    return mean_text(over.mean, over.std)


_NOT_SET = object()


def config_differences(arms: Sequence[ArmResult]) -> dict[str, dict[str, Any]]:
    """For each arm the settings that are not the same in all of them; one that an arm does not have is left out.

    An arm without any settings is not compared with the others: nothing would be the same.

    >>> config_differences([ArmResult("low", {"lr": 1, "n": 5}), ArmResult("high", {"lr": 2, "n": 5})])
    {'low': {'lr': 1}, 'high': {'lr': 2}}
    """
    settings = {arm.name: dict(_flat(describe(arm.config))) for arm in arms}
    paths = dict.fromkeys(path for flat in settings.values() for path in flat)
    compared = {name: flat for name, flat in settings.items() if flat}
    differing = [path for path in paths if _differs(path, compared)]
    return {name: {path: flat[path] for path in differing if path in flat} for name, flat in settings.items()}


def _differs(path: str, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    values = iter(settings.values())
    first = next(values).get(path, _NOT_SET)
    return any(not _same(first, flat.get(path, _NOT_SET)) for flat in values)


def _same(one: Any, other: Any) -> bool:
    """Whether two described values are equal; true is not 1, and what is not a number equals itself."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return bool(one is other or one == other or (one != one and other != other))


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, item in value.items() for pair in _flat(item, f"{path}.{key}" if path else key)]
    return [] if value is None and not path else [(path or "config", value)]


_FRAME = re.compile(r'\s+File "')
"""The beginning of a frame in a traceback."""


def unfinished_runs(arms: Iterable[ArmResult]) -> list[RunResult]:
    """The runs that began and whose training did not complete."""
    return [run for arm in arms for run in arm.runs if not run.is_trained and run.status != "waiting"]


def what_is_missing(arms: Iterable[ArmResult]) -> str | None:
    """What an experiment that was stopped lacks, in a sentence; None where it was brought to its end."""
    runs = [run for arm in arms for run in arm.runs]
    stopped, waiting = (sum(run.status == status for run in runs) for status in ("stopped", "waiting"))
    if not stopped and not waiting:
        return None
    done = sum(run.is_trained for run in runs)
    parts = [f"{number:,} {words}" for number, words in ((stopped, "stopped"), (waiting, "not begun")) if number]
    return f"NOT COMPLETE: {done:,} of {len(runs):,} runs; {', '.join(parts)}. Run it again to go on."


def failed_benchmarks(arms: Iterable[ArmResult]) -> Iterator[tuple[str, str, str]]:
    """Each benchmark that gave nothing: of which run, its name, and why."""
    for arm in arms:
        for run in arm.runs:
            for name, why in run.failed_evals.items():
                yield run.run_key, name, why


def error_line(error: str | None) -> str:
    """What a traceback says was wrong, in a line; nothing where nothing was said.

    That is the exception with the first line of its message, and our note of who raised it. A traceback may end with
    more of the message, and with notes.
    """
    lines = [line for line in (error or "").splitlines() if line.strip()]
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    if not frames:
        return lines[-1].strip() if lines else ""
    ending = [line for line in lines[frames[-1] :] if not line[0].isspace()] or lines[-1:]
    notes = [f"({line})" for line in ending[1:] if line.startswith("hookline: ")]
    return " ".join([ending[0].strip(), *notes])

"""Numbers as people read them in tables and sentences.

A difference between two arms in a sentence.

The table of an experiment: what each arm reached.

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

from hookline._engine.costs import duration
from hookline._engine.state import ArmResult, EvalResult, RunResult
from hookline._record.settings import describe
from hookline.experiment.results.report_formats import Block, Heading, Paragraph, Table
from hookline.experiment.results.statistics import (
    Difference,
    completed,
    differences_from,
    last_stage,
    number,
    spread,
    stages,
    values,
)

NOTHING = "—"


def number_text(value: float | None) -> str:
    """A number with four digits that count.

    >>> shown(0.123456), shown(1234567.0), shown(None)
    ('0.1235', '1.235e+06', '—')
    """
    return NOTHING if value is None else f"{value:.4g}"


def mean_text(mean: float | None, std: float | None) -> str:
    """A mean with its spread, both to the same decimal.

    >>> mean_text(0.84312, 0.01234), mean_text(0.84312, None), mean_text(1.0, 0.0)
    ('0.843 ± 0.012', '0.8431', '1 ± 0')
    """
    if mean is None or std is None:
        return number_text(mean)
    decimals = _decimals(std)
    if decimals is None or not math.isfinite(mean) or abs(mean) >= 1e6:
        return f"{number_text(mean)} ± {std:.2g}"
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def signed_text(value: float) -> str:
    """A difference, with its sign also where it is positive.

    >>> signed(0.5), signed(-0.25)
    ('+0.5', '-0.25')
    """
    return f"{value:+.3g}"


def time_text(seconds: float) -> str:
    """A length of time, in the units that one would say it in.

    >>> time_text(12.34), time_text(754), time_text(7260)
    ('12.3 s', '12 min 34 s', '2 h 01 min')
    """
    if seconds < 60 or not math.isfinite(seconds):
        return duration(seconds) if math.isfinite(seconds) and seconds > 0 else f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def plural(number: int, noun: str) -> str:
    """How many there are of something.

    >>> count(1, "run"), count(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _decimals(std: float) -> int | None:
    """The decimals that show two digits of a spread; None where that is no way to write it."""
    if not math.isfinite(std) or std == 0.0:
        return None
    decimals = 1 - math.floor(math.log10(abs(std)))
    return None if decimals > 8 else max(0, decimals)


def difference_text(row: Difference, mode: Literal["min", "max"]) -> str:
    """What a difference says: which arm is better and how surely, or what it would take to know.

    >>> sentence(Difference("low", "high", "accuracy", 0.12, (0.03, 0.21), 3, 3, True, 3), "max")
    'high beats low by 0.12 (95% interval 0.03 to 0.21).'
    """
    if row.difference is None:
        without = [name for name, n in ((row.a, row.n_a), (row.b, row.n_b)) if n == 0]
        return f"{row.a} and {row.b} cannot be compared: {' and '.join(without)} has no result."
    if row.difference != row.difference:
        return f"{row.a} and {row.b} cannot be compared: not all of their results are numbers."
    if row.interval is None:
        return _once(row, mode)
    return _beats(row, mode) if row.separated else _alike(row)


def _beats(row: Difference, mode: Literal["min", "max"]) -> str:
    winner, loser, by, interval = _facing(row, mode)
    low, high = interval or (by, by)
    if low == high:
        return f"{winner} beats {loser} by {by:.3g} (the repeats of each all gave the same)."
    return f"{winner} beats {loser} by {by:.3g} (95% interval {low:.3g} to {high:.3g})."


def _alike(row: Difference) -> str:
    low, high = row.interval or (0.0, 0.0)
    observed = f"the difference is {row.difference:.3g}, its 95% interval {low:.3g} to {high:.3g}"
    said = f"{row.a} and {row.b} cannot be told apart with {_repeats(row)}: {observed}"
    if row.repeats_to_separate is None:
        return f"{said}."
    return f"{said}; about {row.repeats_to_separate:,} of each would, if difference and spread stay as they are."


def _once(row: Difference, mode: Literal["min", "max"]) -> str:
    winner, loser, by, _ = _facing(row, mode)
    said = f"{winner} came out {by:.3g} better than {loser}" if by else f"{winner} and {loser} came out alike"
    if min(row.n_a, row.n_b) > 1:
        return f"{said}; how far that can be relied on cannot be said of these values."
    return f"{said}, with {_repeats(row)}: at least 2 of each are needed to say whether that is more than chance."


def _facing(row: Difference, mode: Literal["min", "max"]) -> tuple[str, str, float, tuple[float, float] | None]:
    """The better arm first, by how much, and the interval seen from there."""
    gap, interval = row.difference or 0.0, row.interval
    winner, loser = (row.b, row.a) if (gap > 0 if mode == "max" else gap < 0) else (row.a, row.b)
    if gap < 0 and interval is not None:
        interval = (-interval[1], -interval[0])
    return winner, loser, abs(gap), interval


def _repeats(row: Difference) -> str:
    return plural(row.n_a, "repeat") if row.n_a == row.n_b else f"{row.n_a} and {row.n_b} repeats"


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
        return (row.arm, result, count_text(row), number_text(row.best), self._gap(row), str(row.failed or ""))

    def _gap(self, row: ArmRow) -> str:
        if row.arm == self.best:
            return "best"
        gap = self.gaps.get(row.arm)
        if gap is None or gap.difference is None:
            return NOTHING
        return signed_text(gap.difference) + (
            f" ({gap.interval[0]:.3g} to {gap.interval[1]:.3g})" if gap.interval else ""
        )


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
        gaps = {gap.b: gap for gap in differences_from(arms, best.arm, others, metric)}
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
            label = tag if tasks is None else f"{tag} ({plural(int(tasks), 'task')})"
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


def incomplete_text(arms: Iterable[ArmResult]) -> str | None:
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

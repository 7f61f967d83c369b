"""Tables of an experiment's result, and the text in them.

- `table` and `stage_table` have a row for each arm (and stage); `leaderboard` is a limited number of rows with their
  distance from the best arm. It takes time in proportion to the number of runs.
- `config_differences` lists the settings that differ between arms.
- `unfinished_runs`, `failed_benchmarks` and `incomplete_text` report failures.
- The `*_text` functions format numbers, durations and differences for people.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline._engine.costs import duration
from hookline._engine.state import ArmResult, RunResult
from hookline._record.settings import describe
from hookline._record.terminal import plural
from hookline.experiment.results.statistics import (
    Difference,
    Mode,
    arm_differences,
    last_stage,
    spread,
    stages,
    values,
)

NOTHING = "—"


def number_text(value: float | None) -> str:
    """A number with four significant digits.

    >>> number_text(0.123456), number_text(1234567.0), number_text(None)
    ('0.1235', '1.235e+06', '—')
    """
    return NOTHING if value is None else f"{value:.4g}"


def mean_text(mean: float | None, std: float | None) -> str:
    """A mean with its spread, both with the same number of decimals.

    >>> mean_text(0.84312, 0.01234), mean_text(0.84312, None), mean_text(1.0, 0.0)
    ('0.843 ± 0.012', '0.8431', '1 ± 0')
    """
    if mean is None or std is None:
        return number_text(mean)
    is_readable = math.isfinite(std) and std != 0.0 and math.isfinite(mean) and abs(mean) < 1e6
    decimals = 1 - math.floor(math.log10(abs(std))) if is_readable else 0  # two digits of the spread
    if not is_readable or decimals > 8:
        return f"{number_text(mean)} ± {std:.2g}"
    decimals = max(0, decimals)
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def time_text(seconds: float) -> str:
    """A duration in readable units.

    >>> time_text(12.34), time_text(754), time_text(7260)
    ('12.3 s', '12 min 34 s', '2 h 01 min')
    """
    if seconds < 60 or not math.isfinite(seconds):
        return duration(seconds) if math.isfinite(seconds) and seconds > 0 else f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def difference_text(row: Difference, mode: Mode) -> str:
    """Describe a difference: which arm is better and how surely, or how many repeats it would take to know.

    >>> difference_text(Difference("low", "high", "accuracy", 0.12, (0.03, 0.21), 3, 3, True, 3), "max")
    'high beats low by 0.12 (95% interval 0.03 to 0.21).'
    """
    if row.difference is None:
        without = [name for name, n in ((row.a, row.n_a), (row.b, row.n_b)) if n == 0]
        return f"{row.a} and {row.b} cannot be compared: {' and '.join(without)} has no result."
    if row.difference != row.difference:
        return f"{row.a} and {row.b} cannot be compared: not all of their results are numbers."
    repeats = plural(row.n_a, "repeat") if row.n_a == row.n_b else f"{row.n_a} and {row.n_b} repeats"
    gap, by = row.difference, abs(row.difference)
    winner, loser = (row.b, row.a) if (gap > 0 if mode == "max" else gap < 0) else (row.a, row.b)
    if row.interval is None:
        text = f"{winner} came out {by:.3g} better than {loser}" if by else f"{winner} and {loser} came out equal"
        if min(row.n_a, row.n_b) > 1:
            return f"{text}; these values have no confidence interval."
        return f"{text}, with {repeats}: at least 2 of each are needed to tell whether that is more than chance."
    low, high = row.interval
    if not row.separated:
        observed = f"the difference is {gap:.3g}, its 95% interval {low:.3g} to {high:.3g}"
        text = f"{row.a} and {row.b} cannot be distinguished with {repeats}: {observed}"
        if row.repeats_to_separate is None:
            return f"{text}."
        return f"{text}; about {row.repeats_to_separate:,} of each would do, if difference and spread stay the same."
    if low == high:
        return f"{winner} beats {loser} by {by:.3g} (all repeats of each arm are equal)."
    low, high = (-high, -low) if gap < 0 else (low, high)  # the interval of the positive difference
    return f"{winner} beats {loser} by {by:.3g} (95% interval {low:.3g} to {high:.3g})."


@dataclass(frozen=True, slots=True)
class ArmRow:
    """The results of an arm, in one stage if there are stages.

    Attributes:
        stage: The stage; None if the experiment has none.
        metric: The metric; None if no run of the experiment has one.
        mean: Over the completed repeats; None if there are none.
        std: The sample standard deviation; None for fewer than two repeats.
        n: The number of repeats in the mean.
        best: The value of the best repeat.
        worst: The value of the worst repeat.
        runs: The number of repeats.
        failed: The number of failed runs, of all stages if the row is about the whole arm.
        seconds: The total duration of the runs.
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


def table(arms: Sequence[ArmResult], metric: str | None, mode: Mode) -> list[ArmRow]:
    """A row for each arm, in order; of the last stage if there are stages."""
    stage = last_stage(arms)
    return [_row(arm, arm.runs, metric, mode, stage) for arm in arms]


def stage_table(arms: Sequence[ArmResult], metric: str | None, mode: Mode) -> list[ArmRow]:
    """A row for each arm and stage; without stages, for each arm."""
    every: Sequence[str | None] = stages(arms) or [None]
    return [
        _row(arm, [run for run in arm.runs if run.stage == stage], metric, mode, stage)
        for arm in arms
        for stage in every
    ]


def ranked(rows: Iterable[ArmRow], mode: Mode) -> list[ArmRow]:
    """The rows by their mean, best first; rows without a mean, or with NaN, come last."""
    return sorted(rows, key=lambda row: _rank(row.mean, mode))


def _rank(value: float | None, mode: Mode) -> tuple[int, float]:
    if value is None or math.isnan(value):
        return (2 if value is None else 1), 0.0
    return 0, value if mode == "min" else -value


def _row(arm: ArmResult, runs: Sequence[RunResult], metric: str | None, mode: Mode, stage: str | None) -> ArmRow:
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
    """The rows to show, the number of rows left out, the best arm, and each other arm's difference from it."""

    metric: str | None
    mode: Mode
    rows: Sequence[ArmRow]
    left_out: int
    best: str | None
    gaps: dict[str, Difference]

    @property
    def stage(self) -> str | None:
        """The stage of the rows."""
        return self.rows[0].stage if self.rows else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The column headings of `cells`."""
        return ("arm", self.metric or "result", "n", "best run", "difference to the best arm", "failed")

    def cells(self, row: ArmRow) -> tuple[str, ...]:
        """The cells of a row."""
        result = mean_text(row.mean, row.std)
        return (row.arm, result, count_text(row), number_text(row.best), self._gap(row), str(row.failed or ""))

    def _gap(self, row: ArmRow) -> str:
        if row.arm == self.best:
            return "best"
        gap = self.gaps.get(row.arm)
        if gap is None or gap.difference is None:
            return NOTHING
        interval = f" ({gap.interval[0]:.3g} to {gap.interval[1]:.3g})" if gap.interval else ""
        return f"{gap.difference:+.3g}{interval}"


def count_text(row: ArmRow) -> str:
    """The number of repeats in a mean, with the total if that is larger."""
    return str(row.n) if row.n == row.runs else f"{row.n} of {row.runs}"


def leaderboard(arms: Sequence[ArmResult], metric: str | None, mode: Mode) -> Leaderboard:
    """Up to `MOST_ROWS` arms in their order; of more, the best ones, best first."""
    rows = table(arms, metric, mode)
    shown_rows = rows if len(rows) <= MOST_ROWS else ranked(rows, mode)[:MOST_ROWS]
    best = min(rows, key=lambda row: _rank(row.mean, mode), default=None)
    if best is not None and (best.mean is None or math.isnan(best.mean)):
        best = None
    gaps: dict[str, Difference] = {}
    if best is not None and metric is not None:
        others = [row.arm for row in shown_rows if row.arm != best.arm]
        gaps = {gap.b: gap for gap in arm_differences(arms, [(best.arm, other) for other in others], metric)}
    return Leaderboard(metric, mode, shown_rows, len(rows) - len(shown_rows), best.arm if best else None, gaps)


_NOT_SET = object()


def config_differences(arms: Sequence[ArmResult]) -> dict[str, dict[str, Any]]:
    """For each arm, its settings that differ between arms, by their dotted paths.

    An arm without any settings is not compared: nothing would be equal.

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
    """Whether two described values are equal; True is not 1, and NaN equals itself."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return bool(one is other or one == other or (one != one and other != other))


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, item in value.items() for pair in _flat(item, f"{path}.{key}" if path else key)]
    return [] if value is None and not path else [(path or "config", value)]


_FRAME = re.compile(r'\s+File "')
"""The beginning of a traceback frame."""


def unfinished_runs(arms: Iterable[ArmResult]) -> list[RunResult]:
    """The runs that began and did not complete their training, without those that a search ended."""
    others = ("waiting", "pruned")
    return [run for arm in arms for run in arm.runs if not run.is_trained and run.status not in others]


def incomplete_text(arms: Iterable[ArmResult]) -> str | None:
    """A sentence about the runs that a stopped experiment lacks; None if it has all."""
    runs = [run for arm in arms for run in arm.runs]
    stopped, waiting = (sum(run.status == status for run in runs) for status in ("stopped", "waiting"))
    if not stopped and not waiting:
        return None
    done = sum(run.is_trained or run.status == "pruned" for run in runs)
    parts = [f"{number:,} {words}" for number, words in ((stopped, "stopped"), (waiting, "not begun")) if number]
    return f"NOT COMPLETE: {done:,} of {len(runs):,} runs; {', '.join(parts)}. Run it again to continue."


def failed_benchmarks(arms: Iterable[ArmResult]) -> Iterator[tuple[str, str, str]]:
    """Each failed benchmark: the run's key, the benchmark's name, and the error."""
    for arm in arms:
        for run in arm.runs:
            for name, why in run.failed_evals.items():
                yield run.run_key, name, why


def error_line(error: str | None) -> str:
    """The exception of a traceback in one line; empty for no error.

    That is the exception with the first line of its message, and hookline's note of who raised it. A traceback may end
    with more lines of the message, and with notes.
    """
    lines = [line for line in (error or "").splitlines() if line.strip()]
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    if not frames:
        return lines[-1].strip() if lines else ""
    ending = [line for line in lines[frames[-1] :] if not line[0].isspace()] or lines[-1:]
    notes = [f"({line})" for line in ending[1:] if line.startswith("hookline: ")]
    return " ".join([ending[0].strip(), *notes])

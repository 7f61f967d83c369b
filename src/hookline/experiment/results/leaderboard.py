"""The arms as they stand by one metric, for people: a limited number of them, with their distance from the best.

Up to `MOST_ROWS` arms are shown in the order given; of more, the best ones, best first. All of it takes time in
proportion to the number of runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hookline.core.state import ArmResult
from hookline.experiment.results.arm_table import ArmRow, best_row, ranked, table
from hookline.experiment.results.differences import Difference, against
from hookline.experiment.results.number_text import NOTHING, mean_text, shown, signed

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

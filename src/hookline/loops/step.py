"""`StepLifecycle`: the one owner of a step's number, its row of metrics and its moments.

Bare runs, the Trainer, host loops and test loops all begin and end their steps here, so a step means the same in each:
`on_step_start` with the row open, then `on_step_end` with the step counted and the row still open, then the row is
written and `on_log` fires. A row is always written at its own step's number, also when a subscriber raises in between.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookline.core.metrics import MetricsRow

if TYPE_CHECKING:
    from hookline.loops.loop import Loop

Commit = Callable[[int, MetricsRow], None]


class StepLifecycle:
    """The step of a loop that is under way, if one is.

    Attributes:
        row: The metrics of the step, from `begin` until they are written.
        is_open: Whether a step has begun that ``loop.step`` does not count yet.
    """

    __slots__ = ("_loop", "is_open", "row")

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self.row: MetricsRow | None = None
        self.is_open = False

    def begin(self) -> MetricsRow:
        """Open the row, fire `on_step_start`, and return the row."""
        row = self.row = MetricsRow()
        self.is_open = True
        self._loop.callbacks.on_step_start(self._loop, self._loop.step)
        return row

    def end(
        self,
        batch: Any,
        *,
        completed: int | None = None,
        number: int | None = None,
        commit: Commit | None = None,
    ) -> None:
        """Count the step, fire `on_step_end`, write the row and fire `on_log`.

        Args:
            batch: The batch of the step.
            completed: The number of completed steps, where the host counts; one more than before by default.
            number: The step that the row is written at; the number of completed steps by default.
            commit: Writes the row at a step; `Loop.commit` by default.
        """
        loop = self._loop
        row = MetricsRow() if self.row is None else self.row
        loop.step = loop.step + 1 if completed is None else completed
        self.is_open = False
        at = loop.step if number is None else number
        try:
            loop.callbacks.on_step_end(loop, loop.step - 1, batch, row)
        except BaseException:
            # The program may catch it and go on with the next step, which would open another row.
            self.row = None
            if row:
                loop.write_row(at, row)
            raise
        self.row = None
        (commit or loop.commit)(at, row)

    def abandon(self) -> tuple[int, MetricsRow]:
        """Close a step that will not complete; returns what it had logged, and the step that belongs to."""
        number, row = self._loop.step + self.is_open, self.row
        self.row, self.is_open = None, False
        return number, MetricsRow() if row is None else row

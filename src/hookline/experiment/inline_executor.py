"""`InlineExecutor`: one run after another, in this process."""

from hookline.experiment.executor import Executor, Hear
from hookline.experiment.job import Assignment, carry_out
from hookline.experiment.messages import Outcome


class InlineExecutor(Executor):
    """Makes a run when it is waited for. Signals reach the run itself."""

    def __init__(self) -> None:
        self._next: Assignment | None = None

    @property
    def has_room(self) -> bool:
        """Whether nothing is to be done yet."""
        return self._next is None

    def start(self, assignment: Assignment) -> None:
        """Take a run on."""
        self._next = assignment

    def wait(self, hear: Hear) -> list[Outcome]:
        """Make it."""
        assignment, self._next = self._next, None
        return [] if assignment is None else [carry_out(assignment, hear)]

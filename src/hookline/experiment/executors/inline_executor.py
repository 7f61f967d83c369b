"""`InlineExecutor`: one run after another, in this process."""

from hookline.experiment.executors.executor import Executor, Hear
from hookline.experiment.job import Assignment, carry_out
from hookline.experiment.messages import Outcome
from hookline.experiment.stop_requests import StopRequests


class InlineExecutor(Executor):
    """Makes a run when it is waited for. Signals reach the run itself while it trains."""

    def __init__(self) -> None:
        self._next: Assignment | None = None
        self._requests = StopRequests()

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
        if assignment is None:
            return []
        self._requests = StopRequests()
        return [carry_out(self._requests.added_to(assignment), hear)]

    def stop(self, reason: str) -> None:
        """Stop the run whose training is about to begin: once it has, it hears signals itself."""
        self._requests.ask(reason)

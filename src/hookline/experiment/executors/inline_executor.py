"""`InlineExecutor`: one run after another, in this process."""

from hookline.experiment.executors.executor import Executor, Hear
from hookline.experiment.job import Assignment, carry_out
from hookline.experiment.messages import Message, Outcome
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
        told = _Told(hear)
        outcome = carry_out(self._requests.added_to(assignment), told)
        if told.error is not None:
            raise told.error
        return [outcome]

    def stop(self, reason: str) -> None:
        """Stop the run whose training is about to begin: once it has, it hears signals itself."""
        self._requests.ask(reason)


class _Told:
    """Passes on what a run tells; keeps what is raised at that, which ends the run in the middle of its training."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self.error: Exception | None = None

    def __call__(self, message: Message) -> None:
        try:
            self._hear(message)
        except Exception as error:
            self.error = self.error or error
            raise

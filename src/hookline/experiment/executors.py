"""Where runs are made: in this process, in several, on Ray.

`Executor`: where runs are made; how one is named.

`InlineExecutor`: one run after another, in this process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from hookline.experiment.job import Assignment, Message, Outcome, StopRequests, carry_out

Hear = Callable[[Message], None]


class Executor(ABC):
    """Makes runs, as many at a time as it has room for."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another run can be started now."""

    @abstractmethod
    def start(self, assignment: Assignment) -> None:
        """Start a run."""

    @abstractmethod
    def wait(self, hear: Hear) -> list[Outcome]:
        """Hear what runs have to tell until some of them end, or a moment has passed; those that ended.

        Args:
            hear: Called with what they tell, here. What it raises is raised from here: it is no fault of a run.
        """

    def stop(self, reason: str) -> None:  # noqa: B027 - what runs in this process hears signals itself
        """Ask all runs to stop at their next step, and save.

        Args:
            reason: The signal that asked for it.
        """

    def open(self) -> None:  # noqa: B027 - there may be nothing to do
        """Get ready."""

    def close(self) -> None:  # noqa: B027 - there may be nothing to do
        """End what is still running, and leave nothing behind."""

    def check(self, assignments: list[Assignment]) -> None:  # noqa: B027 - there may be nothing to check
        """Find out before anything runs whether all can be carried out.

        Raises:
            OptionError: One of them cannot.
        """


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

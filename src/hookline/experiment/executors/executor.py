"""`Executor`: where runs are made; how one is named."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from hookline.core.errors import OptionError, closest
from hookline.experiment.job import Assignment
from hookline.experiment.messages import Message, Outcome

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


def make_executor(given: Any) -> Executor:
    """The executor that is meant: ``"local"``, ``"ray"``, ``{"local": {"processes": 4}}``, or one.

    Raises:
        OptionError: There is no such executor, or it does not take such an option.
    """
    if isinstance(given, Executor):
        return given
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
    else:
        name, options = given, {}
    options_of = {"local": ("processes",), "ray": ("num_cpus", "num_gpus", "resources", "max_runs")}
    if not isinstance(name, str) or name not in options_of:
        known = closest(name, options_of) if isinstance(name, str) else "Give 'local' or 'ray'."
        raise OptionError(f"executor={given!r}: there is no such executor. {known}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"executor={given!r}: the options of {name!r} are a mapping.")
    for option in options or ():
        if option not in options_of[name]:
            raise OptionError(f"executor={given!r}: it has no {option!r}. {closest(str(option), options_of[name])}")
    return (_ray if name == "ray" else _local)(**(options or {}))


def _local(*, processes: int | None = None) -> Executor:
    if processes is None:
        from hookline.experiment.executors.inline_executor import InlineExecutor

        return InlineExecutor()
    from hookline.experiment.executors.process_executor import ProcessExecutor

    return ProcessExecutor(processes)


def _ray(**options: Any) -> Executor:
    from hookline.experiment.executors.ray_runs import RayRuns

    return RayRuns(**options)

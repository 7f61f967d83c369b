"""`Recipe`: how an arm trains, whatever it is that trains.

An arm is given a configuration or a function; `recipe_for` finds what can train it. What a recipe needs from outside
(the directory, the callbacks, where to start from) comes in a `Job`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hookline.core.errors import OptionError, closest
from hookline.experiment.changes import changed
from hookline.record.description import describe

if TYPE_CHECKING:
    from hookline.experiment.job import Job


class Recipe(ABC):
    """What trains in an arm.

    Args:
        config: The settings, which grids and stages change.
        parts: What else it needs, such as a model and data.
        answers: Gives what answers a benchmark's tasks, from the loop that was trained.
    """

    PARTS: ClassVar[tuple[str, ...]] = ()
    """The parts it takes."""

    def __init__(self, config: Any, parts: Mapping[str, Any], answers: Callable[[Any], Any] | None = None) -> None:
        for name in parts.keys() - set(self.PARTS):
            known = closest(name, [*self.PARTS, "answers"]) if self.PARTS else "It takes only answers=."
            raise OptionError(f"{name}={parts[name]!r:.80}: {self.what()} takes no {name!r}. {known}")
        if answers is not None and not callable(answers):
            raise OptionError(f"answers={answers!r:.80}: give a function of the trained loop.")
        self.config, self.parts, self.answers = config, dict(parts), answers

    @classmethod
    @abstractmethod
    def what(cls) -> str:
        """What such an arm is called in messages."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the arm's first repeat."""

    @abstractmethod
    def train(self, job: "Job") -> None:
        """Train, and tell the job what is to be known of it."""

    def check(self, *, benchmarked: bool) -> None:  # noqa: B027 - there may be nothing to check
        """Find out before anything runs whether it can be trained, and its benchmarks be answered.

        Raises:
            OptionError: Something is missing.
        """

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same with other settings and parts."""
        parts = {name: value for name, value in changes.items() if name in self.PARTS}
        settings = {name: value for name, value in changes.items() if name not in self.PARTS}
        return type(self)(changed(self.config, settings), {**self.parts, **parts}, self.answers)

    def describe(self) -> Any:
        """What it is, as it is written down."""
        parts = {name: value for name, value in {**self.parts, "answers": self.answers}.items() if value is not None}
        return {"config": describe(self.config), **({"parts": describe(parts)} if parts else {})}


def recipe_for(config: Any, train: Any, parts: Mapping[str, Any], answers: Any) -> Recipe | None:
    """The recipe that can train a configuration; None where nothing can.

    Raises:
        OptionError: It is given parts that it does not take.
    """
    from hookline.experiment.recipes.function_recipe import FunctionRecipe

    if train is not None or _is_function(config):
        function, settings = (config, None) if train is None else (train, config)
        return FunctionRecipe(function, settings, parts, answers)
    kind = _kind_of(config)
    return None if kind is None else kind(config, parts, answers)


def _is_function(config: Any) -> bool:
    return callable(config) and not isinstance(config, type)


def _kind_of(config: Any) -> Callable[..., Recipe] | None:
    """Found by the name of the configuration's class, so that nothing is loaded that is not used."""
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(config).__mro__}
    if "hookline.loops.trainer_config.TrainerConfig" in names:
        from hookline.experiment.recipes.trainer_recipe import TrainerRecipe

        return TrainerRecipe
    if "hookline.loops.worker_config.WorkerConfig" in names:
        from hookline.experiment.recipes.sft_recipe import SFTRecipe

        return SFTRecipe
    if "hookline.rl.rl_config.RLConfig" in names:
        from hookline.experiment.recipes.rl_recipe import RLRecipe

        return RLRecipe
    return None

"""`FunctionRecipe`: an arm that is a plain function ``(ctx, run) -> dict``.

The run is open when the function gets it. What the function returns are the arm's results, recorded as the last row.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

from hookline.core.errors import OptionError
from hookline.experiment.changes import changed
from hookline.experiment.description import describe
from hookline.experiment.job import Job
from hookline.experiment.recipe import Recipe
from hookline.loops.run import Run


class FunctionRecipe(Recipe):
    """A function that trains.

    Args:
        function: Called with the context and the open run; returns a dict of numbers, or None.
        config: What it is to train with, found in ``run.config``; a mapping there also has the run's ``seed``.
    """

    def __init__(
        self, function: Callable[..., Any], config: Any, parts: Mapping[str, Any], answers: Any = None
    ) -> None:
        super().__init__(config, parts, answers)
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise OptionError(f"{function!r}: it cannot be called as function(ctx, run): {error}.") from error
        except ValueError:  # a built-in without a signature
            pass
        self.function = function

    @classmethod
    def what(cls) -> str:
        """What such an arm is called in messages."""
        return "an arm that is a function"

    @property
    def seed(self) -> int:
        """The ``seed`` of its settings, if they have one."""
        given = self.config.get("seed") if isinstance(self.config, Mapping) else getattr(self.config, "seed", None)
        return given if isinstance(given, int) else 0

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same function with other settings."""
        config = changed({} if self.config is None else self.config, changes) if changes else self.config
        return type(self)(self.function, config, self.parts, self.answers)

    def describe(self) -> Any:
        """The function's name and its settings."""
        return {"function": describe(self.function), "config": describe(self.config)}

    def train(self, job: Job) -> None:
        """Call the function inside a run of its own."""
        config = {**(self.config or {}), "seed": job.seed} if self._is_mapping() else self.config
        run = Run(
            job.run_key,
            project=job.directory.parent.name,
            root=job.directory.parent.parent,
            callbacks=job.callbacks(),
            sinks=job.sinks,
            config=config,
            resume=job.directory,
            strict=job.strict,
            summary=False,
        )
        run.start_from = job.start_from
        job.follow(run, lambda: run.answers if self.answers is None else self.answers(run))
        with run:
            returned = checked_results(self.function(job.ctx, run), self.function)
            if returned:
                run.close_steps()
                run.log(returned)
            job.results.update(returned)

    def _is_mapping(self) -> bool:
        return self.config is None or isinstance(self.config, Mapping)


def checked_results(returned: Any, function: Any) -> dict[str, Any]:
    """What a function returned, if it is a dict of numbers.

    Raises:
        OptionError: It is something else.
    """
    if returned is None:
        return {}
    name = getattr(function, "__name__", repr(function))
    if not isinstance(returned, Mapping):
        raise OptionError(f"{name} returned {returned!r:.80}: return a dict of numbers, or nothing.")
    for key, value in returned.items():
        if not isinstance(key, str) or isinstance(value, str | list | dict | tuple | set) or value is None:
            raise OptionError(f"{name} returned {key!r}: {value!r:.80}: return names with a number each.")
    return dict(returned)

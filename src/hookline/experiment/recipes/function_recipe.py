"""`FunctionRecipe`: an arm that is a plain function ``(ctx, run) -> dict``.

The run is open when the function gets it. What the function returns are the arm's results, recorded as the last row.
"""

import copy
import inspect
import operator
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from hookline.core.errors import OptionError, closest
from hookline.experiment.changes import changed
from hookline.experiment.job import Job
from hookline.experiment.recipes.recipe import Recipe
from hookline.loops import checkpoint
from hookline.loops.run import Run
from hookline.record.description import describe, fields_of


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
        try:
            return operator.index(given)  # type: ignore[arg-type]
        except TypeError:
            return 0

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same function with other settings."""
        if self.config and isinstance(self.config, Mapping):
            for path in changes:
                if path.partition(".")[0] not in self.config:
                    raise OptionError(f"{path}: its settings have no such name. {closest(path, self.config)}")
        config = changed({} if self.config is None else self.config, changes) if changes else self.config
        return type(self)(self.function, config, self.parts, self.answers)

    def describe(self) -> Any:
        """The function's name and its settings."""
        answers = {} if self.answers is None else {"answers": describe(self.answers)}
        return {"function": describe(self.function), "config": describe(self.config), **answers}

    def train(self, job: Job) -> None:
        """Call the function inside a run of its own."""
        _forget_what_cannot_be_taken_up(job.directory)
        run = Run(
            job.run_key,
            project=job.directory.parent.name,
            root=job.directory.parent.parent,
            callbacks=job.callbacks(),
            sinks=job.sinks,
            config=self._settings(job.seed),
            resume=job.directory,
            strict=job.strict,
            summary=False,
        )
        run.start_from = job.start_from
        job.follow(run, lambda: run.answers if self.answers is None else self.answers(run))
        with run:
            returned = checked_results(self.function(job.ctx, run), self.function)
            run.close_steps()
            if returned:
                run.log(returned)
            job.results.update(returned)
            if run.can_be_taken_up and not (run.checkpoints and run.checkpoints[-1].step == run.step):
                run.save_checkpoint(kind="end")

    def _settings(self, seed: int) -> Any:
        """The settings of one run, its own copy, with its seed."""
        config = copy.deepcopy(self.config)
        if config is None or isinstance(config, Mapping):
            return {**(config or {}), "seed": seed}
        return changed(config, {"seed": seed}) if "seed" in fields_of(config) else config


def _forget_what_cannot_be_taken_up(directory: Path) -> None:
    """Remove checkpoints of a function that never said what belongs to them: it can only begin anew."""
    saved = checkpoint.last(directory)
    if saved is not None and not checkpoint.load(saved).get("has_files", True):
        for path in (directory / "checkpoints").iterdir():
            if checkpoint.is_one(path):  # anything else there is the user's own
                shutil.rmtree(path)


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

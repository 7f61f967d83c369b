"""What trains in an arm, a file for each kind.

Changes to a configuration, by dotted paths: what grids and stages make of an arm's settings.

The configuration itself is never changed: every change gives a new one, checked as if it had been made that way.

`Recipe`: how an arm trains, whatever it is that trains.

An arm is given a configuration or a function; `recipe_for` finds what can train it. What a recipe needs from outside
(the directory, the callbacks, where to start from) comes in a `Job`.

`FunctionRecipe`: an arm that is a plain function ``(ctx, run) -> dict``.

The run is open when the function gets it. What the function returns are the arm's results, recorded as the last row.
"""

import copy
import inspect
import operator
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hookline._engine.errors import OptionError, closest
from hookline._record.settings import describe, fields_of
from hookline.loops import checkpoint
from hookline.loops.run import Run

if TYPE_CHECKING:
    from hookline.experiment.job import Job


def changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """The configuration with values put in at their paths.

    >>> changed({"train": {"lr": 1.0, "steps": 5}}, {"train.lr": 0.1})
    {'train': {'lr': 0.1, 'steps': 5}}

    Raises:
        OptionError: There is no such setting, or it does not accept the value.
    """
    for path, value in changes.items():
        config = _put(config, path.split("."), value, path)
    return config


def _put(inside: Any, parts: list[str], value: Any, path: str) -> Any:
    part, rest = parts[0], parts[1:]
    if isinstance(inside, Mapping):
        return {**inside, part: _put(inside.get(part, {}), rest, value, path) if rest else value}
    fields = fields_of(inside)
    if part not in fields:
        raise OptionError(f"{path}={value!r}: {_unknown(inside, part, path)}")
    new = _put(fields[part], rest, value, path) if rest else value
    return type(inside)(**{**fields, part: new})


def _unknown(inside: Any, part: str, path: str) -> str:
    if inside is None:
        return f"what {path.rpartition('.')[0]!r} stands for is None; give all of it."
    deeper = [other for other in paths_in(inside) if other.rpartition(".")[2] == part]
    known = closest(part, fields_of(inside)) if not deeper else f"Did you mean {deeper[0]!r}?"
    return f"{type(inside).__name__} has no {part!r}. {known}"


def paths_in(config: Any) -> Iterator[str]:
    """The dotted paths of all settings in structs inside structs."""
    for name, value in fields_of(config).items():
        yield name
        yield from (f"{name}.{deeper}" for deeper in paths_in(value))


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

    def train(self, job: "Job") -> None:
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
            if checkpoint.is_checkpoint(path):  # anything else there is the user's own
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

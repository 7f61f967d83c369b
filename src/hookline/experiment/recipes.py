"""`Recipe`: how an arm trains. Recipes that need torch are in `training_recipes`.

A recipe has a configuration and parts, such as a model and data. It gets everything that belongs to a run (the
directory, the callbacks, the checkpoint to start from) from a `Job`. `with_changes` changes settings by their dotted
paths, for grids and stages; configurations are never modified in place.
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


def with_changes(config: Any, changes: Mapping[str, Any]) -> Any:
    """Copy a configuration with some settings changed, given by their dotted paths.

    >>> with_changes({"train": {"lr": 1.0, "steps": 5}}, {"train.lr": 0.1})
    {'train': {'lr': 0.1, 'steps': 5}}

    Raises:
        OptionError: There is no such setting, or it does not accept the value.
    """
    for path, value in changes.items():
        config = _set(config, path.split("."), value, path)
    return config


def _set(inside: Any, parts: list[str], value: Any, path: str) -> Any:
    part, rest = parts[0], parts[1:]
    if isinstance(inside, Mapping):
        return {**inside, part: _set(inside.get(part, {}), rest, value, path) if rest else value}
    fields = fields_of(inside)
    if part not in fields:
        if inside is None:
            problem = f"{path.rpartition('.')[0]!r} is None; give all of it."
        else:
            deeper = [other for other in _setting_paths(inside) if other.rpartition(".")[2] == part]
            known = closest(part, fields) if not deeper else f"Did you mean {deeper[0]!r}?"
            problem = f"{type(inside).__name__} has no {part!r}. {known}"
        raise OptionError(f"{path}={value!r}: {problem}")
    new = _set(fields[part], rest, value, path) if rest else value
    return type(inside)(**{**fields, part: new})  # built again, so the value is validated


def _setting_paths(config: Any) -> Iterator[str]:
    for name, value in fields_of(config).items():
        yield name
        yield from (f"{name}.{deeper}" for deeper in _setting_paths(value))


class Recipe(ABC):
    """Trains an arm.

    Args:
        config: The settings, which grids and stages change.
        parts: Further arguments, such as a model and data.
        answers: Creates the object that answers benchmarks, from the trained loop.
    """

    LABEL: ClassVar[str]
    """The kind of arm, for error messages."""
    PARTS: ClassVar[tuple[str, ...]] = ()
    """The parts it accepts."""

    def __init__(self, config: Any, parts: Mapping[str, Any], answers: Callable[[Any], Any] | None = None) -> None:
        for name in parts.keys() - set(self.PARTS):
            known = closest(name, [*self.PARTS, "answers"]) if self.PARTS else "It takes only answers=."
            raise OptionError(f"{name}={parts[name]!r:.80}: {self.LABEL} takes no {name!r}. {known}")
        if answers is not None and not callable(answers):
            raise OptionError(f"answers={answers!r:.80}: give a function of the trained loop.")
        self.config, self.parts, self.answers = config, dict(parts), answers

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the arm's first repeat."""

    @abstractmethod
    def train(self, job: "Job") -> None:
        """Train, with the loop attached to the job."""

    def check(self, *, benchmarked: bool) -> None:  # noqa: B027 - optional
        """Check before anything runs that it can be trained and can answer benchmarks.

        Raises:
            OptionError: Something is missing.
        """

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with other settings and parts."""
        parts = {name: value for name, value in changes.items() if name in self.PARTS}
        settings = {name: value for name, value in changes.items() if name not in self.PARTS}
        return type(self)(with_changes(self.config, settings), {**self.parts, **parts}, self.answers)

    def describe(self) -> Any:
        """The configuration and parts in plain values, for ``experiment.json``."""
        parts = {name: value for name, value in {**self.parts, "answers": self.answers}.items() if value is not None}
        return {"config": describe(self.config), **({"parts": describe(parts)} if parts else {})}


class FunctionRecipe(Recipe):
    """Trains with a function ``(ctx, run) -> dict``; the results it returns are recorded as the last row.

    Args:
        function: Called with the context and the open run; returns a dict of numbers, or None.
        config: The settings, available as ``run.config``; a mapping also gets the run's ``seed``.
    """

    LABEL = "an arm that is a function"

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

    @property
    def seed(self) -> int:
        """The ``seed`` of the settings; 0 if they have none."""
        given = self.config.get("seed") if isinstance(self.config, Mapping) else getattr(self.config, "seed", None)
        try:
            return operator.index(given)  # type: ignore[arg-type]
        except TypeError:
            return 0

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with other settings."""
        if self.config and isinstance(self.config, Mapping):
            for path in changes:
                if path.partition(".")[0] not in self.config:
                    raise OptionError(f"{path}: its settings have no such name. {closest(path, self.config)}")
        config = with_changes({} if self.config is None else self.config, changes) if changes else self.config
        return type(self)(self.function, config, self.parts, self.answers)

    def describe(self) -> Any:
        """The function's name and its settings, for ``experiment.json``."""
        answers = {} if self.answers is None else {"answers": describe(self.answers)}
        return {"function": describe(self.function), "config": describe(self.config), **answers}

    def train(self, job: "Job") -> None:
        """Call the function with an open run."""
        _remove_unusable_checkpoints(job.directory)
        run = Run(
            job.run_key,
            project=job.directory.parent.name,
            root=job.directory.parent.parent,
            callbacks=job.callbacks(),
            sinks=job.sinks,
            config=self._run_config(job.seed),
            resume=job.directory,
            strict=job.strict,
            summary=False,
        )
        run.start_from = job.start_from
        job.attach(run, lambda: run.answers if self.answers is None else self.answers(run))
        with run:
            returned = checked_results(self.function(job.ctx, run), self.function)
            run.close_steps()
            if returned:
                run.log(returned)
            job.results.update(returned)
            if run.is_resumable and not (run.checkpoints and run.checkpoints[-1].step == run.step):
                run.save_checkpoint(kind="end")

    def _run_config(self, seed: int) -> Any:
        config = copy.deepcopy(self.config)
        if config is None or isinstance(config, Mapping):
            return {**(config or {}), "seed": seed}
        return with_changes(config, {"seed": seed}) if "seed" in fields_of(config) else config


def _remove_unusable_checkpoints(directory: Path) -> None:
    """Remove checkpoints of a function that saved no state, because it can only start over."""
    saved = checkpoint.last(directory)
    if saved is not None and not checkpoint.load(saved).get("has_files", True):
        for path in (directory / "checkpoints").iterdir():
            if checkpoint.is_checkpoint(path):  # leave files of the user's alone
                shutil.rmtree(path)


def checked_results(returned: Any, function: Any) -> dict[str, Any]:
    """The results that a training function returned.

    Raises:
        OptionError: They are not a dict of numbers.
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

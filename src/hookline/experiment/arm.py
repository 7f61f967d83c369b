"""`Arm`: a name and something that trains."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookline.core.errors import HooklineError, OptionError
from hookline.experiment.changes import changed
from hookline.experiment.recipes.recipe import Recipe, recipe_for
from hookline.experiment.stage import Stage
from hookline.record.description import describe
from hookline.record.tags import checked_tags

_NAME = re.compile(r"[^/\\\x00-\x1f]+")
LONGEST_NAME = 150
"""Run directories are called after their arm, and file names have a limit."""


def _is_name(name: Any) -> bool:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        return False
    try:
        return len(name.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:
        return False


class Arm:
    """One of the things that an experiment compares.

    Args:
        name: What it is called in tables; its runs' directories are called after it.
        config: What trains: a `TrainerConfig` (with ``model=``, ``train_data=`` and the other arguments of a
            `Trainer`), the configuration of an `SFTPolicyWorker` or of `rl.train`, or a function ``(ctx, run)`` that
            returns a dict of results. Or, with ``train``, the settings of that function.
        train: A function ``(ctx, run)`` that trains with the configuration, which is ``run.config``.
        answers: What answers benchmarks: a function of the loop that was trained, which returns a policy or a
            function of a list of prompts. Language models that are trained by configuration answer by themselves.
        tags: Short words that its runs are found by.
        stages: What trains in a stage of the experiment, by the stage's name, where that is another training than the
            arm's own: ``{"grpo": RLConfig(...)}``. An `Arm` where it has parts of its own.
        parts: The further arguments of what trains. What is given as a function is called anew for each run.
    """

    def __init__(
        self,
        name: str,
        config: Any = None,
        *,
        train: Callable[..., Any] | None = None,
        answers: Callable[[Any], Any] | None = None,
        tags: Iterable[str] = (),
        stages: Mapping[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        if not _is_name(name):
            raise OptionError(
                f"Arm({name!r:.200}): give a name of at most {LONGEST_NAME} bytes without slashes, which a directory "
                "can have."
            )
        if train is not None and not callable(train):
            raise OptionError(f"Arm({name!r}, train={train!r}): give a function (ctx, run).")
        self.name, self.config, self._answers, self._parts = name, config, answers, parts
        try:
            self.tags = checked_tags(tags)
            self.recipe: Recipe | None = recipe_for(config, train, parts, answers)
        except HooklineError as error:
            raise OptionError(f"Arm {name!r}: {error}") from error
        self._stages = _stage_arms(name, stages)

    def __repr__(self) -> str:
        return f"Arm({self.name!r})"

    def trained_by(self, train: Callable[..., Any]) -> "Arm":
        """The same arm with a function that trains it, unless it has one already."""
        if self.recipe is not None:
            return self
        kept: dict[str, Any] = {"answers": self._answers, "tags": self.tags, "stages": self._stages}
        return Arm(self.name, self.config, train=train, **kept, **self._parts)

    def changed(self, name: str, changes: Mapping[str, Any]) -> "Arm":
        """Another arm, with other settings.

        Raises:
            OptionError: There is no such setting.
        """
        arm = Arm.__new__(Arm)
        arm.__dict__.update(self.__dict__, name=Arm(name).name)
        try:
            if self.recipe is None:
                arm.config = changed(self.config or {}, changes)
            else:
                arm.recipe = self.recipe.changed(changes)
                arm.config = arm.recipe.config
        except HooklineError as error:
            raise OptionError(f"Arm {name!r}: {error}") from error
        return arm

    @property
    def own_stages(self) -> list[str]:
        """The names of the stages in which another training takes its place."""
        return list(self._stages)

    def in_stage(self, stage: Stage) -> "Arm":
        """What trains in a stage: the arm, or what it has for that stage, with the changes of the stage."""
        arm = self._stages.get(stage.name, self)
        return arm.changed(self.name, stage.changes) if stage.changes else arm

    def describe(self) -> dict[str, Any]:
        """What trains it, its stages included, as it is written down and compared when it is taken up."""
        stages = {name: arm.required_recipe().describe() for name, arm in self._stages.items()}
        return {**self.required_recipe().describe(), **({"stages": stages} if stages else {})}

    def settings(self) -> Any:
        """Its settings in plain values, with those of its stages under ``stages``."""
        own = describe(self.required_recipe().config)
        if not self._stages:
            return own
        stages = {name: describe(arm.required_recipe().config) for name, arm in self._stages.items()}
        return {**(own if isinstance(own, dict) else {"config": own}), "stages": stages}

    def required_recipe(self) -> Recipe:
        """What trains it.

        Raises:
            OptionError: Nothing does.
        """
        if self.recipe is None:
            raise OptionError(
                f"Arm {self.name!r} has nothing that trains: {self.config!r:.120} was given. Give a TrainerConfig, a "
                "configuration of SFT or RL, a function (ctx, run), or the Experiment train=function."
            )
        return self.recipe


def _stage_arms(name: str, given: Any) -> dict[str, Arm]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"Arm({name!r}, stages={given!r:.120}): give what trains in each stage, by the stage's name.")
    stages = {stage: value if isinstance(value, Arm) else Arm(name, value) for stage, value in given.items()}
    for arm in stages.values():
        arm.required_recipe()
    return stages

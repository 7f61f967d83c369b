"""Arms, stages and the plan of an experiment's trainings.

An `Arm` has a name and a recipe that trains it; `grid` makes arms for all combinations of some settings. A `Stage` is
one of several trainings that follow one another in each arm. `planned_runs` turns arms, repeats and stages into
`PlannedRun`s, in the order in which they are executed one after another.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.errors import HooklineError, OptionError, closest
from hookline._record.run_directory import checked_tags
from hookline._record.settings import describe
from hookline.experiment.recipes import FunctionRecipe, Recipe, with_changes
from hookline.loops import checkpoint

LONGEST_NAME = 150
"""In bytes: run directories are named after their arm, and file names have a limit."""
_NAME = re.compile(r"[^/\\\x00-\x1f]+")


class Stage:
    """One of the trainings that follow one another in an arm.

    Args:
        name: The stage's name.
        start_from: The weights to start from: the name of an earlier stage, or a checkpoint's directory. By default
            those of the stage before; the first stage starts as the arm does.
        changes: Settings and parts of the arm that differ in this stage: ``train_data=...``,
            ``**{"train.learning_rate": 1e-4}``.
    """

    def __init__(self, name: str, start_from: str | Path | None = None, **changes: Any) -> None:
        if not isinstance(name, str) or not name:
            raise OptionError(f"Stage({name!r}): give a name.")
        self.name, self.start_from, self.changes = name, start_from, changes

    def __repr__(self) -> str:
        return f"Stage({self.name!r})"


def checked_stages(given: Any) -> list[Stage]:
    """The stages of an experiment.

    Raises:
        OptionError: The list is empty, two stages have one name, or one starts from what does not exist.
    """
    if given is None:
        return []
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        raise OptionError(f"stages={given!r:.120}: give a list of stages, e.g. [hl.Stage('a'), hl.Stage('b')].")
    stages: list[Stage] = []
    for index, each in enumerate(given):
        if isinstance(each, str):
            stage = Stage(each)
        elif isinstance(each, Mapping):
            if not isinstance(each.get("name"), str):
                raise OptionError(f"stages[{index}]={dict(each)!r:.120}: a stage needs a name.")
            stage = Stage(**each)
        elif isinstance(each, Stage):
            stage = each
        else:
            raise OptionError(f"stages[{index}]={each!r:.120}: give a Stage, or the name of one.")
        earlier = [other.name for other in stages]
        if stage.name in earlier:
            raise OptionError(f"stages: two are called {stage.name!r}. Give each a different name.")
        start = stage.start_from
        if start is not None and start not in earlier and not checkpoint.is_checkpoint(Path(start)):
            raise OptionError(
                f"Stage {stage.name!r} starts from {str(start)!r}, which is neither a stage before it nor the "
                f"directory of a checkpoint. {closest(str(start), earlier)}"
            )
        stages.append(stage)
    return stages


class Arm:
    """One of the trainings that an experiment compares.

    Args:
        name: The arm's name in tables; its runs' directories are named after it.
        config: What trains: a `TrainerConfig` (with ``model=``, ``train_data=`` and the other arguments of a
            `Trainer`), the configuration of an `SFTPolicyWorker` or of `rl.train`, or a function ``(ctx, run)`` that
            returns a dict of results. With ``train``, the settings of that function.
        train: A function ``(ctx, run)`` that trains with the configuration, which is ``run.config``.
        answers: Makes what answers benchmarks: a function of the trained loop that returns a policy or a function of
            a list of prompts. Language models trained by configuration need none.
        tags: Short words to find its runs by.
        stages: Replaces the arm's own training in some stages of the experiment, by the stage's name:
            ``{"grpo": RLConfig(...)}``. Give an `Arm` if the replacement has parts of its own.
        parts: Further arguments of the training. A part given as a function is called for each run.
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
        if stages is not None and not isinstance(stages, Mapping):
            raise OptionError(f"Arm({name!r}, stages={stages!r:.120}): give a mapping of stage names to trainings.")
        given = (stages or {}).items()
        self._stages = {stage: value if isinstance(value, Arm) else Arm(name, value) for stage, value in given}
        for arm in self._stages.values():
            arm.required_recipe()

    def __repr__(self) -> str:
        return f"Arm({self.name!r})"

    def trained_by(self, train: Callable[..., Any]) -> "Arm":
        """The arm with a training function, unless it has a recipe already."""
        if self.recipe is not None:
            return self
        kept: dict[str, Any] = {"answers": self._answers, "tags": self.tags, "stages": self._stages}
        return Arm(self.name, self.config, train=train, **kept, **self._parts)

    def changed(self, name: str, changes: Mapping[str, Any]) -> "Arm":
        """A copy with another name and other settings.

        Raises:
            OptionError: There is no such setting.
        """
        arm = Arm.__new__(Arm)
        arm.__dict__.update(self.__dict__, name=Arm(name).name)
        try:
            if self.recipe is None:
                arm.config = with_changes(self.config or {}, changes)
            else:
                arm.recipe = self.recipe.changed(changes)
                arm.config = arm.recipe.config
        except HooklineError as error:
            raise OptionError(f"Arm {name!r}: {error}") from error
        return arm

    @property
    def own_stages(self) -> list[str]:
        """The names of the stages in which another training replaces it."""
        return list(self._stages)

    def in_stage(self, stage: Stage) -> "Arm":
        """The arm, or its replacement, as it trains in a stage."""
        arm = self._stages.get(stage.name, self)
        return arm.changed(self.name, stage.changes) if stage.changes else arm

    def describe(self) -> dict[str, Any]:
        """The recipe in plain values, stages included, for ``experiment.json``."""
        stages = {name: arm.required_recipe().describe() for name, arm in self._stages.items()}
        return {**self.required_recipe().describe(), **({"stages": stages} if stages else {})}

    def settings(self) -> Any:
        """The settings in plain values, with those of its stages under ``stages``."""
        own = describe(self.required_recipe().config)
        if not self._stages:
            return own
        stages = {name: describe(arm.required_recipe().config) for name, arm in self._stages.items()}
        return {**(own if isinstance(own, dict) else {"config": own}), "stages": stages}

    def required_recipe(self) -> Recipe:
        """The recipe that trains it.

        Raises:
            OptionError: It has none.
        """
        if self.recipe is None:
            raise OptionError(
                f"Arm {self.name!r} has nothing that trains: {self.config!r:.120} was given. Give a TrainerConfig, a "
                "configuration of SFT or RL, a function (ctx, run), or the Experiment train=function."
            )
        return self.recipe


def _is_name(name: Any) -> bool:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        return False
    try:
        return len(name.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:
        return False


def grid(base: Any = None, /, **axes: Iterable[Any]) -> list[Arm]:
    """Make an arm for each combination of values.

    >>> [arm.name for arm in grid(lr=[0.1, 0.01], layers=[2, 4])]
    ['lr=0.1,layers=2', 'lr=0.1,layers=4', 'lr=0.01,layers=2', 'lr=0.01,layers=4']

    Args:
        base: An `Arm`, or a configuration, that the settings belong to. Without it, give the Experiment the function
            that trains: ``train=function``.
        axes: The values of each setting; nested settings go by their path: ``**{"train.learning_rate": [...]}``.

    Raises:
        OptionError: There is no such setting, or an axis has no values.
    """
    values: dict[str, list[Any]] = {}
    for name, given in axes.items():
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise OptionError(f"grid({name}={given!r}): give a list of values.")
        values[name] = list(given)
        if not values[name]:
            raise OptionError(f"grid({name}=[]): give at least one value.")
    if not values:
        raise OptionError("grid(): give the values of at least one setting, e.g. grid(config, learning_rate=[...]).")
    arm = base if isinstance(base, Arm) else Arm("grid", base)
    prefix = f"{arm.name}," if isinstance(base, Arm) else ""
    # Label each axis with the last part of its path, unless two axes share it.
    ends = {path: path.rpartition(".")[2] for path in values}
    labels = {path: end if list(ends.values()).count(end) == 1 else path for path, end in ends.items()}
    arms = []
    for point in itertools.product(*values.values()):
        name = ",".join(f"{labels[path]}={_name_part(value)}" for path, value in zip(values, point, strict=True))
        arms.append(arm.changed(prefix + name, dict(zip(values, point, strict=True))))
    return arms


def _name_part(value: Any) -> str:
    return str(getattr(value, "__name__", value)).replace("/", "_").replace("\\", "_")


def recipe_for(config: Any, train: Any, parts: Mapping[str, Any], answers: Any) -> Recipe | None:
    """The recipe that can train a configuration; None if there is none.

    Raises:
        OptionError: The recipe does not take one of the parts.
    """
    if train is not None or (callable(config) and not isinstance(config, type)):
        function, settings = (config, None) if train is None else (train, config)
        return FunctionRecipe(function, settings, parts, answers)
    # By class name, so that torch is not imported before it is used.
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(config).__mro__}
    if "hookline.loops.trainer_config.TrainerConfig" in names:
        from hookline.experiment.training_recipes import TrainerRecipe

        return TrainerRecipe(config, parts, answers)
    if "hookline.loops.worker_config.WorkerConfig" in names:
        from hookline.experiment.training_recipes import SFTRecipe

        return SFTRecipe(config, parts, answers)
    if "hookline.rl.learner.config.RLConfig" in names:
        from hookline.experiment.training_recipes import RLRecipe

        return RLRecipe(config, parts, answers)
    return None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of an experiment.

    Attributes:
        key: Its name in the experiment, and that of its directory.
        after: The run that has to complete first.
        start_from: The run or the checkpoint directory whose weights it starts with.
        tags: The tags of its arm.
    """

    key: str
    arm: str
    repeat: int
    seed: int
    recipe: Recipe
    stage: str | None = None
    after: str | None = None
    start_from: str | Path | None = None
    tags: tuple[str, ...] = ()


def planned_runs(arms: Sequence[Arm], repeats: int, stages: Sequence[Stage]) -> list[PlannedRun]:
    """All runs: for each arm its repeats, for each repeat its stages.

    Raises:
        OptionError: An arm has no recipe, or a stage changes an unknown setting.
    """
    runs: list[PlannedRun] = []
    for arm, repeat in itertools.product(arms, range(repeats)):
        recipe = arm.required_recipe()
        key, seed = f"{arm.name}-r{repeat}", recipe.seed + repeat
        if not stages:
            runs.append(PlannedRun(key, arm.name, repeat, seed, recipe, tags=arm.tags))
        keys = {stage.name: f"{key}-s{index}" for index, stage in enumerate(stages)}
        before: str | None = None
        for stage in stages:
            start: str | Path | None = before
            if stage.start_from is not None:
                start = keys.get(str(stage.start_from)) or Path(stage.start_from).resolve()
            runs.append(
                PlannedRun(
                    keys[stage.name],
                    arm.name,
                    repeat,
                    seed,
                    arm.in_stage(stage).required_recipe(),
                    stage=stage.name,
                    after=start if isinstance(start, str) else None,
                    start_from=start,
                    tags=arm.tags,
                )
            )
            before = keys[stage.name]
    return runs

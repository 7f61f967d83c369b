"""`Arm`: a name and something that trains.

`Stage`: one of the trainings that follow one another in an arm, each from where an earlier one left off.

`grid`: arms for all combinations of some settings.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline._engine.errors import HooklineError, OptionError, closest
from hookline._record.run_directory import checked_tags
from hookline._record.settings import describe
from hookline.experiment.recipes import FunctionRecipe, Recipe, changed
from hookline.loops import checkpoint


class Stage:
    """A part of a continual training.

    Args:
        name: What it is called.
        start_from: The weights to start from: those of an earlier stage, by its name, or a checkpoint's directory.
            By default those of the stage before; the first one starts as the arm does.
        changes: Settings and parts of the arm that are others in this stage: ``train_data=...``,
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
        OptionError: There are none, two have one name, or one starts from what is not there.
    """
    if given is None:
        return []
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        raise OptionError(f"stages={given!r:.120}: give a list of stages, e.g. [hl.Stage('a'), hl.Stage('b')].")
    stages = [_stage(each, index) for index, each in enumerate(given)]
    for index, stage in enumerate(stages):
        earlier = [other.name for other in stages[:index]]
        if stage.name in earlier:
            raise OptionError(f"stages: two are called {stage.name!r}. Give each a name of its own.")
        _check_start(stage, earlier)
    return stages


def _stage(given: Any, index: int) -> Stage:
    if isinstance(given, str):
        return Stage(given)
    if isinstance(given, Mapping):
        if not isinstance(given.get("name"), str):
            raise OptionError(f"stages[{index}]={dict(given)!r:.120}: a stage needs a name.")
        return Stage(**given)
    if not isinstance(given, Stage):
        raise OptionError(f"stages[{index}]={given!r:.120}: give a Stage, or the name of one.")
    return given


def _check_start(stage: Stage, earlier: list[str]) -> None:
    if stage.start_from is None or stage.start_from in earlier:
        return
    path = Path(stage.start_from)
    if not checkpoint.is_checkpoint(path):
        raise OptionError(
            f"Stage {stage.name!r} starts from {str(stage.start_from)!r}, which is neither a stage before it nor the "
            f"directory of a checkpoint. {closest(str(stage.start_from), earlier)}"
        )


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


def grid(base: Any = None, /, **axes: Iterable[Any]) -> list[Arm]:
    """An arm for each combination of values.

    >>> [arm.name for arm in grid(lr=[0.1, 0.01], layers=[2, 4])]
    ['lr=0.1,layers=2', 'lr=0.1,layers=4', 'lr=0.01,layers=2', 'lr=0.01,layers=4']

    Args:
        base: What the settings are settings of: an `Arm`, or what one is made of. Without it they are all there is,
            and the Experiment is told what trains: ``train=function``.
        axes: The values of each setting; one inside another goes by its path: ``**{"train.learning_rate": [...]}``.

    Raises:
        OptionError: There is no such setting, or an axis has no values.
    """
    values = {name: _values(name, given) for name, given in axes.items()}
    if not values:
        raise OptionError("grid(): give the values of at least one setting, e.g. grid(config, learning_rate=[...]).")
    arm = base if isinstance(base, Arm) else Arm("grid", base)
    prefix = f"{arm.name}," if isinstance(base, Arm) else ""
    names = _shortest(values)
    arms = []
    for point in itertools.product(*values.values()):
        label = ",".join(f"{names[path]}={_text(value)}" for path, value in zip(values, point, strict=True))
        arms.append(arm.changed(prefix + label, dict(zip(values, point, strict=True))))
    return arms


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"grid({name}={given!r}): give a list of values.")
    values = list(given)
    if not values:
        raise OptionError(f"grid({name}=[]): give at least one value.")
    return values


def _shortest(paths: Iterable[str]) -> dict[str, str]:
    """The last part of each path, where that says which one it is."""
    ends = {path: path.rpartition(".")[2] for path in paths}
    return {path: end if list(ends.values()).count(end) == 1 else path for path, end in ends.items()}


def _text(value: Any) -> str:
    """A value as a part of a name."""
    text = str(getattr(value, "__name__", value))
    return text.replace("/", "_").replace("\\", "_")


def recipe_for(config: Any, train: Any, parts: Mapping[str, Any], answers: Any) -> Recipe | None:
    """The recipe that can train a configuration; None where nothing can.

    Raises:
        OptionError: It is given parts that it does not take.
    """
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
        from hookline.experiment.training_recipes import TrainerRecipe

        return TrainerRecipe
    if "hookline.loops.worker_config.WorkerConfig" in names:
        from hookline.experiment.training_recipes import SFTRecipe

        return SFTRecipe
    if "hookline.rl.learner.config.RLConfig" in names:
        from hookline.experiment.training_recipes import RLRecipe

        return RLRecipe
    return None

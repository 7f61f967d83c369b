"""`Stage`: one of the trainings that follow one another in an arm, each from where an earlier one left off."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline.core.errors import OptionError, closest
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
    if not checkpoint.is_one(path):
        raise OptionError(
            f"Stage {stage.name!r} starts from {str(stage.start_from)!r}, which is neither a stage before it nor the "
            f"directory of a checkpoint. {closest(str(stage.start_from), earlier)}"
        )

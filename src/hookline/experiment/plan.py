"""`PlannedRun`: the runs of an experiment, in the order in which they are made one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hookline.experiment.arms import Arm, Stage
from hookline.experiment.recipes import Recipe


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run.

    Attributes:
        key: Its name in the experiment, and that of its directory.
        after: The run that has to be complete before.
        tags: What its arm is found by.
        start_from: The run, or the checkpoint's directory, whose weights it starts with.
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
    """Every run: for each arm its repeats, for each repeat its stages.

    Raises:
        OptionError: An arm has nothing that trains, or a stage changes what is not there.
    """
    return [run for arm in arms for repeat in range(repeats) for run in _runs_of(arm, repeat, stages)]


def _runs_of(arm: Arm, repeat: int, stages: Sequence[Stage]) -> list[PlannedRun]:
    recipe = arm.required_recipe()
    key, seed = f"{arm.name}-r{repeat}", recipe.seed + repeat
    if not stages:
        return [PlannedRun(key, arm.name, repeat, seed, recipe, tags=arm.tags)]
    keys = {stage.name: f"{key}-s{index}" for index, stage in enumerate(stages)}
    runs: list[PlannedRun] = []
    for stage in stages:
        before = runs[-1].key if runs else None
        start = _start(stage, keys, before)
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
    return runs


def _start(stage: Stage, keys: dict[str, str], before: str | None) -> str | Path | None:
    if stage.start_from is None:
        return before
    known = keys.get(str(stage.start_from))
    return Path(stage.start_from).resolve() if known is None else known

"""`DryRun`: what an experiment would do if it were run now. Nothing is made, and nothing on disk is changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.collection import CallbackCollection
from hookline.experiment.benchmark import BenchmarkCallback
from hookline.experiment.directory import ExperimentStore
from hookline.experiment.experiment import Experiment
from hookline.experiment.plan import PlannedRun
from hookline.experiment.recipes import Recipe
from hookline.experiment.subscribers import RunSubscribers, collected


@dataclass(frozen=True, slots=True)
class RunOutlook:
    """A run that would be made, or is complete.

    Attributes:
        starts_from: The run, or the checkpoint's directory, whose weights it starts with.
        on_disk: ``new``, ``unfinished``, ``failed`` or ``complete``.
    """

    run: str
    arm: str
    repeat: int
    stage: str | None
    seed: int
    starts_from: str | None
    on_disk: str


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who listens to the runs of some arms in some stages, which all have the same callbacks.

    Attributes:
        stages: The stages in which each arm has them; none where the experiment has none.
    """

    stages: dict[str, list[str]]
    collection: CallbackCollection

    @property
    def arms(self) -> list[str]:
        """The names of the arms."""
        return list(self.stages)


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would be done."""

    name: str
    output_dir: Path
    runs: list[RunOutlook]
    listeners: list[Listeners]


def dry_run(experiment: Experiment) -> DryRun:
    """Find out what an experiment would do.

    Raises:
        HooklineError: It could not be run.
    """
    subscribers = experiment.check()
    try:
        runs = [_outlook(planned, experiment.store) for planned in experiment.plan()]
        listeners = _listeners(experiment, subscribers.of_runs())
    finally:
        subscribers.close()
    return DryRun(experiment.name, experiment.store.directory, runs, listeners)


def _outlook(planned: PlannedRun, store: ExperimentStore) -> RunOutlook:
    start = planned.start_from
    return RunOutlook(
        run=planned.key,
        arm=planned.arm,
        repeat=planned.repeat,
        stage=planned.stage,
        seed=planned.seed,
        starts_from=None if start is None else str(start),
        on_disk=_on_disk(planned.key, store),
    )


def _on_disk(key: str, store: ExperimentStore) -> str:
    found = store.result(key)
    if found is not None and found.status != "stopped":
        return "complete" if found.status == "completed" else found.status
    return "unfinished" if store.run_directory(key).exists() else "new"


def _listeners(experiment: Experiment, of_runs: RunSubscribers) -> list[Listeners]:
    """The listeners of all arms in all stages, those with the same callbacks together."""
    alike: dict[str, Listeners] = {}
    for planned in (planned for planned in experiment.plan() if planned.repeat == 0):
        own = _own_callbacks(planned.recipe)
        same = alike.setdefault(repr(own), Listeners({}, CallbackCollection()))
        if not same.stages:
            same.collection.extend(collected([*RunSubscribers(own).copies(), *of_runs.copies(), of_runs.made()]))
            if any(getattr(benchmark, "every", None) for benchmark in experiment.benchmarks):
                same.collection.add(BenchmarkCallback(experiment.benchmarks, _nothing, _nothing))
        same.stages.setdefault(planned.arm, []).extend([] if planned.stage is None else [planned.stage])
    return list(alike.values())


def _own_callbacks(recipe: Recipe) -> list[Any]:
    """The callbacks that what trains brings itself."""
    train = getattr(recipe.config, "train", recipe.config)
    settings = getattr(train, "callbacks", None)
    given = [settings or (), recipe.parts.get("callbacks") or ()]
    return [each for part in given for each in ([part] if isinstance(part, CallbackCollection | Mapping) else part)]


def _nothing(*given: Any) -> None:
    """Nothing is scored."""

"""`dry_run`: shows what an experiment would do, without executing runs or changing anything on disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.collection import CallbackCollection
from hookline.experiment.benchmark import BenchmarkCallback
from hookline.experiment.directory import ExperimentStore
from hookline.experiment.experiment import Experiment
from hookline.experiment.subscribers import RunSubscribers, collected


@dataclass(frozen=True, slots=True)
class DryRunRow:
    """A run that would be executed, or is complete.

    Attributes:
        starts_from: The run or the checkpoint directory whose weights it starts with.
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
class SubscriberGroup:
    """The subscribers of runs that all have the same callbacks.

    Attributes:
        stages: The stages in which each arm has them; empty lists if the experiment has no stages.
    """

    stages: dict[str, list[str]]
    collection: CallbackCollection

    @property
    def arms(self) -> list[str]:
        """The names of the arms."""
        return list(self.stages)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The runs of an experiment and their subscribers."""

    name: str
    output_dir: Path
    runs: list[DryRunRow]
    subscribers: list[SubscriberGroup]


def dry_run(experiment: Experiment) -> DryRun:
    """List the runs that an experiment would execute and their subscribers.

    Raises:
        HooklineError: The experiment cannot be run.
    """
    subscribers = experiment.check()
    try:
        rows = [
            DryRunRow(
                run=planned.key,
                arm=planned.arm,
                repeat=planned.repeat,
                stage=planned.stage,
                seed=planned.seed,
                starts_from=None if planned.start_from is None else str(planned.start_from),
                on_disk=_on_disk(planned.key, experiment.store),
            )
            for planned in experiment.plan()
        ]
        groups = _subscriber_groups(experiment, subscribers.for_run())
    finally:
        subscribers.close()
    return DryRun(experiment.name, experiment.store.directory, rows, groups)


def _on_disk(key: str, store: ExperimentStore) -> str:
    found = store.result(key)
    if found is not None and found.status != "stopped":
        return "complete" if found.status == "completed" else found.status
    return "unfinished" if store.run_directory(key).exists() else "new"


def _subscriber_groups(experiment: Experiment, shared: RunSubscribers) -> list[SubscriberGroup]:
    groups: dict[str, SubscriberGroup] = {}
    for planned in (planned for planned in experiment.plan() if planned.repeat == 0):
        config = planned.recipe.config
        given = [
            getattr(getattr(config, "train", config), "callbacks", None) or (),
            planned.recipe.parts.get("callbacks") or (),
        ]
        own = [each for part in given for each in ([part] if isinstance(part, CallbackCollection | Mapping) else part)]
        group = groups.setdefault(repr(own), SubscriberGroup({}, CallbackCollection()))
        if not group.stages:
            group.collection.extend(collected([*RunSubscribers(own).copies(), *shared.copies(), shared.make()]))
            if any(getattr(benchmark, "every", None) for benchmark in experiment.benchmarks):
                group.collection.add(BenchmarkCallback(experiment.benchmarks, _ignore, _ignore))
        group.stages.setdefault(planned.arm, []).extend([] if planned.stage is None else [planned.stage])
    return list(groups.values())


def _ignore(*given: Any) -> None:
    pass

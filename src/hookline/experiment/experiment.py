"""`Experiment`: compares arms with repeats and stages, benchmarked and recorded.

    result = hl.Experiment("lr", hl.grid(config, learning_rate=[1e-3, 1e-4]), repeats=3, output_dir="runs/lr").run()
    print(result.to_markdown())

All arguments are checked before anything runs. A failing arm does not affect the others. An experiment that was
interrupted at any point and is started again skips complete runs, resumes the others, and ends with the same results
as one that was never interrupted. `dry_run` shows what an experiment would do, without executing or writing anything.
"""

import contextlib
import copy
import logging
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from hookline._engine.checks import require_integer
from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import HooklineError, OptionError, closest
from hookline._engine.state import ArmResult, LogContext, RunResult
from hookline._record.settings import describe
from hookline._record.sink import make_sinks
from hookline._record.terminal import plural
from hookline.experiment.arms import Arm, PlannedRun, checked_stages, planned_runs
from hookline.experiment.benchmark import BenchmarkCallback, checked_benchmark, make_benchmarks
from hookline.experiment.directory import ExperimentStore
from hookline.experiment.executors import Executor
from hookline.experiment.job import Assignment
from hookline.experiment.results.result import ExperimentResult
from hookline.experiment.scheduler import Schedule, Scheduler, Watch, make_executor, unfinished_result
from hookline.experiment.search import Optuna, Search, checked_search
from hookline.experiment.subscribers import RunSubscribers, Subscribers, checked_entries, collected
from hookline.loops import rng

logger = logging.getLogger("hookline")


class Experiment:
    """A comparison of arms.

    Args:
        name: The experiment's name.
        arms: A list of `Arm`, such as `grid` makes.
        repeats: How often each arm is run, each time with another seed. All arms use the same seeds.
        stages: Trainings that follow one another in each arm, each starting from the weights of the one before.
        benchmarks: Benchmarks that score every run after its training, and during it if a benchmark has an ``every``.
        callbacks: Instances, which the experiment shares and each run's training copies, or classes and functions
            that make one for each run.
        output_dir: The experiment's own directory; ``runs/<name>`` by default.
        executor: ``"local"`` executes one run after another, ``{"local": {"processes": 4}}`` several at a time,
            ``"ray"`` or ``{"ray": {"num_cpus": 2, "num_gpus": 1}}`` each as a task of Ray.
        train: A function ``(ctx, run)`` for arms that have only settings.
        sinks: Destinations for the records of every run.
        retries: How many times a failed run is retried.
        metric: The metric of the tables; by default one of the first benchmark, a function's results or a validation.
        mode: Whether smaller (``"min"``) or larger (``"max"``) is better, if the metric's name does not tell.
        search: Chooses settings of the arm with `Optuna`; each choice is an arm of its own.
        strict: Let exceptions of callbacks propagate.
    """

    def __init__(
        self,
        name: str,
        arms: Iterable[Arm],
        *,
        repeats: int = 1,
        stages: Sequence[Any] | None = None,
        benchmarks: Iterable[Any] = (),
        callbacks: Any = (),
        output_dir: str | Path | None = None,
        executor: Any = "local",
        train: Callable[..., Any] | None = None,
        sinks: Iterable[Any] = (),
        retries: int = 0,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        search: Optuna | None = None,
        strict: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name.strip() or "/" in name or name in (".", ".."):
            raise OptionError(f"Experiment({name!r}): give a name without '/'.")
        self.repeats = require_integer("repeats", repeats)
        self.retries = require_integer("retries", retries, minimum=0)
        if train is not None and not callable(train):
            raise OptionError(f"train={train!r}: give a function (ctx, run).")
        if mode not in (None, "min", "max"):
            raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        self.name, self.metric, self.mode, self.strict = name, metric, mode, strict
        self.arms = _checked_arms(arms, train)
        self.stages = checked_stages(stages)
        known = [stage.name for stage in self.stages]
        for arm in self.arms:
            for own in arm.own_stages:  # nothing would ever train it
                if own not in known:
                    raise OptionError(f"Arm {arm.name!r}: stages={own!r}: no such stage. {closest(str(own), known)}")
        self.benchmarks = [checked_benchmark(benchmark) for benchmark in make_benchmarks(benchmarks)]
        self.callbacks = checked_entries(callbacks)
        self.sinks = _checked_sinks(sinks)
        self.output_dir = Path(output_dir if output_dir is not None else Path("runs") / name)
        self.executor: Executor = make_executor(executor)
        self.store = ExperimentStore(self.output_dir)
        self._search = self._make_search(checked_search(search))
        self._runs = planned_runs(self.arms, self.repeats, self.stages)
        for planned in self._runs:
            if planned.repeat == 0:
                try:
                    planned.recipe.check(benchmarked=bool(self.benchmarks))
                except HooklineError as error:
                    raise OptionError(f"Arm {planned.arm!r}: {error}") from error
        self.stop_reason: str | None = None
        """The signal that stopped the last `run`, if one did."""

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Load an experiment from a YAML, TOML or JSON file, with overrides such as ``"repeats=3"``."""
        from hookline.experiment.file import experiment_arguments

        return cls(**experiment_arguments(path, overrides))

    from_yaml = from_file

    def _make_search(self, options: Optuna | None) -> Search | None:
        if options is None:
            return None
        about: dict[str, Any] = {"metric": self.metric, "mode": self.mode}
        about |= {"repeats": self.repeats, "stages": self.stages, "directory": self.store.directory}
        search = Search(options, self.arms, **about)
        self.metric = search.metrics[0]
        self.mode = "min" if search.modes[0] == "min" else "max"
        return search

    def plan(self) -> list[PlannedRun]:
        """The runs, in the order in which a sequential executor executes them.

        Those of a search are the runs of one trial, with the arm's own settings: it chooses them while it runs.
        """
        return list(self._runs)

    @property
    def number_of_runs(self) -> int:
        """How many runs the experiment has, those of all trials included."""
        return len(self._runs) * (1 if self._search is None else self._search.options.trials)

    @property
    def search_summary(self) -> str | None:
        """A description of the search's choices; None if there is no search."""
        if self._search is None:
            return None
        options = self._search.options
        return f"{plural(options.trials, 'trial')} that choose {', '.join(options.distributions)}"

    def run(self, *, watch: Watch | None = None, report: bool = True) -> ExperimentResult:
        """Execute every run that is not complete yet, and compare the arms.

        Args:
            watch: Called with run events, such as a `ProgressView`.
            report: Write ``report.md``, ``report.html`` and ``curves.png``.

        Raises:
            ConfigError: The directory is another experiment's, or another process has it open.
            OptionError: A callback cannot be copied, or a run cannot be sent to another process.
        """
        # A child process imports the main script while it starts, and must not start the experiment again.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise OptionError(
                "Experiment.run() is called while a process of an experiment imports this script. Put the script's "
                'statements below: if __name__ == "__main__":'
            )
        subscribers, description = self.check(), self.describe()
        try:
            self.store.open(self.name, description)
        except BaseException:  # the store is not closed: it may be open in another call
            subscribers.close()
            raise
        with contextlib.closing(self.store), contextlib.closing(subscribers), rng.kept():
            schedule = Schedule(
                self.name,
                self._runs if self._search is None else self._search.open(),
                self.store,
                subscribers,
                self.executor,
                config=description,
                benchmarks=self.benchmarks,
                sinks=self.sinks,
                retries=self.retries,
                strict=self.strict,
                more_repeats=self._with_repeats,
                search=self._search,
            )
            scheduler = Scheduler(schedule, watch)
            scheduler.run()
            self.stop_reason = scheduler.stop_reason
            result = self._result(scheduler)
            if report:
                from hookline.experiment.results.report import write_report  # loads matplotlib

                try:
                    write_report(result)
                except OSError:
                    logger.exception("The report cannot be written; the results are in the runs' directories.")
            scheduler.finish(result)
            return result

    def _with_repeats(self, count: int) -> list[PlannedRun]:
        """Change the plan to this many repeats, and return its runs."""
        self.repeats, self._runs = count, planned_runs(self.arms, count, self.stages)
        return self._runs

    def check(self) -> Subscribers:
        """Check that the experiment can be run, changing nothing; return its subscribers.

        Raises:
            ConfigError: The directory is another experiment's.
            OptionError: A callback cannot be copied, or a run cannot be sent to another process.
        """
        self.store.check(self.name, self.describe())
        subscribers = Subscribers(self.callbacks, strict=self.strict)
        shared: dict[str, Any] = {"benchmarks": self.benchmarks, "sinks": self.sinks}
        first_repeats = [
            Assignment(planned, LogContext(), self.store.directory, subscribers.for_run(), **shared)
            for planned in self._runs
            if planned.repeat == 0
        ]
        self.executor.check(first_repeats)
        return subscribers

    def describe(self) -> dict[str, Any]:
        """The plan in plain values, for ``experiment.json``."""
        arms = {arm.name: arm.describe() for arm in self.arms}
        stages = [describe({"name": s.name, "start_from": s.start_from, "changes": s.changes}) for s in self.stages]
        benchmarks = {benchmark.name: _benchmark_settings(benchmark) for benchmark in self.benchmarks}
        search = None if self._search is None else self._search.describe()
        return {"arms": arms, "repeats": self.repeats, "stages": stages, "benchmarks": benchmarks, "search": search}

    def _result(self, scheduler: Scheduler) -> ExperimentResult:
        trained = self.arms if self._search is None else self._search.arms()
        runs: dict[str, list[RunResult]] = {arm.name: [] for arm in trained}
        for planned in scheduler.runs():
            found = scheduler.results.get(planned.key) or self.store.result(planned.key)
            runs[planned.arm].append(found or unfinished_result(planned, status="waiting"))
        arms = [ArmResult(arm.name, arm.settings(), tuple(runs[arm.name])) for arm in trained]
        good = ("completed", "pruned", "skipped")
        failed = any(result.status not in good for result in scheduler.results.values())
        status = "stopped" if scheduler.stop_reason is not None else "failed" if failed else "completed"
        about: dict[str, Any] = {"metric": self.metric, "direction": self.mode}
        about["search"] = None if self._search is None else self._search.result()
        return ExperimentResult(self.name, tuple(arms), self.store.directory, status=status, **about)


def _checked_arms(given: Any, train: Callable[..., Any] | None) -> list[Arm]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"arms={given!r:.120}: give a list of arms, e.g. [hl.Arm('low', config)].")
    arms: list[Arm] = []
    for each in given:
        if not isinstance(each, Arm):
            raise OptionError(f"arms: {each!r:.120} is not an arm: give hl.Arm(name, config).")
        arms.append(each if train is None else each.trained_by(train))
    if not arms:
        raise OptionError("arms=[]: give at least one arm.")
    seen: set[str] = set()
    for arm in arms:
        if arm.name in seen:
            raise OptionError(f"arms: two are called {arm.name!r}. Give each a different name.")
        seen.add(arm.name)
    return arms


def _checked_sinks(given: Iterable[Any]) -> list[Any]:
    """The sinks as given, once copies of them were built and checked."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"sinks={given!r}: give a list of sinks.")
    sinks = list(given)
    if sinks:
        for sink in make_sinks(copy.deepcopy(sinks)).values():
            sink.check()
    return sinks


def _benchmark_settings(benchmark: Any) -> Any:
    benchmark = getattr(benchmark, "given", benchmark)
    own = {name: value for name, value in vars(benchmark).items() if not name.startswith("_")}
    return {"kind": describe(type(benchmark)), **describe(own)}


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
    """The runs of an experiment and their subscribers.

    Attributes:
        search: The choices of the search; None if there is none. Its ``runs`` are those of one trial.
    """

    name: str
    output_dir: Path
    runs: list[DryRunRow]
    subscribers: list[SubscriberGroup]
    search: str | None = None


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
    return DryRun(experiment.name, experiment.store.directory, rows, groups, experiment.search_summary)


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
                group.collection.add(BenchmarkCallback(experiment.benchmarks, lambda _: None, lambda *_: None))
        group.stages.setdefault(planned.arm, []).extend([] if planned.stage is None else [planned.stage])
    return list(groups.values())

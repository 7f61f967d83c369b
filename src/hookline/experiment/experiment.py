"""`Experiment`: arms side by side, each with repeats or stages, benchmarked, recorded, compared.

    result = hl.Experiment("lr", hl.grid(config, learning_rate=[1e-3, 1e-4]), repeats=3, output_dir="runs/lr").run()
    print(result.to_markdown())

Everything that can be wrong with it is an error before anything runs. One arm that fails does not touch another.
Interrupted at any point and started again, it skips what is complete, takes up what is not, and ends with the same
results as one that nothing interrupted.
"""

import contextlib
import copy
import logging
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from hookline._engine.errors import HooklineError, OptionError, closest
from hookline._engine.state import ArmResult, LogContext, RunResult
from hookline._record.settings import describe
from hookline._record.sink import make_sinks
from hookline.experiment.arms import Arm, Stage, checked_stages
from hookline.experiment.benchmark import checked_benchmark, make_benchmarks
from hookline.experiment.directory import ExperimentStore
from hookline.experiment.executors import Executor
from hookline.experiment.job import Assignment
from hookline.experiment.plan import PlannedRun, planned_runs
from hookline.experiment.results.result import ExperimentResult
from hookline.experiment.scheduler import Scheduler, Watch, Work, make_executor
from hookline.experiment.subscribers import Subscribers, checked_entries
from hookline.loops import rng

logger = logging.getLogger("hookline")


class Experiment:
    """A comparison of arms.

    Args:
        name: What it is called.
        arms: What is compared: a list of `Arm`, such as `grid` makes.
        repeats: How often each arm is run, with a seed of its own each time. All arms have the same seeds.
        stages: Trainings that follow one another in each arm, each starting from the weights of the one before.
        benchmarks: What every run is scored on after its training, and within it where a benchmark has an ``every``.
        callbacks: Callbacks: instances, which are shared by the experiment and copied for each run's training, or
            classes and functions that make one for each run.
        output_dir: The experiment's own directory; ``runs/<name>`` by default.
        executor: ``"local"`` makes one run after another, ``{"local": {"processes": 4}}`` several at a time,
            ``"ray"`` or ``{"ray": {"num_cpus": 2, "num_gpus": 1}}`` makes each a task of Ray.
        train: A function ``(ctx, run)`` for the arms that are only settings.
        sinks: Where the record of every run is delivered to.
        retries: How often a run that fails is tried again.
        metric: What the tables are about; by default the first benchmark, what a function returns, or a validation.
        mode: Whether that is better when it is smaller (``"min"``) or larger (``"max"``), where its name does not say.
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
        strict: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name.strip() or "/" in name or name in (".", ".."):
            raise OptionError(f"Experiment({name!r}): give a name without '/'.")
        _require_count("repeats", repeats, 1)
        _require_count("retries", retries, 0)
        if train is not None and not callable(train):
            raise OptionError(f"train={train!r}: give a function (ctx, run).")
        if mode not in (None, "min", "max"):
            raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        self.name, self.repeats, self.retries, self.strict = name, repeats, retries, strict
        self.metric, self.mode = metric, mode
        self.arms = _checked_arms(arms, train)
        self.stages = checked_stages(stages)
        _check_own_stages(self.arms, self.stages)
        self.benchmarks = _checked_benchmarks(benchmarks)
        self.callbacks = checked_entries(callbacks)
        self.sinks = _checked_sinks(sinks)
        self.output_dir = Path(output_dir if output_dir is not None else Path("runs") / name)
        self.executor: Executor = make_executor(executor)
        self._runs = planned_runs(self.arms, repeats, self.stages)
        self._check_recipes()
        self.store = ExperimentStore(self.output_dir)
        self.stop_reason: str | None = None
        """The signal that stopped it the last time it ran, if one did."""

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """The experiment that a YAML, TOML or JSON file describes, with overrides such as ``"repeats=3"`` on top."""
        from hookline.experiment.file import experiment_arguments

        return cls(**experiment_arguments(path, overrides))

    from_yaml = from_file

    def plan(self) -> list[PlannedRun]:
        """Its runs, in the order in which they are made one after another."""
        return list(self._runs)

    def run(self, *, watch: Watch | None = None, report: bool = True) -> ExperimentResult:
        """Make every run that is not complete yet, and compare the arms.

        Args:
            watch: Told what happens to the runs; see `Conductor`.
            report: Write ``report.md``, ``report.html`` and ``curves.png``.

        Raises:
            ConfigError: The directory is another experiment's, or another process is at work in it.
            OptionError: A callback cannot be copied, or a run cannot be sent to another process.
        """
        _require_guard()
        subscribers, description = self.check(), self.describe()
        try:
            self.store.open(self.name, description)
        except BaseException:  # the store is not closed: it may be open in another call
            subscribers.close()
            raise
        with contextlib.closing(self.store), contextlib.closing(subscribers), rng.kept():
            work = Work(
                self.name,
                self._runs,
                self.store,
                subscribers,
                self.executor,
                config=description,
                benchmarks=self.benchmarks,
                sinks=self.sinks,
                retries=self.retries,
                strict=self.strict,
            )
            return self._conducted(Scheduler(work, watch or _nobody), report=report)

    def check(self) -> Subscribers:
        """Find out whether it can be run, changing nothing; gives those who would hear of it.

        Raises:
            ConfigError: The directory is another experiment's.
            OptionError: A callback cannot be copied, or a run cannot be sent to another process.
        """
        self.store.check(self.name, self.describe())
        subscribers = Subscribers(self.callbacks, strict=self.strict)
        self.executor.check(self._first_of_each_kind(subscribers))
        return subscribers

    def describe(self) -> dict[str, Any]:
        """What it is, in plain values, as it is written down."""
        arms = {arm.name: arm.describe() for arm in self.arms}
        stages = [describe({"name": s.name, "start_from": s.start_from, "changes": s.changes}) for s in self.stages]
        benchmarks = {benchmark.name: _settings(benchmark) for benchmark in self.benchmarks}
        return {"arms": arms, "repeats": self.repeats, "stages": stages, "benchmarks": benchmarks}

    def _conducted(self, conductor: Scheduler, *, report: bool) -> ExperimentResult:
        conductor.run()
        self.stop_reason = conductor.stop_reason
        result = self._result(conductor)
        if report:
            _write_report(result)
        conductor.finish(result)
        return result

    def _result(self, conductor: Scheduler) -> ExperimentResult:
        of_arm: dict[str, list[Any]] = {arm.name: [] for arm in self.arms}
        for planned in self._runs:
            of_arm[planned.arm].append(conductor.results.get(planned.key) or self._unfinished(planned))
        arms = [ArmResult(arm.name, arm.settings(), tuple(of_arm[arm.name])) for arm in self.arms]
        failed = any(result.status != "completed" for result in conductor.results.values())
        status = "stopped" if conductor.stop_reason is not None else "failed" if failed else "completed"
        about = {"metric": self.metric, "direction": self.mode}
        return ExperimentResult(self.name, tuple(arms), self.store.directory, status=status, **about)

    def _unfinished(self, planned: PlannedRun) -> RunResult:
        """A run that was not made this time: as an earlier start left it, or as one that has not begun."""
        facts: dict[str, Any] = {"repeat": planned.repeat, "stage": planned.stage, "seed": planned.seed}
        return self.store.result(planned.key) or RunResult(planned.key, status="waiting", attempts=0, **facts)

    def _first_of_each_kind(self, subscribers: Subscribers) -> list[Assignment]:
        """What is carried out, but for repeats, to see whether it can be."""
        shared: dict[str, Any] = {"benchmarks": self.benchmarks, "sinks": self.sinks}
        return [
            Assignment(planned, LogContext(), self.store.directory, subscribers.of_runs(), **shared)
            for planned in self._runs
            if planned.repeat == 0
        ]

    def _check_recipes(self) -> None:
        for planned in self._runs:
            if planned.repeat == 0:
                try:
                    planned.recipe.check(benchmarked=bool(self.benchmarks))
                except HooklineError as error:
                    raise OptionError(f"Arm {planned.arm!r}: {error}") from error


def _checked_arms(given: Any, train: Callable[..., Any] | None) -> list[Arm]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"arms={given!r:.120}: give a list of arms, e.g. [hl.Arm('low', config)].")
    arms: list[Arm] = []
    for each in given:
        if not isinstance(each, Arm):
            raise OptionError(f"arms: {each!r:.120} is no arm: give hl.Arm(name, config).")
        arms.append(each if train is None else each.trained_by(train))
    if not arms:
        raise OptionError("arms=[]: give at least one arm.")
    seen: set[str] = set()
    for arm in arms:
        if arm.name in seen:
            raise OptionError(f"arms: two are called {arm.name!r}. Give each a name of its own.")
        seen.add(arm.name)
    return arms


def _check_own_stages(arms: Sequence[Arm], stages: Sequence[Stage]) -> None:
    """Refuse what an arm has for a stage that there is not: nothing would ever train it."""
    known = [stage.name for stage in stages]
    for arm in arms:
        for name in arm.own_stages:
            if name not in known:
                raise OptionError(f"Arm {arm.name!r}: stages={name!r}: no such stage. {closest(str(name), known)}")


def _write_report(result: ExperimentResult) -> None:
    from hookline.experiment.results.report import write_report  # it loads what draws

    try:
        write_report(result)
    except OSError:
        logger.exception("The report cannot be written; the results are in the runs' directories.")


def _require_guard() -> None:
    """A process that is just being started imports the script that started it, and must not begin anew."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise OptionError(
            "Experiment.run() is called while a process of an experiment imports this script. Put what the script does "
            'below: if __name__ == "__main__":'
        )


def _checked_sinks(given: Iterable[Any]) -> list[Any]:
    """The sinks as they were given, once it is known that they can be made."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"sinks={given!r}: give a list of sinks.")
    sinks = list(given)
    if sinks:
        for sink in make_sinks(copy.deepcopy(sinks)).values():
            sink.check()
    return sinks


def _checked_benchmarks(given: Iterable[Any]) -> list[Any]:
    return [checked_benchmark(benchmark) for benchmark in make_benchmarks(given)]


def _settings(benchmark: Any) -> Any:
    benchmark = getattr(benchmark, "given", benchmark)
    own = {name: value for name, value in vars(benchmark).items() if not name.startswith("_")}
    return {"kind": describe(type(benchmark)), **describe(own)}


def _require_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r}: give a whole number of at least {least}.")


def _nobody(what: str, about: Any) -> None:
    """Nobody watches."""

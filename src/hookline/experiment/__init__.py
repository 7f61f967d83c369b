"""Experiments: arms side by side, with repeats and stages, benchmarked and compared."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline.experiment.arms import Arm, PlannedRun, Stage, grid
    from hookline.experiment.benchmark import Benchmark, BenchmarkError, register_benchmark
    from hookline.experiment.directory import ExperimentStore
    from hookline.experiment.evaluation import evaluate
    from hookline.experiment.executors import Executor
    from hookline.experiment.experiment import Experiment
    from hookline.experiment.progress import ProgressView
    from hookline.experiment.results.result import ExperimentResult
    from hookline.experiment.results.trials import SearchResult, Trial
    from hookline.experiment.search import Optuna

__all__ = [
    "Arm",
    "Benchmark",
    "BenchmarkError",
    "Executor",
    "Experiment",
    "ExperimentResult",
    "ExperimentStore",
    "Optuna",
    "PlannedRun",
    "ProgressView",
    "SearchResult",
    "Stage",
    "Trial",
    "evaluate",
    "grid",
    "register_benchmark",
]

_NAMES = {
    "arms": ("Arm", "PlannedRun", "Stage", "grid"),
    "benchmark": ("Benchmark", "BenchmarkError", "register_benchmark"),
    "directory": ("ExperimentStore",),
    "evaluation": ("evaluate",),
    "executors": ("Executor",),
    "experiment": ("Experiment",),
    "progress": ("ProgressView",),
    "results.result": ("ExperimentResult",),
    "results.trials": ("SearchResult", "Trial"),
    "search": ("Optuna",),
}
"""The names of each module. They are imported on first use: the store and most commands need the statistics alone."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    from hookline._engine.optional import load_lazy

    if name not in _HOMES:
        raise AttributeError(f"module 'hookline.experiment' has no attribute {name!r}")
    value = globals()[name] = load_lazy(f"hookline.experiment.{name}", f"hookline.experiment.{_HOMES[name]}:{name}")
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Experiments: arms side by side, with repeats and stages, benchmarked and compared."""

from hookline.experiment.arms import Arm, PlannedRun, Stage, grid
from hookline.experiment.benchmark import Benchmark, BenchmarkError, register_benchmark
from hookline.experiment.directory import ExperimentStore
from hookline.experiment.evaluation import evaluate
from hookline.experiment.executors import Executor
from hookline.experiment.experiment import Experiment
from hookline.experiment.progress import ProgressView
from hookline.experiment.results.result import ExperimentResult

__all__ = [
    "Arm",
    "Benchmark",
    "BenchmarkError",
    "Executor",
    "Experiment",
    "ExperimentResult",
    "ExperimentStore",
    "PlannedRun",
    "ProgressView",
    "Stage",
    "evaluate",
    "grid",
    "register_benchmark",
]

"""Experiments: arms side by side, with repeats and stages, benchmarked and compared."""

from hookline.experiment.arm import Arm
from hookline.experiment.benchmark import Benchmark, BenchmarkError, register_benchmark
from hookline.experiment.display.progress_view import ProgressView
from hookline.experiment.evaluation import evaluate
from hookline.experiment.executors.executor import Executor
from hookline.experiment.experiment import Experiment
from hookline.experiment.grid import grid
from hookline.experiment.plan import PlannedRun
from hookline.experiment.results.result import ExperimentResult
from hookline.experiment.stage import Stage
from hookline.experiment.store import ExperimentStore

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

"""Benchmarks that come with hookline, one file each."""

from hookline.experiment.benchmarks.arithmetic import ArithmeticBenchmark
from hookline.experiment.benchmarks.environment import EnvironmentBenchmark
from hookline.experiment.benchmarks.format import FormatBenchmark
from hookline.experiment.benchmarks.questions import QuestionsBenchmark
from hookline.experiment.benchmarks.sorting import SortingBenchmark

__all__ = [
    "ArithmeticBenchmark",
    "EnvironmentBenchmark",
    "FormatBenchmark",
    "QuestionsBenchmark",
    "SortingBenchmark",
]

"""Which metric an experiment is about, and which way it is better."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from hookline.callbacks.direction import direction
from hookline.core.state import ArmResult, RunResult
from hookline.experiment.results.arm_runs import benchmark_names, completed, last_stage, names

_OVERHEAD = "hooks/"


def main_metric(arms: Sequence[ArmResult]) -> str | None:
    """The first metric of the first benchmark, what functions returned, a validation metric, or a likely result.

    A metric that all arms have comes before one that only some have. None where no run completed with a number.
    """
    stage = last_stage(arms)
    runs_of = [runs for arm in arms if (runs := completed(arm, stage))]
    for run in (run for runs in runs_of for run in runs):
        if of_benchmarks := benchmark_names([run]):
            return of_benchmarks[0]
    if returned := _shared(runs_of, lambda run: run.returned):
        return _likeliest(returned)
    return _likeliest(_shared(runs_of))


def by_likelihood(metrics: Iterable[str]) -> list[str]:
    """Metrics with those first that an experiment is most likely about; what hooks cost is not among them."""
    return sorted((name for name in metrics if not name.startswith(_OVERHEAD)), key=_unlikelihood)


def better(metric: str | None, mode: Any, runs: Iterable[RunResult] = ()) -> Literal["min", "max"]:
    """Whether a metric is better when it is smaller or larger: as it was said, or as its name suggests.

    A benchmark's metric whose name says nothing is a score: larger is better.
    """
    said = direction(metric, mode)
    if mode is not None or said == "max" or metric is None:
        return said
    return "max" if not _says_smaller(metric) and _is_of_benchmark(metric, runs) else "min"


def _likeliest(metrics: Iterable[str]) -> str | None:
    return next(iter(by_likelihood(metrics)), None)


def _unlikelihood(metric: str) -> tuple[bool, int]:
    says_larger = direction(metric, None) == "max"
    return not metric.startswith("val/"), 0 if says_larger else 1 if _says_smaller(metric) else 2


def _says_smaller(metric: str) -> bool:
    """Whether the name says that smaller is better: then not even a word for the contrary changes it."""
    return direction(f"{metric}/score", None) == "min"


def _is_of_benchmark(metric: str, runs: Iterable[RunResult]) -> bool:
    return any(metric == f"{result.name}/{name}" for run in runs for result in run.evals for name in result.metrics)


def _shared(
    runs_of: Sequence[Sequence[RunResult]], some: Callable[[RunResult], Sequence[str]] | None = None
) -> list[str]:
    """The metrics, or those among ``some``, that all arms have, or those that most have."""
    counts = Counter(
        name
        for runs in runs_of
        for name in names(runs)
        if not name.startswith(_OVERHEAD) and (some is None or any(name in some(run) for run in runs))
    )
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if count == most]

"""Which runs of an arm count, and what a metric of them is.

Only completed runs have results. Where there are stages, an arm is judged by its last one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hookline.core.state import ArmResult, RunResult
from hookline.experiment.results.spread import number


def stages(arms: Iterable[ArmResult]) -> list[str]:
    """The names of the stages in their order; none where there are no stages."""
    return list(dict.fromkeys(run.stage for arm in arms for run in arm.runs if run.stage is not None))


def last_stage(arms: Iterable[ArmResult]) -> str | None:
    """The stage that results are about."""
    return next(reversed(stages(arms)), None)


def completed(arm: ArmResult, stage: str | None) -> list[RunResult]:
    """The runs of an arm that count."""
    return [run for run in arm.runs if run.is_trained and stage in (None, run.stage)]


def value(run: RunResult, metric: str) -> float | None:
    """A metric of a run, also of its benchmarks; None where it has none or it is no number."""
    if metric in run.metrics:
        return number(run.metrics[metric])
    return next((number(value) for name, value in _benchmark_values(run) if name == metric), None)


def values(arm: ArmResult, metric: str | None, stage: str | None) -> list[float]:
    """A metric of all runs of an arm that count and have it."""
    if metric is None:
        return []
    found = (value(run, metric) for run in completed(arm, stage))
    return [value for value in found if value is not None]


def metrics_of(run: RunResult) -> dict[str, Any]:
    """All metrics of a run, also those that stand in the results of its benchmarks alone."""
    return dict(run.metrics) | {name: given for name, given in _benchmark_values(run) if name not in run.metrics}


def names(runs: Iterable[RunResult]) -> list[str]:
    """The metrics of some runs that are numbers, each once, in the order in which they come."""
    found = ((name, given) for run in runs for name, given in metrics_of(run).items())
    return list(dict.fromkeys(name for name, given in found if number(given) is not None))


def benchmark_names(runs: Sequence[RunResult]) -> list[str]:
    """Those of the metrics that benchmarks gave."""
    return list(dict.fromkeys(name for run in runs for name, _ in _benchmark_values(run)))


def _benchmark_values(run: RunResult) -> Iterator[tuple[str, float]]:
    for result in run.evals:
        for name, given in result.metrics.items():
            yield f"{result.name}/{name}", given

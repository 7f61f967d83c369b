"""What the benchmarks gave, by arm: every metric with its interval, and the breakdowns by tag."""

from collections.abc import Sequence

from hookline.core.state import ArmResult, EvalResult
from hookline.experiment.results.arm_runs import completed
from hookline.experiment.results.number_text import NOTHING, count, mean_text
from hookline.experiment.results.report_blocks import Block, Heading, Paragraph, Table
from hookline.experiment.results.spread import number, spread

MOST_METRICS = 6
MOST_TAGS = 20
_COUNT = "n"


def benchmark_blocks(arms: Sequence[ArmResult], stage: str | None) -> list[Block]:
    """A section with a table for each benchmark; nothing where none ran."""
    results = {arm.name: [given for run in completed(arm, stage) for given in run.evals] for arm in arms}
    benchmarks = dict.fromkeys(given.name for of_arm in results.values() for given in of_arm)
    if not benchmarks:
        return []
    note = (
        "Mean ± standard deviation over repeats. In brackets is the interval that the benchmark gives for one run, "
        "which says how much the choice of tasks matters; of several repeats the mean of its ends."
    )
    blocks: list[Block] = [Heading("Benchmarks"), Paragraph(note)]
    for name in benchmarks:
        blocks += _benchmark(name, {arm: [r for r in of_arm if r.name == name] for arm, of_arm in results.items()})
    return blocks


def _benchmark(name: str, results: dict[str, list[EvalResult]]) -> list[Block]:
    every = [result for of_arm in results.values() for result in of_arm]
    metrics = list(dict.fromkeys(metric for result in every for metric in result.metrics))
    tags = list(dict.fromkeys(tag for result in every for tag in result.breakdowns))
    rows = [
        row for arm, of_arm in results.items() for row in _rows(arm, of_arm, metrics[:MOST_METRICS], tags[:MOST_TAGS])
    ]
    columns = ("arm", "tasks", *metrics[:MOST_METRICS])
    blocks: list[Block] = [Heading(name, 3), Table(columns, rows, range(2, len(columns)))]
    left_out = [f"{len(metrics) - MOST_METRICS} more metrics"] if len(metrics) > MOST_METRICS else []
    left_out += [f"{len(tags) - MOST_TAGS} more tags"] if len(tags) > MOST_TAGS else []
    return [*blocks, Paragraph(f"Not shown: {', '.join(left_out)}.")] if left_out else blocks


def _rows(
    arm: str, results: Sequence[EvalResult], metrics: Sequence[str], tags: Sequence[str]
) -> list[tuple[str, ...]]:
    rows = [(arm, "all", *(_whole(results, metric) for metric in metrics))]
    for tag in tags:
        parts = [result.breakdowns[tag] for result in results if tag in result.breakdowns]
        if parts:
            tasks = number(parts[0].get(_COUNT))
            label = tag if tasks is None else f"{tag} ({count(int(tasks), 'task')})"
            rows.append((arm, label, *(_mean([part.get(metric) for part in parts]) for metric in metrics)))
    return rows


def _whole(results: Sequence[EvalResult], metric: str) -> str:
    text = _mean([result.metrics.get(metric) for result in results])
    ends = [result.intervals[metric] for result in results if metric in result.intervals]
    if text == NOTHING or not ends:
        return text
    low, high = (sum(end[side] for end in ends) / len(ends) for side in (0, 1))
    return f"{text} ({low:.3g} to {high:.3g})"


def _mean(values: Sequence[float | None]) -> str:
    over = spread([value for value in map(number, values) if value is not None])
    return mean_text(over.mean, over.std)

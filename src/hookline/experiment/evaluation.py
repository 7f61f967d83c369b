"""`evaluate`: a subject asked all tasks of a benchmark, scored and summed up.

- The same subject gives the same result each time. A policy is asked greedily; whatever else draws random numbers
  draws the same ones, and the libraries' random states are afterwards as they were.
- The result does not depend on the size of batches, where an output depends on its prompt alone.
- It is all tasks or none: where one cannot be scored the benchmark fails, with the id of the task. A mean over the
  rest would look like a score.

A result has the mean of each metric, a 95% bootstrap interval for it, and for each tag the means over the tasks that
have it, with their number as ``n``.

The bootstrap's percentile interval of a mean: how far it might move with other tasks of the same kind.

The bootstrap draws as many scores as there are, with repetition, and takes the mean; the interval holds the given
share of such means. It is the same each time, and needs neither the libraries' random states nor NumPy.

Scores of at most two values (right or wrong) are not drawn at all: their sum is binomial, so its quantiles are exact.
That also takes a hundredth of the time. Scores that are all alike give an interval without width, which says that
nothing was seen to differ, not that nothing could.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.state import EvalResult
from hookline._record.records import clean
from hookline.experiment.benchmark import (
    SEED,
    Benchmark,
    BenchmarkError,
    BenchmarkLike,
    as_benchmark,
    checked_tasks,
    isolated_random_state,
    tags_of,
)
from hookline.rl.environments.base import describe_error
from hookline.rl.policies.base import Policy
from hookline.rl.types import Sampling, Task

RESAMPLES = 1_000
BOOTSTRAP_SEED = 0
ROUNDING = 1e-9
"""By how much a sum of probabilities may be off, with up to a million scores."""


def bootstrap_interval(
    scores: Sequence[float], *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The lower and the upper end of the interval.

    >>> bootstrap_interval([1.0, 0.0] * 50)
    (0.4, 0.6)

    Raises:
        OptionError: There are no scores, or one of the options is out of range.
    """
    if not scores:
        raise OptionError("scores=[]: an interval needs at least one score.")
    if not 0 < confidence < 1:
        raise OptionError(f"confidence={confidence!r}: give a number between 0 and 1, such as 0.95.")
    if resamples < 1:
        raise OptionError(f"resamples={resamples!r}: give a whole number of at least 1.")
    tail = (1 - confidence) / 2
    different = sorted(set(scores))
    if len(different) <= 2:
        return _exact(scores, different[0], different[-1], tail)
    means = sorted(_means(scores, resamples))
    return means[_place(tail, resamples)], means[_place(1 - tail, resamples)]


def mean(scores: Sequence[float]) -> float:
    """The mean, whatever the order."""
    return math.fsum(scores) / len(scores)


def _means(scores: Sequence[float], resamples: int) -> Iterator[float]:
    rng = random.Random(BOOTSTRAP_SEED)  # noqa: S311 - resampling, not secrets
    for _ in range(resamples):
        yield math.fsum(rng.choices(scores, k=len(scores))) / len(scores)


def _place(quantile: float, count: int) -> int:
    """The place, in ascending order, of the smallest of ``count`` values that reaches a quantile."""
    return max(0, math.ceil((quantile - ROUNDING) * count) - 1)


def _exact(scores: Sequence[float], low: float, high: float, tail: float) -> tuple[float, float]:
    """The interval for scores that are each one of two values."""
    count = len(scores)
    share = sum(score == high for score in scores) / count
    ends = (_binomial_quantile(count, share, tail), _binomial_quantile(count, share, 1 - tail))
    lower, upper = (math.fsum([low * (count - highs), high * highs]) / count for highs in ends)
    return lower, upper


def _binomial_quantile(count: int, share: float, quantile: float) -> int:
    """The smallest number of successes in ``count`` trials whose cumulative probability reaches a quantile."""
    if share in (0.0, 1.0):
        return round(count * share)
    log_success, log_failure, log_all = math.log(share), math.log1p(-share), math.lgamma(count + 1)
    reached = 0.0
    for successes in range(count):
        failures = count - successes
        ways = log_all - math.lgamma(successes + 1) - math.lgamma(failures + 1)
        reached += math.exp(ways + successes * log_success + failures * log_failure)
        if reached + ROUNDING >= quantile:
            return successes
    return count


Subject: TypeAlias = Policy | Callable[[list[str]], Iterable[Any]]
"""What is evaluated: a policy, or a function of prompts that gives an output for each."""

ACCURACY = "accuracy"
"""The metric of a score that is one number."""
COUNT = "n"
"""How many tasks a breakdown is of."""


class EvaluationStopped(HooklineError, RuntimeError):
    """An evaluation that ended before its last task because it was told to; there is no result."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """A task, what the subject made of it, and how good that is."""

    task: Task
    output: Any
    scores: dict[str, float]


def evaluate(
    benchmark: BenchmarkLike, subject: Subject, *, should_stop: Callable[[], bool] | None = None
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Ask a subject all tasks, and give the result and a row for each task, in their order.

    A row holds what JSON can: ``benchmark``, ``task_id``, ``instruction``, ``expected``, ``output``, ``reward`` (the
    main score), ``scores`` (all of them) and ``metadata``.

    Args:
        subject: A policy, asked at temperature 0, or a function that takes a list of prompts and gives as many
            outputs: texts, or whatever `score` accepts.
        should_stop: Asked before each batch.

    Raises:
        BenchmarkError: Tasks, outputs or scores are not as they must be.
        EvaluationStopped: ``should_stop`` said so.
        OptionError: There is no such benchmark, or no such subject.
    """
    checked = as_benchmark(benchmark)
    ask = _asking(subject, checked)
    scored: list[_Scored] = []
    with isolated_random_state():
        tasks = checked_tasks(checked)
        for start in range(0, len(tasks), checked.batch_size):
            if should_stop is not None and should_stop():
                raise EvaluationStopped(f"benchmark {checked.name!r}: stopped after {start} of {len(tasks)} tasks.")
            batch = tasks[start : start + checked.batch_size]
            outputs = _outputs(ask, batch, checked.name)
            for task, output in zip(batch, outputs, strict=True):
                scores = _scores(checked, task, output)
                scored.append(_Scored(task, output, _in_order(scores, scored[0], task, checked) if scored else scores))
    return _result(checked.name, scored), [_row(checked.name, each) for each in scored]


def _asking(subject: Any, benchmark: Benchmark) -> Callable[[list[str]], Any]:
    """What gives the outputs for prompts."""
    wanted = "give a policy, or a function that takes a list of prompts and gives as many outputs"
    if isinstance(subject, type):
        raise OptionError(f"subject={subject.__name__} is a class: {wanted}.")
    if not callable(getattr(subject, "generate", None)):
        if not callable(subject):
            raise OptionError(f"subject={subject!r:.200} is nothing to evaluate: {wanted}.")
        ask: Callable[[list[str]], Any] = subject
        return ask
    if hasattr(subject, "forward") and not isinstance(subject, Policy):
        kind = type(subject).__name__
        raise OptionError(f"subject: {kind} is a model, which takes no texts: give HFPolicy(model, tokenizer).")
    sampling = Sampling(0.0, max_tokens=benchmark.max_tokens, stop=tuple(benchmark.stop), seed=SEED)
    return lambda prompts: _texts(subject.generate(prompts, 1, sampling), benchmark.name)


def _texts(written: Any, name: str) -> list[str]:
    """The texts of a policy's completions, of which there is one for each prompt."""
    for index, completions in enumerate(written):
        if len(completions) != 1:
            raise BenchmarkError(
                f"benchmark {name!r}: 1 completion of a prompt was asked for, {len(completions)} came."
            )
        if not hasattr(completions[0], "text"):
            raise BenchmarkError(
                f"benchmark {name!r}: generate() gave {completions[0]!r:.200} at {index}, no Completion."
            )
    return [completions[0].text for completions in written]


def _outputs(ask: Callable[[list[str]], Any], batch: Sequence[Task], name: str) -> list[Any]:
    given = ask([task.prompt for task in batch])
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BenchmarkError(
            f"benchmark {name!r}: the subject was asked {len(batch)} prompts and gave {given!r:.200}: "
            "give a list with an output for each."
        )
    outputs = list(given)
    if len(outputs) != len(batch):
        raise BenchmarkError(
            f"benchmark {name!r}: the subject was asked {len(batch)} prompts and gave {len(outputs)} outputs: "
            "give one for each, in their order."
        )
    return outputs


def _scores(benchmark: Benchmark, task: Task, output: Any) -> dict[str, float]:
    """The finite numbers that a task was scored with, by metric."""
    at = f"benchmark {benchmark.name!r}: score() of task {task.id!r}"
    try:
        given: Any = benchmark.score(task, output)
    except Exception as error:
        raise BenchmarkError(f"{at} {describe_error(error)}") from error
    scores = given if isinstance(given, Mapping) else {ACCURACY: given}
    if not scores:
        raise BenchmarkError(f"{at} gave no metric. Give at least one.")
    for metric in scores:
        if not isinstance(metric, str) or not metric or metric == COUNT:
            raise BenchmarkError(
                f"{at} gave a metric called {metric!r}: give a text that is not empty, other than {COUNT!r}, "
                "the number of tasks."
            )
    return {metric: _number(value, f"{at} gave {metric}=") for metric, value in scores.items()}


def _number(value: Any, at: str) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # whatever stands there instead of a number
        number = math.nan
    if not math.isfinite(number):
        raise BenchmarkError(f"{at}{value!r:.200}: give a finite number, or True or False.")
    return number


def _in_order(scores: dict[str, float], first: _Scored, task: Task, benchmark: Benchmark) -> dict[str, float]:
    """The scores of a task, in the order in which those of the first task came: the main one stays the main one."""
    if scores.keys() != first.scores.keys():
        raise BenchmarkError(
            f"benchmark {benchmark.name!r}: score() of task {task.id!r} gave {', '.join(scores)}; of task "
            f"{first.task.id!r} it gave {', '.join(first.scores)}. Give the same metrics for every task."
        )
    return {metric: scores[metric] for metric in first.scores}


def _result(name: str, scored: Sequence[_Scored]) -> EvalResult:
    values = _columns(scored)
    tagged: dict[str, list[_Scored]] = {}
    for each in scored:
        for tag in tags_of(each.task):
            tagged.setdefault(tag, []).append(each)
    return EvalResult(
        name,
        {metric: mean(column) for metric, column in values.items()},
        {tag: _metric_means(tagged[tag]) for tag in sorted(tagged)},
        sorted(tagged),
        {metric: bootstrap_interval(column) for metric, column in values.items()},
    )


def _columns(scored: Sequence[_Scored]) -> dict[str, list[float]]:
    return {metric: [each.scores[metric] for each in scored] for metric in scored[0].scores}


def _metric_means(scored: Sequence[_Scored]) -> dict[str, float]:
    return {metric: mean(column) for metric, column in _columns(scored).items()} | {COUNT: len(scored)}


def _row(name: str, scored: _Scored) -> dict[str, Any]:
    task, scores = scored.task, scored.scores
    row: dict[str, Any] = clean(
        {
            "benchmark": name,
            "task_id": task.id,
            "instruction": task.prompt,
            "expected": task.expected,
            "output": scored.output,
            "reward": next(iter(scores.values())),
            "scores": scores,
            "metadata": task.metadata,
        }
    )
    return row

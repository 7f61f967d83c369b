"""`evaluate`: scores a subject (a policy or a function of prompts) on all tasks of a benchmark.

- The same subject gets the same result each time. A policy generates greedily; all random states are seeded, and
  restored afterwards.
- The result does not depend on the batch size, if an output depends only on its prompt.
- A task that cannot be scored fails the benchmark, with the task's id: a mean over the rest would look like a score.

A result has the mean of each metric, a 95% bootstrap interval, and for each tag the means over its tasks, with their
number as ``n``.

`bootstrap_interval` is the percentile interval of a mean: how far it might move with other tasks of the same kind. It
is deterministic and needs neither global random states nor NumPy. Scores of at most two values (right or wrong) are
not resampled: their sum is binomial, so its quantiles are exact and a hundred times cheaper. If all scores are equal,
the interval has no width: no difference was seen, which does not mean that none is possible.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hookline._engine.checks import require_integer
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
"""The tolerance for sums of probabilities, with up to a million scores."""


def bootstrap_interval(
    scores: Sequence[float], *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The bootstrap percentile interval of a mean, as its lower and upper end.

    >>> bootstrap_interval([1.0, 0.0] * 50)
    (0.4, 0.6)

    Raises:
        OptionError: There are no scores, or an option is out of range.
    """
    if not scores:
        raise OptionError("scores=[]: an interval needs at least one score.")
    if not 0 < confidence < 1:
        raise OptionError(f"confidence={confidence!r}: give a number between 0 and 1, such as 0.95.")
    require_integer("resamples", resamples)
    tail = (1 - confidence) / 2
    different = sorted(set(scores))
    if len(different) <= 2:
        return _exact_interval(scores, different[0], different[-1], tail)
    rng = random.Random(BOOTSTRAP_SEED)  # noqa: S311 - resampling, not secrets
    means = sorted(mean(rng.choices(scores, k=len(scores))) for _ in range(resamples))
    lower, upper = (max(0, math.ceil((quantile - ROUNDING) * resamples) - 1) for quantile in (tail, 1 - tail))
    return means[lower], means[upper]


def mean(scores: Sequence[float]) -> float:
    """The mean, independent of the order of the scores."""
    return math.fsum(scores) / len(scores)


def _exact_interval(scores: Sequence[float], low: float, high: float, tail: float) -> tuple[float, float]:
    """The interval for scores that each have one of two values."""
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
"""A policy, or a function that returns an output for each of a list of prompts."""

ACCURACY = "accuracy"
"""The metric of a score that is one number."""
COUNT = "n"
"""The number of tasks in a breakdown."""


class EvaluationStopped(HooklineError, RuntimeError):
    """`should_stop` ended an evaluation before its last task; there is no result."""


@dataclass(frozen=True, slots=True)
class _ScoredTask:
    task: Task
    output: Any
    scores: dict[str, float]


def evaluate(
    benchmark: BenchmarkLike, subject: Subject, *, should_stop: Callable[[], bool] | None = None
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Score a subject on all tasks; return the result and a row for each task, in their order.

    A row is JSON-compatible: ``benchmark``, ``task_id``, ``instruction``, ``expected``, ``output``, ``reward`` (the
    main score), ``scores`` (all of them) and ``metadata``.

    Args:
        subject: A policy, which generates at temperature 0, or a function that takes a list of prompts and returns as
            many outputs: strings, or whatever `score` accepts.
        should_stop: Called before each batch.

    Raises:
        BenchmarkError: Tasks, outputs or scores are invalid.
        EvaluationStopped: ``should_stop`` returned True.
        OptionError: The benchmark or the subject is invalid.
    """
    checked = as_benchmark(benchmark)
    ask = _prompt_function(subject, checked)
    scored: list[_ScoredTask] = []
    with isolated_random_state():
        tasks = checked_tasks(checked)
        for start in range(0, len(tasks), checked.batch_size):
            if should_stop is not None and should_stop():
                raise EvaluationStopped(f"benchmark {checked.name!r}: stopped after {start} of {len(tasks)} tasks.")
            batch = tasks[start : start + checked.batch_size]
            outputs = _outputs(ask, batch, checked.name)
            for task, output in zip(batch, outputs, strict=True):
                scores = _scores(checked, task, output)
                scored.append(
                    _ScoredTask(task, output, _in_order(scores, scored[0], task, checked) if scored else scores)
                )
    return _result(checked.name, scored), [_row(checked.name, each) for each in scored]


def _prompt_function(subject: Any, benchmark: Benchmark) -> Callable[[list[str]], Any]:
    wanted = "give a policy, or a function that takes a list of prompts and returns as many outputs"
    if isinstance(subject, type):
        raise OptionError(f"subject={subject.__name__} is a class: {wanted}.")
    if not callable(getattr(subject, "generate", None)):
        if not callable(subject):
            raise OptionError(f"subject={subject!r:.200} cannot be evaluated: {wanted}.")
        ask: Callable[[list[str]], Any] = subject
        return ask
    if hasattr(subject, "forward") and not isinstance(subject, Policy):
        kind = type(subject).__name__
        raise OptionError(f"subject: {kind} is a model, which does not accept text: give HFPolicy(model, tokenizer).")
    sampling = Sampling(0.0, max_tokens=benchmark.max_tokens, stop=tuple(benchmark.stop), seed=SEED)
    return lambda prompts: _texts(subject.generate(prompts, 1, sampling), benchmark.name)


def _texts(written: Any, name: str) -> list[str]:
    for index, completions in enumerate(written):
        if len(completions) != 1:
            raise BenchmarkError(
                f"benchmark {name!r}: 1 completion of a prompt was requested, {len(completions)} came."
            )
        if not hasattr(completions[0], "text"):
            raise BenchmarkError(
                f"benchmark {name!r}: generate() returned {completions[0]!r:.200} at {index}, not a Completion."
            )
    return [completions[0].text for completions in written]


def _outputs(ask: Callable[[list[str]], Any], batch: Sequence[Task], name: str) -> list[Any]:
    given = ask([task.prompt for task in batch])
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BenchmarkError(
            f"benchmark {name!r}: the subject got {len(batch)} prompts and returned {given!r:.200}: "
            "return a list with an output for each."
        )
    outputs = list(given)
    if len(outputs) != len(batch):
        raise BenchmarkError(
            f"benchmark {name!r}: the subject got {len(batch)} prompts and returned {len(outputs)} outputs: "
            "return one for each, in their order."
        )
    return outputs


def _scores(benchmark: Benchmark, task: Task, output: Any) -> dict[str, float]:
    at = f"benchmark {benchmark.name!r}: score() of task {task.id!r}"
    try:
        given: Any = benchmark.score(task, output)
    except Exception as error:
        raise BenchmarkError(f"{at} {describe_error(error)}") from error
    scores = given if isinstance(given, Mapping) else {ACCURACY: given}
    if not scores:
        raise BenchmarkError(f"{at} returned no metric. Return at least one.")
    for metric in scores:
        if not isinstance(metric, str) or not metric or metric == COUNT:
            raise BenchmarkError(
                f"{at} returned a metric called {metric!r}: give a non-empty string other than {COUNT!r}, which is "
                "the number of tasks."
            )
    return {metric: _number(value, f"{at} returned {metric}=") for metric, value in scores.items()}


def _number(value: Any, at: str) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # float() runs code of the object
        number = math.nan
    if not math.isfinite(number):
        raise BenchmarkError(f"{at}{value!r:.200}: return a finite number, or True or False.")
    return number


def _in_order(scores: dict[str, float], first: _ScoredTask, task: Task, benchmark: Benchmark) -> dict[str, float]:
    """The scores of a task in the order of the first task's, so that the main metric stays the main one."""
    if scores.keys() != first.scores.keys():
        raise BenchmarkError(
            f"benchmark {benchmark.name!r}: score() of task {task.id!r} returned {', '.join(scores)}; of task "
            f"{first.task.id!r} it returned {', '.join(first.scores)}. Return the same metrics for every task."
        )
    return {metric: scores[metric] for metric in first.scores}


def _result(name: str, scored: Sequence[_ScoredTask]) -> EvalResult:
    values = _columns(scored)
    tagged: dict[str, list[_ScoredTask]] = {}
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


def _columns(scored: Sequence[_ScoredTask]) -> dict[str, list[float]]:
    return {metric: [each.scores[metric] for each in scored] for metric in scored[0].scores}


def _metric_means(scored: Sequence[_ScoredTask]) -> dict[str, float]:
    return {metric: mean(column) for metric, column in _columns(scored).items()} | {COUNT: len(scored)}


def _row(name: str, scored: _ScoredTask) -> dict[str, Any]:
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

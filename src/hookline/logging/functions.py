"""The ``log_*`` functions: what happens in a training, logged by topic.

Each gives its data to the handlers of a topic's logger at level INFO, and to the run that `initialize`
was given. What a call costs is the encoding of its data: nothing waits for a disk or a network, except
handlers of the standard library that a configuration asks for. Metrics on a device are fetched in the
background; rewards on a device are read at once, because statistics need them. Metrics of generations are
computed by the caller's thread: that is what ``sampling_ratio`` is for.

Arguments of a wrong type are an `OptionError`. Values that are odd but of a right type (None, NaN, an
empty list) are counted or kept.

What the ``log_*`` functions know: the settings, the run, the step, and what was held back.

There is one at a time, because the functions are called without an object, as those of the standard
library's logging are. Before `initialize` everything is due and no run is recorded to.
"""

import logging
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import PLAIN, Deferred, MetricsRow, collect, is_on_device, plain
from hookline._record.device import defer
from hookline._record.recorder import checked_step
from hookline._record.records import clean
from hookline.logging import payloads
from hookline.logging.completions import completion_text, extract_reasoning_and_answer, generation_texts, prompt_text
from hookline.logging.config import MetricSettings
from hookline.logging.handlers import step_of
from hookline.logging.metrics import Trend, generation_metrics, memory_metrics, reward_metrics, reward_values
from hookline.logging.payloads import ATTRIBUTE, MetricsPayload, Payload, RewardsPayload, SamplePayload


@dataclass(eq=False)
class State:
    """The state of one set-up.

    Args:
        settings: Which metrics are recorded, and how often.
        run: Its ``recorder`` gets all data that the functions are given, whatever the levels of the loggers are.
    """

    settings: MetricSettings = field(default_factory=MetricSettings)
    run: Any = None
    _step: int = 0
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _held: dict[str, dict[str, tuple[int, Any]]] = field(default_factory=dict)
    _trends: dict[str, Trend] = field(default_factory=dict)
    _process: int = field(default_factory=os.getpid)

    def at(self, step: Any) -> int:
        """The step to record at: the one given, else the run's, else the last one given."""
        if step is not None:
            self._step = step if type(step) is int else checked_step(step)
        elif self.run is not None:
            return step_of(self.run)
        return self._step

    def trend(self, name: str) -> Trend:
        """The trend of a reward."""
        return self._trends.setdefault(name, Trend(self.settings.trend_window))

    def emit(self, logger: logging.Logger, payload: Payload, *, stacklevel: int = 3) -> None:
        """Give data to the run and to the handlers."""
        if self.run is not None and self.run.recorder is not None:
            payload.record(self.run.recorder)
        if logger.isEnabledFor(logging.INFO):
            logger.info(payload, extra={ATTRIBUTE: payload}, stacklevel=stacklevel)

    def emit_if_due(self, logger: logging.Logger, payload: MetricsPayload) -> bool:
        """Give metrics to the run and to the handlers if they are due, or bring a metric that was not there before.

        Of what is left out, the latest value of each metric is kept: a later row of the same step records it, or
        `emit_held` does, because the end of a training is no multiple of anything.
        """
        held = self._held.setdefault(logger.name, {})
        new = {(logger.name, key) for key in payload.values} - self._seen
        if not new and not self.settings.is_due(payload.step):
            held.update((key, (payload.step, value)) for key, value in dict.items(payload.values))
            return False
        self._seen |= new
        for key in payload.values:
            held.pop(key, None)
        beside = {key: held.pop(key)[1] for key in list(held) if held[key][0] == payload.step}
        if beside:
            payload = MetricsPayload(payload.step, _row(beside | dict(dict.items(payload.values))))
        self.emit(logger, payload, stacklevel=4)
        return True

    def emit_held(self) -> None:
        """Give out what was held back, by step; only in the process that was given it."""
        if self._process == os.getpid():
            for name, held in self._held.items():
                for step in sorted({step for step, _ in held.values()}):
                    values = {key: value for key, (at, value) in held.items() if at == step}
                    self.emit(logging.getLogger(name), MetricsPayload(step, _row(values)))
        self._held.clear()


def _row(values: dict[str, Any]) -> dict[str, Any]:
    """The values as a row, without waiting for those that are on their way from a device."""
    row = MetricsRow()
    row.update(values)
    return row if row.is_waiting() else values


_current = State()


def current() -> State:
    """The state of the present set-up."""
    return _current


def replace(state: State) -> None:
    """Make another state the present one."""
    global _current
    _current = state


def settings() -> MetricSettings:
    """The settings of metrics in force."""
    return current().settings


def validation_due(step: int) -> bool:
    """Whether validation is to run after so many completed steps, by ``validation_frequency``."""
    return current().settings.validation_due(current().at(step))


def log_model_output(
    question: Any,
    true_answer: Any,
    model_output: Any,
    reasoning: str | None = None,
    *,
    answer: Any = None,
    step: int | None = None,
    rewards: Mapping[str, Any] | None = None,
    group: Any = None,
    axis: str | None = None,
) -> None:
    """Log one output of the model, on the topic ``model``.

    Args:
        question: The prompt: a text, or a chat.
        true_answer: What would have been right; None where nobody knows.
        model_output: The completion: a text, or a chat.
        reasoning: The model's reasoning; taken from ``<reasoning>`` or ``<think>`` in the output where not given.
        answer: The model's answer; taken from the last ``<answer>`` in the output where not given.
        step: The step it belongs to, where it is not the present one.
        rewards: What reward functions gave for it.
        group: Which outputs belong together, e.g. those for one prompt.
        axis: What it was generated for, "train" or "eval": a field of its own where it is given. An output without
            one counts as training's.
    """
    if axis is not None and (not isinstance(axis, str) or not axis):
        raise OptionError(f"axis={axis!r:.200}: give a name, such as 'train' or 'eval'.")
    if rewards is not None and not isinstance(rewards, Mapping):
        raise OptionError(f"rewards={rewards!r:.200}: give a dict of numbers by reward function.")
    state = current()
    output = completion_text(model_output)
    found_reasoning, found_answer = extract_reasoning_and_answer(output)
    payload = SamplePayload(
        step=state.at(step),
        question=prompt_text(question),
        true_answer=None if true_answer is None else prompt_text(true_answer),
        model_output=output,
        reasoning=found_reasoning if reasoning is None else str(reasoning),
        answer=found_answer if answer is None else prompt_text(answer),
        rewards={str(name): plain(value) for name, value in (rewards or {}).items()},
        group=None if group is None else str(group),
        axis=axis,
    )
    state.emit(payloads.get_model_logger(), payload)


def log_reward(reward_name: str, values: Any, samples: Sequence[Any] | None = None, *, step: int | None = None) -> None:
    """Log the values that a reward function gave, on the topic ``reward``. Every call is recorded.

    Args:
        values: Numbers or None: a list, an array, a tensor, or one number.
        samples: What each is for: names, ids, texts.
        step: The step they belong to, where it is not the present one.
    """
    state = current()
    if isinstance(samples, str) or not isinstance(samples, Sequence | None):
        raise OptionError(f"samples={samples!r:.200}: give a list with something for each value.")
    numbers = reward_values(values)
    if samples and len(samples) != len(numbers):
        raise OptionError(f"samples={samples!r:.200}: give one for each of the {len(numbers)} values, or none.")
    if state.settings.enable.reward_metrics:
        payload = RewardsPayload(state.at(step), str(reward_name), numbers, [str(each) for each in samples or ()])
        state.emit(payloads.get_reward_logger(), payload)


def log_training_progress(step: int, metrics: Mapping[str, Any]) -> None:
    """Log metrics of a step, on the topic ``training``, every ``logging_frequency`` steps.

    A row with a metric that was not there before is always recorded. So is the last value of each metric: with a
    later row of its step, or at `shutdown`.

    Args:
        step: The number of completed steps.
        metrics: Values by name; those that are on a device are fetched in the background. What is no number, text
            or truth value is kept as text.
    """
    state = current()
    values = _values(metrics)
    state.emit_if_due(payloads.get_training_logger(), MetricsPayload(state.at(step), values))


def log_validation_metrics(step: int, metrics: Mapping[str, Any]) -> None:
    """Log metrics of a validation, on the topic ``metrics``, if that category is enabled.

    Args:
        step: The number of completed steps.
        metrics: Values by name.
    """
    state = current()
    values = _values(metrics)
    if state.settings.enable.validation_metrics:
        state.emit(payloads.get_metrics_logger(), MetricsPayload(state.at(step), values, "eval"))


def log_memory_usage(*, step: int | None = None) -> dict[str, float]:
    """Log how much memory the process and its devices use, on the topic ``system``, and return it.

    Args:
        step: The step it belongs to. Where it is given, ``logging_frequency`` applies; a call without is recorded.
    """
    state = current()
    at = state.at(step)
    if not state.settings.enable.resource_metrics or (step is not None and not state.settings.is_due(at)):
        return {}
    metrics = {f"memory/{name}": value for name, value in memory_metrics().items()}
    state.emit(payloads.get_system_logger(), MetricsPayload(at, dict(metrics)))
    return metrics


def log_reward_metrics(
    step: int,
    rewards: Mapping[str, Any],
    *,
    groups: Sequence[Hashable] | None = None,
    group_size: int | None = None,
) -> dict[str, float]:
    """Log statistics of rewards, on the topic ``metrics``, every ``logging_frequency`` steps, and return them.

    They are called ``rewards/<name>/<metric>``; see `hookline.logging.metrics` for the metrics.

    Args:
        step: The number of completed steps.
        rewards: The values of each reward function for the batch.
        groups: Which group (prompt) each value belongs to.
        group_size: How many values in a row make a group.
    """
    if not isinstance(rewards, Mapping):
        raise OptionError(f"rewards={rewards!r:.200}: give a dict of lists of numbers by reward function.")
    state = current()
    at = state.at(step)
    if not state.settings.enable.reward_metrics or not state.settings.is_due(at):
        return {}
    metrics: dict[str, float] = {}
    for name, values in rewards.items():
        numbers = reward_values(values, f"rewards[{name!r}]")
        found = reward_metrics(numbers, groups=groups, group_size=group_size)
        slope = state.trend(str(name)).add(at, found["mean"]) if "mean" in found else None
        found |= {} if slope is None else {"trend": slope}
        metrics |= {f"rewards/{name}/{metric}": value for metric, value in found.items()}
    state.emit(payloads.get_metrics_logger(), MetricsPayload(at, dict(metrics)))
    return metrics


def log_generation_metrics(
    step: int,
    generations: Sequence[Any],
    *,
    token_counts: Any = None,
    max_length: int | None = None,
    finished: Sequence[Any] | None = None,
    pattern: str | re.Pattern[str] | None = None,
) -> dict[str, float]:
    """Log statistics of completions, on the topic ``metrics``, for a ``sampling_ratio`` of the steps, and return them.

    They are called ``generation/<metric>``; see `hookline.logging.metrics` for the metrics and the arguments.

    Args:
        step: The number of completed steps.
        generations: The completions of the batch: texts, or chats as TRL has them.
    """
    state = current()
    at = state.at(step)
    if not state.settings.enable.generation_metrics or not state.settings.is_sampled(at):
        generation_texts(generations[:0] if isinstance(generations, list | tuple) else generations)
        return {}
    options: dict[str, Any] = {"token_counts": token_counts, "max_length": max_length, "finished": finished}
    found = generation_metrics(generations, **options, pattern=pattern)
    metrics = {f"generation/{name}": value for name, value in found.items()}
    state.emit(payloads.get_metrics_logger(), MetricsPayload(at, dict(metrics)))
    return metrics


def _values(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as they are recorded: flat; what a metric cannot be is kept as text."""
    if not isinstance(metrics, Mapping):
        raise OptionError(f"metrics={metrics!r:.200}: give a dict of values by name.")
    try:
        return collect((metrics,), {}, defer)
    except OptionError:
        return collect(({str(key) or "unnamed": _kept(value) for key, value in metrics.items()},), {}, defer)


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key) or "unnamed": _kept(item) for key, item in value.items()}
    single = plain(value)
    if type(single) in PLAIN or isinstance(single, bool | int | float | str | Deferred) or is_on_device(value):
        return value
    return str(clean(single))

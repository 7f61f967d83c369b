"""The ``log_*`` functions: log what happens in a training, by topic.

Each function passes its data to the handlers of a topic's logger at level INFO, and to the run given to `initialize`.
A call costs the encoding of its data: nothing waits for a disk or a network, except handlers of the standard library
in the configuration. Metrics on a device are fetched in the background; rewards on a device are read at once, because
statistics need them. Metrics of generations are computed in the caller's thread; ``sampling_ratio`` limits that.

Arguments of a wrong type are an `OptionError`. Unusual values of a right type (None, NaN, an empty list) are counted or
kept.
"""

import logging
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import PLAIN, Deferred, MetricsRow, collect, is_on_device, plain
from hookline._record.chats import as_chat, completion_text, prompt_text
from hookline._record.device import defer
from hookline._record.recorder import checked_step
from hookline._record.records import clean
from hookline.logging import payloads
from hookline.logging.config import MetricSettings
from hookline.logging.handlers import step_of
from hookline.logging.metrics import Trend, generation_metrics, memory_metrics, reward_metrics, reward_values
from hookline.logging.payloads import (
    ATTRIBUTE,
    MetricsPayload,
    Payload,
    RewardsPayload,
    SamplePayload,
    extract_reasoning_and_answer,
    generation_texts,
)


@dataclass(eq=False)
class State:
    """The state of one configuration: its settings, its run, the step, and values that were held back.

    There is one at a time, because the functions are called without an object, as those of the standard library's
    logging are. Before `initialize`, everything is due and no run is recorded to.

    Args:
        settings: Which metrics are recorded, and how often.
        run: Its ``recorder`` gets all data of the functions, whatever the loggers' levels.
    """

    settings: MetricSettings = field(default_factory=MetricSettings)
    run: Any = None
    _step: int = 0
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _held: dict[str, dict[str, tuple[int, Any]]] = field(default_factory=dict)
    _trends: dict[str, Trend] = field(default_factory=dict)
    _process: int = field(default_factory=os.getpid)

    def at(self, step: Any) -> int:
        """Return the step to record at: the given one, else the run's, else the last one given."""
        if step is not None:
            self._step = step if type(step) is int else checked_step(step)
        elif self.run is not None:
            return step_of(self.run)
        return self._step

    def trend(self, name: str) -> Trend:
        """Return the trend of a reward."""
        return self._trends.setdefault(name, Trend(self.settings.trend_window))

    def emit(self, logger: logging.Logger, payload: Payload, *, stacklevel: int = 3) -> None:
        """Pass data to the run and to the handlers."""
        if self.run is not None and self.run.recorder is not None:
            payload.record(self.run.recorder)
        if logger.isEnabledFor(logging.INFO):
            logger.info(payload, extra={ATTRIBUTE: payload}, stacklevel=stacklevel)

    def emit_if_due(self, logger: logging.Logger, payload: MetricsPayload) -> bool:
        """Pass metrics to the run and to the handlers if they are due or include a new metric.

        Otherwise the latest value of each metric is held back: a later row of the same step records it, or `emit_held`
        does at the end, because the last step of a training is rarely a multiple of the frequency.
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
        """Pass on what was held back, by step; not in a forked child."""
        if self._process == os.getpid():
            for name, held in self._held.items():
                for step in sorted({step for step, _ in held.values()}):
                    values = {key: value for key, (at, value) in held.items() if at == step}
                    self.emit(logging.getLogger(name), MetricsPayload(step, _row(values)))
        self._held.clear()


def _row(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as a row, without waiting for those from a device."""
    row = MetricsRow()
    row.update(values)
    return row if row.is_waiting() else values


_current = State()


def current() -> State:
    """Return the current state."""
    return _current


def replace(state: State) -> None:
    """Replace the current state."""
    global _current
    _current = state


def settings() -> MetricSettings:
    """Return the current settings of metrics."""
    return current().settings


def validation_due(step: int) -> bool:
    """Return whether validation is due after this many completed steps, by ``validation_frequency``."""
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
        question: The prompt: a string or a chat.
        true_answer: The expected answer; None if it is unknown.
        model_output: The completion: a string or a chat.
        reasoning: The model's reasoning; by default the content of ``<reasoning>`` or ``<think>`` in the output.
        answer: The model's answer; by default the content of the last ``<answer>`` in the output.
        step: The step it belongs to; the current one by default.
        rewards: The values of reward functions for it.
        group: An id that outputs for the same prompt share.
        axis: What it was generated for, "train" or "eval"; "train" by default, and then not a field of its own.
    """
    if axis is not None and (not isinstance(axis, str) or not axis):
        raise OptionError(f"axis={axis!r:.200}: give a name, such as 'train' or 'eval'.")
    if rewards is not None and not isinstance(rewards, Mapping):
        raise OptionError(f"rewards={rewards!r:.200}: give a dict of numbers by reward function.")
    state = current()
    output = completion_text(model_output)
    chats = {"prompt_messages": as_chat(question), "completion_messages": as_chat(model_output)}
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
        chats={name: chat for name, chat in chats.items() if chat is not None},
    )
    state.emit(payloads.get_model_logger(), payload)


def log_reward(reward_name: str, values: Any, samples: Sequence[Any] | None = None, *, step: int | None = None) -> None:
    """Log the values of a reward function, on the topic ``reward``. Every call is recorded.

    Args:
        values: Numbers or None: a list, an array, a tensor, or one number.
        samples: What each value is for: names, ids, texts.
        step: The step they belong to; the current one by default.
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

    A row with a new metric is always recorded. So is the last value of each metric: with a later row of its step, or at
    `shutdown`.

    Args:
        step: The number of completed steps.
        metrics: Values by name; those on a device are fetched in the background. Other objects than numbers, strings
            and booleans are recorded as text.
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
    """Log the memory use of the process and its devices, on the topic ``system``, and return it.

    Args:
        step: The step it belongs to. With a step, ``logging_frequency`` applies; without, every call is recorded.
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

    Their names are ``rewards/<name>/<metric>``; see `hookline.logging.metrics` for the metrics.

    Args:
        step: The number of completed steps.
        rewards: The values of each reward function for the batch.
        groups: The group (prompt) of each value.
        group_size: How many consecutive values form a group.
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

    Their names are ``generation/<metric>``; see `hookline.logging.metrics` for the metrics and the arguments.

    Args:
        step: The number of completed steps.
        generations: The completions of the batch: strings, or chats as in TRL.
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
    """Flatten metrics for recording; objects that are not valid values are kept as text."""
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

"""The data that a log record carries besides its message, its JSON form, and the loggers of the five topics.

The last part reads the texts in that data: completions, given as strings or chats, and what tags mark.

``record.hookline`` holds the data. The ``log_*`` functions put a payload there; other code can pass a dict of fields or
plain attributes:

    logger.info("Evaluated.", extra={"hookline": {"step": 300, "accuracy": 0.8}})
    logger.info("Evaluated.", extra={"step": 300, "accuracy": 0.8})

A payload is its own message: its text is made only when a handler formats it.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import MetricsRow, copied, readable
from hookline._record.chats import completion_text, is_chat
from hookline._record.recorder import Recorder
from hookline._record.records import clean

ATTRIBUTE = "hookline"
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", ATTRIBUTE}
_RESERVED = ("step", "timestamp")
_MAX_TEXT_LENGTH = 200


class Payload(ABC):
    """Data with a step."""

    __slots__ = ()

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the data by name, as a row of a table."""

    @abstractmethod
    def record(self, recorder: Recorder) -> None:
        """Write the data to a journal."""


@dataclass(frozen=True, slots=True)
class MetricsPayload(Payload):
    """Values recorded together at a step."""

    step: int
    values: dict[str, Any]
    axis: str = "train"

    def fields(self) -> dict[str, Any]:
        """Return the values and the step, without waiting for values from a device.

        A metric with the name of a reserved field is renamed, e.g. to ``values/step``.
        """
        row = copied(self.values)
        for name in _RESERVED:
            if name in row:
                row[f"values/{name}"] = dict.pop(row, name)
        row["step"] = self.step
        return row

    def record(self, recorder: Recorder) -> None:
        """Write a row of metrics."""
        if isinstance(self.values, MetricsRow) and (media := self.values.take_media()):
            recorder.media(media, self.step, self.axis)
        recorder.metrics(self.values, self.step, self.axis)

    def __str__(self) -> str:
        known = readable(self.values)
        waiting = [key for key in self.values if key not in known]
        shown = [f"{key}={_number(value)}" for key, value in known.items()]
        return f"step {self.step}: " + ", ".join(shown + [f"{key}=..." for key in waiting])


@dataclass(frozen=True, slots=True)
class SamplePayload(Payload):
    """One output of the model."""

    step: int
    question: str
    true_answer: str | None
    model_output: str
    reasoning: str | None
    answer: str | None
    rewards: dict[str, Any] = field(default_factory=dict)
    group: str | None = None
    axis: str | None = None
    chats: dict[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return the columns of a table of outputs: ``answer`` is the true one, ``llm_answer`` the model's."""
        row = {
            "step": self.step,
            "question": self.question,
            "answer": self.true_answer,
            "llm_reasoning": self.reasoning,
            "llm_answer": self.answer,
            "model_output": self.model_output,
            "rewards": self.rewards or None,
            "group": self.group,
            "axis": self.axis,
        }
        return {key: value for key, value in row.items() if value is not None}

    def record(self, recorder: Recorder) -> None:
        """Write a sample."""
        sample = {
            "prompt": self.question,
            "completion": self.model_output,
            "expected": self.true_answer,
            "reasoning": self.reasoning,
            "answer": self.answer,
            "rewards": self.rewards,
            "group": self.group,
            **self.chats,
        }
        recorder.samples([sample], self.step, self.axis or "train")

    def __str__(self) -> str:
        texts = {"question": self.question, "answer": self.true_answer, "llm_answer": self.answer}
        if self.answer is None:
            texts["output"] = self.model_output
        return f"step {self.step}: " + ", ".join(f"{key}={_short(value)}" for key, value in texts.items())


@dataclass(frozen=True, slots=True)
class RewardsPayload(Payload):
    """The values of a reward function for a batch."""

    step: int
    name: str
    values: list[float | None]
    samples: list[str]

    def fields(self) -> dict[str, Any]:
        """Return the name, the values and their samples."""
        return {"step": self.step, "reward": self.name, "values": self.values, "samples": self.samples}

    def record(self, recorder: Recorder) -> None:
        """Write the values."""
        recorder.rewards(self.name, self.values, self.samples, step=self.step)

    def __str__(self) -> str:
        shown = ", ".join("None" if value is None else _number(value) for value in self.values[:8])
        more = f" and {len(self.values) - 8} more" if len(self.values) > 8 else ""
        return f"step {self.step}: reward {self.name}=[{shown}]{more}"


def payload_of(record: logging.LogRecord) -> Payload | None:
    """Return the payload of a record that a ``log_*`` function logged."""
    data = vars(record).get(ATTRIBUTE)
    return data if isinstance(data, Payload) else None


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the data of a record: its payload or dict, and attributes beyond those of every record.

    Attributes with a leading underscore are internals of libraries: Ray adds one to every record.
    """
    attributes = vars(record)
    data = attributes.get(ATTRIBUTE)
    fields = data.fields() if isinstance(data, Payload) else dict(data) if isinstance(data, Mapping) else {}
    for key in attributes.keys() - _STANDARD:
        if not key.startswith("_"):
            fields.setdefault(key, attributes[key])
    return fields


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(text: str | None) -> str:
    if text is None:
        return "None"
    return repr(text if len(text) <= _MAX_TEXT_LENGTH else text[:_MAX_TEXT_LENGTH] + "...")


FIELDS = ("timestamp", "level", "name", "message")
_ATTRIBUTES = {"level": "levelname", "logger": "name"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    An exception is always added as ``exception``. What JSON cannot represent is written as text, numbers that are not
    finite as ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.

    Args:
        fields: The fields to write, in this order: ``timestamp``, ``level``, ``name`` (or ``logger``), ``message``, any
            attribute of a log record, any field of its data; null if it has none. By default the four, and all data.
        datefmt: The timestamp's format for `time.strftime`; ISO 8601 with milliseconds by default.
    """

    def __init__(self, fields: Sequence[str] | None = None, *, datefmt: str | None = None) -> None:
        super().__init__(datefmt=datefmt)
        if fields is not None and (isinstance(fields, str) or not all(isinstance(name, str) for name in fields)):
            raise OptionError(f"fields={fields!r}: give a list of names.")
        self.fields = tuple(fields) if fields is not None else None

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        data = fields_of(record)
        names = self.fields if self.fields is not None else dict.fromkeys((*FIELDS, *data))
        row = {name: self._value(name, record, data) for name in names}
        if record.exc_info and "exception" not in row:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(clean(row), ensure_ascii=False)

    def _value(self, name: str, record: logging.LogRecord, data: dict[str, Any]) -> Any:
        match name:
            case "message":
                return record.getMessage()
            case "timestamp" if self.datefmt is not None:
                return self.formatTime(record, self.datefmt)
            case "timestamp":
                return iso_time(record.created)
            case "exception":
                return self.formatException(record.exc_info) if record.exc_info else None
            case "level" | "name":
                return getattr(record, _ATTRIBUTES.get(name, name))
        return data[name] if name in data else getattr(record, _ATTRIBUTES.get(name, name), None)


def iso_time(seconds: float) -> str:
    """Return a time in ISO 8601, with milliseconds and the local time zone."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


TOPICS = ("training", "model", "reward", "metrics", "system")
PREFIX = "hookline."


def get_training_logger() -> logging.Logger:
    """Return the logger for training progress."""
    return logging.getLogger("hookline.training")


def get_model_logger() -> logging.Logger:
    """Return the logger for the model and its outputs."""
    return logging.getLogger("hookline.model")


def get_reward_logger() -> logging.Logger:
    """Return the logger for rewards."""
    return logging.getLogger("hookline.reward")


def get_metrics_logger() -> logging.Logger:
    """Return the logger for metrics."""
    return logging.getLogger("hookline.metrics")


def get_system_logger() -> logging.Logger:
    """Return the logger for the machine: memory, devices."""
    return logging.getLogger("hookline.system")


def extract_reasoning_and_answer(output: str) -> tuple[str | None, str | None]:
    """Return the content of ``<reasoning>`` (or ``<think>``) and of the last ``<answer>``; None for a missing one.

    >>> extract_reasoning_and_answer("<reasoning>2 + 2</reasoning><answer>4</answer>")
    ('2 + 2', '4')
    """
    reasonings = [found for tag in ("reasoning", "think") if (found := _between(output, tag))]
    answer, position = None, 0
    while (found := _between(output, "answer", position)) is not None:
        _, answer, position = found
    return min(reasonings)[1].strip() if reasonings else None, None if answer is None else answer.strip()


def _between(text: str, tag: str, start: int = 0) -> tuple[int, str, int] | None:
    """Return where a tag opens, its content, and where it ends; None if it is not closed."""
    # `str.find`, not a pattern: that takes quadratic time for a policy that repeats an opening tag.
    opened = text.find(f"<{tag}>", start)
    closed = -1 if opened < 0 else text.find(f"</{tag}>", opened)
    return None if closed < 0 else (opened, text[opened + len(tag) + 2 : closed], closed + len(tag) + 3)


def generation_texts(generations: Any) -> list[str]:
    """Return the texts of a batch of completions.

    Raises:
        OptionError: It is not a sequence, or one of them is not a string, a chat or None.
    """
    if isinstance(generations, str | bytes | Mapping) or not isinstance(generations, Sequence):
        raise OptionError(f"generations={generations!r:.200}: give a list of strings, or of chats as in TRL.")
    for index, each in enumerate(generations):
        if not (each is None or isinstance(each, str) or is_chat(each)):
            raise OptionError(
                f"generations[{index}]={each!r:.200}: give a string, or a list of messages with a content."
            )
    return [completion_text(each) for each in generations]

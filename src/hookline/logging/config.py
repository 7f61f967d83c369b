"""Reads a logging configuration, and checks all of it before anything is built or changed.

A configuration is what `logging.config.dictConfig` takes, with these differences:

- ``metrics:`` holds `MetricSettings`.
- A formatter with ``format: json`` writes JSON, with the ``fields`` that it names.
- Topics may be called ``logging.training`` or ``hookline.training``, handlers ``logging.custom.CSVHandler`` or
  ``hookline.logging.CSVHandler``; it is the same.
- ``version`` may be left out; existing loggers are disabled only where it says so.
- Keys and names that nothing goes by are errors, with the file and line where there is a file.

As with the standard library, a configuration names classes and functions that are imported and called:
take none from somebody you would not take code from.

The configuration of `initialize()` without one: to the console, a file, and a table of model outputs.

`MetricSettings`: what the section ``metrics:`` of a logging configuration governs.

| setting | governs |
|---|---|
| ``logging_frequency`` | `log_training_progress`, `log_reward_metrics`; `log_memory_usage` where it is given a step |
| ``validation_frequency`` | `validation_due`; what `log_validation_metrics` is given is always recorded |
| ``sampling_ratio`` | `log_generation_metrics`: the share of steps for which they are computed |
| ``trend_window`` | how many recorded points the trend of a reward looks back on |
| ``enable.reward_metrics`` | `log_reward_metrics` and `log_reward` |
| ``enable.generation_metrics`` | `log_generation_metrics` |
| ``enable.validation_metrics`` | `log_validation_metrics` and `validation_due` |
| ``enable.resource_metrics`` | `log_memory_usage` |

Model outputs are not metrics: `log_model_output` records every one.
"""

import logging
import logging.config
import logging.handlers
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline._engine.factories import Source, checked_arguments
from hookline.config.sources import read_source
from hookline.logging.payloads import PREFIX, TOPICS, JsonFormatter

DEFAULT: dict[str, Any] = {
    "version": 1,
    "root": {"level": "INFO", "handlers": ["console"]},
    "loggers": {
        "hookline.training": {"level": "INFO", "handlers": ["console", "file"], "propagate": False},
        "hookline.model": {"level": "INFO", "handlers": ["file", "csv"], "propagate": False},
        "hookline.reward": {"level": "INFO", "handlers": ["file"], "propagate": False},
        "hookline.metrics": {"level": "INFO", "handlers": ["file"], "propagate": False},
        "hookline.system": {"level": "INFO", "handlers": ["file"], "propagate": False},
    },
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "standard"},
        "file": {
            "class": "logging.handlers.RotatingFileHandler",
            "formatter": "standard",
            "filename": "logs/training.log",
            "maxBytes": 10 << 20,
            "backupCount": 5,
            "encoding": "utf-8",
        },
        "csv": {
            "class": "hookline.logging.CSVHandler",
            "filename": "logs/model_outputs.csv",
            "columns": ["timestamp", "step", "question", "answer", "llm_reasoning", "llm_answer"],
        },
    },
    "formatters": {
        "standard": {
            "format": "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
            "datefmt": "%Y-%m-%d %H:%M:%S",
        },
    },
}


_GOLDEN = 11400714819323198485  # 2**64 divided by the golden ratio
_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class Categories:
    """Which categories of metrics are recorded.

    Args:
        reward_metrics: What `log_reward_metrics` and `log_reward` are given.
        generation_metrics: What `log_generation_metrics` is given.
        validation_metrics: What `log_validation_metrics` is given.
        resource_metrics: What `log_memory_usage` measures.
    """

    reward_metrics: bool = True
    generation_metrics: bool = True
    validation_metrics: bool = True
    resource_metrics: bool = True


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """How often metrics are recorded, and which.

    Args:
        logging_frequency: In steps: rows of steps that are no multiple of it are left out. Of
            `log_training_progress`, those that bring a metric that was not there before are recorded all the same,
            and so is the last value of each metric, at `shutdown` at the latest.
        validation_frequency: In steps; None where validation is never due.
        sampling_ratio: The share of steps, between 0 and 1, for which expensive metrics are computed.
        trend_window: In recorded points.
        enable: The categories.
    """

    logging_frequency: int = 1
    validation_frequency: int | None = None
    sampling_ratio: float = 1.0
    trend_window: int = 50
    enable: Categories = field(default_factory=Categories)

    def __post_init__(self) -> None:
        for name, least in (("logging_frequency", 1), ("validation_frequency", 1), ("trend_window", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{name}={value!r}: give a whole number of at least {least}.")
        if not 0.0 <= self.sampling_ratio <= 1.0:
            raise OptionError(f"sampling_ratio={self.sampling_ratio!r}: give a share between 0 and 1.")

    def is_due(self, step: int) -> bool:
        """Whether the metrics of a step are recorded."""
        return step % self.logging_frequency == 0

    def validation_due(self, step: int) -> bool:
        """Whether validation is to run after so many completed steps."""
        if self.validation_frequency is None or not self.enable.validation_metrics:
            return False
        return step > 0 and step % self.validation_frequency == 0

    def is_sampled(self, step: int) -> bool:
        """Whether a step is among those for which expensive metrics are computed.

        The multiples of the golden ratio spread evenly, over all steps and over every n-th of them
        alike, so the share is right however often it is asked. It depends on the step alone: all
        ranks and a resumed run decide alike, and nobody's random numbers are touched.
        """
        return (step * _GOLDEN % _WORD) < self.sampling_ratio * _WORD


_SECTIONS = ("version", "disable_existing_loggers", "root", "loggers", "handlers", "formatters", "filters", "metrics")
_LOGGER_KEYS = ("level", "handlers", "filters", "propagate")
_HANDLER_KEYS = ("class", "()", "level", "formatter", "filters", ".")
_FORMATTER_KEYS = ("format", "datefmt", "style", "validate", "class", "fields")
_NUMBERS = {"maxBytes", "backupCount", "capacity", "interval"}
_CLASSES = ("CSVHandler", "TensorBoardHandler")
_CUSTOM = "logging.custom."


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration that has been checked, as `DictConfigurator` takes it, and the settings of metrics."""

    dictionary: dict[str, Any]
    settings: MetricSettings
    source: Source


def read_plan(config: str | Path | Mapping[str, Any] | None) -> Plan:
    """Read a file, a dict or the default, and check it.

    Raises:
        ConfigError: Something in it is wrong; the message says where and what is accepted.
    """
    source = read_source(DEFAULT if config is None else config)
    return _Checker(source).plan()


class _Checker:
    """Goes through a configuration once, and gives it back as the standard library takes it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.resolve = logging.config.DictConfigurator({}).resolve

    def plan(self) -> Plan:
        data = self.mapping("", self.source.data)
        self.known("", data, _SECTIONS)
        if data.get("version", 1) != 1:
            raise self.source.error("version", f"{data['version']!r} was given, 1 is accepted.")
        formatters = {name: self.formatter(f"formatters.{name}", each) for name, each in self.items(data, "formatters")}
        filters = {name: self.mapping(f"filters.{name}", each) for name, each in self.items(data, "filters")}
        self.formatters, self.filters = set(formatters), set(filters)
        handlers = {name: self.handler(f"handlers.{name}", each) for name, each in self.items(data, "handlers")}
        self.handlers = set(handlers)
        checked = {"version": 1, "formatters": formatters, "filters": filters, "handlers": handlers}
        checked["disable_existing_loggers"] = self.flag("disable_existing_loggers", data, default=False)
        checked["loggers"] = self.loggers(data)
        if data.get("root") is not None:
            checked["root"] = self.logger("root", data["root"])
        return Plan(checked, self.settings(data.get("metrics")), self.source)

    def loggers(self, data: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, each in self.items(data, "loggers"):
            topic = self.topic(name)
            if topic in found:
                raise self.source.error(f"loggers.{name}", f"{topic} is given twice, by both of its names.")
            found[topic] = self.logger(f"loggers.{name}", each)
        return found

    def topic(self, name: str) -> str:
        """The name of a logger here; a topic that does not exist is refused, under either of its names."""
        first, dot, rest = name.partition(".")
        if not dot or first not in ("logging", "hookline"):
            return name
        if rest.partition(".")[0] not in TOPICS:
            known = closest(name, [f"{first}.{topic}" for topic in TOPICS])
            raise self.source.error(f"loggers.{name}", f"there is no such topic. {known}")
        return PREFIX + rest

    def logger(self, path: str, given: Any) -> dict[str, Any]:
        logger = self.mapping(path, given)
        self.known(path, logger, _LOGGER_KEYS)
        self.level(path, logger)
        self.names(f"{path}.handlers", logger.get("handlers"), self.handlers, "handler")
        self.names(f"{path}.filters", logger.get("filters"), self.filters, "filter")
        self.flag(f"{path}.propagate", logger, default=True)
        return logger

    def formatter(self, path: str, given: Any) -> dict[str, Any]:
        formatter = self.mapping(path, given)
        if "()" in formatter:
            return formatter
        self.known(path, formatter, _FORMATTER_KEYS)
        if formatter.get("format") == "json":
            options = {key: value for key, value in formatter.items() if key != "format"}
            return {"()": JsonFormatter, **checked_arguments(JsonFormatter, options, self.source, path)}
        if "fields" in formatter:
            raise self.source.error(f"{path}.fields", "fields are for format: json.")
        return formatter

    def handler(self, path: str, given: Any) -> dict[str, Any]:
        handler = self.mapping(path, given)
        self.level(path, handler)
        self.names(f"{path}.filters", handler.get("filters"), self.filters, "filter")
        if handler.get("formatter") is not None:
            self.names(f"{path}.formatter", [handler["formatter"]], self.formatters, "formatter")
        if "()" in handler:
            return handler
        if not isinstance(handler.get("class"), str):
            raise self.source.error(path, "a handler needs a class, such as logging.StreamHandler.")
        name = self.class_name(f"{path}.class", handler["class"])
        kind = self.handler_class(f"{path}.class", name)
        arguments = {key: value for key, value in handler.items() if key not in _HANDLER_KEYS}
        if not issubclass(kind, logging.handlers.QueueHandler):  # what it is given is not what it takes
            arguments = checked_arguments(kind, arguments, self.source, path)
        if kind.__module__ == logging.handlers.__name__:
            self.numbers(path, arguments)
        settings = {key: value for key, value in handler.items() if key in _HANDLER_KEYS}
        return {**settings, **arguments, "class": name}

    def class_name(self, path: str, name: str) -> str:
        """The name that a handler's class can be imported by."""
        custom = name.removeprefix(_CUSTOM)
        if custom != name and custom not in _CLASSES:
            raise self.source.error(path, f"{name!r} is not a class of handlers. {closest(custom, _CLASSES)}")
        return f"hookline.logging.{custom}" if custom != name else name

    def handler_class(self, path: str, name: str) -> type[logging.Handler]:
        try:
            kind = self.resolve(name)
        except (ValueError, ImportError) as error:
            why = f"{error.__cause__ or error}. {_closest_class(name)}".rstrip()
            raise self.source.error(path, f"{name!r} cannot be imported: {why}") from error
        if not isinstance(kind, type) or not issubclass(kind, logging.Handler):
            raise self.source.error(path, f"{name!r} is {kind!r}, which is no class of handlers.")
        return kind

    def numbers(self, path: str, arguments: Mapping[str, Any]) -> None:
        """Refuse other things than numbers for handlers of the standard library, which say no types."""
        for key in _NUMBERS & arguments.keys():
            if isinstance(arguments[key], bool) or not isinstance(arguments[key], int | float):
                given = f"{arguments[key]!r:.200} was given"
                raise self.source.error(f"{path}.{key}", f"{given}, a number without a unit is accepted.")

    def settings(self, given: Any) -> MetricSettings:
        metrics = self.mapping("metrics", given or {})
        categories = self.mapping("metrics.enable", metrics.pop("enable", None) or {})
        enable = Categories(**checked_arguments(Categories, categories, self.source, "metrics.enable"))
        arguments = checked_arguments(MetricSettings, metrics, self.source, "metrics")
        try:
            return MetricSettings(**arguments, enable=enable)
        except OptionError as error:
            raise self.source.error(f"metrics.{str(error).partition('=')[0]}", str(error)) from error

    def items(self, data: Mapping[str, Any], section: str) -> list[tuple[str, Any]]:
        found = self.mapping(section, data.get(section) or {})
        for name in found:
            if not isinstance(name, str):
                raise self.source.error(f"{section}.{name}", f"{name!r} is not a name: give a text.")
        return list(found.items())

    def mapping(self, path: str, given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise self.source.error(path, f"{given!r:.200} was given, a mapping is needed.")
        return dict(given)

    def known(self, path: str, given: Mapping[str, Any], accepted: Collection[str]) -> None:
        for key in given:
            if key not in accepted:
                inner = f"{path}.{key}" if path else str(key)
                raise self.source.error(inner, f"unknown key. {closest(str(key), accepted)}")

    def level(self, path: str, given: Mapping[str, Any]) -> None:
        level, known = given.get("level"), logging.getLevelNamesMapping()
        if level is not None and level not in known and (isinstance(level, bool) or not isinstance(level, int)):
            raise self.source.error(f"{path}.level", f"{level!r} is not a level. {closest(str(level), known)}")

    def names(self, path: str, given: Any, known: Collection[str], what: str) -> None:
        """Check that a list names things that are there; a filter may also be given as it is."""
        if given is not None and not isinstance(given, list | tuple):
            raise self.source.error(path, f"{given!r:.200} was given, a list of {what}s is needed.")
        for index, name in enumerate(given or ()):
            if name not in known and (what != "filter" or isinstance(name, str)):
                inner = f"{path}[{index}]" if what != "formatter" else path
                raise self.source.error(inner, f"there is no {what} {name!r}. {closest(str(name), known)}")

    def flag(self, path: str, given: Mapping[str, Any], *, default: bool) -> bool:
        value = given.get(path.rpartition(".")[2], default)
        if not isinstance(value, bool):
            raise self.source.error(path, f"{value!r} was given, true or false is accepted.")
        return value


def _closest_class(name: str) -> str:
    """Which class of handlers is meant by a name, where its module is there."""
    module, _, _ = name.rpartition(".")
    found = vars(sys.modules[module]) if module in sys.modules else {}
    classes = {each for each, kind in found.items() if isinstance(kind, type) and issubclass(kind, logging.Handler)}
    return closest(name, {f"{module}.{each}" for each in classes}) if classes else ""

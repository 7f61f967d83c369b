"""Reads a logging configuration, and checks all of it before anything is built or changed.

A configuration has the format of `logging.config.dictConfig`, with these differences:

- ``metrics:`` holds `MetricSettings`.
- ``redact:`` holds regular expressions and names of functions, ``module:function``, that every text passes before a
  handler writes it. Well-known secrets are redacted in any case, unless it is ``false``. A run given to `initialize`
  applies them to everything that it records.
- A formatter with ``format: json`` writes JSON, with the ``fields`` that it names.
- Topics may be called ``logging.training`` or ``hookline.training``, handlers ``logging.custom.CSVHandler`` or
  ``hookline.logging.CSVHandler``, with the same meaning.
- ``version`` may be left out; existing loggers are only disabled on request.
- Unknown keys and names are errors, with the file and line if there is a file.

As with the standard library, a configuration names classes and functions that are imported and called: do not use one
from a source whose code you would not run.
"""

import logging
import logging.config
import logging.handlers
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError, closest
from hookline._engine.factories import Source, checked_arguments
from hookline._record.redaction import Redactor
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
    """Selects the categories of metrics that are recorded.

    Args:
        reward_metrics: Those of `log_reward_metrics` and `log_reward`.
        generation_metrics: Those of `log_generation_metrics`.
        validation_metrics: Those of `log_validation_metrics`.
        resource_metrics: Those of `log_memory_usage`.
    """

    reward_metrics: bool = True
    generation_metrics: bool = True
    validation_metrics: bool = True
    resource_metrics: bool = True


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """The section ``metrics:`` of a configuration: which metrics are recorded, and how often.

    Args:
        logging_frequency: In steps, for `log_training_progress`, `log_reward_metrics`, and `log_memory_usage` with a
            step: rows of steps that are not a multiple of it are left out. `log_training_progress` still records rows
            with a new metric, and the last value of each metric, at `shutdown` at the latest.
        validation_frequency: In steps, for `validation_due`; None if validation is never due. Metrics given to
            `log_validation_metrics` are always recorded.
        sampling_ratio: The share of steps, from 0 to 1, for which `log_generation_metrics` computes its metrics.
        trend_window: Over how many recorded points the trend of a reward is computed.
        enable: The categories. Model outputs are not metrics: `log_model_output` records every one.
    """

    logging_frequency: int = 1
    validation_frequency: int | None = None
    sampling_ratio: float = 1.0
    trend_window: int = 50
    enable: Categories = field(default_factory=Categories)

    def __post_init__(self) -> None:
        require_integer("logging_frequency", self.logging_frequency)
        require_integer("validation_frequency", self.validation_frequency, optional=True)
        require_number("sampling_ratio", self.sampling_ratio, minimum=0, maximum=1)
        require_integer("trend_window", self.trend_window, minimum=2)

    def is_due(self, step: int) -> bool:
        """Return whether the metrics of a step are recorded."""
        return step % self.logging_frequency == 0

    def validation_due(self, step: int) -> bool:
        """Return whether validation is due after this many completed steps."""
        if self.validation_frequency is None or not self.enable.validation_metrics:
            return False
        return step > 0 and step % self.validation_frequency == 0

    def is_sampled(self, step: int) -> bool:
        """Return whether expensive metrics are computed for a step.

        Multiples of the golden ratio are spread evenly over all steps and over every n-th of them, so the share is
        right however often this is called. It depends on the step alone: all ranks and a resumed run decide alike, and
        no random state is changed.
        """
        return (step * _GOLDEN % _WORD) < self.sampling_ratio * _WORD


_SECTIONS = (
    "version",
    "disable_existing_loggers",
    "root",
    "loggers",
    "handlers",
    "formatters",
    "filters",
    "metrics",
    "redact",
)
_LOGGER_KEYS = ("level", "handlers", "filters", "propagate")
_HANDLER_KEYS = ("class", "()", "level", "formatter", "filters", ".")
_FORMATTER_KEYS = ("format", "datefmt", "style", "validate", "class", "fields")
_NUMBERS = {"maxBytes", "backupCount", "capacity", "interval"}
_CLASSES = ("CSVHandler", "TensorBoardHandler")
_CUSTOM = "logging.custom."


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked configuration in the form that `DictConfigurator` accepts, and the settings of metrics."""

    dictionary: dict[str, Any]
    settings: MetricSettings
    source: Source
    redactor: Redactor


def read_plan(config: str | Path | Mapping[str, Any] | None) -> Plan:
    """Read and check a file, a dict or the default.

    Raises:
        ConfigError: Something in it is wrong; the message names the position and what is accepted.
    """
    source = read_source(DEFAULT if config is None else config)
    return _Checker(source).plan()


class _Checker:
    """Checks a configuration in one pass, and converts it to the form of the standard library."""

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
        return Plan(checked, self.settings(data.get("metrics")), self.source, self.redactor(data.get("redact")))

    def redactor(self, given: Any) -> Redactor:
        try:
            return Redactor(given)
        except OptionError as error:
            raise self.source.error("redact", str(error)) from error

    def loggers(self, data: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, each in self.items(data, "loggers"):
            topic = self.topic(name)
            if topic in found:
                raise self.source.error(f"loggers.{name}", f"{topic} is given twice, under both of its names.")
            found[topic] = self.logger(f"loggers.{name}", each)
        return found

    def topic(self, name: str) -> str:
        """Return the logger's name for either of a topic's names; an unknown topic is an error."""
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
        if not issubclass(kind, logging.handlers.QueueHandler):  # its configuration differs from its arguments
            arguments = checked_arguments(kind, arguments, self.source, path)
        if kind.__module__ == logging.handlers.__name__:
            self.numbers(path, arguments)
        settings = {key: value for key, value in handler.items() if key in _HANDLER_KEYS}
        return {**settings, **arguments, "class": name}

    def class_name(self, path: str, name: str) -> str:
        """Return the name from which a handler's class can be imported."""
        custom = name.removeprefix(_CUSTOM)
        if custom != name and custom not in _CLASSES:
            raise self.source.error(path, f"{name!r} is not a handler class. {closest(custom, _CLASSES)}")
        return f"hookline.logging.{custom}" if custom != name else name

    def handler_class(self, path: str, name: str) -> type[logging.Handler]:
        try:
            kind = self.resolve(name)
        except (ValueError, ImportError) as error:
            why = f"{error.__cause__ or error}. {_closest_class(name)}".rstrip()
            raise self.source.error(path, f"{name!r} cannot be imported: {why}") from error
        if not isinstance(kind, type) or not issubclass(kind, logging.Handler):
            raise self.source.error(path, f"{name!r} is {kind!r}, which is not a handler class.")
        return kind

    def numbers(self, path: str, arguments: Mapping[str, Any]) -> None:
        """Check the numbers of the standard library's handlers, whose arguments have no type annotations."""
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
                raise self.source.error(f"{section}.{name}", f"{name!r} is not a name: give a string.")
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
        """Check that a list contains known names; a filter may also be an object."""
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
    """Suggest a handler class for a wrong name, if its module is loaded."""
    module, _, _ = name.rpartition(".")
    found = vars(sys.modules[module]) if module in sys.modules else {}
    classes = {each for each, kind in found.items() if isinstance(kind, type) and issubclass(kind, logging.Handler)}
    return closest(name, {f"{module}.{each}" for each in classes}) if classes else ""

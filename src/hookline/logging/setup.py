"""`initialize` and `shutdown`: apply a logging configuration, and take it back.

A configuration is checked as a whole, then its handlers are built, and only then does it replace the previous one: a
failure leaves that in place. Loggers that a configuration does not name are not changed, and `shutdown` restores the
handlers, levels and filters of the named ones.

`find_undelivered` finds what handlers recorded and had not written when their process died. A handler's journal lies
beside the file or directory that it writes (see `hookline._record.outbox`); a journal that a living process delivers
from is skipped. It names the kind of handler and its columns; the path to write follows from where it lies, so a
journal from elsewhere cannot name another. A journal that no process of this user wrote needs explicit trust: it would
add rows to the file beside it.
"""

import atexit
import contextlib
import functools
import logging
import logging.config
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError, HooklineError, OptionError, RefusedError
from hookline._engine.factories import Source
from hookline._record import files, trust
from hookline._record.delivery import SinkState
from hookline._record.outbox import SETTINGS, TURN
from hookline._record.redaction import Redactor
from hookline.logging import functions
from hookline.logging.config import Plan, read_plan
from hookline.logging.handlers import (
    DRAIN_SECONDS,
    CSVHandler,
    OutboxHandler,
    RunHandler,
    TensorBoardHandler,
    outbox_directory,
)

logger = logging.getLogger("hookline")


def initialize(config: str | Path | Mapping[str, Any] | None = None, *, run: Any = None) -> None:
    """Configure logging; an earlier configuration is shut down first.

    Args:
        config: A YAML or JSON file, a dict, or None for the default: the console, ``logs/training.log`` and
            ``logs/model_outputs.csv``. See `hookline.logging.config` for the format.
        run: A run that also records the data of the ``log_*`` functions and the lines that are logged.

    Raises:
        ConfigError: The configuration is wrong. Nothing has changed.
    """
    global _setup
    if run is not None and not (hasattr(run, "recorder") and hasattr(run, "step")):
        raise OptionError(f"run={run!r}: give a run, as hl.run(...) makes it: with a recorder and a step.")
    plan = read_plan(config)
    with _changing:
        setup = Setup(plan, run)
        previous, _setup = _setup, None
        if previous is not None:
            previous.detach()
        try:
            setup.attach()
        except BaseException:
            setup.close(0.0)
            if previous is not None:
                previous.attach()
            _setup = previous
            raise
        _setup = setup
        if previous is not None:
            previous.close(DRAIN_SECONDS)
    _shut_down_at_exit()


def shutdown(seconds: float = DRAIN_SECONDS) -> None:
    """Record values that were held back, deliver what is left, and restore the loggers.

    The exit of the program does this as well. What is not delivered in time stays in journals beside the files; the
    next start or ``hookline runs sync`` delivers it.

    Args:
        seconds: The most time to wait for the delivery.
    """
    global _setup
    with _changing:
        setup, _setup = _setup, None
        if setup is not None:
            setup.detach()
            setup.close(seconds)


class Setup:
    """The handlers of a configuration, and the loggers they are attached to.

    Raises:
        ConfigError: A handler, formatter or filter cannot be built.
    """

    def __init__(self, plan: Plan, run: Any) -> None:
        self.state = functions.State(plan.settings, run)
        self.plan = plan
        self._before: dict[str, LoggerState] = {}
        self._configurator = _Configurator(plan.dictionary)
        self.handlers = self._configurator.build(plan.source)
        for handler in self.handlers:
            if isinstance(handler, OutboxHandler):
                handler.outbox.redact_with(plan.redactor)
            elif plan.redactor.is_active:
                handler.setFormatter(_RedactingFormatter(handler.formatter, plan.redactor))
        self._run_handler = RunHandler(run) if run is not None else None

    def attach(self) -> None:
        """Configure the loggers."""
        config = self.plan.dictionary
        disabled = _others(config["loggers"]) if config["disable_existing_loggers"] else []
        self._before = {name: LoggerState(name) for name in ("", *config["loggers"], *disabled)}
        for name in disabled:
            logging.getLogger(name).disabled = True
        for name, settings in config["loggers"].items():
            self._configurator.configure_logger(name, settings)
        if "root" in config:
            self._configurator.configure_root(config["root"])
        if self._run_handler is not None:
            for name in ("", *(each for each in config["loggers"] if not logging.getLogger(each).propagate)):
                logging.getLogger(name).addHandler(self._run_handler)
        if (own := self._run_redactor()) is not None:
            own.extend(self.plan.redactor)
        functions.replace(self.state)

    def _run_redactor(self) -> Redactor | None:
        run = self.state.run
        return getattr(getattr(run, "recording", None) or getattr(run, "recorder", None), "redactor", None)

    def detach(self) -> None:
        """Record values that were held back, and restore the loggers."""
        self.state.emit_held()
        for before in self._before.values():
            before.restore()
        self._before = {}
        if (own := self._run_redactor()) is not None:
            own.withdraw(self.plan.redactor)
        functions.replace(functions.State())

    def close(self, seconds: float) -> None:
        """Close the handlers; those that deliver share this time limit."""
        deadline = time.monotonic() + seconds
        for handler in self.handlers:
            if isinstance(handler, OutboxHandler):
                handler.drain_seconds = min(handler.drain_seconds, max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(OSError, ValueError):  # as `logging.shutdown` does
                handler.close()


class _RedactingFormatter(logging.Formatter):
    """Redacts what another formatter makes of a record, tracebacks included; the record itself is left alone."""

    def __init__(self, formatter: logging.Formatter | None, redactor: Redactor) -> None:
        super().__init__()
        self._formatter, self._redactor = formatter or logging.Formatter(), redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor(self._formatter.format(record))


class LoggerState:
    """The saved configuration of a logger."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._level, self._propagate, self._disabled = (
            self._logger.level,
            self._logger.propagate,
            self._logger.disabled,
        )
        self._handlers, self._filters = list(self._logger.handlers), list(self._logger.filters)

    def restore(self) -> None:
        """Restore the logger."""
        self._logger.setLevel(self._level)
        self._logger.propagate, self._logger.disabled = self._propagate, self._disabled
        self._logger.handlers[:], self._logger.filters[:] = self._handlers, self._filters


class _Configurator(logging.config.DictConfigurator):
    """Builds the parts of a configuration without changing a logger."""

    def build(self, source: Source) -> list[logging.Handler]:
        """Build the handlers; if one cannot be built, those before it are closed."""
        made: list[logging.Handler] = []
        try:
            for section, configure in (("formatters", self.configure_formatter), ("filters", self.configure_filter)):
                for name in list(self.config[section]):
                    with _located_errors(source, f"{section}.{name}"):
                        self.config[section][name] = configure(self.config[section][name])
            handlers = self.config["handlers"]
            # Handlers with a target come after the handlers they refer to.
            for name, settings in sorted(
                ((n, handlers[n]) for n in list(handlers)), key=lambda item: "target" in item[1]
            ):
                with _located_errors(source, f"handlers.{name}"):
                    if isinstance(settings.get("filename"), str | Path):
                        Path(settings["filename"]).absolute().parent.mkdir(parents=True, exist_ok=True)
                    handler = self.configure_handler(settings)
                handler.name = name
                made.append(handler)
                self.config["handlers"][name] = handler
        except BaseException:
            for handler in made:
                handler.close()
            raise
        return made


@contextlib.contextmanager
def _located_errors(source: Source, path: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        cause = error if isinstance(error, HooklineError) else error.__cause__ or error
        what = str(cause) if isinstance(cause, HooklineError) else f"{type(cause).__name__}: {cause}"
        raise source.error(path, f"cannot be built: {what}") from error


def _others(named: Mapping[str, Any]) -> list[str]:
    """Return the existing loggers that are neither named nor below a named one."""
    prefixes = tuple(f"{name}." for name in named)
    existing = [name for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)]
    return [name for name in existing if name not in named and not f"{name}.".startswith(prefixes)]


_changing = threading.RLock()
_setup: Setup | None = None


@functools.cache
def _shut_down_at_exit() -> None:
    """Shut down when the program exits; registered by the first `initialize`, not by the import."""
    atexit.register(shutdown)


DEPTH = 2
"""How many levels below a directory are searched for journals: a program's ``logs/`` and one below."""
_JOURNALS = ".*.journal"
_HANDLERS: dict[str, Callable[[Path, Any], OutboxHandler]] = {
    "csv": lambda path, settings: CSVHandler(path, settings["columns"]),
    "tensorboard": lambda path, settings: TensorBoardHandler(path),
}


@dataclass(frozen=True, slots=True)
class UndeliveredJournal:
    """A handler's journal that a dead process left.

    Args:
        directory: The journal's directory.
        path: The file or directory that the handler writes.
    """

    directory: Path
    path: Path

    def deliver(
        self, seconds: float, progress: Callable[[list[SinkState]], object], *, trusted: bool = False
    ) -> list[SinkState]:
        """Deliver it, for at most this long; returns the state of its sink.

        Args:
            trusted: Also deliver what was not left by a process of this user.
        """
        try:
            handler = self._handler(trusted=trusted)
        except HooklineError as error:
            return [SinkState(self.path.name, "refused", error=str(error))]
        states = handler.outbox.deliver_leftovers(seconds, progress)
        handler.close()
        return states

    def _handler(self, *, trusted: bool) -> OutboxHandler:
        saved, is_own = trust.read(self.directory / SETTINGS)
        if not (trusted or is_own):
            raise RefusedError(
                f"{self.directory} was not left by a process of this user, and asks for: path {self.path}. If you "
                f"trust it: hookline runs sync {self.directory} --trust"
            )
        if not trusted:
            trust.reject_outside_links(self.directory)
        try:
            make = _HANDLERS[saved["handler"]]
            return make(self.path, saved["settings"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise OptionError(f"{self.directory / SETTINGS} cannot be used: {type(error).__name__}: {error}") from error


def find_undelivered(path: Path) -> list[UndeliveredJournal]:
    """Find journals that dead processes left.

    Args:
        path: A file or directory that a handler writes, its journal, or a directory above such files.
    """
    path = path.resolve()
    if path.match(_JOURNALS):
        found = [path]
    elif path.name and outbox_directory(path).is_dir():
        found = [outbox_directory(path)]
    else:
        found = [each for depth in range(DEPTH + 1) for each in sorted(path.glob("[!.]*/" * depth + _JOURNALS))]
    journals = [each for each in found if (each / SETTINGS).is_file() and not files.is_locked(each / TURN)]
    return [UndeliveredJournal(each, each.with_name(each.name[1:].removesuffix(".journal"))) for each in journals]

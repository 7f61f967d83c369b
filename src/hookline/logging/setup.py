"""`initialize` and `shutdown`: puts a configuration of logging in force, and takes it back.

A configuration is checked whole, then its handlers are built, and only when that worked does it take
the place of the one before: a failure leaves that in force. Loggers that a configuration does not name
are left alone, and `shutdown` gives back the handlers, levels and filters that the named ones had before.

Finds and delivers what handlers of `hookline.logging` recorded and had not written when their process died.

A handler's journal lies beside the file or directory that it writes (see `Spool`). One that a living process delivers
from is not left over. The journal says which kind of handler wrote it and its columns; the place to write to follows
from where the journal lies, so that a journal from elsewhere cannot name another. One that this user's own process did
not write needs explicit trust: it would add its rows to the file beside it.
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
    """Set up logging; a set-up that is in force is shut down first.

    Args:
        config: A YAML or JSON file, a dict, or None for the default: the console, ``logs/training.log`` and
            ``logs/model_outputs.csv``. See `hookline.logging.config` for what it holds.
        run: A run to record to as well: what the ``log_*`` functions are given, and the lines that are logged.

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
        setup.start()
    _shut_down_at_exit()


def shutdown(seconds: float = DRAIN_SECONDS) -> None:
    """Record what was held back, deliver what is left, and give the loggers back as they were.

    An ordinary end of the program does it too. What is not delivered in time stays in journals beside the files;
    the next start or ``hookline runs sync`` delivers it.

    Args:
        seconds: How long to wait for that, at most.
    """
    global _setup
    with _changing:
        setup, _setup = _setup, None
        if setup is not None:
            setup.detach()
            setup.close(seconds)


class Setup:
    """The handlers of a configuration, and the loggers that they are attached to.

    Raises:
        ConfigError: A handler, formatter or filter cannot be built.
    """

    def __init__(self, plan: Plan, run: Any) -> None:
        self.state = functions.State(plan.settings, run)
        self.plan = plan
        self._before: dict[str, LoggerState] = {}
        self._configurator = _Configurator(plan.dictionary)
        self.handlers = self._configurator.build(plan.source)
        self._run_handler = RunHandler(run) if run is not None else None

    def attach(self) -> None:
        """Put it in force."""
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
        functions.replace(self.state)

    def start(self) -> None:
        """Begin to deliver, also what an earlier process left; where that fails, the first record tries again."""
        for handler in self.handlers:
            if isinstance(handler, OutboxHandler):
                try:
                    handler.start()
                except OSError as error:
                    logger.warning("%s cannot begin to deliver: %s", handler.name, error)

    def detach(self) -> None:
        """Give the loggers back as they were, after what was held back has been recorded."""
        self.state.emit_held()
        for before in self._before.values():
            before.restore()
        self._before = {}
        functions.replace(functions.State())

    def close(self, seconds: float) -> None:
        """Close the handlers, those that deliver within so many seconds in all."""
        deadline = time.monotonic() + seconds
        for handler in self.handlers:
            if isinstance(handler, OutboxHandler):
                handler.drain_seconds = min(handler.drain_seconds, max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(OSError, ValueError):  # as the standard library does at its end
                handler.close()


class LoggerState:
    """How a logger was, so that it can be so again."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._level, self._propagate, self._disabled = (
            self._logger.level,
            self._logger.propagate,
            self._logger.disabled,
        )
        self._handlers, self._filters = list(self._logger.handlers), list(self._logger.filters)

    def restore(self) -> None:
        """Make the logger what it was."""
        self._logger.setLevel(self._level)
        self._logger.propagate, self._logger.disabled = self._propagate, self._disabled
        self._logger.handlers[:], self._logger.filters[:] = self._handlers, self._filters


class _Configurator(logging.config.DictConfigurator):
    """Builds the parts of a configuration without touching a logger."""

    def build(self, source: Source) -> list[logging.Handler]:
        """The handlers; where one cannot be built, those that were are closed."""
        made: list[logging.Handler] = []
        try:
            self._make("formatters", self.configure_formatter, source)
            self._make("filters", self.configure_filter, source)
            for name, settings in _targets_first(self.config["handlers"]):
                with _pointing_to(source, f"handlers.{name}"):
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

    def _make(self, section: str, make: Any, source: Source) -> None:
        for name in list(self.config[section]):
            with _pointing_to(source, f"{section}.{name}"):
                self.config[section][name] = make(self.config[section][name])


def _targets_first(handlers: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The handlers, those that refer to another behind the rest."""
    return sorted(((name, handlers[name]) for name in list(handlers)), key=lambda item: "target" in item[1])


@contextlib.contextmanager
def _pointing_to(source: Source, path: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        cause = error if isinstance(error, HooklineError) else error.__cause__ or error
        what = str(cause) if isinstance(cause, HooklineError) else f"{type(cause).__name__}: {cause}"
        raise source.error(path, f"cannot be built: {what}") from error


def _others(named: Mapping[str, Any]) -> list[str]:
    """The loggers that exist and are neither named nor below one that is."""
    prefixes = tuple(f"{name}." for name in named)
    existing = [name for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)]
    return [name for name in existing if name not in named and not f"{name}.".startswith(prefixes)]


_changing = threading.RLock()
_setup: Setup | None = None


@functools.cache
def _shut_down_at_exit() -> None:
    """Shut down when the program ends; asked for by the first `initialize`, not by the import."""
    atexit.register(shutdown)


DEPTH = 2
"""How many levels below a directory journals are looked for: a program's ``logs/`` and one below."""
_JOURNALS = ".*.journal"
_HANDLERS: dict[str, Callable[[Path, Any], OutboxHandler]] = {
    "csv": lambda path, settings: CSVHandler(path, settings["columns"]),
    "tensorboard": lambda path, settings: TensorBoardHandler(path),
}


@dataclass(frozen=True, slots=True)
class UndeliveredJournal:
    """A journal that a dead process left.

    Args:
        directory: The journal.
        path: The file or directory that its handler writes.
    """

    directory: Path
    path: Path

    def deliver(
        self, seconds: float, progress: Callable[[list[SinkState]], object], *, trusted: bool = False
    ) -> list[SinkState]:
        """Deliver it for so long at most; how its sink stands then.

        Args:
            trusted: Deliver also what was not left by one of this user's own processes.
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


def find_undelivered(place: Path) -> list[UndeliveredJournal]:
    """The journals left over at a place.

    Args:
        place: A file or directory that a handler writes, its journal, or a directory that such lie in or below.
    """
    place = place.resolve()
    if place.match(_JOURNALS):
        found = [place]
    elif place.name and outbox_directory(place).is_dir():
        found = [outbox_directory(place)]
    else:
        found = [each for depth in range(DEPTH + 1) for each in sorted(place.glob("[!.]*/" * depth + _JOURNALS))]
    journals = [each for each in found if (each / SETTINGS).is_file() and not files.is_locked(each / TURN)]
    return [UndeliveredJournal(each, each.with_name(each.name[1:].removesuffix(".journal"))) for each in journals]

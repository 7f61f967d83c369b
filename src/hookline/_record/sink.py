"""`Sink`: a destination for records, and how sinks are named and built.

A sink is a dataclass whose fields are its settings. It opens nothing before `open`, so it can be copied, sent to
another process, and saved for a later delivery. A delivery calls it from one thread at a time:

- `open` with the state that was saved last (None the first time). What it returns is saved before anything is written.
- `write` with batches of journal entries, in order. What it returns is saved together with the cursor: then the batch
  counts as delivered and does not come again. An exception means that nothing of the batch counts: the sink is closed,
  opened again with the last state, and gets the batch again. A sink makes that harmless: it truncates what lies after
  its state, or marks what it sends with the entry's ``id``. A resume mark comes in a batch of its own.
- `beat` about once a second while the training process lives, whether or not there are new records.
- `close` at the end, and after an exception; more than once is fine.

A state that is a dict may have ``left_out``: how many values the destination did not accept or cannot show, and
``blobs_left_out``: how many images, files and other blobs of them it does not have.
``hookline runs sync`` and ``runs verify`` show it. `ids` returns, from a saved state and in any process, the
destination's ids of the run.

`RefusedError` means that retrying is useless until the settings change. Any other exception counts as temporary.
"""

import dataclasses
import functools
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hookline._engine.errors import ConfigError, HooklineError, OptionError, UnknownNameError
from hookline._engine.factories import Source, checked_arguments, import_object, split_entry
from hookline._engine.registry import Registry
from hookline._record.reader import JournalEntry

_VARIABLE = re.compile(r"\$\{(\w+)\}")
SINKS = Registry(builtin_modules=("hookline.sinks",), group="hookline.sinks")
register_sink = SINKS.register


class Sink(ABC):
    """A destination that is fed from a run's journal. Subclasses are dataclasses."""

    batch_records: ClassVar[int] = 500
    """The most records that `write` gets at once."""

    repairs: ClassVar[bool] = False
    """Whether `open` asks the destination what it holds, and delivers again what it has lost.

    ``hookline runs sync RUN`` opens such a sink even if everything has been delivered.
    """

    sent_again_bytes = 0
    """How much was delivered again because the destination had lost it."""

    name: str | None = None
    """The sink's name in its run; its registered name by default."""

    def check(self) -> None:  # noqa: B027 - few sinks have something to check
        """Raise an error if the settings are wrong; called when the run starts, and must not wait for anything."""

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        """Describe what a sink with these settings uses besides files at its paths: a server, a port, credentials.

        ``hookline runs sync`` obeys settings from a directory of unknown origin only if this is empty and they contain
        neither environment variables nor paths outside of the run's directory.
        """
        return [f"whatever {cls.__name__} delivers to"]

    def check_foreign(self, run_dir: Path, state: Any) -> None:  # noqa: B027 - few states name paths
        """Raise `RefusedError` if a saved state, which another user may have written, names a path to write to."""

    def open(self, run_dir: Path, state: Any) -> Any:
        """Open the destination, continuing from the state saved last, and return the state to save now."""
        return state

    def find_loss(self, run_dir: Path, state: Any) -> str:
        """Return why the destination has lost what it had at a state, or an empty string if it has not.

        Called before `open`, and by ``hookline runs verify`` and ``sync``. Changes nothing and reads little.
        """
        return ""

    def set_aside(self, run_dir: Path, state: Any) -> None:  # noqa: B027 - most have nothing to move
        """Move the rest of a damaged destination (see `find_loss`) out of the way of a new delivery."""

    def is_intact(self) -> bool:
        """Return whether the open destination still has what was delivered, as far as a system call or two can tell.

        Called about twice a second on the thread that delivers. If not, the sink is closed and opened again.
        """
        return True

    def has_lost(self, run_dir: Path, state: Any) -> bool:
        """Return whether the destination has lost what it had at a state, so that everything is delivered again.

        Called before `open`, which then gets no state: it must not be confused by what is left of the destination.
        """
        return False

    @abstractmethod
    def write(self, entries: Sequence[JournalEntry], /) -> Any:
        """Deliver a batch, and return the state to continue from: anything that JSON can represent."""

    def beat(self) -> None:  # noqa: B027 - few sinks have a heartbeat
        """Do periodic work while the training process lives."""

    def close(self) -> None:  # noqa: B027 - a sink need not hold anything
        """Release the resources acquired by `open`."""

    def ids(self, state: Any) -> dict[str, str]:
        """Return the destination's own ids of the run, e.g. ``{"run_id": ...}``, from a saved state.

        The sink itself may never have been opened: another process may deliver.
        """
        return {}

    def spec(self) -> dict[str, Any]:
        """Return the settings from which `make_sink` builds the sink again, without secrets."""
        settings: dict[str, Any] = {}
        if dataclasses.is_dataclass(self):
            for item in dataclasses.fields(self):
                value = getattr(self, item.name)
                if item.init and value != item.default:
                    if isinstance(value, Path):
                        value = str(value)
                    elif inspect.isroutine(value) or isinstance(value, type):
                        value = import_path(value)
                    settings[item.name] = value
        return {"use": _registered_name(type(self)), "with": settings}


def make_sinks(given: Iterable[Any]) -> dict[str, Sink]:
    """Build sinks, by name; a second one of a name gets a number."""
    if isinstance(given, str | Mapping | Sink) or not isinstance(given, Iterable):
        raise OptionError(f"sinks={given!r}: give a list of sinks.")
    made: dict[str, Sink] = {}
    for sink in map(make_sink, given):
        base = sink.name or _registered_name(type(sink)).rpartition(":")[2]
        name = next(name for name in (base, *(f"{base}_{n}" for n in range(2, len(made) + 3))) if name not in made)
        if not name.replace("-", "_").replace(".", "_").isidentifier():
            raise OptionError(f"{name!r} cannot be a sink's name: give letters, digits, '-', '_' and '.'.")
        _reject_duplicate(name, sink, made)
        made[name] = sink
    return made


def _reject_duplicate(name: str, sink: Sink, made: Mapping[str, Sink]) -> None:
    # Sinks with the same settings would overwrite each other. None is a function without an import path: those differ.
    spec = _unnamed_spec(sink)
    twins = [] if None in spec["with"].values() else [other for other in made if _unnamed_spec(made[other]) == spec]
    if twins:
        raise OptionError(f"sinks: {twins[0]!r} and {name!r} are the same sink. Give one of them other settings.")
    path = getattr(sink, "path", None)
    sharing = [other for other in made if path is not None and getattr(made[other], "path", None) == path]
    if sharing:
        raise OptionError(f"sinks: {sharing[0]!r} and {name!r} would write to one file, {path}. Give each its own.")


def _unnamed_spec(sink: Sink) -> dict[str, Any]:
    spec = sink.spec()
    return spec | {"with": {key: value for key, value in spec["with"].items() if key != "name"}}


def make_sink(given: Any) -> Sink:
    """Build a sink from an instance, a name (``"csv"``), a mapping (``{"csv": {...}}``) or a logger function."""
    if isinstance(given, Sink):
        return given
    if isinstance(given, str | Mapping):
        return _build(*split_entry(given, "a sink"))
    if callable(given) and not isinstance(given, type):
        return _build("function", {"function": given})
    raise OptionError(f"{given!r} is not a sink: give a name such as 'csv', a mapping, a Sink, or a function.")


def _build(name: str, arguments: Mapping[str, Any]) -> Sink:
    try:
        factory = _find(name)
    except UnknownNameError as error:
        raise ConfigError(f"sinks: {error}") from error
    sink = factory(**checked_arguments(factory, arguments, Source(arguments), f"sinks.{name}"))
    if not isinstance(sink, Sink):
        raise ConfigError(f"sinks: {name!r} gives {sink!r}, which is not a Sink.")
    return sink


def can_repair(spec: Mapping[str, Any]) -> bool:
    """Return whether the sink of a spec `repairs`, without building it; False if it cannot be found."""
    try:
        return bool(getattr(_find(str(spec.get("use"))), "repairs", False))
    except HooklineError:
        return False


def external_access(spec: Mapping[str, Any], run_dir: Path) -> list[str]:
    """Describe what a sink of this spec would use outside of its run's directory, without importing anything."""
    name, given = str(spec.get("use")), spec.get("with")
    settings: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    # Before `_find`, which would import it.
    if ":" in name:
        return [f"import {name}"]
    kind = _find(name)
    access = [f"variable {found}" for found in sorted(set(_VARIABLE.findall(json.dumps(settings))))]
    if not isinstance(kind, type) or not issubclass(kind, Sink) or not dataclasses.is_dataclass(kind):
        return [*access, f"whatever {name} delivers to"]
    for item in dataclasses.fields(kind):
        value = settings.get(item.name)
        if (
            value is not None
            and "Path" in str(item.type)
            and not (isinstance(value, str) and Path(value).resolve().is_relative_to(run_dir.resolve()))
        ):
            access.append(f"path {value}")
    return kind.uses(settings) + access


def _find(name: str) -> Callable[..., Any]:
    """Find a sink's factory: a registered name, or a class at ``package.module:Name``."""
    if ":" not in name:
        return SINKS.find(name)
    found = import_object(name)
    if not isinstance(found, type) or not issubclass(found, Sink):  # a configuration must not call arbitrary functions
        raise UnknownNameError(f"{name!r} is {found!r}, which is not a subclass of Sink.")
    return found


@functools.cache
def _registered_name(kind: type[Sink]) -> str:
    """Return the name by which `make_sink` finds a class: its registered name, or its import path."""
    for name in SINKS.names():
        if SINKS.find(name) is kind:
            return name
    return f"{kind.__module__}:{kind.__qualname__}"


def import_path(function: Callable[..., Any]) -> str | None:
    """Return the path from which a function can be imported, or None."""
    path = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    try:
        return path if import_object(path) is function else None
    except UnknownNameError:
        return None

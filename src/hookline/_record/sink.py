"""`Sink`: a destination for records, and how sinks are named and built.

A sink is a data class whose fields are its settings. It opens nothing until it is told to, so it can
be copied, sent to another process, and written down for a later delivery. The courier calls it from
one thread at a time:

- `open` with the state that was saved last (None the first time); what it returns is saved before
  anything is written.
- `write` with batches of parcels, in order. What it returns is saved together with the cursor: then
  the batch counts as delivered and is not given again. An exception means that nothing of the batch
  counts: the sink is closed, opened again with the last state, and the batch comes again. A sink
  makes that harmless: it cuts off what lies behind its state, or marks what it sends with the
  parcel's ``id``. A resume mark comes in a batch of its own.
- `beat` about once a second while the training process lives, whether or not there is news;
- `close` at the end, and after an exception; more than once is fine.

A state that is a dict may have ``left_out``: how many values of delivered rows the destination did not take.
`hookline runs sync` and `runs verify` show it.

`ids` tells from a saved state, in whatever process, what the destination calls the run.

`RefusedError` says that it is no use to go on as things are set up. Any other exception is taken for
a fault that may pass.
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
    """A destination that is fed from a run's journal. Subclasses are data classes."""

    batch_records: ClassVar[int] = 500
    """How many records `write` is given at most."""

    mends: ClassVar[bool] = False
    """Whether `open` finds out what the destination holds, and brings it again what was delivered and got lost there.

    Such a sink is opened by `hookline runs sync RUN` even where nothing waits.
    """

    sent_again_bytes = 0
    """How much `open` brought again."""

    name: str | None = None
    """What the sink is called in its run; its registered name, where none is given."""

    def check(self) -> None:  # noqa: B027 - few sinks have something to check
        """Raise what is wrong with the settings, when the run begins, without waiting for anything."""

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        """What a sink with these settings uses besides files at its paths, in words: a server, a port, credentials.

        `hookline runs sync` obeys settings that it finds in a directory of unknown origin only where nothing is named
        here, and neither variables of the environment nor paths outside of the run's directory are in them.
        """
        return [f"whatever {cls.__name__} delivers to"]

    def check_foreign(self, run_dir: Path, state: Any) -> None:  # noqa: B027 - few states name places
        """Raise `RefusedError` if a saved state that another user may have written names a place to write to."""

    def open(self, run_dir: Path, state: Any) -> Any:
        """Begin, or go on from the state that was saved last, and return the state to save now."""
        return state

    def find_loss(self, run_dir: Path, state: Any) -> str:
        """Why the destination does not have any more what it had by a state, in words; empty where it seems to have it.

        Nothing is changed, and little is read: it is asked before `open`, and by ``hookline runs verify`` and ``sync``.
        """
        return ""

    def set_aside(self, run_dir: Path, state: Any) -> None:  # noqa: B027 - most have nothing to put away
        """Put away what is left of a destination of which `find_loss` tells: everything is delivered to it again."""

    def is_intact(self) -> bool:
        """Whether the open destination still has what was delivered, as far as a system call or two can tell.

        It is asked about twice a second, on the thread that delivers; if not, the sink is closed and opened again.
        """
        return True

    def has_lost(self, run_dir: Path, state: Any) -> bool:
        """Whether the destination is without what it had by a state, so that everything has to be delivered again.

        Called before `open`, which then gets no state: what is left of a damaged destination must be out of its way.
        """
        return False

    @abstractmethod
    def write(self, parcels: Sequence[JournalEntry]) -> Any:
        """Deliver a batch, and return the state to go on from behind it: anything that JSON can hold."""

    def beat(self) -> None:  # noqa: B027 - few sinks have a heartbeat
        """Do what has to be done from time to time while the training process lives."""

    def close(self) -> None:  # noqa: B027 - a sink need not hold anything
        """Let go of what `open` took."""

    def ids(self, state: Any) -> dict[str, str]:
        """The destination's own ids of the run, say ``{"run_id": ...}``, by a state that `open` or `write` returned.

        The sink itself may never have been opened: another process may deliver.
        """
        return {}

    def spec(self) -> dict[str, Any]:
        """The settings from which `make_sink` builds the sink again; what must not be written down is left out."""
        settings: dict[str, Any] = {}
        if dataclasses.is_dataclass(self):
            for item in dataclasses.fields(self):
                value = getattr(self, item.name)
                if item.init and value != item.default:
                    settings[item.name] = _written(value)
        return {"use": _use(type(self)), "with": settings}


def make_sinks(given: Iterable[Any]) -> dict[str, Sink]:
    """The sinks by name; a second one of a name gets a number."""
    if isinstance(given, str | Mapping | Sink) or not isinstance(given, Iterable):
        raise OptionError(f"sinks={given!r}: give a list of sinks.")
    made: dict[str, Sink] = {}
    for sink in map(make_sink, given):
        base = sink.name or _use(type(sink)).rpartition(":")[2]
        name = next(name for name in (base, *(f"{base}_{n}" for n in range(2, len(made) + 3))) if name not in made)
        if not name.replace("-", "_").replace(".", "_").isidentifier():
            raise OptionError(f"{name!r} cannot be a sink's name: give letters, digits, '-', '_' and '.'.")
        _refuse_twin(name, sink, made)
        made[name] = sink
    return made


def _refuse_twin(name: str, sink: Sink, made: Mapping[str, Sink]) -> None:
    """Two sinks with the same settings would write over each other; only functions that have no place may be two."""
    place = _place(sink)
    twins = [] if None in place["with"].values() else [other for other in made if _place(made[other]) == place]
    if twins:
        raise OptionError(
            f"sinks: {twins[0]!r} and {name!r} are one sink given twice. Give one of them other settings."
        )
    path = getattr(sink, "path", None)
    sharing = [other for other in made if path is not None and getattr(made[other], "path", None) == path]
    if sharing:
        raise OptionError(f"sinks: {sharing[0]!r} and {name!r} would write to one file, {path}. Give each its own.")


def _place(sink: Sink) -> dict[str, Any]:
    spec = sink.spec()
    return spec | {"with": {key: value for key, value in spec["with"].items() if key != "name"}}


def make_sink(given: Any) -> Sink:
    """A sink from an instance, a name (``"csv"``), a mapping (``{"csv": {...}}``) or a logger function."""
    if isinstance(given, Sink):
        return given
    if isinstance(given, str | Mapping):
        return _build(*split_entry(given, "a sink"))
    if callable(given) and not isinstance(given, type):
        return _build("function", {"function": given})
    raise OptionError(f"{given!r} is not a sink: give a name such as 'csv', a mapping, a Sink, or a function.")


def _build(name: str, arguments: Mapping[str, Any]) -> Sink:
    try:
        factory = _found(name)
    except UnknownNameError as error:
        raise ConfigError(f"sinks: {error}") from error
    sink = factory(**checked_arguments(factory, arguments, Source(arguments), f"sinks.{name}"))
    if not isinstance(sink, Sink):
        raise ConfigError(f"sinks: {name!r} gives {sink!r}, which is no Sink.")
    return sink


def can_repair(spec: Mapping[str, Any]) -> bool:
    """Whether the sink of a spec `mends`; it is not built, and one that cannot be found does not."""
    try:
        return bool(getattr(_found(str(spec.get("use"))), "mends", False))
    except HooklineError:
        return False


def external_access(spec: Mapping[str, Any], run_dir: Path) -> list[str]:
    """What a sink of this spec would use outside of its run's directory, in words; nothing is imported to find out."""
    name, given = str(spec.get("use")), spec.get("with")
    settings: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    if ":" in name:
        return [f"import {name}"]
    kind = _found(name)
    wishes = [f"variable {found}" for found in sorted(set(_VARIABLE.findall(json.dumps(settings))))]
    if not isinstance(kind, type) or not issubclass(kind, Sink) or not dataclasses.is_dataclass(kind):
        return [*wishes, f"whatever {name} delivers to"]
    for item in dataclasses.fields(kind):
        value = settings.get(item.name)
        if value is not None and "Path" in str(item.type) and not _is_inside(value, run_dir):
            wishes.append(f"path {value}")
    return kind.uses(settings) + wishes


def _is_inside(path: Any, run_dir: Path) -> bool:
    return isinstance(path, str) and Path(path).resolve().is_relative_to(run_dir.resolve())


def _found(name: str) -> Callable[..., Any]:
    return _imported(name) if ":" in name else SINKS.find(name)


def _imported(name: str) -> type[Sink]:
    """The class of sinks at ``package.module:Name``; a configuration must not be able to call just anything."""
    found = import_object(name)
    if not isinstance(found, type) or not issubclass(found, Sink):
        raise UnknownNameError(f"{name!r} is {found!r}, which is no subclass of Sink.")
    return found


@functools.cache
def _use(kind: type[Sink]) -> str:
    """How a class of sinks is found again: by its registered name, or by where it is defined."""
    for name in SINKS.names():
        if SINKS.find(name) is kind:
            return name
    return f"{kind.__module__}:{kind.__qualname__}"


def _written(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if inspect.isroutine(value) or isinstance(value, type):
        return import_path(value)
    return value


def import_path(function: Callable[..., Any]) -> str | None:
    """Where a function can be imported from, or None where it cannot."""
    place = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    try:
        return place if import_object(place) is function else None
    except UnknownNameError:
        return None

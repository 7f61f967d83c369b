"""`Subscriber`: the common base of callbacks and hooks, and the options they are added with.

Options are settled when a subscriber is added: `add()` takes precedence over `configure()`, which takes precedence over
attributes. ``name``, ``priority``, ``critical``, ``background`` and ``ranks`` are read from the instance. ``every``,
``start``, ``when``, ``before``, ``after`` and ``budget`` are read from the class only, because users give attributes of
their own these names. An instance's ``every`` or ``when`` that could be a cadence is used if the class has one too, and
refused otherwise: ignoring it would go unnoticed.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from hookline._engine.errors import OptionError, closest
from hookline._engine.schedules import Schedule, cadence

WRITER_PRIORITY = -100
"""The default priority of subscribers that write: they run last and see what the others added."""


def snake_case(name: str) -> str:
    """Convert a class's name to a subscriber's name.

    >>> snake_case("NaNGuard"), snake_case("TerminateOnNaN"), snake_case("HTTPStatusHook")
    ('nan_guard', 'terminate_on_nan', 'http_status_hook')
    """
    joined = name.replace("NaN", "Nan")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", joined).lower().strip("_")


class _DefaultName:
    """The default of `Subscriber.name` until one is assigned: `_default_name`, or the class's name."""

    def __get__(self, instance: object, owner: type) -> str:
        for holder in (instance, owner):
            default: str | None = getattr(holder, "__dict__", {}).get("_default_name")
            if default:
                return default
        return snake_case(owner.__name__)


class Subscriber:
    """The base class of everything that can be added to a collection."""

    name: str = cast(str, _DefaultName())
    priority: float = 0
    critical: bool = False
    background: bool = False
    ranks: str = "all"
    every: ClassVar[int | Schedule | None] = None
    start: ClassVar[int] = 0
    when: ClassVar[Callable[[Any], object] | None] = None
    before: ClassVar[Any] = ()
    after: ClassVar[Any] = ()
    budget: ClassVar[float | None] = None

    _default_name: str | None = None

    def configure(self, **options: Any) -> Self:
        """Set options on this instance and return it: ``CsvMetrics().configure(every=10)``."""
        settled = {key: checked_option(type(self).__name__, key, value) for key, value in options.items()}
        self.__dict__["_configured"] = {**configured(self), **settled}
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint must hold to resume this subscriber."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    def close(self) -> None:
        """Release resources; called once at the end, also after a failure and if disabled."""


Reference = str | type


@dataclass(frozen=True, slots=True)
class Options:
    """The settled options of one subscriber."""

    name: str
    named: bool
    priority: float
    critical: bool
    background: bool
    ranks: str
    schedule: Schedule | None
    before: tuple[Reference, ...]
    after: tuple[Reference, ...]
    budget: float | None

    @classmethod
    def settle(cls, subscriber: Subscriber, given: Mapping[str, Any]) -> "Options":
        """Check the given options and combine them with the subscriber's own."""
        who = type(subscriber).__name__
        explicit = {**configured(subscriber), **given}
        options = {**_own(subscriber), **_own_cadence(subscriber, explicit), **explicit}
        settled = {key: checked_option(who, key, value) for key, value in options.items()}
        schedule = cadence(settled.pop("every"), settled.pop("start"), settled.pop("when"))
        named = any("name" in source for source in (given, configured(subscriber), vars(subscriber)))
        return cls(named=named, schedule=schedule, **settled)


def _own(subscriber: Subscriber) -> dict[str, Any]:
    """Return the options that are attributes of the instance or of its class."""
    kind = type(subscriber)
    if not issubclass(kind, Subscriber):  # a stand-in such as a MagicMock(spec=Hook), whose attributes are mocks
        own = {key: getattr(Subscriber, key) for key in OPTION_NAMES} | {"name": snake_case(kind.__name__)}
        return own | {key: value for key, value in vars(subscriber).items() if key in _INSTANCE_OPTIONS}
    own = {key: getattr(subscriber if key in _INSTANCE_OPTIONS else type(subscriber), key) for key in OPTION_NAMES}
    when = own["when"]
    parameters = getattr(getattr(when, "__code__", None), "co_argcount", 0) - len(
        getattr(when, "__defaults__", None) or ()
    )
    if parameters == 2:  # written as a method: when(self, loop)
        own["when"] = when.__get__(subscriber)
    return own


def _own_cadence(subscriber: Subscriber, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``every`` and ``when`` that were set on the instance and are certainly a cadence.

    Raises:
        OptionError: One is a whole number, or a function, which may be a cadence or something else.
    """
    found = {}
    for key in ("every", "when"):
        value = vars(subscriber).get(key)
        if value is None or key in explicit:
            continue
        if getattr(type(subscriber), key) is not None or isinstance(value, Schedule):
            found[key] = value
        elif callable(value) if key == "when" else isinstance(value, int) and not isinstance(value, bool):
            raise OptionError(
                f"{type(subscriber).__name__}: self.{key} = {value!r} is set on the instance, where it is not an "
                f"option. For a cadence, write self.configure({key}=...) or add(callback, {key}=...); for an attribute "
                "of your own, use another name."
            )
    return found


def checked_option(who: str, key: str, value: Any) -> Any:
    """Check the value of an option and return it as the engine keeps it."""
    if key not in _CHECKS:
        raise OptionError(f"{who}: unknown option {key}={value!r}. {closest(key, OPTION_NAMES)}")
    try:
        return _CHECKS[key](value)
    except OptionError as error:
        raise OptionError(f"{who}: {error}") from None


def configured(subscriber: Subscriber) -> dict[str, Any]:
    """Return the options that `configure` set on this instance."""
    options: dict[str, Any] = vars(subscriber).get("_configured", {})
    return options


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or "/" in value or value != value.strip():
        raise OptionError(f"name={value!r}; give a non-empty string without '/' or surrounding spaces.")
    return value


def _priority(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise OptionError(f"priority={value!r}; give a number, higher runs earlier.")
    return value


def _boolean(key: str) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise OptionError(f"{key}={value!r}; give True or False.")
        return value

    return check


def _ranks(value: Any) -> str:
    if value not in ("all", "zero"):
        raise OptionError(f"ranks={value!r}; give 'all' or 'zero'.")
    return str(value)


def _cadence_part(key: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        cadence(**{"every": None, key: value})
        return value

    return check


def _references(key: str) -> Callable[[Any], tuple[Reference, ...]]:
    def check(value: Any) -> tuple[Reference, ...]:
        references = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | type) else (value,)
        if not all(isinstance(reference, str | type) for reference in references):
            raise OptionError(f"{key}={value!r}; give names or classes of subscribers, one or several.")
        return references

    return check


def _budget(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise OptionError(f"budget={value!r}; give a share of the step time, above 0 and at most 1.")
    return float(value)


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "name": _name,
    "priority": _priority,
    "critical": _boolean("critical"),
    "background": _boolean("background"),
    "ranks": _ranks,
    "every": _cadence_part("every"),
    "start": _cadence_part("start"),
    "when": _cadence_part("when"),
    "before": _references("before"),
    "after": _references("after"),
    "budget": _budget,
}
_INSTANCE_OPTIONS = frozenset({"name", "priority", "critical", "background", "ranks"})
OPTION_NAMES = frozenset(_CHECKS)
"""The options of `add()`, `configure()` and configuration files."""

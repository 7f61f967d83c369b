"""`Subscriber`: what a callback and a hook have in common, and the options they are added with.

An option is settled when a subscriber is added: given to `add()` it wins over `configure()`, which
wins over the attribute. ``name``, ``priority``, ``critical``, ``background`` and ``ranks`` are read
off the instance; ``every``, ``start``, ``when``, ``before``, ``after`` and ``budget`` off the class
only, because those are words that people use for attributes of their own. An instance's ``every`` or ``when`` that
could be meant as a cadence is used where the class has one too, and refused otherwise: it would be ignored silently.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from hookline._engine.errors import OptionError, closest
from hookline._engine.schedules import Schedule, cadence

WRITER_PRIORITY = -100
"""The default priority of subscribers that write, so that they see what the others added."""


def snake_case(name: str) -> str:
    """A class's name as a subscriber's name.

    >>> snake_case("NaNGuard"), snake_case("TerminateOnNaN"), snake_case("HTTPStatusHook")
    ('nan_guard', 'terminate_on_nan', 'http_status_hook')
    """
    joined = name.replace("NaN", "Nan")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", joined).lower().strip("_")


class _DefaultName:
    """The default of `Subscriber.name`, until somebody assigns one: `_default_name`, or the class's name."""

    def __get__(self, instance: object, owner: type) -> str:
        for holder in (instance, owner):
            default: str | None = getattr(holder, "__dict__", {}).get("_default_name")
            if default:
                return default
        return snake_case(owner.__name__)


class Subscriber:
    """What the engine asks of everything that can be added to a collection."""

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
        """What a checkpoint must hold so that this subscriber can go on after a resume."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    def close(self) -> None:
        """Release what is held; called once at the end, after a failure too, and also if disabled."""


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
        """Check and combine what was given with what the subscriber says of itself."""
        who = type(subscriber).__name__
        explicit = {**configured(subscriber), **given}
        options = {**_own(subscriber), **_own_cadence(subscriber, explicit), **explicit}
        settled = {key: checked_option(who, key, value) for key, value in options.items()}
        schedule = cadence(settled.pop("every"), settled.pop("start"), settled.pop("when"))
        named = any("name" in source for source in (given, configured(subscriber), vars(subscriber)))
        return cls(named=named, schedule=schedule, **settled)


def _own(subscriber: Subscriber) -> dict[str, Any]:
    """What a subscriber says of itself, as an attribute of the instance or of its class."""
    kind = type(subscriber)
    if not issubclass(kind, Subscriber):  # it stands in for one, e.g. a MagicMock(spec=Hook): its attributes are mocks
        own = {key: getattr(Subscriber, key) for key in OPTION_NAMES} | {"name": snake_case(kind.__name__)}
        return own | {key: value for key, value in vars(subscriber).items() if key in _OF_INSTANCE}
    own = {key: getattr(subscriber if key in _OF_INSTANCE else type(subscriber), key) for key in OPTION_NAMES}
    when = own["when"]
    if _needed_arguments(when) == 2:  # written as a method: when(self, loop)
        own["when"] = when.__get__(subscriber)
    return own


def _own_cadence(subscriber: Subscriber, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """The ``every`` and ``when`` that were set on the instance, as far as they are meant as a cadence.

    Raises:
        OptionError: One is a whole number, or a function, which may be meant as a cadence or as something else.
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
                f"{type(subscriber).__name__}: self.{key} = {value!r} is set on the instance: no option there. For "
                f"a cadence, write self.configure({key}=...) or add(callback, {key}=...); for an attribute of your "
                "own, give it another name."
            )
    return found


def _needed_arguments(function: Any) -> int:
    """How many a function must be given; 0 where it does not say."""
    count: int = getattr(getattr(function, "__code__", None), "co_argcount", 0)
    return count - len(getattr(function, "__defaults__", None) or ())


def checked_option(who: str, key: str, value: Any) -> Any:
    """The value of an option as the engine keeps it, or an error that says what is accepted."""
    if key not in _CHECKS:
        raise OptionError(f"{who}: unknown option {key}={value!r}. {closest(key, OPTION_NAMES)}")
    try:
        return _CHECKS[key](value)
    except OptionError as error:
        raise OptionError(f"{who}: {error}") from None


def configured(subscriber: Subscriber) -> dict[str, Any]:
    """The options that `configure` put on this instance."""
    options: dict[str, Any] = vars(subscriber).get("_configured", {})
    return options


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or "/" in value or value != value.strip():
        raise OptionError(f"name={value!r}; give a non-empty string without '/' or outer blanks.")
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
        raise OptionError(f"budget={value!r}; give the share of step time it may take, above 0 and at most 1.")
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
_OF_INSTANCE = frozenset({"name", "priority", "critical", "background", "ranks"})
OPTION_NAMES = frozenset(_CHECKS)
"""What `add()`, `configure()` and a configuration file accept as options."""

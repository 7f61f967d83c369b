"""`Subscriber`: what a callback and a hook have in common, and the options they are added with.

An option is settled when a subscriber is added: given to `add()` it wins over `configure()`, which
wins over the attribute. ``name``, ``priority``, ``critical``, ``background`` and ``ranks`` are read
off the instance; ``every``, ``start``, ``when``, ``before``, ``after`` and ``budget`` off the class
only, because those are words that people use for attributes of their own.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, cast

from hookline.core.errors import OptionError, closest
from hookline.core.schedule import Schedule, cadence

WRITER_PRIORITY = -100
"""The default priority of subscribers that write, so that they see what the others added."""


def snake_case(name: str) -> str:
    """A class's name as a subscriber's name.

    >>> snake_case("NaNGuard"), snake_case("HTTPStatusHook")
    ('nan_guard', 'http_status_hook')
    """
    joined = re.sub(r"^NaN", "Nan", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", joined).lower().strip("_")


class _DefaultName:
    """The default of `Subscriber.name`, until somebody assigns one: `_default_name`, or the class's name."""

    def __get__(self, instance: object, owner: type) -> str:
        default: str | None = getattr(owner if instance is None else instance, "_default_name", None)
        return default or snake_case(owner.__name__)


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
        _refuse_unknown(self, options)
        merged = {**configured(self), **options}
        Options.settle(self, merged)
        self.__dict__["_configured"] = merged
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
        _refuse_unknown(subscriber, given)
        given = {**configured(subscriber), **given}

        def option(key: str) -> Any:
            if key in given:
                return given[key]
            return getattr(subscriber if key in _OF_INSTANCE else type(subscriber), key)

        return cls(
            name=_name(who, option("name")),
            named="name" in given or "name" in vars(subscriber),
            priority=_priority(who, option("priority")),
            critical=_boolean(who, "critical", option("critical")),
            background=_boolean(who, "background", option("background")),
            ranks=_ranks(who, option("ranks")),
            schedule=_schedule(who, option("every"), option("start"), option("when")),
            before=_references(who, "before", option("before")),
            after=_references(who, "after", option("after")),
            budget=_budget(who, option("budget")),
        )


_OF_INSTANCE = frozenset({"name", "priority", "critical", "background", "ranks"})
OPTION_NAMES = frozenset({field.name for field in fields(Options)} - {"named", "schedule"} | {"every", "start", "when"})
"""What `add()`, `configure()` and a configuration file accept as options."""


def configured(subscriber: Subscriber) -> dict[str, Any]:
    """The options that `configure` put on this instance."""
    options: dict[str, Any] = vars(subscriber).get("_configured", {})
    return options


def _refuse_unknown(subscriber: Subscriber, given: Mapping[str, Any]) -> None:
    for key in given:
        if key not in OPTION_NAMES:
            raise OptionError(
                f"{type(subscriber).__name__}: unknown option {key}={given[key]!r}. {closest(key, OPTION_NAMES)}"
            )


def _name(who: str, value: object) -> str:
    if not isinstance(value, str) or not value or "/" in value or value != value.strip():
        raise OptionError(f"{who}: name={value!r}; give a non-empty string without '/' or outer blanks.")
    return value


def _priority(who: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise OptionError(f"{who}: priority={value!r}; give a number, higher runs earlier.")
    return value


def _boolean(who: str, key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{who}: {key}={value!r}; give True or False.")
    return value


def _ranks(who: str, value: object) -> str:
    if value not in ("all", "zero"):
        raise OptionError(f"{who}: ranks={value!r}; give 'all' or 'zero'.")
    return str(value)


def _schedule(who: str, every: Any, start: Any, when: Any) -> Schedule | None:
    try:
        return cadence(every, start, when)
    except OptionError as error:
        raise OptionError(f"{who}: {error}") from None


def _references(who: str, key: str, value: Any) -> tuple[Reference, ...]:
    items: Iterable[Any] = (value,) if isinstance(value, str | type) else value
    try:
        references = tuple(items)
    except TypeError:
        references = (value,)
    for item in references:
        if not isinstance(item, str | type):
            raise OptionError(f"{who}: {key}={value!r}; give names or classes of subscribers, one or several.")
    return references


def _budget(who: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise OptionError(f"{who}: budget={value!r}; give the share of step time it may take, above 0 and at most 1.")
    return float(value)

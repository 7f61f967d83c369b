"""`Identity`: what tells a subscriber's state in a checkpoint from that of another of its class.

A name or a ``state_key`` that somebody gave decides. Otherwise it is the class together with the arguments that say
what a subscriber is about: ``monitor``, ``metric``, ``mode``, ``source``, and paths. Arguments that tune it, such as
``patience``, are no part of it, so they can be changed for a resume.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.subscriber import Options, Subscriber, snake_case

QUANTITY = ("monitor", "metric", "mode")
"""Arguments that name what is measured: a state with other ones holds values of something else."""

_WORDS = frozenset({*QUANTITY, "source"})
_PATH_NAME = re.compile(r"(^|_)(path|file|filename|filepath|dir|dirpath|directory)$")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state is matched by.

    Attributes:
        kind: The class, by its default name, so that a class that moves to another module keeps its states.
        arguments: The identifying arguments, as text.
        named: Whether somebody gave the subscriber its name.
        state_key: The key that the subscriber has for its state, if any.
    """

    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    state_key: str | None = None

    @classmethod
    def of(cls, subscriber: Subscriber, options: Options) -> "Identity":
        """That of a subscriber when it is added: later its attributes may be those of a run."""
        own = snake_case(type(subscriber).__name__)
        # A MagicMock(spec=Hook) has no name on its class.
        default: Any = vars(subscriber).get("_default_name") or getattr(type(subscriber), "name", own)
        is_computed = not isinstance(default, str)  # a property, which gives each instance a name of its own
        kind = own if is_computed else default
        attributes = getattr(getattr(subscriber, "foreign", subscriber), "__dict__", {})
        return cls(kind, _identifying(attributes), options.named or is_computed, _state_key(subscriber))

    @classmethod
    def read(cls, name: str, record: Mapping[str, Any] | None) -> "Identity":
        """That of a saved state; one without a record was the only one of its class, or is of an earlier version."""
        if record is None:
            return cls(name)
        named = bool(record.get("named"))
        return cls(record["class"], dict(record.get("arguments", {})), named, record.get("state_key"))

    def record(self, name: str) -> dict[str, Any] | None:
        """What `read` takes; None where the name says it all."""
        found: dict[str, Any] = {"class": self.kind}
        if self.arguments:
            found["arguments"] = dict(self.arguments)
        if self.named:
            found["named"] = True
        if self.state_key is not None:
            found["state_key"] = self.state_key
        return None if found == {"class": name} else found

    @property
    def is_given(self) -> bool:
        """Whether somebody gave a name or a key."""
        return self.named or self.state_key is not None

    def measures_another(self, other: "Identity") -> bool:
        """Whether the two are about different metrics, or different directions of one."""
        both = self.arguments.keys() & other.arguments.keys() & set(QUANTITY)
        return any(self.arguments[name] != other.arguments[name] for name in both)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


def _identifying(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in sorted(attributes.items())
        if not name.startswith("_")
        and (
            (isinstance(value, str) and (name in _WORDS or _PATH_NAME.search(name)))
            or type(value).__module__.partition(".")[0] == "pathlib"  # not imported for this
        )
    }


def _state_key(subscriber: Subscriber) -> str | None:
    key = getattr(subscriber, "state_key", None)
    if key is not None and (not isinstance(key, str) or not key):
        raise OptionError(f"{type(subscriber).__name__}: state_key={key!r}; give a non-empty string.")
    return key

"""`RecordedDict`: the settings or the summary of a run, as a dict whose changes are written down."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from hookline.record.plain_settings import settings

Record = Callable[[Mapping[str, Any], Iterable[str]], None]
"""Told the items that changed, and the names of those that were removed."""


class RecordedDict(dict[str, Any]):
    """A dict that tells what changes in it; items are attributes too: ``run.config.lr`` is ``run.config["lr"]``.

    A name that is a method of `dict`, such as ``items``, can only be used in brackets. Copies are plain dicts.

    Args:
        values: What it begins with, which is not told.
        record: Told each change.
    """

    __slots__ = ("_record",)

    def __init__(self, values: Mapping[str, Any], record: Record) -> None:
        super().__init__(values)
        object.__setattr__(self, "_record", record)

    def update(self, *given: Any, **values: Any) -> None:
        """Add settings: a mapping, pairs, a namespace or another object of settings, and keywords."""
        changes: dict[str, Any] = {}
        for each in given:
            changes |= dict(each) if isinstance(each, list | tuple) else settings(each)
        changes |= values
        super().update(changes)
        self._record(changes, ())

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """The value of a name, which is set first where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove a name and return its value."""
        there = key in self
        value = super().pop(key, *default)
        if there:
            self._record({}, (key,))
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last item and return it."""
        key, value = super().popitem()
        self._record({}, (key,))
        return key, value

    def clear(self) -> None:
        """Remove all items."""
        names = tuple(self)
        super().clear()
        self._record({}, names)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._record({key: value}, ())

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._record({}, (key,))

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"There is no {name!r}; there is: {', '.join(map(str, self)) or 'nothing'}.") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"There is no {name!r}.")
        del self[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        from copy import deepcopy

        return deepcopy(dict(self), memo)

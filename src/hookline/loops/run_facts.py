"""Facts that users set on a run: its configuration, tags, notes and summary, recorded as they change.

Each change is written to ``run.json`` at once, by rank zero, also after the run has ended, when results are often put
together. While the run is live, an event in the journal says when it happened, and sinks follow it.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

from hookline._engine.metrics import plain
from hookline._record import run_directory
from hookline._record.records import HYPERPARAMETERS, NOTES, SUMMARY, parse_nonfinite
from hookline._record.redaction import Redactor
from hookline._record.run_directory import checked_notes, checked_tags
from hookline._record.settings import is_open, plain_settings, settings

if TYPE_CHECKING:
    from hookline.loops.session import Session

Record = Callable[[Mapping[str, Any], Iterable[str]], None]
"""Called with the items that changed and the names of those that were removed."""


class RecordedDict(dict[str, Any]):
    """A dict that reports its changes; items are attributes too: ``run.config.lr`` is ``run.config["lr"]``.

    A name that is a method of `dict`, such as ``items``, can only be used in brackets. Copies are plain dicts.

    Args:
        values: The initial items, which are not reported.
        record: Called with each change.
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
        """Return the value of a name, setting it first where it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove a name and return its value."""
        existed = key in self
        value = super().pop(key, *default)
        if existed:
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
        return deepcopy(dict(self), memo)


class RunFacts:
    """The user's facts about one session.

    Attributes:
        tags: Short words that the run is found by.
        config: The settings; those given as a mapping or a namespace are a `RecordedDict`.
        summary: Results in values of the user's own.
        added_config: Settings added beside a configuration that is an object of a class of its own.
    """

    def __init__(self, session: "Session", *, config: Any, tags: Iterable[str], notes: str) -> None:
        self._session = session
        self.tags = checked_tags(tags)
        self._notes = checked_notes(notes)
        self.config = RecordedDict(settings(config), self._record_config) if is_open(config) else config
        self.summary = RecordedDict({}, self._record_summary)
        self.added_config: dict[str, Any] = {}

    @property
    def notes(self) -> str:
        """A description of the run in words; assigning records it."""
        return self._notes

    @notes.setter
    def notes(self, notes: str) -> None:
        self._notes = checked_notes(notes)
        self._write("notes", self._redactor(self._notes) or None)
        self._record_event(NOTES, {"text": self._notes})

    def update_config(self, *given: Any, **values: Any) -> None:
        """Add settings to the recorded configuration."""
        if isinstance(self.config, RecordedDict):
            self.config.update(*given, **values)
            return
        added = RecordedDict({}, self._record_config)
        added.update(*given, **values)
        self.added_config |= added

    def initial(self, recorded_config: Any = None) -> dict[str, Any]:
        """Return what ``run.json`` of a new run holds of them, in plain values.

        Args:
            recorded_config: Recorded in place of `config`, where that is only a part of it.
        """
        config = self.config if recorded_config is None else recorded_config
        config = {**settings(config), **self.added_config} if self.added_config else config
        config = None if isinstance(config, RecordedDict) and not config else config
        return user_facts(self._session.name, config, self.tags, self._notes)

    def restore(self, known: Mapping[str, Any]) -> None:
        """Take over the notes and the summary of a resumed run; notes given for this session replace the old ones."""
        if self._notes and self._notes != known.get("notes"):
            self._write("notes", self._redactor(self._notes))
        self._notes = self._notes or str(known.get("notes") or "")
        summary = known.get("summary")
        if isinstance(summary, dict):
            dict.update(self.summary, {name: parse_nonfinite(value) for name, value in summary.items()})

    def _record_config(self, changes: Mapping[str, Any], removed: Iterable[str]) -> None:
        new = {str(name): plain_settings(value) for name, value in changes.items()}
        self._write("config", (self._redactor.settings(new), removed))
        if new:
            self._record_event(HYPERPARAMETERS, {"values": new})

    def _record_summary(self, changes: Mapping[str, Any], removed: Iterable[str]) -> None:
        new = {str(name): plain(value) for name, value in changes.items()}
        self._write("summary", (self._redactor.settings(new), removed))
        self._record_event(SUMMARY, {"values": new, "removed": list(removed)})

    @property
    def _redactor(self) -> Redactor:
        # For ``run.json``; the recorder redacts the events.
        return self._session.recording.redactor

    def _write(self, name: str, change: Any) -> None:
        session = self._session
        if session.recorder is not None and session.output_dir is not None and session.rank == 0:
            run_directory.update(session.output_dir, name, change)

    def _record_event(self, event: str, data: Mapping[str, Any]) -> None:
        session = self._session
        if session.recorder is not None and session.rank == 0 and not session.has_ended:
            session.recorder.event(event, step=session.step, **data)


def user_facts(name: str, config: Any, tags: Iterable[str] = (), notes: str = "") -> dict[str, Any]:
    """Return the part of ``run.json`` that the user decides, in plain values; tags and notes only where given."""
    optional: dict[str, Any] = {"tags": list(checked_tags(tags)), "notes": checked_notes(notes)}
    known = {"name": name, "config": plain_settings(config)}
    return known | {key: value for key, value in optional.items() if value}

"""Who runs at which moment, in which order and how often: a collection's plan in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from hookline.cli.output import table
from hookline.core.callback import MOMENTS
from hookline.core.collection import CallbackCollection
from hookline.core.entry import Entry, Leaf
from hookline.core.hook import Hook, HookTarget, PeriodicHook
from hookline.core.schedule import Every, Schedule
from hookline.core.subscriber import Options

ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Place:
    """One subscriber and what it was settled with; the cadence holds for moments that repeat."""

    name: str
    path: str
    cadence: str
    priority: float
    critical: bool
    background: bool
    ranks: str
    before: list[str]
    after: list[str]

    @property
    def notes(self) -> str:
        """What is not as usual."""
        facts = {
            "critical": self.critical,
            "background": self.background,
            "rank zero": self.ranks == "zero",
            f"before {', '.join(self.before)}": self.before,
            f"after {', '.join(self.after)}": self.after,
        }
        return "; ".join(fact for fact, holds in facts.items() if holds)

    def cadence_at(self, moment: str) -> str:
        """How often it runs at a moment."""
        return self.cadence if MOMENTS[moment].repeating else ALWAYS


def places(collection: CallbackCollection) -> list[Place]:
    """Every subscriber, in the order in which they run."""
    return [_place(leaf) for leaf in collection.leaves()]


def plan_table(moments: Mapping[str, Sequence[str]], placed: Mapping[str, Place]) -> Table:
    """A row for each subscriber of each moment, by the names of their places."""
    columns = ("moment", "#", "subscriber", "cadence", "priority", "")
    listing = table(*columns, whole=("moment", "subscriber"), numbers=("#", "priority"))
    for moment, names in moments.items():
        for order, place in enumerate((placed[name] for name in names), start=1):
            label, cadence = moment if order == 1 else "", place.cadence_at(moment)
            listing.add_row(label, str(order), place.name, cadence, f"{place.priority:g}", place.notes)
        listing.add_section()
    return listing


def _place(leaf: Leaf) -> Place:
    options, kind = leaf.entry.options, type(leaf.entry.subscriber)
    return Place(
        name=leaf.path,
        path=f"{kind.__module__}:{kind.__qualname__}",
        cadence=" and ".join(part for entry in leaf.chain for part in _cadences(entry)) or ALWAYS,
        priority=options.priority,
        critical=leaf.critical,
        background=leaf.background,
        ranks="zero" if leaf.rank_zero else "all",
        before=[_name(reference) for reference in options.before],
        after=[_name(reference) for reference in options.after],
    )


def _cadences(entry: Entry) -> list[str]:
    """How often its options let it run, and for a hook how often it wants to."""
    given = Options.settle(entry.subscriber, entry.given).schedule
    parts = [_words(given)] if given is not None else []
    return [*parts, _decision(entry.target.hook)] if isinstance(entry.target, HookTarget) else parts


def _decision(hook: Hook) -> str:
    if isinstance(hook, PeriodicHook) and type(hook).should_run is PeriodicHook.should_run:
        return _words(Every(hook.frequency, hook.start_step))
    return "should_run()"


def _words(schedule: Schedule) -> str:
    """A schedule as people say it.

    >>> _words(Every(10, start=20)), _words(Every(1, start=20))
    ('every 10 after 20', 'after 20')
    """
    if not isinstance(schedule, Every):
        return repr(schedule)
    every = f"every {schedule.n}" if schedule.n > 1 or not schedule.start else ""
    after = f"after {schedule.start}" if schedule.start else ""
    return f"{every} {after}".strip()


def _name(reference: str | type) -> str:
    return reference if isinstance(reference, str) else reference.__name__

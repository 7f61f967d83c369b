"""The plan of a callback collection, and the dry run of an experiment, as tables and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hookline._engine.collection import CallbackCollection
from hookline._engine.hook_manager import HookTarget
from hookline._engine.hooks import PeriodicHook
from hookline._engine.moments import MOMENTS
from hookline._engine.registration import FlatRegistration, Registration
from hookline._engine.schedules import Every, Schedule
from hookline._engine.subscriber import Options
from hookline._record.terminal import plural
from hookline.cli.output import console, table

if TYPE_CHECKING:
    from hookline.experiment.experiment import DryRun, SubscriberGroup


ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A subscriber with its options; the cadence applies to repeating moments."""

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
        """The options that differ from the defaults."""
        facts = {
            "critical": self.critical,
            "background": self.background,
            "rank zero": self.ranks == "zero",
            f"before {', '.join(self.before)}": self.before,
            f"after {', '.join(self.after)}": self.after,
        }
        return "; ".join(fact for fact, holds in facts.items() if holds)

    def cadence_at(self, moment: str) -> str:
        """The cadence at a moment."""
        return self.cadence if MOMENTS[moment].repeating else ALWAYS


def plan_entries(collection: CallbackCollection) -> dict[str, PlanEntry]:
    """Every subscriber by name, in the order in which they run."""
    return {entry.name: entry for entry in map(_plan_entry, collection.flatten())}


def plan_table(moments: Mapping[str, Sequence[str]], entries: Mapping[str, PlanEntry]) -> Table:
    """A row for each subscriber of each moment."""
    columns = ("moment", "#", "subscriber", "cadence", "priority", "")
    listing = table(*columns, whole=("moment", "subscriber"), numbers=("#", "priority"))
    for moment, names in moments.items():
        for order, entry in enumerate((entries[name] for name in names), start=1):
            label, cadence = moment if order == 1 else "", entry.cadence_at(moment)
            listing.add_row(label, str(order), entry.name, cadence, f"{entry.priority:g}", entry.notes)
        listing.add_section()
    return listing


def _plan_entry(flat: FlatRegistration) -> PlanEntry:
    options, kind = flat.registration.options, type(flat.registration.subscriber)
    return PlanEntry(
        name=flat.path,
        path=f"{kind.__module__}:{kind.__qualname__}",
        cadence=" and ".join(part for each in flat.chain for part in _cadences(each)) or ALWAYS,
        priority=options.priority,
        critical=flat.critical,
        background=flat.background,
        ranks="zero" if flat.rank_zero else "all",
        before=[_name(reference) for reference in options.before],
        after=[_name(reference) for reference in options.after],
    )


def _cadences(registration: Registration) -> list[str]:
    """The cadence of its options and, for a hook, its own."""
    given = Options.settle(registration.subscriber, registration.given).schedule
    parts = [_schedule_text(given)] if given is not None else []
    if isinstance(registration.target, HookTarget):
        hook = registration.target.hook
        if isinstance(hook, PeriodicHook) and type(hook).should_run is PeriodicHook.should_run:
            parts.append(_schedule_text(Every(hook.frequency, hook.start_step)))
        else:
            parts.append("should_run()")
    return parts


def _schedule_text(schedule: Schedule) -> str:
    """A schedule in words.

    >>> _schedule_text(Every(10, start=20)), _schedule_text(Every(1, start=20))
    ('every 10 after 20', 'after 20')
    """
    if not isinstance(schedule, Every):
        return repr(schedule)
    every = f"every {schedule.n}" if schedule.n > 1 or not schedule.start else ""
    after = f"after {schedule.start}" if schedule.start else ""
    return f"{every} {after}".strip()


def _name(reference: str | type) -> str:
    return reference if isinstance(reference, str) else reference.__name__


AFTER_TRAINING = ("on_benchmark_eval", "on_run_end", "on_group_end", "on_experiment_end")
NAMED_ARMS = 5
"""How many arms are named above their subscribers."""


def print_dry_run(planned: "DryRun") -> None:
    """Print the runs and their subscribers."""
    out = console()
    out.print(
        f"{planned.name}: {plural(len(planned.runs), 'run')} in {planned.output_dir}", style="bold", soft_wrap=True
    )
    out.print(_runs(planned))
    if planned.search is not None:
        out.print(f"Search: {planned.search}; the run of one is shown.", soft_wrap=True)
    for group in planned.subscribers:
        if len(planned.subscribers) > 1:
            out.print(f"Arms: {_names(group, planned)}", style="bold", soft_wrap=True)
        print_moments(group.collection)
    out.print("Nothing was run or written.", style="dim")


def print_moments(collection: CallbackCollection) -> None:
    """Print the subscribers of each moment, in the order in which moments fire."""
    moments = _in_order(collection)
    console().print(plan_table(moments, plan_entries(collection)) if moments else "There are no subscribers.")


def dry_run_document(planned: "DryRun") -> dict[str, Any]:
    """A dry run as JSON-compatible values."""
    groups = [
        {"arms": each.arms, "stages": each.stages, "moments": _in_order(each.collection)}
        for each in planned.subscribers
    ]
    runs = [asdict(run) for run in planned.runs]
    return {"name": planned.name, "output_dir": str(planned.output_dir), "runs": runs, "listeners": groups} | (
        {} if planned.search is None else {"search": planned.search}
    )


def _runs(planned: "DryRun") -> Table:
    has_stages = any(run.stage is not None or run.starts_from is not None for run in planned.runs)
    columns = ["run", "arm", "repeat", *(["stage", "starts from"] if has_stages else []), "seed", "on disk"]
    listing = table(*columns, whole=("run", "on disk"), numbers=("repeat", "seed"))
    for run in planned.runs:
        stage = [run.stage or "", run.starts_from or ""] if has_stages else []
        listing.add_row(run.run, run.arm, str(run.repeat), *stage, str(run.seed), run.on_disk)
    return listing


def _in_order(collection: CallbackCollection) -> dict[str, list[str]]:
    """The plan in the order in which moments first fire; the catalogue lists the experiment's moments together."""
    plan = collection.plan()
    return {moment: plan[moment] for moment in sorted(plan, key=lambda moment: moment in AFTER_TRAINING)}


def _names(group: "SubscriberGroup", planned: "DryRun") -> str:
    """The arms, with their stages if the group has only some of them."""
    every = {run.stage for run in planned.runs}
    names = [
        f"{arm} ({', '.join(stages)})" if stages and len(stages) < len(every) else arm
        for arm, stages in group.stages.items()
    ]
    rest = len(names) - NAMED_ARMS
    return ", ".join(names[:NAMED_ARMS]) + (f" and {rest:,} more" if rest > 0 else "")

"""A dry run for people, and as one JSON document."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hookline.cli.output import console, table
from hookline.cli.plan import places, plan_table
from hookline.core.collection import CallbackCollection

if TYPE_CHECKING:
    from hookline.experiment.display.dry_run import DryRun, Listeners

AFTER_TRAINING = ("on_benchmark_eval", "on_run_end", "on_group_end", "on_experiment_end")
NAMED_ARMS = 5
"""How many arms are named above their listeners."""


def print_dry_run(planned: "DryRun") -> None:
    """Print the runs, and who listens to them."""
    out = console()
    out.print(f"{planned.name}: {len(planned.runs):,} runs in {planned.output_dir}", style="bold", soft_wrap=True)
    out.print(_runs(planned))
    for listeners in planned.listeners:
        if len(planned.listeners) > 1:
            out.print(f"Arms: {_names(listeners, planned)}", style="bold", soft_wrap=True)
        print_moments(listeners.collection)
    out.print("Nothing was run, and nothing was written.", style="dim")


def print_moments(collection: CallbackCollection) -> None:
    """Print the moments that somebody listens to, in the order in which they fire."""
    moments, placed = _in_order(collection), {place.name: place for place in places(collection)}
    console().print(plan_table(moments, placed) if moments else "Nobody listens to any moment.")


def dry_run_document(planned: "DryRun") -> dict[str, Any]:
    """The same as JSON can hold it."""
    listeners = [
        {"arms": each.arms, "stages": each.stages, "moments": _in_order(each.collection)} for each in planned.listeners
    ]
    runs = [asdict(run) for run in planned.runs]
    return {"name": planned.name, "output_dir": str(planned.output_dir), "runs": runs, "listeners": listeners}


def _runs(planned: "DryRun") -> Table:
    has_stages = any(run.stage is not None or run.starts_from is not None for run in planned.runs)
    columns = ["run", "arm", "repeat", *(["stage", "starts from"] if has_stages else []), "seed", "on disk"]
    listing = table(*columns, whole=("run", "on disk"), numbers=("repeat", "seed"))
    for run in planned.runs:
        stage = [run.stage or "", run.starts_from or ""] if has_stages else []
        listing.add_row(run.run, run.arm, str(run.repeat), *stage, str(run.seed), run.on_disk)
    return listing


def _in_order(collection: CallbackCollection) -> dict[str, list[str]]:
    """The plan in the order in which moments first fire: the catalogue has those of an experiment together."""
    plan = collection.plan()
    return {moment: plan[moment] for moment in sorted(plan, key=lambda moment: moment in AFTER_TRAINING)}


def _names(listeners: "Listeners", planned: "DryRun") -> str:
    """The arms, with their stages where the others of an arm have other listeners."""
    every = {run.stage for run in planned.runs}
    names = [
        f"{arm} ({', '.join(stages)})" if stages and len(stages) < len(every) else arm
        for arm, stages in listeners.stages.items()
    ]
    rest = len(names) - NAMED_ARMS
    return ", ".join(names[:NAMED_ARMS]) + (f" and {rest:,} more" if rest > 0 else "")

"""``hookline runs importance``: how much the settings of runs matter for a metric."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from hookline._record.terminal import one_line, plural
from hookline.cli.output import FAILED, AsJson, console, print_footer, print_json, table, wrong_input
from hookline.cli.runs.reference import Root
from hookline.store.importance import Importance
from hookline.store.runs import runs

_BAR = 20

Metric = Annotated[
    str, typer.Argument(metavar="METRIC", help="A metric: val/loss, or min(val/loss).", show_default=False)
]


def importance_command(
    metric: Metric,
    *,
    root: Root = Path("runs"),
    project: Annotated[str | None, typer.Option(help="Only runs of this project.")] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="FILTER", help="Only runs that match, e.g. 'step > 100 and tag = sweep'."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="min|max", help="Whether smaller or larger is better; by default guessed from the name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rate the settings that differ between runs by their importance for a metric.

    The method is PED-ANOVA: it compares a setting's values in the best runs with those in all runs. It needs ten
    completed runs, and the exit status is 1 if there are fewer. A setting with a p-value above 0.05 may be important
    by chance.
    """
    with wrong_input(as_json=as_json):
        found = runs(root).filter(where, project=project).filter(lambda info: not info.archived)
        rated = found.importance(metric, mode=mode)
    if as_json:
        print_json(
            {"metric": rated.metric, "mode": rated.mode, "runs": rated.runs, "best": rated.best}
            | {"diverged": rated.diverged, "left_out": rated.left_out, "settings": rated.rows()}
            | {"problem": rated.problem, "note": rated.note}
        )
    else:
        _print(rated)
    if rated.problem:
        raise typer.Exit(FAILED)


def _print(rated: Importance) -> None:
    if rated.problem:
        print_footer(rated.problem)
        return
    listing = table("setting", "importance", "", "p-value", "rank correlation", numbers=("", "p-value"))
    for each in rated:
        bar = Text("█" * round(each.importance * _BAR), style="cyan" if each.p_value <= 0.05 else "dim")
        correlation = "" if each.correlation is None else f"{each.correlation:+.2f}"
        listing.add_row(one_line(each.setting), bar, f"{each.importance:.0%}", f"{each.p_value:.2f}", correlation)
    console().print(listing)
    better = "lowest" if rated.mode == "min" else "highest"
    diverged = f", {rated.diverged} of them diverged" if rated.diverged else ""
    left_out = f"; {plural(rated.left_out, 'run')} without a result left out" if rated.left_out else ""
    print_footer(f"The {rated.best} {better} of {plural(rated.runs, 'run')}{diverged}, compared with all{left_out}.")
    if rated.note:
        print_footer(rated.note)

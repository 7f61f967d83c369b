"""What the experiment layer adds to a run, in milliseconds, and whether that grows with the number of runs.

An experiment has one, ten, a hundred and a thousand arms that do nothing; each has a callback that hears the whole
experiment, a benchmark, and everything that is written down: the run's directory, its journal, its result, the report
at the end. What a run adds is the time of the whole experiment, from making it to its report, by the number of its
runs. Beside it stands a run of `hl.run` that does nothing either, which is what recording alone costs.

Rounds take turns, so that a machine that is slow for a while is slow for all; shown are medians. Growth is what a run
costs among a thousand by what it costs among ten. Every experiment is checked: all of its runs have to be complete and
in its table, or nothing is printed but an error. Timings are not asserted: the bars are marked as met or not.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measure import at_least, met
from rich.console import Console
from rich.table import Table

import hookline as hl
from hookline.rl.types import Task

SIZES = (1, 10, 100, 1000)
MILLISECONDS_BAR = 50.0
"""At most so many milliseconds a run, in an experiment of any size."""
GROWTH_BAR = 1.5
"""At most so many times as much among the most runs as among ten."""


class Hears(hl.Callback):
    """Hears every moment of the experiment's scope."""

    def __init__(self) -> None:
        self.runs = self.scored = 0

    def on_run_start(self, ctx: Any) -> None:
        """Link the run to its parents, as a logger does."""
        ctx.ids["run_id"] = f"{ctx.ids['experiment_id']}/{ctx.run_key}"

    def on_benchmark_eval(self, ctx: Any, eval_result: Any, predictions: Any, *, step: int | None = None) -> None:
        """Count the score."""
        self.scored += int(eval_result.metrics["accuracy"])

    def on_run_end(self, ctx: Any, run_result: Any, arm: Any) -> None:
        """Count the run."""
        self.runs += 1


class One(hl.Benchmark):
    """Has one task."""

    name = "one"

    def tasks(self) -> Sequence[Task]:
        """The task."""
        return [Task("1", expected="1")]

    def score(self, task: Any, output: Any) -> float:
        """Whether it was answered."""
        return float(task.expected == output)


def _repeat(prompts: list[str]) -> list[str]:
    return prompts


def nothing(ctx: Any, run: Any) -> dict[str, float]:
    """An arm that does nothing."""
    run.answers = _repeat
    return {"number": float(run.config["number"])}


def milliseconds_of_experiment(size: int, root: Path) -> float:
    """What each run of an experiment of so many arms took."""
    hears = Hears()
    began = time.perf_counter()
    arms = hl.grid(number=range(size))
    experiment = hl.Experiment(
        "nothing", arms, train=nothing, benchmarks=[One()], callbacks=[hears], output_dir=root / str(size)
    )
    result = experiment.run()
    taken = time.perf_counter() - began
    rows = result.table("number")
    if not hears.runs == hears.scored == size or [row.mean for row in rows] != [
        float(number) for number in range(size)
    ]:
        raise SystemExit(f"error: the experiment of {size} arms is not complete.")
    return taken / size * 1e3


def milliseconds_of_run(root: Path) -> float:
    """What a run of its own takes that does nothing."""
    began = time.perf_counter()
    with hl.run("nothing", root=root, summary=False) as run:
        run.log(number=1.0)
    return (time.perf_counter() - began) * 1e3


def measured(sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """The medians over the rounds."""
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    alone: list[float] = []
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as place:
            if number == 0:  # imports, and whatever else is done once
                milliseconds_of_experiment(1, Path(place))
                continue
            alone.append(milliseconds_of_run(Path(place) / "runs"))
            for size in sizes:
                taken[size].append(milliseconds_of_experiment(size, Path(place)))
    by_size = {size: median(values) for size, values in taken.items()}
    base = by_size.get(10, by_size[sizes[0]])
    growth = by_size[sizes[-1]] / base
    bars = {"milliseconds": max(by_size.values()) <= MILLISECONDS_BAR, "growth": growth <= GROWTH_BAR}
    return {
        "rounds": rounds,
        "milliseconds_per_run": {str(size): value for size, value in by_size.items()},
        "milliseconds_of_a_run_alone": median(alone),
        "growth": growth,
        "bars": bars,
    }


def table(report: dict[str, Any]) -> Table:
    """The figures, as people read them."""
    shown = Table(title=f"What the experiment layer adds to a run (medians of {report['rounds']} rounds)")
    shown.add_column("arms", justify="right")
    shown.add_column("ms a run", justify="right")
    for size, value in report["milliseconds_per_run"].items():
        shown.add_row(f"{int(size):,}", f"{value:.1f}")
    shown.add_section()
    shown.add_row("hl.run alone", f"{report['milliseconds_of_a_run_alone']:.1f}")
    shown.add_row("growth", f"x {report['growth']:.2f}")
    bars = report["bars"]
    shown.caption = (
        f"at most {MILLISECONDS_BAR:.0f} ms a run: {met(bars['milliseconds'])}; "
        f"growth at most x {GROWTH_BAR}: {met(bars['growth'])}"
    )
    return shown


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--sizes", type=at_least(1), nargs="+", default=list(SIZES), help="numbers of arms")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    report = measured(sorted(options.sizes), options.rounds)
    if options.json:
        print(json.dumps(report))
    else:
        Console().print(table(report))


if __name__ == "__main__":
    main()

"""What the store takes: to read runs for the first time, to draw charts, to list many runs, to search samples.

Journals are written in the recorder's format, a few bodies shared by many runs (``journals.py``). Each part is measured
in a fresh process over a new root (``store_parts.py``), with the files in the operating system's cache. The table shows
seconds by the clock and, beside them, the CPU time of the whole process, which a busy machine changes less. Warm times
are medians over rounds.

- Cold, without an index: the first chart of runs that were never read, everything of many runs, and many small runs.
- Charts: of 50 long runs, of 10 million points at several zooms (with random windows, so that no request is repeated),
  and of live runs that each have a new row before every request.
- Lists: of finished runs, again in the same process; the first page in a fresh process with an index; the memory per
  listed run.
- The page: the server over runs without an index, as a browser uses it. Samples: a page of 100 of a million.
- Catching up with one live run among many, by the number of its new rows.
- With ``--scale``: 100,000 metric names in a run, 2 million rows in a run, and 20,000 runs. After the first ingestion,
  no operation may take more than 2 seconds.
- TensorBoard's reader, trackio and MLflow on values like these, on less of them and the rest by proportion (see
  ``store_trackers.py``). ``--small`` leaves out MLflow, whose database alone takes most of a minute, unless it is
  requested with ``--mlflow``.

Nothing is asserted: each bar is marked as met or not met.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from journals import LiveRun, metric_journal, named_journal, sample_journal, write_run, write_runs
from measure import met
from rich.console import Console
from rich.table import Table
from store_trackers import Given, measure_mlflow, measure_tensorboard, measure_trackio

PARTS = Path(__file__).with_name("store_parts.py")
PART_SECONDS = 1800.0
"""A part that takes longer is ended: something hangs."""
PROPORTION_BAR = 3.0
"""A row among a hundred times as many new ones takes at most so many times as long."""
BODIES = 4
METRICS = ("loss", "reward", "grad_norm")
SCALE_SECONDS = 2.0
SECTIONS = ("cold", "runs", "lists", "charts", "live", "samples")
SCALE = "scale"
FEW_RUNS = 50
"""How many of very many runs are drawn in one chart."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: runs x points, where nothing else is said."""

    cold: tuple[int, int, int] = (50, 20_000, len(METRICS))
    runs: tuple[int, int] = (1000, 10_000)
    small: tuple[int, int] = (1000, 100)
    many: tuple[int, int] = (10_000, 100)
    charts: tuple[int, int] = (100, 100_000)
    samples: tuple[int, int] = (10, 100_000)
    news: tuple[int, ...] = (1_000, 10_000, 100_000)
    names: tuple[int, int] = (100_000, 1000)
    rows: int = 2_000_000
    scale_runs: tuple[int, int] = (20_000, 10)
    rounds: int = 5
    live_rounds: int = 15
    tensorboard: tuple[int, int] = (2, 100_000)
    trackio: tuple[int, int] = (50, 2_000)
    mlflow: tuple[int, int] = (50, 1_000)


SMALL = Sizes(
    cold=(3, 200, len(METRICS)),
    runs=(12, 100),
    small=(5, 20),
    many=(20, 10),
    charts=(4, 2_000),
    samples=(2, 1_000),
    news=(10, 100),
    names=(200, 20),
    rows=2_000,
    scale_runs=(60, 5),
    rounds=1,
    live_rounds=2,
    tensorboard=(1, 300),
    trackio=(3, 20),
    mlflow=(3, 20),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report: a value, the CPU seconds beside it, and its bar."""

    label: str
    value: float
    cpu: float | None = None
    bar: float | None = None
    unit: str = "s"

    @property
    def is_met(self) -> bool | None:
        """Whether the value is at most the bar; None without one."""
        return None if self.bar is None else self.value <= self.bar


Figures = dict[str, Figure]


class Benchmark:
    """Writes roots, has parts measured, and collects their figures.

    Args:
        place: A directory for the roots.
        sizes: How much is measured.

    Attributes:
        figures: By name.
        counts: What the parts found, to see that they measured what was written.
    """

    def __init__(self, place: Path, sizes: Sizes) -> None:
        self.place, self.sizes = place, sizes
        self.figures: Figures = {}
        self.counts: dict[str, Any] = {}

    def measure(self, sections: Sequence[str]) -> None:
        """Some of `SECTIONS`, and `SCALE`."""
        measures = {
            "cold": self._cold_chart,
            "runs": self._everything,
            "lists": self._lists,
            "charts": self._charts,
            "live": self._live,
            "samples": self._samples,
            SCALE: self._scale,
        }
        for section in sections:
            measures[section]()

    def _cold_chart(self) -> None:
        runs, steps, metrics = self.sizes.cold
        root = self._root("cold")
        names = METRICS[:metrics]
        write_runs(root, "cold", runs, [metric_journal(steps, seed=seed, names=names) for seed in range(BODIES)])
        found = self._part("first_chart", root, names=names)
        what = f"cold: {runs} runs x {steps:,} steps x {metrics} metrics"
        self._add("first chart", f"{what}: first chart", found["first chart"], 1.5)
        self._add("the other charts", f"{what}: the other {metrics - 1} charts after it", found["the other charts"])
        self.counts["cold"] = {name: found[name] for name in ("lines", "points drawn")}
        shutil.rmtree(root)

    def _everything(self) -> None:
        runs, points = self.sizes.runs
        root, twin = self._root("runs"), self.place / "twin"
        write_runs(root, "many", runs, [metric_journal(points, seed=seed) for seed in range(BODIES)])
        shutil.copytree(root, twin, copy_function=os.link)  # a root without an index, at once
        what = f"{runs:,} runs x {points:,} points"
        page = self._part("page", twin)
        shutil.rmtree(twin)
        found = self._part("everything", root)
        self._add("first listing", f"cold: {what}: first listing", found["first listing"], 2.0)
        self._add("reading everything", f"cold: {what}: everything (ingest)", found["reading everything"], 20.0)
        self._add(
            "first page over HTTP",
            f"cold: {what}: first page over HTTP, server started",
            page["first page over HTTP"],
            2.0,
        )
        self._add("first event", f"{what}: first event of the stream", page["first event of the stream"])
        self.counts |= {"rows read": found["rows"], "runs over HTTP": page["runs"], "bytes of the page": page["bytes"]}
        self._catching_up(root)
        shutil.rmtree(root)

    def _catching_up(self, root: Path) -> None:
        sizes = self.sizes
        live = LiveRun(root, "live", 0, metric_journal(10, is_finished=False), 10)
        found = self._part("catching_up", root, [live], news=sizes.news, rounds=sizes.rounds)
        live.close()
        self._add("catching up with nothing", f"{sizes.runs[0]:,} runs: catching up with nothing new", found["nothing"])
        for count, taken in found["by rows"].items():
            self._add(f"catching up {count}", f"{int(count):,} new rows of one run, besides", taken)
        # By CPU time: by the clock, a few rows take less than a busy machine adds to the requests that are compared.
        each = [max(taken[1], 1e-6) / int(count) for count, taken in found["by rows"].items()]
        label = "a row among the most new ones, to one among the fewest, by CPU time"
        self.figures["catching up in proportion"] = Figure(label, each[-1] / each[0], bar=PROPORTION_BAR, unit="x")

    def _lists(self) -> None:
        runs, points = self.sizes.small
        root = self._root("small")
        write_runs(root, "small", runs, [metric_journal(points, seed=seed) for seed in range(BODIES)])
        found = self._part("everything", root)
        both = [sum(pair) for pair in zip(found["first listing"], found["reading everything"], strict=True)]
        self._add("small runs", f"cold: {runs:,} small runs x {points} points: listed and read", both, 4.0)
        self.counts["rows of small runs"] = found["rows"]
        found = self._part("listing", root, rounds=4 * self.sizes.rounds)
        self._add("listing again", f"{runs:,} finished runs: list again", found["listing again"], 0.03)
        shutil.rmtree(root)
        runs, points = self.sizes.many
        root = self._root("many")
        write_runs(root, "many", runs, [metric_journal(points, seed=seed) for seed in range(BODIES)])
        self._add(
            "many read", f"{runs:,} runs x {points} points: read", self._part("everything", root)["reading everything"]
        )
        found = self._part("first_page", root)
        self._add("first page", f"{runs:,} runs: first page, fresh process with an index", found["first page"], 1.0)
        found |= self._part("listing", root, rounds=self.sizes.rounds)
        self._add("long listing again", f"{runs:,} runs: list again", found["listing again"], 0.3)
        self._add("filter", f"{runs:,} runs: filter by tag and configuration", found["filter"])
        memory = found["kilobytes per run"]
        self.figures["memory"] = Figure(f"{runs:,} runs: memory of a listed run", memory, bar=10.0, unit="kB")
        self.counts["long list"] = {"runs": found["runs"], "page": found["shown"]}
        shutil.rmtree(root)

    def _charts(self) -> None:
        runs, points = self.sizes.charts
        root = self._root("charts")
        write_runs(root, "charts", runs, [metric_journal(points, seed=seed) for seed in range(BODIES)])
        found = self._part("charts", root, half=runs // 2, points=points, rounds=self.sizes.rounds)
        few, many = f"{runs // 2} runs x {points:,} points", f"{runs * points / 1e6:g}M points in one chart"
        self._add("charts read", f"{runs} runs x {points:,} points: read", found["reading"])
        self._add("chart", f"warm: {few}: chart", found["chart"], 0.05)
        for zoom in ("whole", "a tenth", "a thousandth", "random windows"):
            self._add(zoom, f"warm: {many}: {zoom}", found[zoom], 0.05)
        self._add("smoothed", f"warm: {few}: smoothed chart", found["smoothed"])
        self._add("bands", f"warm: {few}: bands over all of them", found["bands"])
        self.counts["charts"] = {name: found[name] for name in ("lines", "points drawn")}
        shutil.rmtree(root)

    def _live(self) -> None:
        runs, points = self.sizes.charts[0] // 2, self.sizes.charts[1]
        root = self._root("live")
        bodies = [metric_journal(points, seed=seed, is_finished=False) for seed in range(BODIES)]
        live = [LiveRun(root, "live", number, bodies[number % BODIES], points) for number in range(runs)]
        found = self._part("live", root, live, rounds=self.sizes.live_rounds)
        for run in live:
            run.close()
        label = f"live: {runs} runs x {points:,} points: chart after a new row in every run"
        self._add("live chart", label, found["live chart"], 0.03)
        self.counts["live"] = {name: found[name] for name in ("last steps", "statuses")}
        shutil.rmtree(root)

    def _samples(self) -> None:
        runs, each = self.sizes.samples
        root = self._root("samples")
        write_runs(root, "samples", runs, [sample_journal(each, seed=seed) for seed in range(2)])
        found = self._part("samples", root, rounds=self.sizes.rounds)
        what = f"{runs * each:,} samples"
        self._add("reading samples", f"{what}: read", found["reading samples"])
        self._add("samples by reward", f"warm: {what}: by reward and lesson", found["by reward and lesson"], 0.3)
        self._add("samples by text", f"warm: {what}: by a text", found["by text"], 1.0)
        self.counts["matches"] = found["matches"]
        shutil.rmtree(root)

    def _scale(self) -> None:
        sizes = self.sizes
        root = self._root("names")
        write_run(root, "names", 0, named_journal(*sizes.names))
        self._scaled(root, f"{sizes.names[0]:,} metric names in one run", "layer7/norm")
        root = self._root("rows")
        write_run(root, "rows", 0, metric_journal(sizes.rows))
        self._scaled(root, f"{sizes.rows:,} rows in one run", "loss")
        runs, points = sizes.scale_runs
        root = self._root("scale")
        write_runs(root, "scale", runs, [metric_journal(points, seed=seed) for seed in range(BODIES)])
        self._scaled(root, f"{runs:,} runs", "loss")

    def _scaled(self, root: Path, what: str, chart: str) -> None:
        found = self._part("scale", root, chart=chart, few=FEW_RUNS, rounds=min(3, self.sizes.rounds))
        self._add(f"{what}: read", f"{what}: read", found["reading"])
        for operation in ("list", "chart", "names", "filter"):
            self._add(f"{what}: {operation}", f"{what}: {operation}", found[operation], SCALE_SECONDS)
        self.counts[what] = {name: found[name] for name in ("runs", "metric names")}
        shutil.rmtree(root)

    def _root(self, name: str) -> Path:
        root = self.place / name
        root.mkdir()
        return root

    def _add(self, name: str, label: str, taken: Sequence[float], bar: float | None = None) -> None:
        self.figures[name] = Figure(label, taken[0], taken[1], bar)

    def _part(self, part: str, root: Path, live: Sequence[LiveRun] = (), **order: Any) -> dict[str, Any]:
        """Have a part measured in a fresh process; append rows to the live runs when it asks for them."""
        command = [sys.executable, str(PARTS), json.dumps({"part": part, "root": str(root), **order})]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
            assert process.stdin is not None
            assert process.stdout is not None
            timer = threading.Timer(PART_SECONDS, process.kill)
            timer.start()
            said = ""
            for said in process.stdout:
                asked, _, rows = said.partition(" ")
                if asked != "append":
                    break
                for run in live:
                    run.append(int(rows))
                print("done", file=process.stdin, flush=True)
            process.communicate()
            timer.cancel()
        if process.returncode:
            raise SystemExit(f"The part {part} ended with {process.returncode}.")
        found: dict[str, Any] = json.loads(said)
        return found


def measured(sizes: Sizes, sections: Sequence[str] = SECTIONS, *, mlflow: bool = True) -> dict[str, Any]:
    """Some sections beside the other trackers, and whether the bars are met."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hookline-store-") as folder:
        place = Path(folder)
        benchmark = Benchmark(place, sizes)
        benchmark.measure(sections)
        others = {
            "TensorBoard": measure_tensorboard(place / "tensorboard", sizes, Given(*sizes.tensorboard)),
            "trackio": measure_trackio(place / "trackio", sizes, Given(*sizes.trackio)),
            "MLflow": measure_mlflow(place / "mlflow", sizes, Given(*sizes.mlflow)) if mlflow else None,
        }
    return {
        "sizes": asdict(sizes),
        "figures": {
            name: asdict(figure)
            | {"met": figure.is_met}
            | {"others": {other: (taken or {}).get(name) for other, taken in others.items()}}
            for name, figure in benchmark.figures.items()
        },
        "counts": benchmark.counts,
        "load": {"before": load, "after": os.getloadavg()[0]},
    }


def table(report: dict[str, Any]) -> Table:
    """The figures, as people read them."""
    sizes, load = report["sizes"], report["load"]
    others = ("TensorBoard", "trackio", "MLflow")
    given = ", ".join(f"{name} {' x '.join(f'{size:,}' for size in sizes[name.lower()])}" for name in others)
    caption = (
        f"load {load['before']:.1f} before and {load['after']:.1f} after; the others by proportion, "
        f"in seconds by the clock, given runs x points: {given}"
    )
    shown = Table("", title="What the store takes", caption=caption)
    for heading in ("hookline", "CPU s", "bar", "", *others):
        shown.add_column(heading, justify="right", no_wrap=True)
    for figure in report["figures"].values():
        unit = "" if figure["unit"] == "s" else f" {figure['unit']}"
        bar = ("", "") if figure["bar"] is None else (f"{figure['bar']:g}{unit}", met(figure["met"]))
        cpu = "" if figure["cpu"] is None else f"{figure['cpu']:.3f}"
        theirs = (figure["others"][name] for name in others)
        shown.add_row(
            figure["label"],
            f"{figure['value']:.3f}{unit}",
            cpu,
            *bar,
            *("" if taken is None else f"{taken:,.2f}" for taken in theirs),
        )
    return shown


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--part", action="append", choices=SECTIONS, help="measure only this; may be repeated")
    parser.add_argument("--scale", action="store_true", help="measure roots of unusual size, too, which takes minutes")
    parser.add_argument("--mlflow", action="store_true", help="with --small: measure MLflow too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    sizes = SMALL if options.small else Sizes()
    sections = [*(options.part or SECTIONS), *([SCALE] if options.scale else [])]
    report = measured(sizes, sections, mlflow=options.mlflow or not options.small)
    if options.json:
        print(json.dumps(report))
    else:
        Console().print(table(report))


if __name__ == "__main__":
    main()

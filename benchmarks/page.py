"""What the page takes, beside TensorBoard's and trackio's own pages over the same data, in headless Chromium.

- Charts: 50 runs x 20,000 steps x 3 metrics. The time from the navigation to the first useful picture, with a new
  server over data that was never read and a new browser (cold), and again with both (warm). A picture is useful when
  lines are on a chart; hookline's counts when the lines of all runs are.
- Interaction on these charts: the 95th percentile of the times between two frames while the pointer moves over a chart,
  while parts are zoomed into and out of, and while the slider for smoothing moves.
- The memory of the page's JavaScript after that and after a garbage collection.
- The table of 1,000 and of 10,000 runs: the time to its first rows, cold and warm, and memory.
- A million samples of rollouts: the time to the first sample. The others have no such view over a million samples and
  get a dash.

Nothing is asserted: each bar is marked as met or not met, and whether hookline is ahead of both.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from measure import met
from page_systems import (
    HOOKLINE,
    METRICS,
    TENSORBOARD,
    TRACKIO,
    System,
    View,
    served,
    write_hookline,
    write_samples,
    write_tensorboard,
    write_trackio,
)
from rich.console import Console
from rich.table import Table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
COLD_BAR, WARM_BAR, FRAME_BAR, HEAP_BAR = 2.0, 0.7, 33.0, 100.0
"""Seconds, seconds, milliseconds and megabytes, at most."""
WAIT_SECONDS = 120.0
"""A page that shows nothing by then is measured as not able to."""
SECTIONS = ("charts", "runs", "samples")
SYSTEMS = (HOOKLINE, TENSORBOARD, TRACKIO)
_FRAMES = """
window.frameTimes = [];
let before = 0;
const look = (now) => {
    if (before) window.frameTimes.push(now - before);
    before = now;
    requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
_READY = """(limit) => new Promise((done) => {
    const start = performance.now();
    const look = () => {
        let isReady = false;
        try { isReady = Boolean(%s); } catch (error) { isReady = false; }
        if (isReady) done(true);
        else if (performance.now() - start > limit) done(false);
        else requestAnimationFrame(look);
    };
    look();
})"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much the pages show."""

    charts: tuple[int, int] = (50, 20_000)
    runs: tuple[int, ...] = (1_000, 10_000)
    points: int = 10
    samples: tuple[int, int] = (10, 100_000)
    moves: int = 120
    zooms: int = 4
    keys: int = 12


QUICK = Sizes(charts=(5, 300), runs=(20,), points=3, samples=(2, 200), moves=10, zooms=1, keys=2)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report: what each system takes, None where it cannot, and hookline's bar."""

    label: str
    unit: str
    bar: float | None
    values: dict[str, float | None]

    @property
    def is_met(self) -> bool | None:
        """Whether hookline's value is at most the bar; None without one."""
        own = self.values.get(HOOKLINE.name)
        return None if self.bar is None else own is not None and own <= self.bar

    @property
    def is_ahead(self) -> bool | None:
        """Whether hookline's value is below those of all others that have one; None if none has."""
        own = self.values.get(HOOKLINE.name)
        others = [value for name, value in self.values.items() if name != HOOKLINE.name and value is not None]
        return None if own is None or not others else own < min(others)


class Browser:
    """Chromium, started again for each cold measurement."""

    def __init__(self, playwright: Any) -> None:
        self._playwright = playwright

    @contextmanager
    def new(self) -> Iterator[Any]:
        """A browser context with an empty cache."""
        with tempfile.TemporaryDirectory(prefix="hookline-chromium-") as home:
            context = self._playwright.chromium.launch_persistent_context(
                home, executable_path=CHROMIUM, args=FLAGS, viewport={"width": 1280, "height": 800}
            )
            context.add_init_script(_FRAMES)
            yield context
            context.close()


def first_picture(context: Any, url: str, view: View, count: int) -> tuple[Any, float | None]:
    """Open a view in a new tab; the seconds until its picture, or None if none came."""
    page = context.new_page()
    start = time.perf_counter()
    page.goto(url + view.path, wait_until="commit", timeout=WAIT_SECONDS * 1000)
    is_there = page.evaluate(_READY % view.ready.replace("COUNT", str(count)), WAIT_SECONDS * 1000)
    return page, time.perf_counter() - start if is_there else None


def frame_p95(page: Any, act: Callable[[], None]) -> float:
    """The 95th percentile of milliseconds between frames while something is done."""
    page.evaluate("() => { window.frameTimes.length = 0; }")
    act()
    times = page.evaluate("() => window.frameTimes.slice()")
    return float(quantiles(times, n=20)[-1]) if len(times) > 1 else float("nan")


def heap_megabytes(context: Any, page: Any) -> float:
    """The memory of the page's JavaScript after a garbage collection."""
    session = context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    # Typed arrays are not part of the heap itself.
    return float(usage["usedSize"] + usage.get("backingStorageSize", 0)) / 1e6


def interact(page: Any, system: System, sizes: Sizes) -> dict[str, float | None]:
    """Frame times of hover, zoom and smoothing; None for what the page does not offer."""
    plot, slider = page.locator(system.plot).first, page.locator(system.smoothing).first
    found: dict[str, float | None] = dict.fromkeys(("hover", "zoom", "smoothing"))
    if not plot.count():
        return found
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    left, top, width, height = (box[side] for side in ("x", "y", "width", "height"))

    def hover() -> None:
        for move in range(sizes.moves):
            share = move / sizes.moves
            page.mouse.move(left + width * (0.1 + 0.8 * share), top + height * (0.3 + 0.4 * (move % 20) / 20))
            page.wait_for_timeout(8)

    def zoom() -> None:
        for _ in range(sizes.zooms):
            page.mouse.move(left + width * 0.3, top + height * 0.5)
            page.mouse.down()
            page.mouse.move(left + width * 0.6, top + height * 0.5, steps=8)
            page.mouse.up()
            page.wait_for_timeout(500)
            page.mouse.dblclick(left + width * 0.5, top + height * 0.5)
            page.wait_for_timeout(500)

    def smooth() -> None:
        for key in range(sizes.keys):
            slider.press("ArrowLeft" if key < sizes.keys // 2 else "ArrowRight")
            page.wait_for_timeout(150)
        page.wait_for_timeout(500)

    found["hover"] = frame_p95(page, hover)
    found["zoom"] = frame_p95(page, zoom)
    if slider.count():
        page.mouse.move(2, 2)
        found["smoothing"] = frame_p95(page, smooth)
    return found


class Benchmark:
    """Writes the data, opens the pages, and collects the rows."""

    def __init__(self, place: Path, sizes: Sizes, browser: Browser, systems: Sequence[System]) -> None:
        self.place, self.sizes, self.browser, self.systems = place, sizes, browser, systems
        self.rows: list[Row] = []

    def measure(self, sections: Sequence[str]) -> None:
        """Some of `SECTIONS`."""
        for section in sections:
            {"charts": self._charts, "runs": self._runs, "samples": self._samples}[section]()

    def _charts(self) -> None:
        runs, steps = self.sizes.charts
        found = {}
        for system in self.systems:
            if (root := self._written(system, "charts", runs, steps)) is not None:
                found[system.name] = self._opened(system, system.charts, root, runs, is_interactive=True)
                shutil.rmtree(root)
        what = f"charts, {runs} runs x {steps:,} steps x {len(METRICS)} metrics"
        self._add_pictures(what, found)
        for action in ("hover", "zoom", "smoothing"):
            self._add(f"{what}: {action}, frame time p95", "ms", FRAME_BAR, found, action)
        self._add(f"{what}: JavaScript heap", "MB", HEAP_BAR, found, "heap")

    def _runs(self) -> None:
        for runs in self.sizes.runs:
            found = {}
            for system in self.systems:
                if system.runs is None or (root := self._written(system, "runs", runs, self.sizes.points)) is None:
                    continue
                found[system.name] = self._opened(system, system.runs, root, runs)
                shutil.rmtree(root)
            self._add_pictures(f"table of {runs:,} runs", found)
            self._add(f"table of {runs:,} runs: JavaScript heap", "MB", HEAP_BAR, found, "heap")

    def _samples(self) -> None:
        runs, each = self.sizes.samples
        root = self.place / "samples"
        root.mkdir()
        write_samples(root, runs, each)
        assert HOOKLINE.samples is not None
        found = {HOOKLINE.name: self._opened(HOOKLINE, HOOKLINE.samples, root, runs)}
        shutil.rmtree(root)
        self._add_pictures(f"rollouts, {runs * each:,} samples", found)
        self._add(f"rollouts, {runs * each:,} samples: JavaScript heap", "MB", HEAP_BAR, found, "heap")

    def _written(self, system: System, name: str, runs: int, steps: int) -> Path | None:
        """Where a system has its data; None if it is not installed."""
        root = self.place / f"{system.name}-{name}-{runs}"
        root.mkdir()
        if system is HOOKLINE:
            write_hookline(root, runs, steps)
            return root
        write = write_tensorboard if system is TENSORBOARD else write_trackio
        return root if write(root, runs, steps) else None

    def _opened(
        self, system: System, view: View, root: Path, count: int, *, is_interactive: bool = False
    ) -> dict[str, float | None]:
        """The first pictures, cold and warm, and what follows them."""
        found: dict[str, float | None] = {}
        with served(system, root) as (url, seconds), self.browser.new() as context:
            found["start"] = seconds
            page, found["cold"] = first_picture(context, url, view, count)
            page.close()
            if found["cold"] is None:
                return found
            page, found["warm"] = first_picture(context, url, view, count)
            if is_interactive:
                page.wait_for_timeout(1500)
                found |= interact(page, system, self.sizes)
            found["heap"] = heap_megabytes(context, page)
        return found

    def _add_pictures(self, what: str, found: dict[str, dict[str, float | None]]) -> None:
        self._add(f"{what}: server started", "s", None, found, "start")
        self._add(f"{what}: first picture, cold", "s", COLD_BAR, found, "cold")
        self._add(f"{what}: first picture, warm", "s", WARM_BAR, found, "warm")

    def _add(
        self, label: str, unit: str, bar: float | None, found: dict[str, dict[str, float | None]], name: str
    ) -> None:
        values = {system.name: found.get(system.name, {}).get(name) for system in SYSTEMS}
        self.rows.append(Row(label, unit, bar, values))


def measured(sizes: Sizes, sections: Sequence[str] = SECTIONS, systems: Sequence[System] = SYSTEMS) -> dict[str, Any]:
    """Some sections, and whether the bars are met."""
    from playwright.sync_api import sync_playwright

    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hookline-page-") as folder, sync_playwright() as playwright:
        benchmark = Benchmark(Path(folder), sizes, Browser(playwright), systems)
        benchmark.measure(sections)
    rows = [asdict(row) | {"met": row.is_met, "ahead": row.is_ahead} for row in benchmark.rows]
    return {"sizes": asdict(sizes), "rows": rows, "load": {"before": load, "after": os.getloadavg()[0]}}


def table(report: dict[str, Any]) -> Table:
    """The rows, as people read them."""
    load = report["load"]
    caption = (
        f"load {load['before']:.1f} before and {load['after']:.1f} after; - where a page cannot or is not installed"
    )
    shown = Table("", title="What the page takes", caption=caption)
    for heading in (HOOKLINE.name, "bar", "", TENSORBOARD.name, TRACKIO.name, ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in report["rows"]:
        unit, values = row["unit"], row["values"]
        texts = {name: "-" if value is None else f"{value:,.2f} {unit}" for name, value in values.items()}
        bar = ("", "") if row["bar"] is None else (f"{row['bar']:g} {unit}", met(row["met"]))
        ahead = {None: "", True: "ahead", False: "BEHIND"}[row["ahead"]]
        others = (texts[TENSORBOARD.name], texts[TRACKIO.name])
        shown.add_row(row["label"], texts[HOOKLINE.name], *bar, *others, ahead)
    return shown


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--part", action="append", choices=SECTIONS, help="measure only this; may be repeated")
    names = {system.name: system for system in SYSTEMS}
    parser.add_argument("--system", action="append", choices=list(names), help="measure only this; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    systems = [names[name] for name in options.system or names]
    report = measured(QUICK if options.quick else Sizes(), options.part or SECTIONS, systems)
    if options.json:
        print(json.dumps(report))
    else:
        Console().print(table(report))


if __name__ == "__main__":
    main()

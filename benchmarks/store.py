"""What the store takes: to list many runs, to catch up, to filter and search samples, to draw a chart.

Journals are written as runs write them (lines of JSON, one value a row), a few bodies shared by many runs. Then, in one
process and with the files in the cache of the operating system:

- Runs: the first listing, with no index; reading everything, which a query would do for the runs that it concerns; a
  listing with an index, from a new opening of it; and what it takes to list and to catch up with one live run, by how
  many of its rows are new.
- Samples: a page of 100 of a million by reward and lesson, and by a text in their prompts or completions, which 1 in
  1,000 has; each with the number of all that match.
- A chart: many points of many runs, at most 1,000 a line, peaks kept.
- The page: the server over the many runs, asked as a browser asks it, over HTTP: from its start to the first answer of
  ``/api/runs`` and to the first ``runs`` event of the stream, which the page is made of, each with no index; and the
  answer of ``/api/runs`` after that, when what was listed counts as old.
- TensorBoard's reader, trackio and MLflow on values like these, on less of them and the rest by proportion (see
  ``store_trackers.py``). ``--small`` leaves out MLflow, whose database alone takes most of a minute, unless it is asked
  for with ``--mlflow``.

Times of queries are medians over rounds. Nothing is asserted: the bars are marked as met or not.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measure import met
from rich.console import Console
from rich.table import Table
from store_trackers import Wanted, measure_mlflow, measure_tensorboard, measure_trackio, seconds

from hookline._record import run_directory
from hookline.server import WebServer
from hookline.server.listing import MAX_AGE_SECONDS, REST_FACTOR
from hookline.store import Runs, runs
from hookline.store.store import open_store

BARS = {
    "first listing": 2.0,
    "first page over HTTP": 2.0,
    "samples by reward and lesson": 0.3,
    "samples by text": 1.0,
    "chart": 1.0,
}
"""Seconds at most."""
PROPORTION_BAR = 3.0
"""A row among a hundred times as many new ones takes at most so many times as long."""
BODIES = 4
MAX_POINTS = 1000
NEEDLE = "Needle In"
LESSONS = [f"lesson-{number}" for number in range(20)]
WORDS = ("sum", "the", "digits", "of", "each", "number", "then", "sort", "them", "and", "give", "only", "a", "list")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    runs: int
    points: int
    sample_runs: int
    samples: int
    chart_runs: int
    chart_points: int
    news: tuple[int, ...]
    tensorboard: tuple[int, int]
    trackio: tuple[int, int]
    mlflow: tuple[int, int]
    rounds: int

    def given(self, to: str) -> Wanted:
        """What another tracker is given: so many runs of so many points."""
        given_runs, given_points = getattr(self, to)
        return Wanted(self.runs, self.points, self.chart_runs * self.chart_points, given_runs, given_points)


FULL = Sizes(
    *(1000, 10_000, 10, 1_000_000, 50, 100_000, (1_000, 10_000, 100_000)), (1, 200_000), (50, 2_000), (50, 1_000), 5
)
SMALL = Sizes(12, 100, 2, 2_000, 3, 2_000, (10, 100), (1, 300), (3, 20), (3, 20), 1)


def metric_lines(points: int, seed: int, first: int = 1) -> bytes:
    """The rows of a run."""
    noise = random.Random(seed)
    rows = (
        f'{{"kind":"metrics","step":{step},"values":{{"loss":{noise.random():.9f}}},"time":{1.7e9 + step / 10:.4f}}}\n'
        for step in range(first, first + points)
    )
    return "".join(rows).encode()


def sample_lines(count: int, seed: int) -> bytes:
    """Samples of about 500 bytes; one in a thousand has the text that is searched for."""
    noise = random.Random(seed)
    lines = []
    for number in range(count):
        text = " ".join(noise.choices(WORDS, k=50))
        completion = f"{text} {NEEDLE} it {number}" if number % 1000 == 7 else text
        reward = noise.random()
        lines.append(
            f'{{"kind":"sample","step":{number // 64},"prompt":"{text[:120]} {number}","completion":"{completion}",'
            f'"rewards":{{"exact":{reward:.4f},"format":0.5}},"total":{reward + 0.5:.4f},'
            f'"advantage":{reward - 0.5:.4f},"group":"g{number // 8}",'
            f'"lesson":"{noise.choice(LESSONS)}","time":{1.7e9 + number / 50:.3f}}}\n'
        )
    return "".join(lines).encode()


def write_runs(root: Path, project: str, count: int, bodies: list[bytes], steps: int) -> None:
    """Runs that are finished."""
    begin = f'{{"kind":"status","status":"running","step":0,"data":{{"num_steps":{steps}}},"time":1.7e9}}\n'.encode()
    end = f'{{"kind":"status","status":"finished","step":{steps},"time":{1.7e9 + steps}}}\n'.encode()
    facts = {"project": project, "git": None, "config": {"lr": 0.001}, "packages": {}}
    for number in range(count):
        name = f"run-{number:04d}"
        directory = run_directory.create(root, project, {**facts, "name": name}, run_id=name)
        (directory / "journal").mkdir()
        journal = directory / "journal" / "main-0000-1-abcdef-000000.jsonl"
        journal.write_bytes(begin + bodies[number % len(bodies)] + end)


def measure_runs(root: Path, sizes: Sizes) -> dict[str, Any]:
    """Listing many runs, reading them, and catching up with one."""
    write_runs(root, "many", sizes.runs, [metric_lines(sizes.points, seed) for seed in range(BODIES)], sizes.points)
    first = seconds(lambda: runs(root))
    listed = runs(root)
    start = time.perf_counter()
    taken = listed.ingest()
    reading = time.perf_counter() - start
    open_store(root).close()
    del listed
    again = seconds(lambda: runs(root))
    listed = runs(root)
    nothing = median(seconds(lambda: listed.refresh().ingest()) for _ in range(sizes.rounds))
    return {
        "first listing": first,
        "reading everything": reading,
        "rows read": taken.rows,
        "listing with an index": again,
        "catching up with nothing": nothing,
        "catching up": dict(_catching_up(root, sizes, nothing)),
    }


def measure_page(root: Path, sizes: Sizes) -> dict[str, Any]:
    """The same runs through the server, as a browser asks it; there is no index at first."""
    open_store(root).close()
    shutil.rmtree(root / ".hookline")
    start = time.perf_counter()
    with WebServer(root) as server:
        answer = _asked(f"{server.url}api/runs")
        first = time.perf_counter() - start
        assert len(json.loads(answer)["runs"]) >= sizes.runs
        stream = seconds(lambda: _first_news(server))
        again = median(_old_answer(server, first) for _ in range(sizes.rounds))
    return {
        "first page over HTTP": first,
        "first event of the stream": stream,
        "page again over HTTP": again,
        "bytes of the page": len(answer),
    }


def _asked(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - our own server
        return bytes(answer.read())


def _first_news(server: WebServer) -> None:
    """Read the stream until it has told of all runs."""
    with urllib.request.urlopen(f"{server.url}api/stream", timeout=60) as answer:  # noqa: S310 - our own server
        while answer.readline() != b"event: runs\n":
            pass
        answer.readline()


def _old_answer(server: WebServer, listing: float) -> float:
    """Seconds of an answer for which the runs are listed anew."""
    time.sleep(max(MAX_AGE_SECONDS, REST_FACTOR * listing) + 0.1)
    return seconds(lambda: _asked(f"{server.url}api/runs"))


def _catching_up(root: Path, sizes: Sizes, nothing: float) -> Iterator[tuple[str, float]]:
    """Seconds by the number of new rows of a live run, less what it takes when there are none."""
    directory = run_directory.create(root, "many", {"name": "live", "git": None}, run_id="live")
    (directory / "journal").mkdir()
    run_directory.acquire(directory)
    journal, step = directory / "journal" / "main-0000-1-abcdef-000000.jsonl", 1
    journal.write_bytes(metric_lines(10, 0))
    found = runs(root)
    found.ingest()
    for count in sizes.news:
        taken = []
        for _ in range(min(3, sizes.rounds)):
            step += count
            with journal.open("ab") as file:
                file.write(metric_lines(count, count, step))
            taken.append(seconds(lambda: found.refresh().ingest()))
        yield str(count), max(0.0, median(taken) - nothing)
    run_directory.release(directory)


def measure_samples(root: Path, sizes: Sizes) -> dict[str, Any]:
    """Filters over many samples."""
    each = sizes.samples // sizes.sample_runs
    write_runs(root, "samples", sizes.sample_runs, [sample_lines(each, seed) for seed in range(2)], each)
    found = runs(root)
    reading = seconds(found.ingest)
    by_reward: dict[str, Any] = {"lesson": "lesson-7", "min_reward": 1.2}
    by_text: dict[str, Any] = {"text": NEEDLE.lower()}
    return {
        "reading samples": reading,
        "samples by reward and lesson": _page_seconds(found, sizes.rounds, by_reward),
        "samples by text": _page_seconds(found, sizes.rounds, by_text),
        "matches": [found.samples(**by_reward).total(), found.samples(**by_text).total()],
    }


def _page_seconds(found: Runs, rounds: int, conditions: dict[str, Any]) -> float:
    page = found.samples(**conditions, limit=100)
    return median(seconds(lambda: (page.rows(), page.total())) for _ in range(rounds))


def measure_chart(root: Path, sizes: Sizes) -> dict[str, Any]:
    """The lines of many long runs."""
    bodies = [metric_lines(sizes.chart_points, seed) for seed in range(BODIES)]
    write_runs(root, "chart", sizes.chart_runs, bodies, sizes.chart_points)
    found = runs(root)
    reading = seconds(found.ingest)
    drawn = [len(line.x) for line in found.series("loss", max_points=MAX_POINTS)]
    chart = median(seconds(lambda: found.series("loss", max_points=MAX_POINTS)) for _ in range(sizes.rounds))
    return {"reading the chart's runs": reading, "chart": chart, "points drawn": sum(drawn)}


def measured(sizes: Sizes, *, mlflow: bool = True) -> dict[str, Any]:
    """Everything, and whether the bars are met."""
    with tempfile.TemporaryDirectory(prefix="hookline-store-") as folder:
        place = Path(folder)
        store: dict[str, Any] = {}
        for name, part in (("runs", measure_runs), ("samples", measure_samples), ("chart", measure_chart)):
            (place / name).mkdir()
            store |= part(place / name, sizes)
            store |= measure_page(place / name, sizes) if name == "runs" else {}
            open_store(place / name).close()
        others = {
            "TensorBoard": measure_tensorboard(place / "tensorboard", sizes.given("tensorboard")),
            "trackio": measure_trackio(place / "trackio", sizes.given("trackio")),
            "MLflow": measure_mlflow(place / "mlflow", sizes.given("mlflow")) if mlflow else None,
        }
    bars = {name: store[name] <= limit for name, limit in BARS.items()}
    bars["catching up in proportion"] = _growth(store["catching up"]) <= PROPORTION_BAR
    return {
        "sizes": {name: getattr(sizes, name) for name in sizes.__slots__},
        "seconds": store,
        "others": others,
        "load": os.getloadavg()[0],
        "bars": bars,
    }


def _growth(catching_up: dict[str, float]) -> float:
    """How many times as long a row takes among the most new rows as among the fewest."""
    each = [taken / int(count) for count, taken in catching_up.items()]
    return each[-1] / max(each[0], 1e-9)


def table(report: dict[str, Any]) -> Table:
    """The figures, as people read them."""
    sizes, taken, others = report["sizes"], report["seconds"], report["others"]
    given = ", ".join(f"{name} {' x '.join(f'{size:,}' for size in sizes[name.lower()])}" for name in others)
    caption = f"load {report['load']:.1f}; the others by proportion, given runs x points: {given}"
    shown = Table("", title="What the store takes, in seconds", caption=caption)
    for heading in ("hookline", "bar", "", *others):
        shown.add_column(heading, justify="right")
    many = f"{sizes['runs']:,} runs x {sizes['points']:,} points"
    for label, name in (
        (f"{many}: first listing", "first listing"),
        (f"{many}: first page over HTTP, from the start of the server", "first page over HTTP"),
        (f"{many}: first event of the stream", "first event of the stream"),
        (f"{many}: page again over HTTP", "page again over HTTP"),
        (f"{many}: reading everything", "reading everything"),
        (f"{many}: listing with an index", "listing with an index"),
        (f"{many}: catching up with nothing new", "catching up with nothing"),
        (f"{sizes['samples']:,} samples: by reward and lesson", "samples by reward and lesson"),
        (f"{sizes['samples']:,} samples: by a text", "samples by text"),
        (f"chart of {sizes['chart_runs']} runs x {sizes['chart_points']:,} points", "chart"),
    ):
        limit = BARS.get(name)
        bar = ("", "") if limit is None else (f"{limit:g}", met(report["bars"][name]))
        theirs = [_theirs(other, name) for other in others.values()]
        shown.add_row(label, f"{taken[name]:.3f}", *bar, *theirs)
    for count, value in taken["catching up"].items():
        shown.add_row(f"{int(count):,} new rows of one run, besides", f"{value:.3f}")
    proportion = met(report["bars"]["catching up in proportion"])
    shown.add_row("a row among the most new ones, to one among the fewest", "", f"x {PROPORTION_BAR:g}", proportion)
    return shown


def _theirs(other: dict[str, float] | None, name: str) -> str:
    """What another tracker takes, in its storage alone; nothing where it was not measured."""
    found = (other or {}).get(name)
    return "" if found is None else f"{found:,.1f}"


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--mlflow", action="store_true", help="with --small: measure MLflow too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    report = measured(SMALL if options.small else FULL, mlflow=options.mlflow or not options.small)
    if options.json:
        print(json.dumps(report))
    else:
        Console().print(table(report))


if __name__ == "__main__":
    main()

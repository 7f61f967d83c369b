"""The parts of ``store.py``: each in a fresh process, over a root that was written before. Prints one JSON object.

``python store_parts.py '{"part": "first_page", "root": "..."}'``. A time is ``[wall, CPU]`` in seconds; the CPU time is
that of the whole process, including DuckDB's threads. Imports at the top are not counted; those that the store makes
when it is used are.

Parts that need new rows ask for them: they print a line ``append <rows>`` and wait for a line, which comes when the
process that writes has appended them to every live run.
"""

import json
import os
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from journals import NEEDLE
from measure import Taken, taken, usual

import hookline as hl
from hookline.server import WebServer
from hookline.store import Runs

MAX_POINTS = 1000
PAGE = 100
"""How many runs the first page of a table shows."""
WINDOWS = 20
Found = dict[str, Any]


def first_chart(root: str, names: list[str]) -> Found:
    """The first chart of runs that were never read, and the charts of their other metrics after it."""
    opened: list[Runs] = []
    drawn: list[int] = []

    def draw() -> None:
        opened.append(hl.runs(root))
        drawn.extend(len(line.x) for line in opened[0].series(names[0], max_points=MAX_POINTS))

    first = taken(draw)
    others = taken(lambda: [opened[0].series(name, max_points=MAX_POINTS) for name in names[1:]])
    return {"first chart": first, "the other charts": others, "lines": len(drawn), "points drawn": sum(drawn)}


def everything(root: str) -> Found:
    """Runs that were never read: listed, then read whole."""
    opened: list[Runs] = []
    rows: list[int] = []
    listing = taken(lambda: opened.append(hl.runs(root)))
    reading = taken(lambda: rows.append(opened[0].ingest().rows))
    return {"first listing": listing, "reading everything": reading, "rows": rows[0]}


def first_page(root: str) -> Found:
    """The first page of a list of runs with an index."""
    shown: list[int] = []
    return {"first page": taken(lambda: shown.append(len(hl.runs(root)[:PAGE]))), "shown": sum(shown)}


def listing(root: str, rounds: int) -> Found:
    """Runs with an index: the same list again, a part of it, and the memory that it takes."""
    with tempfile.TemporaryDirectory() as empty:
        hl.runs(empty).close()  # what a process needs for any list is not counted as a run's memory
    before = _resident_bytes()
    found = hl.runs(root)
    again = usual(taken(found.refresh) for _ in range(rounds))
    memory = (_resident_bytes() - before) / max(1, len(found))
    filtered = usual(taken(lambda: found.filter(tag="tag-3", where=_has_even_seed)) for _ in range(rounds))
    return {"listing again": again, "filter": filtered, "kilobytes per run": memory / 1000, "runs": len(found)}


def _has_even_seed(info: hl.store.RunInfo) -> bool:
    return bool(info.config["seed"] % 2 == 0)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def charts(root: str, half: int, points: int, rounds: int) -> Found:
    """Charts of long runs with an index, at several zooms."""
    all_runs = hl.runs(root)
    reading = taken(all_runs.ingest)
    few = all_runs.filter(name=[f"run-{number:05d}" for number in range(half)])
    noise = random.Random(0)
    tenth = (0.45 * points, 0.55 * points)
    thousandth = (0.5 * points, 0.501 * points)
    windows = [_window(noise, points) for _ in range(WINDOWS)]
    found = {
        "reading": reading,
        "chart": usual(_charts(few, [(None, None)] * rounds)),
        "whole": usual(_charts(all_runs, [(None, None)] * rounds)),
        "a tenth": usual(_charts(all_runs, [tenth] * rounds)),
        "a thousandth": usual(_charts(all_runs, [thousandth] * rounds)),
        "random windows": usual(_charts(all_runs, windows[: 4 * rounds])),
        "smoothed": usual(_charts(few, [(None, None)] * rounds, smoothing=0.9)),
    }
    bands = usual(taken(lambda: few.bands("loss", "project", max_points=MAX_POINTS)) for _ in range(min(rounds, 3)))
    drawn = [len(line.x) for line in few.series("loss", max_points=MAX_POINTS)]
    return found | {"bands": bands, "points drawn": sum(drawn), "lines": len(drawn)}


Window = tuple[float | None, float | None]


def _window(noise: random.Random, points: int) -> Window:
    """A part of x of any size, small ones as often as large ones."""
    width = points * 10 ** noise.uniform(-3, 0)
    first = noise.uniform(0, points - width)
    return first, first + width


def _charts(runs: Runs, windows: list[Window], **options: Any) -> list[Taken]:
    """The times of charts after a first one, which is not counted."""

    def draw(window: Window) -> None:
        runs.series("loss", max_points=MAX_POINTS, between=window, **options)

    draw(windows[0])
    return [taken(lambda window=window: draw(window)) for window in windows]  # type: ignore[misc]


def live(root: str, rounds: int) -> Found:
    """Charts of long live runs, each of which has new rows before every request."""
    found = hl.runs(root)
    found.ingest()
    steps: set[float] = set()

    def draw() -> None:
        steps.clear()
        steps.update(line.x[-1] for line in found.series("loss", max_points=MAX_POINTS))

    draw()
    times = []
    for _ in range(rounds):
        _append(1)
        times.append(taken(draw))
    return {
        "live chart": usual(times),
        "last steps": sorted(steps),
        "statuses": sorted({info.status for info in found}),
    }


def catching_up(root: str, news: list[int], rounds: int) -> Found:
    """Catching up with one live run among many, by the number of its new rows; with none first."""
    found = hl.runs(root)
    found.ingest()
    nothing = usual(taken(lambda: found.refresh().ingest()) for _ in range(rounds))
    by_rows: dict[str, Taken] = {}
    for count in news:
        times = []
        for _ in range(min(3, rounds)):
            _append(count)
            times.append(taken(lambda: found.refresh().ingest()))
        usually = usual(times)
        by_rows[str(count)] = Taken(max(0.0, usually.wall - nothing.wall), max(0.0, usually.cpu - nothing.cpu))
    return {"nothing": nothing, "by rows": by_rows}


def _append(rows: int) -> None:
    print(f"append {rows}", flush=True)
    sys.stdin.readline()


def samples(root: str, rounds: int) -> Found:
    """Filters over many samples; each with the number of all that match."""
    found = hl.runs(root)
    reading = taken(found.ingest)
    by_reward = found.samples(lesson="lesson-7", min_reward=1.2, limit=100)
    by_text = found.samples(text=NEEDLE.lower(), limit=100)
    return {
        "reading samples": reading,
        "by reward and lesson": usual(taken(lambda: (by_reward.rows(), by_reward.total())) for _ in range(rounds)),
        "by text": usual(taken(lambda: (by_text.rows(), by_text.total())) for _ in range(rounds)),
        "matches": [by_reward.total(), by_text.total()],
    }


def page(root: str) -> Found:
    """The server over runs without an index, as a browser uses it: the list, then the first event of the stream."""
    answers: list[bytes] = []
    start = time.perf_counter()
    used = time.process_time()
    with WebServer(root) as server:
        answers.append(_get(f"{server.url}api/runs"))
        first = Taken(time.perf_counter() - start, time.process_time() - used)
        stream = taken(lambda: _wait_for_runs(f"{server.url}api/stream"))
    return {
        "first page over HTTP": first,
        "first event of the stream": stream,
        "runs": len(json.loads(answers[0])["runs"]),
        "bytes": len(answers[0]),
    }


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=120) as answer:  # noqa: S310 - our own server
        return bytes(answer.read())


def _wait_for_runs(address: str) -> None:
    with urllib.request.urlopen(address, timeout=120) as answer:  # noqa: S310 - our own server
        while answer.readline() != b"event: runs\n":
            pass
        answer.readline()


def scale(root: str, chart: str, few: int, rounds: int) -> Found:
    """The usual operations on a root of unusual size, after its first ingestion."""
    found = hl.runs(root)
    reading = taken(found.ingest)
    some = found if len(found) <= few else found.filter(id=[info.id for info in found[:few]])
    names: list[int] = []

    def count_names() -> None:
        names[:] = [len(found.metric_names().rows())]

    return {
        "reading": reading,
        "list": usual(taken(found.refresh) for _ in range(rounds)),
        "chart": usual(taken(lambda: some.series(chart, max_points=MAX_POINTS)) for _ in range(rounds)),
        "names": usual(taken(count_names) for _ in range(rounds)),
        "filter": usual(
            taken(lambda: found.filter(tag="tag-3", status="finished", where=_has_even_seed)) for _ in range(rounds)
        ),
        "runs": len(found),
        "metric names": names[0],
    }


PARTS: dict[str, Callable[..., Found]] = {
    part.__name__: part
    for part in (first_chart, everything, first_page, listing, charts, live, catching_up, samples, page, scale)
}


def main() -> None:
    """Run the part that the argument names."""
    order = json.loads(sys.argv[1])
    print(json.dumps(PARTS[order.pop("part")](**order)))


if __name__ == "__main__":
    main()

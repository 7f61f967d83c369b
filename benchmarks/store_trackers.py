"""What other trackers take for the same questions, by the names of the figures of ``store.py``.

- TensorBoard: its reader (`EventAccumulator`, all points kept) on event files. It has no index: what is listed or drawn
  is read from the files first, at each start. Then it is in memory: a chart takes its points from there, and a live one
  reads what the files have gained.
- trackio: what its page asks its SQLite storage for: the runs with their last steps, and the rows of each.
- MLflow: its client on a SQLite database: a page of runs with their latest metrics, and the history of a metric.

Neither of the last two reduces a chart's points or has a zoom: any part of a chart reads all of it.

Writing ten million points into the last two takes hours, and reading them minutes for the first. So each is given less
(`Given`), and its figures are by proportion: of reading by points, of lists by runs, except for trackio's list, by
points, because it looks through their rows. `values_per_second` is what they store, by CPU time of the process that
does it and without a server in front: the first column of what ``serve.py`` compares.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from measure import quiet


@dataclass(frozen=True, slots=True)
class Given:
    """How much another tracker is given: so many runs of so many points."""

    runs: int
    points: int

    @property
    def all_points(self) -> int:
        """Of all runs together."""
        return self.runs * self.points


class Wanted(Protocol):
    """How much the figures are about: runs x points, per chart or list."""

    @property
    def cold(self) -> tuple[int, int, int]:
        """Of the first chart: runs, steps and metrics."""

    @property
    def runs(self) -> tuple[int, int]:
        """Of everything read: runs and points."""

    @property
    def small(self) -> tuple[int, int]:
        """Of small runs: runs and points."""

    @property
    def many(self) -> tuple[int, int]:
        """Of a long list: runs and points."""

    @property
    def charts(self) -> tuple[int, int]:
        """Of the largest chart: runs and points; the other charts have half of the runs."""


ZOOMS = ("whole", "a tenth", "a thousandth", "random windows")


def seconds(work: Callable[[], Any]) -> float:
    """What something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_tensorboard(root: Path, wanted: Wanted, given: Given) -> dict[str, float] | None:
    """TensorBoard's own reader; None where it is not installed."""
    try:
        with quiet():
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        return None
    files = [root / f"run-{number}" / "events.out.tfevents.1700000000.host" for number in range(given.runs)]
    for file in files:
        _write_events(file, range(1, given.points + 1))
    found = [EventAccumulator(str(file), size_guidance={"scalars": 0}) for file in files]

    def draw() -> None:
        lines = [[(event.step, event.value) for event in each.Scalars("loss")] for each in found]
        assert [len(line) >= given.points for line in lines] == [True] * given.runs

    each = seconds(lambda: [accumulator.Reload() for accumulator in found]) / given.all_points
    drawn = median(seconds(draw) for _ in range(3)) / given.all_points
    for file in files:
        _write_events(file, [given.points + 1])
    news = seconds(lambda: [accumulator.Reload() for accumulator in found]) / given.runs
    small = _small_tensorboard(root / "small", wanted, EventAccumulator)
    chart_runs, points = wanted.charts
    figures = _charts(drawn, wanted)
    return figures | {
        "first chart": each * wanted.cold[0] * wanted.cold[1] * wanted.cold[2],
        "first listing": each * wanted.runs[0] * wanted.runs[1],
        "reading everything": each * wanted.runs[0] * wanted.runs[1],
        "small runs": small,
        "live chart": (chart_runs // 2) * (news + drawn * points),
    }


def _small_tensorboard(root: Path, wanted: Wanted, reader: Any) -> float:
    """Small files, a part of them: opening each of them counts, too."""
    count, points = wanted.small
    some = min(count, 50)
    files = [root / str(number) / "events.out.tfevents.1700000000.host" for number in range(some)]
    for file in files:
        _write_events(file, range(1, points + 1))
    return seconds(lambda: [reader(str(file), size_guidance={"scalars": 0}).Reload() for file in files]) * count / some


def _write_events(file: Path, steps: Sequence[int]) -> None:
    """Append scalars to an event file."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    noise = random.Random(0)
    is_new = not file.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as opened:
        writer = RecordWriter(opened)
        if is_new:
            writer.write(event_pb2.Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
        for step in steps:
            value = summary_pb2.Summary.Value(tag="loss", simple_value=noise.random())
            summary = summary_pb2.Summary(value=[value])
            event = event_pb2.Event(wall_time=1.7e9 + step / 10, step=step, summary=summary)
            writer.write(event.SerializeToString())
        writer.flush()


def _charts(each: float, wanted: Wanted) -> dict[str, float]:
    """Seconds of charts, by those of a point: all of them read all of their points."""
    runs, points = wanted.charts
    return {"chart": each * (runs // 2) * points} | dict.fromkeys(ZOOMS, each * runs * points)


def measure_trackio(root: Path, wanted: Wanted, given: Given) -> dict[str, float] | None:
    """The storage of trackio, in a directory of its own; None where it is not installed."""
    storage = _trackio(root)
    if storage is None:
        return None
    noise, steps = random.Random(0), list(range(1, given.points + 1))
    names = [f"run-{number:04d}" for number in range(given.runs)]
    for name in names:
        storage.bulk_log("many", name, [{"loss": noise.random()} for _ in steps], steps)

    def listed() -> None:
        storage.get_run_records("many")
        assert len(storage.get_max_steps_for_runs("many")) == given.runs

    def read() -> None:
        found = [len(storage.get_logs("many", name)) for name in names]
        assert all(count >= given.points for count in found)

    each = seconds(read) / given.all_points
    listing = seconds(listed) / given.all_points

    for name in names:
        storage.bulk_log("many", name, [{"loss": 0.5}], [given.points + 1])
    live = seconds(read) / given.all_points
    chart_runs, points = wanted.charts
    return _charts(each, wanted) | {
        "first chart": each * wanted.cold[0] * wanted.cold[1],
        "first listing": listing * wanted.runs[0] * wanted.runs[1],
        "listing again": listing * wanted.small[0] * wanted.small[1],
        "long listing again": listing * wanted.many[0] * wanted.many[1],
        "first page": listing * wanted.many[0] * wanted.many[1],
        "live chart": live * (chart_runs // 2) * points,
    }


def _trackio(root: Path) -> Any:
    os.environ["TRACKIO_DIR"] = str(root)  # read when it is imported
    try:
        with quiet():
            from trackio.sqlite_storage import SQLiteStorage
    except ImportError:
        return None
    return SQLiteStorage


class _Mlflow:
    """MLflow's client on a new database."""

    def __init__(self, root: Path) -> None:
        with quiet():
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        root.mkdir(parents=True)
        self._metric = Metric
        with quiet():
            self.client = MlflowClient(f"sqlite:///{root}/mlflow.db")
            self.experiment = self.client.create_experiment("many", artifact_location=str(root / "artifacts"))

    def run(self) -> str:
        return str(self.client.create_run(self.experiment).info.run_id)

    def log(self, run: str, steps: range, names: Sequence[str] = ("loss",)) -> None:
        """Values of each name at each step, a thousand to a request, which is its limit."""
        noise = random.Random(0)
        values = [self._metric(name, noise.random(), 1, step) for step in steps for name in names]
        for first in range(0, len(values), 1000):
            self.client.log_batch(run, metrics=values[first : first + 1000])

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self.client._tracking_client.store.engine.dispose()


def measure_mlflow(root: Path, wanted: Wanted, given: Given) -> dict[str, float] | None:
    """MLflow's client on a database; None where it is not installed."""
    try:
        tracker = _Mlflow(root)
    except ImportError:
        return None
    client, ids = tracker.client, [tracker.run() for _ in range(given.runs)]
    for run in ids:
        tracker.log(run, range(given.points))

    def listed(most: int) -> None:
        assert len(client.search_runs([tracker.experiment], max_results=most)) == min(most, given.runs)

    def read() -> None:
        found = [len(client.get_metric_history(run, "loss")) for run in ids]
        assert all(count >= given.points for count in found)

    each = seconds(read) / given.all_points
    listed(1000)  # the first one prepares the connection
    listing = seconds(lambda: listed(1000)) / given.runs
    page = seconds(lambda: listed(100)) * 100 / min(100, given.runs)
    for run in ids:
        tracker.log(run, range(given.points, given.points + 1))
    live = seconds(read) / given.all_points
    tracker.close()
    chart_runs, points = wanted.charts
    return _charts(each, wanted) | {
        "first chart": each * wanted.cold[0] * wanted.cold[1],
        "first listing": listing * wanted.runs[0],
        "listing again": listing * wanted.small[0],
        "long listing again": listing * wanted.many[0],
        "first page": page,
        "live chart": live * (chart_runs // 2) * points,
    }


def values_per_second(root: Path, rows: int, scalars: int, *, mlflow: bool = True) -> dict[str, float | None]:
    """Values that each tracker stores in a second of CPU time, in rows of some scalars, without a server."""
    names = [f"layer{number}/norm" for number in range(scalars)]
    noise = random.Random(0)
    found: dict[str, float | None] = {"TensorBoard": None, "trackio": None, "MLflow": None}
    # Each stores one row first: imports, tables and connections are not counted.
    with contextlib.suppress(ImportError):
        _write_tensorboard(root / "first", 1, names)
        found["TensorBoard"] = rows * scalars / _cpu(lambda: _write_tensorboard(root / "tensorboard", rows, names))
    storage = _trackio(root / "trackio")
    if storage is not None:
        values = [{name: noise.random() for name in names} for _ in range(rows)]
        storage.bulk_log("many", "first", values[:1], [0])
        found["trackio"] = rows * scalars / _cpu(lambda: storage.bulk_log("many", "run", values, list(range(rows))))
    if mlflow:
        with contextlib.suppress(ImportError):
            tracker = _Mlflow(root / "mlflow")
            run = tracker.run()
            tracker.log(run, range(1), names)
            found["MLflow"] = rows * scalars / _cpu(lambda: tracker.log(run, range(1, rows + 1), names))
            tracker.close()
    return found


def _write_tensorboard(root: Path, rows: int, names: Sequence[str]) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(root))
    for step in range(rows):
        values = [summary_pb2.Summary.Value(tag=name, simple_value=step / rows) for name in names]
        writer.add_event(event_pb2.Event(wall_time=1.7e9, step=step, summary=summary_pb2.Summary(value=values)))
    writer.close()


def _cpu(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return max(1e-6, time.process_time() - start)

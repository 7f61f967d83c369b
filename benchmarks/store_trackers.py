"""What other trackers take for the same questions: to list runs, and to read the points of a chart.

- TensorBoard: its reader (`EventAccumulator`, all points kept) on an event file. It keeps no index: whatever is listed
  or drawn is read from the files first, at each start.
- trackio: what its page asks its SQLite storage for: the runs with their last steps, and their rows.
- MLflow: its client on a SQLite database: a page of runs with their latest metrics, and the history of a metric.

Writing ten million points into the last two takes hours, and reading them minutes for the first. So each is given less,
and what is said of all of it is by proportion: of reading by points, of trackio's listing by points (it finds its runs
by looking through their rows), of MLflow's by runs.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import quiet

from hookline._record.records import Metrics


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the figures are about, and how much of it another tracker is given."""

    runs: int
    points: int
    chart_points: int
    given_runs: int
    given_points: int

    @property
    def all_points(self) -> int:
        """Of all runs together."""
        return self.runs * self.points


def seconds(work: Callable[[], Any]) -> float:
    """What something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_tensorboard(root: Path, wanted: Wanted) -> dict[str, float] | None:
    """TensorBoard's own reader; None where it is not installed."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        from hookline.sinks.tensorboard_events import beginning, encoded, metrics_event
    except ImportError:
        return None
    noise, count = random.Random(0), wanted.given_runs * wanted.given_points
    rows = (Metrics(time=1.7e9 + step / 10, step=step, values={"loss": noise.random()}) for step in range(1, count + 1))
    root.mkdir()
    file = root / "events.out.tfevents.1700000000.host"
    file.write_bytes(encoded([*beginning(1.7e9, 0), *map(metrics_event, rows)]))

    def read() -> None:
        accumulator = EventAccumulator(str(file), size_guidance={"scalars": 0})
        accumulator.Reload()
        assert len(accumulator.Scalars("loss")) == count

    each = seconds(read) / count
    return {
        "microseconds a point": 1e6 * each,
        "first listing": each * wanted.all_points,
        "reading everything": each * wanted.all_points,
        "chart": each * wanted.chart_points,
    }


def measure_trackio(root: Path, wanted: Wanted) -> dict[str, float] | None:
    """The storage of trackio, in a directory of its own; None where it is not installed."""
    os.environ["TRACKIO_DIR"] = str(root)  # read when it is imported
    try:
        with quiet():
            from trackio.sqlite_storage import SQLiteStorage
    except ImportError:
        return None
    noise, steps = random.Random(0), list(range(1, wanted.given_points + 1))
    names = [f"run-{number:04d}" for number in range(wanted.given_runs)]
    for name in names:
        SQLiteStorage.bulk_log("many", name, [{"loss": noise.random()} for _ in steps], steps)
    records: list[Any] = []

    def listed() -> None:
        records[:] = SQLiteStorage.get_run_records("many")
        assert len(SQLiteStorage.get_max_steps_for_runs("many")) == wanted.given_runs

    def read() -> None:
        found = [len(SQLiteStorage.get_logs("many", name)) for name in names]
        assert found == [wanted.given_points] * wanted.given_runs

    share = wanted.all_points / (wanted.given_runs * wanted.given_points)
    each = seconds(read) / (wanted.given_runs * wanted.given_points)
    return {
        "microseconds a point": 1e6 * each,
        "first listing": seconds(listed) * share,
        "chart": each * wanted.chart_points,
    }


def measure_mlflow(root: Path, wanted: Wanted) -> dict[str, float] | None:
    """MLflow's client on a database; None where it is not installed."""
    try:
        with quiet():
            from mlflow import MlflowClient
            from mlflow.entities import Metric
    except ImportError:
        return None
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    noise, ids = random.Random(0), []
    root.mkdir()
    with quiet():
        client = MlflowClient(f"sqlite:///{root}/mlflow.db")
        experiment = client.create_experiment("many", artifact_location=str(root / "artifacts"))
    for _ in range(wanted.given_runs):
        ids.append(client.create_run(experiment).info.run_id)
        for first in range(0, wanted.given_points, 1000):
            count = min(1000, wanted.given_points - first)
            values = [Metric("loss", noise.random(), 1, first + step) for step in range(count)]
            client.log_batch(ids[-1], metrics=values)

    def listed() -> None:
        assert len(client.search_runs([experiment], max_results=1000)) == wanted.given_runs

    def read() -> None:
        found = [len(client.get_metric_history(run, "loss")) for run in ids]
        assert found == [wanted.given_points] * wanted.given_runs

    each = seconds(read) / (wanted.given_runs * wanted.given_points)
    listed()  # the first one prepares the connection
    report = {
        "microseconds a point": 1e6 * each,
        "first listing": seconds(listed) * wanted.runs / wanted.given_runs,
        "chart": each * wanted.chart_points,
    }
    with contextlib.suppress(AttributeError):
        client._tracking_client.store.engine.dispose()
    return report

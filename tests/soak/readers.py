"""What arrived at each destination, read with the destination's own reader; and what should have arrived."""

import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from destinations.base import Destination
from destinations.files import FIXED, CsvDestination, JsonlDestination
from destinations.mlflow import MlflowDestination
from destinations.prometheus import PrometheusDestination, samples
from destinations.streams import ConsoleDestination
from destinations.tensorboard import TensorboardDestination
from destinations.tensorboard import read as read_events
from destinations.trackio import TrackioDestination, trackio_in
from destinations.wandb import WandbDestination, read_rows

import hookline as hl
from hookline._record.reader import JOURNAL, read_lines
from hookline._record.segment import journal_files
from soak.endpoint_server import messages
from soak.layout import PROJECT, Layout
from soak.rows import Records, Row, cells, history, joined, row, view, without_costs

Arrived = tuple[Counter[Row], Counter[Row]]
"""What should be there, and what is."""
CONSOLE = re.compile(r"\d\d:\d\d:\d\d  step (\d+)(?:  eval)?((?:  \S+ \S+)+)")
SHOWN_ON_CONSOLE = {"loss", "grad_norm", "attempt", "val/loss", "val/attempt"}


@dataclass(frozen=True)
class Recorded:
    """The records of the run.

    Attributes:
        view: The rows that count; a destination that takes back what is done again has these.
        history: All rows, also those that were done again; a destination that takes nothing back has these.
    """

    layout: Layout
    run_dir: Path
    view: Records
    history: Records


def recorded(layout: Layout) -> Recorded:
    run_dir = layout.run_dir
    return Recorded(layout, run_dir, view(run_dir), history(run_dir))


def read_csv(run: Recorded) -> Arrived:
    with (run.run_dir / "metrics.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file, strict=True))
    found = [
        row(int(line["step"]), {name: line[name] for name in line if name not in FIXED and line[name] != ""})
        for line in lines
    ]
    return _expected(run.view, CsvDestination), Counter(found)


def read_jsonl(run: Recorded) -> Arrived:
    lines = [json.loads(line) for line in (run.run_dir / "records.jsonl").read_text("utf-8").splitlines()]
    found = [row(line["step"], line["values"]) for line in lines if line["kind"] == "metrics"]
    return _expected(run.history, JsonlDestination), Counter(found)


def read_tensorboard(run: Recorded) -> Arrived:
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every resume that it takes into account
    found: list[Row] = []
    for directory in (run.run_dir / "tensorboard", run.run_dir / "tensorboard" / "eval"):
        events = read_events(directory)
        scalars = [(tag, event) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
        found += joined((event.wall_time, event.step, tag, event.value) for tag, event in scalars)
    return _expected(run.view, TensorboardDestination), Counter(found)


def read_wandb(run: Recorded) -> Arrived:
    found = []
    for values in read_rows(run.run_dir):
        step = values.pop("train/step")
        found.append(row(step, {name: value for name, value in values.items() if not name.startswith("_")}))
    return _expected(run.history, WandbDestination), Counter(found)


def read_mlflow(run: Recorded) -> Arrived:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=run.layout.url("mlflow"))
    (mine,) = client.search_runs([client.get_experiment_by_name(PROJECT).experiment_id])
    metrics = [metric for name in mine.data.metrics for metric in client.get_metric_history(mine.info.run_id, name)]
    shown = MlflowDestination.shown
    expected = joined(
        (time, step, name, shown(None, value))
        for time, step, name, value in cells(run.history, lambda record: int(record.time * 1000))
    )
    return Counter(expected), Counter(joined((m.timestamp, m.step, m.key, m.value) for m in metrics))


def read_trackio(run: Recorded) -> Arrived:
    with trackio_in(run.layout.root / "trackio", PROJECT) as (storage, mine):
        lines = storage.get_logs(PROJECT, run_id=mine.id)
    found = [row(line.pop("step"), {name: line[name] for name in line if name != "timestamp"}) for line in lines]
    return _expected(run.view, TrackioDestination), Counter(found)


def read_status(run: Recorded) -> Arrived:
    taken = [message["body"] for message in messages(run.layout.endpoint_file)]
    found = [row(body["step"], body["metrics"]) for body in taken if body["kind"] == "metrics"]
    return _expected(run.history, JsonlDestination), Counter(found)


def read_function(run: Recorded) -> Arrived:
    lines = [json.loads(line) for line in run.layout.function_file.read_bytes().split(b"\n")[:-1]]
    return _expected(run.history), Counter(row(line["step"], line["values"]) for line in lines)


def read_console(run: Recorded) -> Arrived:
    """The lines of all sessions; of a row only what the console shows."""
    found = []
    for path in sorted(run.layout.logs.glob("console-[0-9]*.txt")):
        whole, _, _ = path.read_text("utf-8").rpartition("\n")  # a kill may cut the last line off
        for line in map(CONSOLE.fullmatch, whole.split("\n")):
            values = dict(pair.split(" ") for pair in line[2].strip().split("  ")) if line else {}
            if values and values.keys() <= SHOWN_ON_CONSOLE:
                found.append(row(int(line[1]), values))  # type: ignore[index]
    shown = [(record.step, without_costs(record.values)) for record in run.history]
    expected = [
        row(step, values, lambda value: ConsoleDestination.shown(None, value)) for step, values in shown if values
    ]
    return Counter(expected), Counter(found)


def read_prometheus(run: Recorded) -> Arrived:
    """The latest of each metric, which is all that it keeps."""
    families = samples((run.run_dir / "metrics.prom").read_text(encoding="utf-8"))
    found = {sample.labels["metric"]: sample.value for sample in families["hookline_metric"]}
    latest: dict = {}
    for record in run.view:
        latest |= record.values
    step = max(record.step for record in run.view)
    steps = {int(sample.value) for sample in families["hookline_step"]}
    return Counter([row(step, latest, lambda v: PrometheusDestination.shown(None, v))]), Counter(
        [row(max(steps), found)]
    )


def read_store(run: Recorded) -> Arrived:
    """What SQL over the index says."""
    found = hl.runs(run.layout.root).sql("SELECT axis, time, step, name, value FROM metrics").rows()
    expected = joined(
        (time, step, name, float(value))
        for time, step, name, value in cells(run.view, lambda record: (record.axis, record.time))
    )
    cells_found = (((each["axis"], each["time"]), each["step"], each["name"], each["value"]) for each in found)
    return Counter(expected), Counter(joined(cells_found))


def read_hookline(run: Recorded) -> Arrived:
    """The journals as the server has them: the same lines in the same files, so the same marks of resumes as well."""
    (received,) = run.layout.received_root.glob(f"{PROJECT}/*/run.json")
    there, here = (
        {f.path.name: list(read_lines(f.path)) for f in journal_files(d / JOURNAL)}
        for d in (received.parent, run.run_dir)
    )
    differing = [name for name in here.keys() | there.keys() if here.get(name, []) != there.get(name, [])]
    assert not differing, f"other lines in {differing}"
    return _expected(run.history), _expected(history(received.parent))


def _lines(run_dir: Path) -> dict[str, list]:
    return {file.path.name: list(read_lines(file.path)) for file in journal_files(run_dir / JOURNAL)}


READERS: dict[str, Callable[[Recorded], Arrived]] = {
    "console": read_console,
    "csv": read_csv,
    "function": read_function,
    "hookline": read_hookline,
    "jsonl": read_jsonl,
    "mlflow": read_mlflow,
    "prometheus": read_prometheus,
    "status": read_status,
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
    "store": read_store,
}
KEEPS = {"csv": "view", "tensorboard": "view", "trackio": "view", "store": "view", "prometheus": "latest"}
"""What a destination keeps, where it is not the whole history."""


def _expected(records: Records, kind: type[Destination] = Destination) -> Counter[Row]:
    return Counter(row(record.step, record.values, lambda value: kind.shown(None, value)) for record in records)

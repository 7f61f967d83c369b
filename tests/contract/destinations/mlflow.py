"""A tracking database of MLflow's, read back with its client."""

import functools
import json
import math
import shutil
import warnings
from pathlib import Path

from destinations.base import LEFT_OUT
from destinations.files import FileDestination
from hookline.sinks import MlflowSink

LARGEST = 1.7976931348623157e308


class MlflowDestination(FileDestination):
    name = "mlflow"
    file_name = "store"
    faults = ("disk_full", "unreachable")  # type: ignore[assignment]
    keeps_samples = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.path.mkdir()
        self.uri = f"sqlite:///{self.path / 'mlflow.db'}"
        shutil.copy(empty_database(directory.parent), self.path)

    def sink(self):
        return MlflowSink(self.uri, samples=True)

    def metrics(self):
        client, run = self._run()
        found = [metric for name in run.data.metrics for metric in client.get_metric_history(run.info.run_id, name)]
        found.sort(key=lambda metric: (metric.timestamp, metric.step))
        return [(metric.step, metric.key, metric.value) for metric in found]

    def texts(self):
        client, run = self._run()
        folder = client.download_artifacts(run.info.run_id, "samples", dst_path=str(self.directory))
        lines = [line for file in Path(folder).iterdir() for line in file.read_text(encoding="utf-8").splitlines()]
        return [sample["completion"] for sample in sorted(map(json.loads, lines), key=lambda sample: sample["time"])]

    def shown(self, value):
        if value is None:
            return LEFT_OUT
        return math.copysign(LARGEST, value) if math.isinf(value) else float(value)

    def fail(self, fault: str) -> None:
        if fault == "disk_full":
            super().fail(fault)
        else:
            self.path.rename(self._aside)

    def heal(self) -> None:
        if self._aside.exists():
            self._aside.rename(self.path)
        else:
            super().heal()

    @property
    def _aside(self) -> Path:
        return self.path.with_name("aside")

    def _run(self):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        (run,) = client.search_runs(experiments)
        return client, run


@functools.cache
def empty_database(directory: Path) -> Path:
    """A database with MLflow's tables, which takes seconds to make: once for all tests of a process."""
    path = directory / "mlflow-template" / "mlflow.db"
    path.parent.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mlflow uses what SQLAlchemy is about to drop
        from mlflow.tracking import MlflowClient

        MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path

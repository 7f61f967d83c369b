"""A tracking database of MLflow's, read back with its client."""

import functools
import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

from destinations import media_values
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

    def media(self):
        client, run = self._run()
        found: dict[str, Any] = {}
        for path in sorted(_artifacts(client, run.info.run_id)):
            folder, _, rest = path.partition("/")
            content = Path(client.download_artifacts(run.info.run_id, path)).read_bytes()
            if folder == "images" and path.endswith(".png"):
                found.setdefault(rest.partition("+")[0], []).append(media_values.image(content))
            elif folder == "tables":
                table = json.loads(content)
                found[rest.rpartition("/")[0]] = {"columns": table["columns"], "rows": table["data"]}
            elif folder == "media":
                found[rest.rpartition("/")[0]] = _content(path, content)
        return {name: sorted(value) if isinstance(value, list) else value for name, value in found.items()}

    def artifacts(self):
        client, run = self._run()
        paths = [path for path in _artifacts(client, run.info.run_id) if path.startswith("artifacts/")]
        contents = {path: Path(client.download_artifacts(run.info.run_id, path)).read_bytes() for path in paths}
        found = []
        for path in sorted(path for path in paths if path.count("/") == 2):
            about, folder = json.loads(contents[path]), path.removesuffix("json").rstrip(".") + "/"
            files = {name.removeprefix(folder): content for name, content in contents.items() if folder in name}
            references = {file["path"]: file["uri"] for file in about["files"] if "uri" in file}
            found.append(about | {"name": path.split("/")[1], "files": files, "references": references})
        return found

    def tables(self):
        """The rows of the tables, as mlflow loads them."""
        import mlflow

        client, run = self._run()
        mlflow.set_tracking_uri(self.uri)
        logged = json.loads(run.data.tags["mlflow.loggedArtifacts"])
        frames = [client.load_table(run.info.experiment_id, each["path"]) for each in logged]
        return [row for frame in frames for row in frame.to_numpy().tolist()]

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


def _artifacts(client, run_id, folder=None):
    for item in client.list_artifacts(run_id, folder):
        if item.is_dir:
            yield from _artifacts(client, run_id, item.path)
        else:
            yield item.path


def _content(path, content):
    if path.endswith((".webp", ".png")):
        return media_values.image(content)
    if path.endswith(".wav"):
        return media_values.audio(content)
    return content.decode() if path.endswith((".html", ".md", ".txt")) else content


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

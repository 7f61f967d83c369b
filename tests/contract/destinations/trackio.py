"""trackio's database in a directory of its own; read back with trackio's own API."""

from contextlib import contextmanager
from pathlib import Path

from destinations import media_values
from destinations.base import LEFT_OUT
from destinations.files import FileDestination
from hookline.sinks import TrackioSink

PROJECT = "contract"


class TrackioDestination(FileDestination):
    name = "trackio"
    file_name = "trackio"
    faults = ("disk_full", "unreachable")  # type: ignore[assignment]
    keeps_samples = True

    def sink(self):
        return TrackioSink(project=PROJECT, directory=self.path)

    def metrics(self):
        with trackio_in(self.path) as (storage, run):
            rows = storage.get_logs(PROJECT, run_id=run.id)
        return [(row["step"], name, row[name]) for row in rows for name in row if name not in ("step", "timestamp")]

    def texts(self):
        with trackio_in(self.path) as (storage, run):
            traces = storage.get_traces(PROJECT, run_id=run.id, sort="request_time_asc")
        return [trace["messages"][1]["content"] for trace in traces]

    def media(self):
        with trackio_in(self.path) as (storage, run):
            rows = storage.get_logs(PROJECT, run_id=run.id)
        return {name: self._value(value) for row in rows for name, value in row.items() if isinstance(value, dict)}

    def _value(self, value):
        content = (self.path / "media" / value["file_path"]).read_bytes() if "file_path" in value else b""
        match value["_type"]:
            case "trackio.image" | "trackio.video":
                return media_values.image(content)
            case "trackio.audio":
                return media_values.audio(content)
            case "trackio.histogram":
                return media_values.bins(value["values"], value["bins"])
            case "trackio.table":
                rows = [list(row.values()) for row in value["_value"]]
                cells = [[cell["_type"] if isinstance(cell, dict) else cell for cell in row] for row in rows]
                return {"columns": list(value["_value"][0]), "rows": cells}
            case "trackio.html":
                return content.decode()
        return value["_value"]

    def shown(self, value):
        return LEFT_OUT if value is None else value

    def fail(self, fault: str) -> None:
        if fault == "disk_full":
            super().fail(fault)
        else:
            self._aside.parent.mkdir()
            self.path.rename(self._aside)
            self.path.touch()

    def heal(self) -> None:
        if self._aside.exists():
            self.path.unlink()
            self._aside.rename(self.path)
        else:
            super().heal()

    @property
    def _aside(self) -> Path:
        return self.path.parent / "aside" / "trackio"


@contextmanager
def trackio_in(directory, project=PROJECT):
    """Trackio's own storage, looking at a directory, and the one run that it has there."""
    from trackio import Api, sqlite_storage

    before, sqlite_storage.TRACKIO_DIR = sqlite_storage.TRACKIO_DIR, directory
    try:
        (run,) = Api().runs(project)
        yield sqlite_storage.SQLiteStorage, run
    finally:
        sqlite_storage.TRACKIO_DIR = before

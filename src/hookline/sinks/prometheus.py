"""`PrometheusSink`: the latest values for Prometheus, on a port to scrape or in a text file.

Names of metrics are not known in advance, so all metrics are one family with the name as a label:
``hookline_metric{metric="val/loss", axis="eval", project=..., run=..., run_name=...}``. In addition:

- ``hookline_step{axis}``, ``hookline_num_steps``, ``hookline_progress_ratio``, ``hookline_eta_seconds``;
- ``hookline_status{status}``: 1 for the run's status, 0 for the others;
- ``hookline_last_progress_timestamp_seconds``: when the last step was completed, for alerts on a run that is alive but
  stuck; ``hookline_heartbeat_timestamp_seconds``: when the process was last alive;
- ``hookline_events_total{event}``: checkpoints, errors of hooks, ...

Prometheus keeps the history. Changes between two scrapes are not seen, and values that are not numbers are left out.
The port is closed with the run; a text file stays. A port that is in use is a temporary fault, because another run may
be using it. Rows are those of the run's main writer.
"""

import contextlib
import errno
import importlib.util
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import HooklineError, MissingExtraError, OptionError
from hookline._record.reader import FINAL, JournalEntry
from hookline._record.sink import Sink, register_sink
from hookline.sinks.run_progress import CREATED, RunMetadata, RunProgress, read_metadata

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

STATUSES = (CREATED, "running", *sorted(FINAL))
HEARTBEAT_SECONDS = 10.0
"""The time between two updates of the text file's heartbeat."""


class PortTakenError(HooklineError, OSError):
    """The port is in use by another process, or by another run of this one."""


@register_sink("prometheus")
@dataclass(eq=False)
class PrometheusSink(Sink):
    """Shows the latest metrics to Prometheus.

    Args:
        port: Serve them on this port; 0 uses a free one, see `address`.
        host: The interface to listen on; ``"0.0.0.0"`` is all of them.
        textfile: Write them to this file, for the text file collector of node_exporter, which requires ``.prom``.
            Without port and file, it is ``metrics.prom`` in the run's directory.
        prefix: The prefix of all family names.
        name: The sink's name in its run.
    """

    port: int | None = None
    host: str = "127.0.0.1"
    textfile: Path | None = None
    prefix: str = "hookline"
    name: str | None = None

    def __post_init__(self) -> None:
        require_integer("port", self.port, minimum=0, maximum=65535, optional=True)
        if not self.prefix.isidentifier() or not self.prefix.isascii():
            raise OptionError(f"prefix={self.prefix!r}: give letters, digits and '_'.")
        self.textfile = Path(self.textfile).absolute() if self.textfile is not None else None
        self._families: Families | None = None
        self._registry: CollectorRegistry | None = None
        self._server: tuple[WSGIServer, threading.Thread] | None = None
        self._file: Path | None = None
        self._last_written = float("-inf")

    @property
    def address(self) -> str | None:
        """The address, while it is served."""
        return f"http://{self.host}:{self._server[0].server_port}/metrics" if self._server else None

    def check(self) -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            raise MissingExtraError("The sink 'prometheus'", "status")

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return [f"port {settings['port']}"] if settings.get("port") is not None else []

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        from prometheus_client import CollectorRegistry, start_http_server

        self._families = Families(self.prefix, read_metadata(run_dir), RunProgress.restored(state))
        self._registry = CollectorRegistry()
        self._registry.register(self._families)
        self._file = self.textfile or (run_dir / "metrics.prom" if self.port is None else None)
        if self.port is not None:
            try:
                self._server = start_http_server(self.port, self.host, self._registry)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise PortTakenError(
                    f"port {self.port} of {self.host} is in use: give another port, or port=0"
                ) from error
        self._write_file()
        return self._families.saved()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._families is not None
        self._families.add(entries)
        self._write_file()
        return self._families.saved()

    def beat(self) -> None:
        assert self._families is not None
        self._families.heartbeat = time.time()
        if time.monotonic() - self._last_written >= HEARTBEAT_SECONDS:
            self._write_file()

    def close(self) -> None:
        if self._server is not None:
            server, thread = self._server
            self._server = None
            server.shutdown()
            server.server_close()
            thread.join()

    def _write_file(self) -> None:
        from prometheus_client import write_to_textfile

        if self._file is not None and self._registry is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(self._file), self._registry)
            self._last_written = time.monotonic()


class Families:
    """Collects the metric families from the run's progress; scrapes come from other threads."""

    def __init__(self, prefix: str, metadata: RunMetadata, progress: RunProgress) -> None:
        self._prefix, self._progress = prefix, progress
        self._labels = {"project": metadata.project, "run": metadata.id, "run_name": metadata.name}
        self._lock = threading.Lock()
        self.heartbeat = time.time()

    def add(self, entries: Sequence[JournalEntry]) -> None:
        """Update the progress with records."""
        with self._lock:
            for entry in entries:
                self._progress.add(entry)

    def saved(self) -> dict[str, Any]:
        """The state to save."""
        with self._lock:
            return self._progress.saved()

    def collect(self) -> "Iterator[Metric]":
        """All families, for a scrape."""
        with self._lock:  # a list, because a generator would read the progress after the lock is released
            return iter(list(self._collect()))

    def _collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily

        progress = self._progress
        yield self._gauge("metric", "The latest value of a metric.", list(_numbers(progress)))
        steps = [({"axis": axis}, step) for axis, step in progress.steps.items()]
        yield self._gauge("step", "The completed steps.", steps)
        statuses = dict.fromkeys((*STATUSES, progress.status))
        status = [({"status": each}, each == progress.status) for each in statuses]
        yield self._gauge("status", "1 for the run's current status.", status)
        singles = {
            "num_steps": ("The total number of steps.", progress.num_steps),
            "progress_ratio": ("The completed share of the steps.", progress.progress),
            "eta_seconds": ("The estimated remaining time.", progress.eta_seconds),
            "last_progress_timestamp_seconds": ("When the last step was completed.", progress.time or None),
            "heartbeat_timestamp_seconds": ("When the process was last alive.", self.heartbeat),
        }
        for name, (help_text, value) in singles.items():
            yield self._gauge(name, help_text, [] if value is None else [({}, value)])
        counter = CounterMetricFamily(f"{self._prefix}_events", "Events by name.")
        for event, count in progress.events.items():
            counter.add_sample(f"{counter.name}_total", self._labels | {"event": event}, float(count))
        yield counter

    def _gauge(self, name: str, help_text: str, samples: Sequence[tuple[dict[str, str], float]]) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(f"{self._prefix}_{name}", help_text)
        for labels, value in samples:
            family.add_sample(family.name, self._labels | labels, float(value))
        return family


def _numbers(progress: RunProgress) -> Iterator[tuple[dict[str, str], float]]:
    for axis, values in progress.metrics.items():
        for name, value in values.items():
            if isinstance(value, int | float):
                with contextlib.suppress(OverflowError):  # an integer that no float holds
                    yield {"axis": axis, "metric": name}, float(value)

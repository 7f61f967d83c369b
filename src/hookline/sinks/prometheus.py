"""`PrometheusSink`: the latest of everything for Prometheus, on a port to scrape or in a text file.

Metrics have names that no one knows beforehand, so they are one family with the name as a label:
``hookline_metric{metric="val/loss", axis="eval", project=..., run=..., run_name=...}``. Beside it:

- ``hookline_step{axis}``, ``hookline_num_steps``, ``hookline_progress_ratio``, ``hookline_eta_seconds``;
- ``hookline_status{status}``: 1 for the run's status, 0 for the others;
- ``hookline_last_progress_timestamp_seconds``: when the last step was complete, for alerts on a run that
  is alive and does not move; ``hookline_heartbeat_timestamp_seconds``: when the process was last alive;
- ``hookline_events_total{event}``: checkpoints, errors of hooks, ...

Prometheus keeps the history. What comes and goes between two scrapes is not seen, and values that are no
numbers are left out. The port is closed with the run, a text file stays. A port that is taken is a fault
that may pass: another run may hold it. Rows are those of the run's main writer.
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
"""How often the text file shows that the process is alive."""


class PortTakenError(HooklineError, OSError):
    """A port that another process, or another run of this one, listens on."""


@register_sink("prometheus")
@dataclass(eq=False)
class PrometheusSink(Sink):
    """Shows the latest metrics to Prometheus.

    Args:
        port: Serve them on this port; 0 takes one that is free, and `address` says which.
        host: The interface to listen on; ``"0.0.0.0"`` is all of them.
        textfile: Write them to this file, for the text file collector of node_exporter, which wants ``.prom``.
            Where neither is given it is ``metrics.prom`` in the run's directory.
        prefix: What the names of all families begin with.
        name: What the sink is called in its run.
    """

    port: int | None = None
    host: str = "127.0.0.1"
    textfile: Path | None = None
    prefix: str = "hookline"
    name: str | None = None

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 65536:
            raise OptionError(f"port={self.port!r}: give a number from 0 to 65535.")
        if not self.prefix.isidentifier() or not self.prefix.isascii():
            raise OptionError(f"prefix={self.prefix!r}: give letters, digits and '_'.")
        self.textfile = Path(self.textfile).absolute() if self.textfile is not None else None
        self._families: Families | None = None
        self._registry: CollectorRegistry | None = None
        self._server: tuple[WSGIServer, threading.Thread] | None = None
        self._file: Path | None = None
        self._beaten = float("-inf")

    @property
    def address(self) -> str | None:
        """Where it is served, while it is."""
        return f"http://{self.host}:{self._server[0].server_port}/metrics" if self._server else None

    def check(self) -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            raise MissingExtraError("The sink 'prometheus'", "status")

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return [f"port {settings['port']}"] if settings.get("port") is not None else []

    def open(self, run_dir: Path, state: Any) -> dict[str, Any]:
        from prometheus_client import CollectorRegistry

        self._families = Families(self.prefix, read_metadata(run_dir), RunProgress.restored(state))
        self._registry = CollectorRegistry()
        self._registry.register(self._families)
        self._file = self.textfile or (run_dir / "metrics.prom" if self.port is None else None)
        if self.port is not None:
            self._server = self._serve(self.port)
        self._write_file()
        return self._families.saved()

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._families is not None
        self._families.note(entries)
        self._write_file()
        return self._families.saved()

    def beat(self) -> None:
        assert self._families is not None
        self._families.heartbeat = time.time()
        if time.monotonic() - self._beaten >= HEARTBEAT_SECONDS:
            self._write_file()

    def close(self) -> None:
        if self._server is not None:
            server, thread = self._server
            self._server = None
            server.shutdown()
            server.server_close()
            thread.join()

    def _serve(self, port: int) -> "tuple[WSGIServer, threading.Thread]":
        from prometheus_client import start_http_server

        assert self._registry is not None
        try:
            return start_http_server(port, self.host, self._registry)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(f"port {port} of {self.host} is taken: give another port, or port=0") from error
            raise

    def _write_file(self) -> None:
        from prometheus_client import write_to_textfile

        if self._file is not None and self._registry is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(str(self._file), self._registry)
            self._beaten = time.monotonic()


class Families:
    """What Prometheus is shown, collected from where the run stands; scrapes come from other threads."""

    def __init__(self, prefix: str, sender: RunMetadata, standing: RunProgress) -> None:
        self._prefix, self._standing = prefix, standing
        self._labels = {"project": sender.project, "run": sender.id, "run_name": sender.name}
        self._lock = threading.Lock()
        self.heartbeat = time.time()

    def note(self, entries: Sequence[JournalEntry]) -> None:
        """Take records into account."""
        with self._lock:
            for entry in entries:
                self._standing.add(entry)

    def saved(self) -> dict[str, Any]:
        """The state to go on from."""
        with self._lock:
            return self._standing.saved()

    def collect(self) -> "Iterator[Metric]":
        """All families, as a scrape shows them."""
        with self._lock:
            return iter(list(self._collect()))

    def _collect(self) -> "Iterator[Metric]":
        standing = self._standing
        yield self._gauge("metric", "The latest value of a metric.", list(_numbers(standing)))
        steps = [({"axis": axis}, step) for axis, step in standing.steps.items()]
        yield self._gauge("step", "The steps that are complete.", steps)
        status = [({"status": word}, word == standing.status) for word in dict.fromkeys((*STATUSES, standing.status))]
        yield self._gauge("status", "1 for the status that the run has.", status)
        singles = {
            "num_steps": ("How many steps there will be.", standing.num_steps),
            "progress_ratio": ("The share of the steps that is complete.", standing.progress),
            "eta_seconds": ("How long the rest will take.", standing.eta_seconds),
            "last_progress_timestamp_seconds": ("When the last step was complete.", standing.time or None),
            "heartbeat_timestamp_seconds": ("When the process was last alive.", self.heartbeat),
        }
        for name, (help_text, value) in singles.items():
            yield self._gauge(name, help_text, [] if value is None else [({}, value)])
        yield self._counter(
            "events", "What happened, by name.", [({"event": n}, c) for n, c in standing.events.items()]
        )

    def _gauge(self, name: str, help_text: str, samples: Sequence[tuple[dict[str, str], float]]) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(f"{self._prefix}_{name}", help_text)
        for labels, value in samples:
            family.add_sample(family.name, self._labels | labels, float(value))
        return family

    def _counter(self, name: str, help_text: str, samples: Sequence[tuple[dict[str, str], float]]) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(f"{self._prefix}_{name}", help_text)
        for labels, value in samples:
            family.add_sample(f"{family.name}_total", self._labels | labels, float(value))
        return family


def _numbers(standing: RunProgress) -> Iterator[tuple[dict[str, str], float]]:
    for axis, values in standing.metrics.items():
        for name, value in values.items():
            if isinstance(value, int | float):
                with contextlib.suppress(OverflowError):  # an integer that no float holds
                    yield {"axis": axis, "metric": name}, float(value)

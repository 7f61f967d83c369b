"""A status endpoint on loopback."""

import math

from destinations.base import Destination
from destinations.http_server import StatusServer
from hookline.sinks import StatusSink


class StatusDestination(Destination):
    name = "status"
    faults = ("unreachable", "hanging", "error", "half_closed", "refused")

    def __init__(self, directory):
        super().__init__(directory)
        self.server = StatusServer()

    def sink(self):
        return StatusSink(self.server.url, metrics="all", timeout_seconds=3.0)

    def metrics(self):
        rows = self.server.reported("metrics")
        return [(row["step"], key, value) for row in rows for key, value in row["metrics"].items()]

    def shown(self, value):
        if isinstance(value, float) and not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        return value

    def fail(self, fault):
        self.server.fail(fault)

    def heal(self):
        self.server.heal()

    def close(self):
        self.server.close()

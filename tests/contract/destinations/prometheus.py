"""A text file for node_exporter, read back with Prometheus's own parser."""

from prometheus_client.parser import text_string_to_metric_families

from destinations.base import LEFT_OUT
from destinations.files import FileDestination
from hookline.sinks import PrometheusSink


def samples(text):
    """The samples by the name of their family's line."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


class PrometheusDestination(FileDestination):
    name = "prometheus"
    file_name = "training.prom"
    keeps_history = False

    def sink(self):
        return PrometheusSink(textfile=self.path)

    def metrics(self):
        found = samples(self.path.read_text(encoding="utf-8"))
        steps = {sample.labels["axis"]: int(sample.value) for sample in found["hookline_step"]}
        shown = found.get("hookline_metric", [])
        return [(steps[sample.labels["axis"]], sample.labels["metric"], sample.value) for sample in shown]

    def shown(self, value):
        return float(value) if isinstance(value, int | float) else LEFT_OUT

"""`hookline serve`, which can fail; what arrived is read back as every run is."""

import hookline as hl
from destinations.base import Destination
from destinations.journal_server import TOKEN, JournalServer
from hookline._record.records import Media, Metrics, Sample
from hookline.sinks import HooklineSink


class HooklineDestination(Destination):
    name = "hookline"
    keeps_samples = True
    faults = ("unreachable", "error", "half_closed", "truncated", "refused")

    def __init__(self, directory):
        super().__init__(directory)
        self.server = JournalServer(directory / "received")
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN)

    def sink(self):
        return HooklineSink(self.server.url, token_file=self.token_file)

    def metrics(self):
        rows = [record for record in self._records() if isinstance(record, Metrics)]
        return [(row.step, name, value) for row in rows for name, value in row.values.items()]

    def texts(self):
        return [record.completion for record in self._records() if isinstance(record, Sample)]

    def media(self):
        return {record.name: record.blob for record in self._records() if isinstance(record, Media)}

    def fail(self, fault):
        self.server.fail(fault)

    def heal(self):
        self.server.heal()

    def close(self):
        self.server.end()

    def _records(self):
        (directory,) = self.server.root.glob("[!.]*/*/")
        return list(hl.read(directory))

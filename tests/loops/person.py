"""A person who steers a run of this process, and what became of the commands."""

import hookline as hl
from hookline._record.reader import read
from hookline._record.records import Event


class Person(hl.Callback):
    """Sends commands at the ends of steps: ``{3: lambda control: control.stop()}``."""

    priority = -1000

    def __init__(self, script):
        self.script = script
        self.sent = []

    def on_step_end(self, loop, step_idx):
        if loop.step in self.script:
            self.sent.append(self.script[loop.step](hl.control(loop)))


def commands_in(run):
    """The commands in the journal: step, name, state and result."""
    events = [record for record in read(run.dir) if isinstance(record, Event) and record.name == "command"]
    return [(each.step, each.data["command"], each.data["state"], each.data["result"]) for each in events]

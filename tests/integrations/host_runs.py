"""What the tests of hosts do with their runs: an action at a step, and what was recorded."""

import hookline as hl
from hookline._record.records import Status


class At(hl.Callback):
    """Runs an action after a number of steps."""

    def __init__(self, step, action):
        self.at, self.action = step, action

    def on_step_end(self, loop, step_idx):
        if loop.step == self.at:
            self.action(loop)


def end_of(loop):
    """The last recorded status, and its message."""
    last = [record for record in hl.read(loop.dir) if isinstance(record, Status)][-1]
    return [last.status, last.message]


def values(loop, name):
    """The values of a metric with their steps."""
    return [(row.step, row.metrics[name]) for row in loop.history if name in row.metrics]

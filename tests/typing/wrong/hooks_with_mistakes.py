"""Each line that is marked must be reported, and no other."""

from typing import Any

import hookline as hl
from hookline import hooks, rl
from hookline.sinks import CsvSink, Sink


class NoRun(hl.Hook):
    def should_run(self, context: hl.HookContext) -> bool:
        return True


class WrongHook(hl.Hook):
    def should_run(self, context: int) -> bool:  # error
        return True

    def run(self, context: hl.HookContext, more: int) -> None: ...  # error


class WrongSink(Sink):
    def write(self, entries: int) -> Any: ...  # error


NoRun()  # error
hooks.LoggingHook("often")  # error
hooks.PeriodicHook(10)  # error
hl.Every("ten")  # error
hl.Every(10) & 5  # error
hl.on(3, print)  # error
hl.CallbackCollection([], strikt=True)  # error
hl.Policy(failures_allowed="three")  # error
hl.TrainerConfig(max_step=10)  # error
hl.callbacks.EarlyStoppingCallback(monitor=3)  # error
hl.callbacks.NaNGuard("explode")  # error
CsvSink(colums=("step",))  # error
rl.GRPOConfig(epsilon="much")  # error
hl.Experiment("x", [], mode="best")  # error


def use() -> None:
    with hl.run("typed", delivery="pigeon") as run:  # error
        run.log(loss=1.0)
        for number in run.steps([1.0, 2.0]):
            number.upper()  # error
        run.steps()  # error
    run.stop_reason.upper()  # error

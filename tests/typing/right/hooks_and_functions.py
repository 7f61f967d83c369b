"""Hooks, function hooks, logger functions and schedules."""

from typing import Any

import hookline as hl
from hookline import hooks


class Plateau(hl.Hook):
    def __init__(self, tolerance: float = 1e-3) -> None:
        self.tolerance = tolerance
        self.last = float("inf")

    def should_run(self, context: hl.HookContext) -> bool:
        loss: float = context.metadata["loss"]
        moved, self.last = abs(self.last - loss), loss
        return moved < self.tolerance

    def run(self, context: hl.HookContext) -> dict[str, int]:
        first, second = context.split_rng()
        print(first, second)
        return {"step": context.step}


class EveryTen(hooks.PeriodicHook):
    def __init__(self) -> None:
        super().__init__(10, start_step=100)

    def run(self, context: hooks.HookContext) -> None:
        print(context.lesson_id, context.rank)


@hl.on("step_end", every=hl.Every(100) | hl.At(1, 2, 5), priority=5)
def report(loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> dict[str, float]:
    return {"double": 2 * float(metrics["loss"])}


def log_row(report_data: dict[str, Any], step: int) -> None:
    print(step, report_data)


@hl.register("typed_timer")
class TypedTimer(hl.Callback):
    every = hl.Seconds(60) & ~hl.Once() | hl.Every(1000, start=10)

    def on_step_end(self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        print(step_idx)


manager = hl.HookManager([Plateau(), EveryTen()], strict=True)
manager.register_hook(hooks.LoggingHook(50), name="lines", after="plateau")
results: dict[str, Any] = manager.run_hooks(hl.HookContext(worker=None, step=100, metadata={"loss": 1.0}))
taken_out: bool = manager.unregister_hook(manager.get_hooks()[0])

when = hl.When(lambda loop: loop.step > 10)
callbacks = hl.CallbackCollection([report, log_row, TypedTimer()], name="group", policy=hl.Policy(failures_allowed=5))
callbacks.add(Plateau(), every=10, when=when, before="lines", budget=0.05)
costs: hl.Costs = callbacks.costs()
order: dict[str, list[str]] = dict(callbacks.plan())
failures: list[hl.Failure] = callbacks.failures

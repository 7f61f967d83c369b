"""Accelerate: `run` drives a loop over what an `Accelerator` has prepared, `HooklineTracker` is one of its trackers.

    from hookline.integrations.accelerate import run

    with run(accelerator, "warmup", resume="auto", callbacks=["checkpoint"]) as loop:
        for batch in loop.steps(loader, epochs=3):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            loop.log(loss=loss)

A plain `hl.run` around such a loop is right as well, where each batch is a step and nothing is to be resumed.
"""

# ruff: noqa: E402 - what is needed is checked before it is imported

from hookline.integrations.requirement import require

require("torch", ">=2.4", extra="torch", what=__name__)
require("accelerate", ">=1.0", extra="torch", what=__name__)

from hookline.integrations.accelerate.accelerate_run import AccelerateRun, run
from hookline.integrations.accelerate.tracker import HooklineTracker

__all__ = ["AccelerateRun", "HooklineTracker", "run"]

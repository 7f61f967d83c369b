"""Plain functions as hooks: for a moment, as a row logger, and as a dict of hook functions.

Prints a line every twentieth step, the largest loss that the logger saw, and where training started and ended.
"""

import math
from typing import Any

import hookline as hl


@hl.on("step_end", every=20)
def report(loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]) -> dict[str, float]:
    """A function hook; its return value is recorded as ``report/...``."""
    print(f"step {loop.step}: loss {metrics['loss']:.3f}")
    return {"perplexity": math.exp(metrics["loss"])}


losses: list[float] = []


def keep(report_data: dict[str, Any], step: int) -> None:
    """A logger function: called with each row."""
    losses.append(report_data["loss"])


def begin(worker: Any, report_data: dict[str, Any]) -> None:
    """A hook function, called before the first step."""
    print(f"{report_data['total_steps']} steps from step {report_data['start_step']}")


def end(worker: Any, report_data: dict[str, Any]) -> None:
    """A hook function, called after the last step."""
    print(f"ended at step {report_data['final_step']}")


def main() -> None:
    """Follow a loss that decays."""
    hooks = {"pre_training_hook": begin, "post_training_hook": end}
    with hl.run("functions", callbacks=[report, keep, hooks], summary=False) as run:
        for step in run.steps(60):
            run.log(loss=math.exp(-step / 20))
    print(f"{len(losses)} rows, largest loss {max(losses):.3f}, recorded {run.get_metric('report/perplexity'):.3f}")


if __name__ == "__main__":
    main()

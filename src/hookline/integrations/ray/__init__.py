"""Ray: runs inside of its workers that report to it, and runs that record what Tune and Train report.

- `ReportCallback` and `last_checkpoint`, in a worker of Ray Train or a trial of Tune: report a run's metrics and
  checkpoints to Ray, and resume from the checkpoint that Ray provides.
- `HooklineTuneCallback`, beside `ray.tune.Tuner`: records each trial as a run.
- `HooklineTrainCallback`, beside a trainer of Ray Train: records its workers' reports and failures as a run.
- `FitCallback`, named in the variable ``RAY_TRAIN_CALLBACKS``: does so for each fit, without an edit.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import MissingExtraError
from hookline._engine.optional import require

require("ray", ">=2.43", extra="ray", what=__name__)

if TYPE_CHECKING:
    from hookline.integrations.ray.fit import FitCallback
    from hookline.integrations.ray.train import HooklineTrainCallback

try:
    from hookline.integrations.ray.report import ReportCallback, last_checkpoint
    from hookline.integrations.ray.tune import HooklineTuneCallback
except ImportError as error:
    if error.name not in (None, "ray") and "ray[" not in str(error):
        raise
    raise MissingExtraError("hookline.integrations.ray", "ray") from error

__all__ = ["FitCallback", "HooklineTrainCallback", "HooklineTuneCallback", "ReportCallback", "last_checkpoint"]


def __getattr__(name: str) -> Any:
    # Ray has the base classes of these only with Ray Train V2, so they are imported when they are used.
    if name not in ("FitCallback", "HooklineTrainCallback"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "fit" if name == "FitCallback" else "train"
    try:
        return getattr(importlib.import_module(f"hookline.integrations.ray.{module}"), name)
    except ImportError as error:
        why = f"{name} needs Ray Train V2 (a Ray of 2.43 or later, with RAY_TRAIN_V2_ENABLED=1)."
        raise MissingExtraError(why) from error

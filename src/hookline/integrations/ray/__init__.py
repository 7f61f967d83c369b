"""Ray: runs inside of its workers that report to it, and runs that record what Tune and Train tell.

- `ReportCallback` and `last_checkpoint`, in a worker of Ray Train or a trial of Tune: a run's metrics and checkpoints
  are reported to Ray, and a run goes on from the checkpoint that Ray gives.
- `HooklineTuneCallback`, beside `ray.tune.Tuner`: each trial becomes a run.
- `HooklineTrainCallback`, beside a trainer of Ray Train: what its workers report, and their failures, become a run.
"""

from typing import TYPE_CHECKING, Any

from hookline._engine.errors import MissingExtraError
from hookline._engine.optional import require

require("ray", ">=2.43", extra="ray", what=__name__)

if TYPE_CHECKING:
    from hookline.integrations.ray.train_callback import HooklineTrainCallback

try:
    from hookline.integrations.ray.report_callback import ReportCallback, last_checkpoint
    from hookline.integrations.ray.tune_callback import HooklineTuneCallback
except ImportError as error:
    if error.name not in (None, "ray") and "ray[" not in str(error):
        raise
    raise MissingExtraError("hookline.integrations.ray", "ray") from error

__all__ = ["HooklineTrainCallback", "HooklineTuneCallback", "ReportCallback", "last_checkpoint"]


def __getattr__(name: str) -> Any:
    if name != "HooklineTrainCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from hookline.integrations.ray.train_callback import HooklineTrainCallback
    except ImportError as error:
        why = "HooklineTrainCallback needs Ray Train V2 (a Ray of 2.43 or later, with RAY_TRAIN_V2_ENABLED=1)."
        raise MissingExtraError(why) from error
    return HooklineTrainCallback

"""`FitCallback`: records each fit of Ray Train without an edit of its program.

``RAY_TRAIN_CALLBACKS=hookline.integrations.ray.FitCallback`` makes Ray create it in the driver and send it to its
controller, which opens the run, records the reports and ends the run. hookline's variables are those of the driver.
"""

import os
from pathlib import Path
from typing import Any

from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerGroupCallback

from hookline._engine.defaults import NAME_VARIABLE, mode
from hookline.config.variables import choose
from hookline.integrations.ray.train import HooklineTrainCallback


class FitCallback(ControllerCallback, ReportCallback, WorkerGroupCallback):
    """Records each fit as `HooklineTrainCallback` does, but not the console, which is the driver's."""

    def __init__(self) -> None:
        chosen = choose(name="ray")
        self._is_disabled = mode() == "disabled"
        self._name = os.environ.get(NAME_VARIABLE, "")
        self._project, self._tags, self._sinks = chosen.project, list(chosen.tags), list(chosen.sinks)
        self._root = None if chosen.root is None else Path(chosen.root).absolute()
        self._recorded: HooklineTrainCallback | None = None

    def after_controller_start(self, train_run_context: Any) -> None:
        """Open the run: it has the name of Ray's run, unless a variable names it."""
        if self._is_disabled:
            return
        name = self._name or train_run_context.get_run_config().name or "ray"
        self._recorded = HooklineTrainCallback(
            name, project=self._project, root=self._root, tags=self._tags, sinks=self._sinks, console=False
        )
        self._recorded.__enter__()

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Record a report of all workers."""
        if self._recorded is not None:
            self._recorded.after_report(None, metrics, training_report.checkpoint)

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Record the failures of workers, which Ray may start again."""
        if self._recorded is not None and worker_group_status.errors:
            self._recorded.after_exception(None, worker_group_status.errors)

    def after_controller_finish(self, result: Any) -> None:
        """End the run."""
        self._end(result.error)

    def before_controller_abort(self) -> None:
        """End the run as failed: the driver was interrupted."""
        self._end(KeyboardInterrupt("The fit was aborted."))

    def _end(self, error: BaseException | None) -> None:
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            recorded.__exit__(None if error is None else type(error), error, None)

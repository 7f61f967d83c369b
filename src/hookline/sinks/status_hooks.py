"""Status reports as plain functions: a logger ``(report_data, step)`` and hooks ``(worker, report_data)``.

Each call appends to the journal of a `StatusOutbox` and returns; a thread delivers. Only the hook at the end of
training waits for the network, for a few seconds at most, and not for an endpoint that is known to be down. Only rank
zero reports. Batches of a validation are reported at most every few seconds; while one batch takes minutes, heartbeats
continue.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError
from hookline._engine.metrics import plain
from hookline.sinks.http import require_url
from hookline.sinks.status import StatusSink
from hookline.sinks.status_outbox import StatusOutbox, outbox_for

LoggerFn = Callable[[dict[str, Any], int], None]
HookFn = Callable[[Any, dict[str, Any]], None]

DRAIN_SECONDS = 5.0
HEARTBEAT_SECONDS = 10.0
_COUNTS = frozenset({"current_epoch", "current_step", "total_steps"})
_TRAINING = ("pre_training_hook", "pre_training_step_hook", "post_training_step_hook", "post_training_hook")
_VALIDATION = (
    "pre_validation_hook",
    "pre_per_step_validation_hook",
    "post_per_step_validation_hook",
    "post_validation_hook",
)


def create_status_logger(
    endpoint: str,
    component_name: str = "Training",
    *,
    headers: Mapping[str, str] | None = None,
    root: str | Path = "runs",
) -> LoggerFn:
    """Return a logger function that sends metrics to an HTTP endpoint.

    It only gets metrics, so it reports a running training. The hooks report the end.

    Args:
        endpoint: The URL, e.g. ``http://localhost:8080/status``.
        component_name: The name of the reporting component.
        headers: Sent with every message; ``${NAME}`` in a value is replaced from the environment.
        root: Undelivered reports are kept below it, in ``.outbox``.
    """
    return StatusReport(_http_outbox(endpoint, "endpoint", headers, root), component_name).log_status


def create_training_hooks(
    status_endpoint: str,
    heartbeat_interval: int = 10,
    *,
    component_name: str = "Training",
    headers: Mapping[str, str] | None = None,
    root: str | Path = "runs",
    drain_seconds: float = DRAIN_SECONDS,
) -> dict[str, HookFn]:
    """Return hook functions that report a training: its start, a heartbeat every few steps, its end.

    Args:
        status_endpoint: The URL.
        heartbeat_interval: Every how many steps a heartbeat with the step's metrics is sent.
        component_name: The name of the reporting component.
        headers: Sent with every message; ``${NAME}`` in a value is replaced from the environment.
        root: Undelivered reports are kept below it, in ``.outbox``.
        drain_seconds: How long the end of training waits at most for the delivery of what is left.
    """
    outbox = _http_outbox(status_endpoint, "status_endpoint", headers, root)
    return StatusReport(outbox, component_name, heartbeat_interval, drain_seconds=drain_seconds).training_hooks()


def create_validation_hooks(
    status_endpoint: str,
    *,
    component_name: str = "Validation",
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    headers: Mapping[str, str] | None = None,
    root: str | Path = "runs",
) -> dict[str, HookFn]:
    """Return hook functions that report validations, so that a long one does not look like a hang.

    Args:
        status_endpoint: The URL.
        component_name: The name of the reporting component.
        heartbeat_seconds: The shortest time between reports of batches, and the time after which a heartbeat is sent if
            nothing else is.
        headers: Sent with every message; ``${NAME}`` in a value is replaced from the environment.
        root: Undelivered reports are kept below it, in ``.outbox``.
    """
    outbox = _http_outbox(status_endpoint, "status_endpoint", headers, root, heartbeat_seconds)
    return StatusReport(outbox, component_name, heartbeat_seconds=heartbeat_seconds).validation_hooks()


class TAOStatusLogger:
    """Reports a training in the format of NVIDIA TAO's ``status.json``, to an endpoint, a file, or both.

    If neither is given, the file is TAO's: ``TAO_STATUS_FILE``, or ``status.json`` of the job ``TAO_API_JOB_ID`` in
    ``TAO_API_RESULTS_DIR``.

    Args:
        status_endpoint: The URL.
        experiment_name: The name of the reporting component.
        status_file: The file that lines are appended to.
        heartbeat_interval: Every how many steps a heartbeat with the step's metrics is sent.
        heartbeat_seconds: The shortest time between reports of a validation's batches, and the time after which a
            heartbeat is sent if nothing else is.
        headers: Sent with every message; ``${NAME}`` in a value is replaced from the environment.
        root: Undelivered reports are kept below it, in ``.outbox``.
        drain_seconds: How long the end of training waits at most for the delivery of what is left.
    """

    def __init__(
        self,
        status_endpoint: str | None = None,
        experiment_name: str = "experiment",
        status_file: str | Path | None = None,
        *,
        heartbeat_interval: int = 10,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        headers: Mapping[str, str] | None = None,
        root: str | Path = "runs",
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        self.experiment_name = experiment_name
        path = status_file if status_file or status_endpoint else _tao_file()
        sinks: dict[str, StatusSink] = {}
        if status_endpoint is not None:
            sinks["endpoint"] = StatusSink(
                status_endpoint,
                format="tao",
                headers=dict(headers or {}),
                heartbeat_seconds=_sink_heartbeat(heartbeat_seconds),
            )
        if path is not None:
            sinks["file"] = StatusSink(
                path=Path(path), format="tao", heartbeat_seconds=_sink_heartbeat(heartbeat_seconds)
            )
        if not sinks:
            raise OptionError(
                "TAOStatusLogger() has nowhere to report to: give status_endpoint='http://...' or "
                "status_file='status.json', or set TAO_STATUS_FILE."
            )
        for sink in sinks.values():
            sink.check()
        self._reports = StatusReport(
            outbox_for(sinks, root),
            experiment_name,
            heartbeat_interval,
            heartbeat_seconds=heartbeat_seconds,
            drain_seconds=drain_seconds,
        )

    def log_status(self, report_data: dict[str, Any], step: int) -> None:
        """Report metrics at a step; a logger function."""
        self._reports.log_status(report_data, step)

    def get_hooks(self) -> dict[str, HookFn]:
        """Return all eight hook functions."""
        return {**self._reports.training_hooks(), **self._reports.validation_hooks()}


class StatusReport:
    """The functions themselves, for one outbox.

    Args:
        outbox: Where they report to.
        component: The name of the reporting component.
        heartbeat_interval: Every how many steps a step is reported.
        heartbeat_seconds: The shortest time between reports of a validation's batches.
        drain_seconds: How long the end of training waits at most.
    """

    def __init__(
        self,
        outbox: StatusOutbox,
        component: str,
        heartbeat_interval: int = 10,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        drain_seconds: float = DRAIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_integer("heartbeat_interval", heartbeat_interval)
        require_number("heartbeat_seconds", heartbeat_seconds, minimum=0)
        require_number("drain_seconds", drain_seconds, minimum=0)
        self.outbox, self.component = outbox, component
        self._interval, self._seconds, self._drain_seconds = heartbeat_interval, heartbeat_seconds, drain_seconds
        self._clock = clock
        self._last_batch = 0.0

    def training_hooks(self) -> dict[str, HookFn]:
        """Return the four hooks of a training and its steps."""
        return {name: getattr(self, name) for name in _TRAINING}

    def validation_hooks(self) -> dict[str, HookFn]:
        """Return the four hooks of a validation and its batches."""
        return {name: getattr(self, name) for name in _VALIDATION}

    def log_status(self, report_data: dict[str, Any], step: int) -> None:
        """Report metrics at a step."""
        if os.environ.get("RANK", "0") == "0":
            self.outbox.step = step
            data = {"component": self.component, "phase": "metrics", "report": {}, "metrics": plain(report_data)}
            self.outbox.report("running", f"Metrics at step {step}.", step=step, **data)

    def pre_training_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Report the start of a training and its length."""
        if _is_rank_zero(worker):
            self.outbox.step = report_data.get("start_step") or 0
            self.outbox.begin("training", worker)
            counts = {"num_steps": report_data.get("total_steps"), "num_epochs": report_data.get("total_epochs")}
            self._report("running", "training_starting", "Training starts.", report_data, **counts)

    def pre_training_step_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Note the step, for heartbeats."""
        self.outbox.step = report_data["current_step"]

    def post_training_step_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Note the step, and report it every few steps."""
        step = self.outbox.step = report_data["current_step"]
        if step % self._interval == 0 and _is_rank_zero(worker):
            metrics = {name: plain(value) for name, value in report_data.items() if name not in _COUNTS}
            message = f"Step {step} of {report_data.get('total_steps') or '?'}."
            counts = {name: value for name, value in report_data.items() if name in _COUNTS}
            self._report("running", "training_heartbeat", message, counts, metrics=metrics)

    def post_training_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Report the end, and wait a moment for the delivery of what is left."""
        if _is_rank_zero(worker):
            self.outbox.step = report_data.get("final_step") or self.outbox.step
            self.outbox.end("training")
            reason = getattr(worker, "stop_reason", None)
            if reason:
                self._report("stopped", "training_stopped", str(reason), report_data)
            else:
                self._report("finished", "training_complete", "Training is complete.", report_data)
            self.outbox.drain(self._drain_seconds)

    def pre_validation_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Report the start of a validation."""
        if _is_rank_zero(worker):
            # A validation report has no step, and the training hooks may not be in use: ask the worker.
            loop = getattr(worker, "trainer", worker)
            evaluated = getattr(loop, "evaluated_step", None)
            step = evaluated() if callable(evaluated) else getattr(loop, "step", None)
            self.outbox.step = step if isinstance(step, int) else self.outbox.step
            self.outbox.begin("validation", worker)
            self._last_batch = self._clock()
            self._report("running", "validation_starting", "Validation starts.", report_data)

    def pre_per_step_validation_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Report the start of a batch, if none was reported for a while."""
        self._report_batch(worker, "validation_batch_start", report_data)

    def post_per_step_validation_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Report the end of a batch, if none was reported for a while."""
        self._report_batch(worker, "validation_batch_complete", report_data)

    def post_validation_hook(self, worker: Any, report_data: dict[str, Any]) -> None:
        """Report a validation's result."""
        if _is_rank_zero(worker):
            self.outbox.end("validation")
            loss = report_data.get("val_avg_loss")
            metrics = {} if loss is None else {"val_avg_loss": plain(loss)}
            self._report("running", "validation_complete", "Validation is complete.", report_data, metrics=metrics)

    def _report_batch(self, worker: Any, phase: str, report_data: dict[str, Any]) -> None:
        now = self._clock()
        if now - self._last_batch >= self._seconds and _is_rank_zero(worker):
            self._last_batch = now
            self._report("running", phase, f"Validation batch {report_data['batch_index'] + 1}.", report_data)

    def _report(self, status: str, phase: str, message: str, report_data: dict[str, Any], **data: Any) -> None:
        epoch = next(
            (report_data[k] for k in ("current_epoch", "final_epoch", "start_epoch") if k in report_data), None
        )
        common = {"component": self.component, "phase": phase, "epoch": epoch, "report": plain(report_data)}
        self.outbox.report(status, message, step=self.outbox.step, **common, **data)


def _sink_heartbeat(heartbeat_seconds: float) -> float:
    # 0 reports every batch; heartbeats need an interval.
    return heartbeat_seconds if heartbeat_seconds > 0 else HEARTBEAT_SECONDS


def _http_outbox(
    endpoint: Any,
    what: str,
    headers: Mapping[str, str] | None,
    root: str | Path,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> StatusOutbox:
    require_url(endpoint, what)  # here as well: None is valid for a StatusSink
    sink = StatusSink(endpoint, headers=dict(headers or {}), heartbeat_seconds=_sink_heartbeat(heartbeat_seconds))
    sink.check()
    return outbox_for({"endpoint": sink}, root)


def _is_rank_zero(worker: Any) -> bool:
    rank = getattr(worker, "rank", None)
    return rank == 0 if isinstance(rank, int) else os.environ.get("RANK", "0") == "0"


def _tao_file() -> str | None:
    """Return the status file that TAO names in the environment."""
    named, job, results = (os.environ.get(f"TAO_{n}") for n in ("STATUS_FILE", "API_JOB_ID", "API_RESULTS_DIR"))
    return named or (str(Path(results, job, "status.json")) if job and results else None)

"""`ScriptRun`: the run of a script, from its start to its end, and the sessions that record into it.

Trackers in the process are recorded beside what they do: TensorBoard's writers, MLflow's client, an installed wandb,
and what Accelerate and Fabric log. Trainers are attached in `hookline._exec.hosts`.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from hookline._engine.collection import CallbackCollection
from hookline._engine.defaults import NAME_VARIABLE, Default
from hookline._exec.command import Plan, note_run
from hookline.compat import mlflow, tensorboard
from hookline.compat.patches import AfterImport, Patch
from hookline.compat.tensorboard.runs import Continued
from hookline.integrations.host_loop import HostLoop
from hookline.integrations.passive_run import PassiveRun
from hookline.loops.recording import JoinedRecorder
from hookline.loops.session import Session

logger = logging.getLogger("hookline")

_ACCELERATE = Patch(("accelerate.accelerator",), "Accelerator", ("init_trackers", "log"))
_FABRIC = Patch(("lightning.fabric.fabric", "lightning_fabric.fabric"), "Fabric", ("log_dict",))
_WANDB = Patch(("wandb.sdk.wandb_run",), "Run", ("log", "finish"))


class ScriptRun(PassiveRun):
    """The run of a script.

    It fires no moments: callbacks belong to the trainers that join it.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, summary=False, control=False, **options)
        self.callbacks = CallbackCollection()
        self.checkpointing = Continued(self)

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything; the run's number of steps is that of its longest training."""
        if self.recorder is not None:
            self.step = max(self.step, JoinedRecorder(self.recorder, "").last_step)
        super().finish(error)

    def _end_with_the_program(self) -> None:
        error = getattr(sys, "last_value", None)  # the uncaught exception, if there was one
        self.finish(error if isinstance(error, BaseException) else None)


class JoinedRun(PassiveRun):
    """Records what a tracker in the script logs, into the script's run."""

    control_refusal: ClassVar[str | None] = None

    def __init__(self, owner: Session, source: str) -> None:
        super().__init__(owner.name, root=owner.root, project=owner.project, summary=False, control=False)
        self.callbacks = CallbackCollection()
        self.recording.join(owner, source)
        self.begin()
        self.train_start()

    def status(self, status: str, /, message: str = "", **data: Any) -> None:
        """Do nothing: the status is that of the script's run."""

    def add(self, values: Mapping[str, Any], step: int | None) -> None:
        """Record values at a step, or at the next one if the tracker has none."""
        if not self.has_ended:
            self.record(values, self.step + 1 if step is None else int(step))

    def _end_with_the_program(self) -> None:
        self.finish()


class _Current:
    """The script of this process.

    Attributes:
        run: Its run; None on ranks that do not record it.
        is_attached: Whether trainers are attached.
    """

    def __init__(self) -> None:
        self.run: ScriptRun | None = None
        self.is_attached = False


current = _Current()


def join_script(loop: HostLoop) -> None:
    """Let a trainer's loop record into the run of the script."""
    if current.run is not None:
        loop.recording.join(current.run)
    else:
        loop.recording.is_joined = True  # all ranks make the same decisions about the run


def record_script(plan: Plan, program: str, *, continues: Path | None, records: bool) -> None:
    """Start recording the script that this process is about to run.

    Args:
        plan: What the command decided.
        program: The script, or ``-m module``.
        continues: The run of an earlier start of the same script.
        records: False on ranks other than zero, which only attach trainers.
    """
    current.is_attached = True
    if records:
        current.run = run = ScriptRun(Default(name_of(program), NAME_VARIABLE))
        if continues is not None:
            run.resume_from = continues
        run.begin()
        run.train_start(step=run.step)
        if run.output_dir is not None:
            note_run(plan, run.output_dir)
        follow_trackers(run, as_wandb=plan.as_wandb)


def name_of(program: str) -> str:
    """Return the name of a script's run.

    >>> name_of("scripts/train.py"), name_of("-m package.train"), name_of("-c"), name_of("-")
    ('train', 'package.train', 'python', 'python')
    """
    if program in ("-", "-c"):
        return "python"
    return program.removeprefix("-m ") if program.startswith("-m ") else Path(program).stem


def follow_trackers(run: ScriptRun, *, as_wandb: bool) -> None:
    """Record everything that is logged to the trackers in this process."""
    tensorboard.sync(JoinedRun(run, "tensorboard"))
    mlflow.sync(JoinedRun(run, "mlflow"))
    _follow(_ACCELERATE, _accelerate, JoinedRun(run, "accelerate"))
    _follow(_FABRIC, _fabric, JoinedRun(run, "fabric"))
    if not as_wandb:
        _follow(_WANDB, _wandb, JoinedRun(run, "wandb"))
    # The drop-in's first run joins the script's, also if the script imports it as hookline.compat.wandb.
    AfterImport({"hookline.compat.wandb.active": lambda module: setattr(module.state, "owner", run)}).install()


def _follow(patch: Patch, record: Callable[..., None], run: JoinedRun) -> None:
    def listen(method: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        record(run, method, owner, *args, **kwargs)

    patch.add(listen)


def _accelerate(run: JoinedRun, method: str, accelerator: Any, *args: Any, **kwargs: Any) -> None:
    # Values of hookline's own tracker are in this run already.
    if not accelerator.is_main_process or any(each.name == "hookline" for each in getattr(accelerator, "trackers", ())):
        return
    if method == "log":
        _accelerate_log(run, *args, **kwargs)
    else:
        _accelerate_config(run, *args, **kwargs)


def _accelerate_log(run: JoinedRun, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
    run.add(values, step)


def _accelerate_config(
    run: JoinedRun, project_name: str, config: Mapping[str, Any] | None = None, *_: Any, **__: Any
) -> None:
    run.update_config({"accelerate.project": project_name, **(config or {})})


def _fabric(run: JoinedRun, method: str, fabric: Any, metrics: Mapping[str, Any], step: int | None = None) -> None:
    if fabric.is_global_zero:
        run.add(metrics, step)


def _wandb(run: JoinedRun, method: str, wandb_run: Any, *args: Any, **kwargs: Any) -> None:
    # Steps of a second run start over, so its names get a prefix.
    run.native = run.native or wandb_run.id
    prefix = "" if run.native == wandb_run.id else f"{wandb_run.name or wandb_run.id}/"
    if method == "log":
        _wandb_log(run, wandb_run, prefix, *args, **kwargs)
    elif config := dict(wandb_run.config):
        run.update_config({f"{prefix}{name}": value for name, value in config.items()})


def _wandb_log(
    run: JoinedRun, wandb_run: Any, prefix: str, data: Mapping[str, Any], step: int | None = None, *_: Any, **__: Any
) -> None:
    run.add(_flat(data, prefix), wandb_run.step if step is None else step)


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the names of nested values with dots, as wandb does."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat

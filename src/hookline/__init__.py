"""Hooks, callbacks and logging for every training loop."""

from typing import TYPE_CHECKING, Any

from hookline._engine.collection import CallbackCollection
from hookline._engine.costs import Cost, Costs
from hookline._engine.errors import (
    CheckpointError,
    ConfigError,
    DuplicateError,
    HooklineError,
    MissingExtraError,
    MomentError,
    NonFiniteError,
    NotOfferedError,
    OptionError,
    OrderError,
    RefusedError,
    UnknownNameError,
)
from hookline._engine.functions import on
from hookline._engine.hook_manager import HookManager
from hookline._engine.hooks import Hook, HookContext
from hookline._engine.moments import MOMENTS, Callback
from hookline._engine.policy import Failure, Policy
from hookline._engine.registry import register
from hookline._engine.schedules import At, Every, Once, Schedule, Seconds, When

if TYPE_CHECKING:
    from hookline import (
        callbacks,
        compat,
        experiment,
        functions,
        hooks,
        importers,
        integrations,
        logging,
        rewards,
        rl,
        server,
        sinks,
        status,
        store,
        testing,
    )
    from hookline._engine.state import (
        ArmResult,
        EvalResult,
        LogContext,
        LoopArtifacts,
        LoopState,
        ManifestRow,
        RunResult,
        TrainingBatch,
    )
    from hookline._record.reader import follow, read
    from hookline._record.recorder import Recorder
    from hookline._record.sink import Sink
    from hookline.compat import wrap
    from hookline.config.subscribers import load_callbacks
    from hookline.experiment.arms import Arm, Stage, grid
    from hookline.experiment.benchmark import Benchmark
    from hookline.experiment.experiment import Experiment
    from hookline.experiment.results.result import ExperimentResult
    from hookline.loops import sft
    from hookline.loops.run import Run, run, start
    from hookline.loops.trainer import Trainer
    from hookline.loops.trainer import Trainer as DreamTrainer
    from hookline.loops.trainer_config import TrainerConfig
    from hookline.loops.trainer_config import TrainerConfig as DreamTrainerConfig
    from hookline.loops.worker import SFTPolicyWorker, main
    from hookline.store.runs import runs

__version__ = "0.1.0"

__all__ = [
    "MOMENTS",
    "Arm",
    "ArmResult",
    "At",
    "Benchmark",
    "Callback",
    "CallbackCollection",
    "CheckpointError",
    "ConfigError",
    "Cost",
    "Costs",
    "DreamTrainer",
    "DreamTrainerConfig",
    "DuplicateError",
    "EvalResult",
    "Every",
    "Experiment",
    "ExperimentResult",
    "Failure",
    "Hook",
    "HookContext",
    "HookManager",
    "HooklineError",
    "LogContext",
    "LoopArtifacts",
    "LoopState",
    "ManifestRow",
    "MissingExtraError",
    "MomentError",
    "NonFiniteError",
    "NotOfferedError",
    "Once",
    "OptionError",
    "OrderError",
    "Policy",
    "Recorder",
    "RefusedError",
    "Run",
    "RunResult",
    "SFTPolicyWorker",
    "Schedule",
    "Seconds",
    "Sink",
    "Stage",
    "Trainer",
    "TrainerConfig",
    "TrainingBatch",
    "UnknownNameError",
    "When",
    "callbacks",
    "compat",
    "experiment",
    "follow",
    "functions",
    "grid",
    "hooks",
    "importers",
    "integrations",
    "load_callbacks",
    "logging",
    "main",
    "on",
    "read",
    "register",
    "rewards",
    "rl",
    "run",
    "runs",
    "server",
    "sft",
    "sinks",
    "start",
    "status",
    "store",
    "testing",
    "wrap",
]


_LAZY = {
    "Arm": "hookline.experiment.arms:Arm",
    "ArmResult": "hookline._engine.state:ArmResult",
    "Benchmark": "hookline.experiment.benchmark:Benchmark",
    "DreamTrainer": "hookline.loops.trainer:Trainer",
    "DreamTrainerConfig": "hookline.loops.trainer_config:TrainerConfig",
    "EvalResult": "hookline._engine.state:EvalResult",
    "Experiment": "hookline.experiment.experiment:Experiment",
    "ExperimentResult": "hookline.experiment.results.result:ExperimentResult",
    "LogContext": "hookline._engine.state:LogContext",
    "LoopArtifacts": "hookline._engine.state:LoopArtifacts",
    "LoopState": "hookline._engine.state:LoopState",
    "ManifestRow": "hookline._engine.state:ManifestRow",
    "RunResult": "hookline._engine.state:RunResult",
    "TrainingBatch": "hookline._engine.state:TrainingBatch",
    "Recorder": "hookline._record.recorder:Recorder",
    "Stage": "hookline.experiment.arms:Stage",
    "Run": "hookline.loops.run:Run",
    "SFTPolicyWorker": "hookline.loops.worker:SFTPolicyWorker",
    "Trainer": "hookline.loops.trainer:Trainer",
    "TrainerConfig": "hookline.loops.trainer_config:TrainerConfig",
    "callbacks": "hookline.callbacks",
    "compat": "hookline.compat",
    "experiment": "hookline.experiment",
    "follow": "hookline._record.reader:follow",
    "functions": "hookline.functions",
    "grid": "hookline.experiment.arms:grid",
    "hooks": "hookline.hooks",
    "importers": "hookline.importers",
    "integrations": "hookline.integrations",
    "load_callbacks": "hookline.config.subscribers:load_callbacks",
    "read": "hookline._record.reader:read",
    "rewards": "hookline.rewards",
    "rl": "hookline.rl",
    "run": "hookline.loops.run:run",
    "runs": "hookline.store.runs:runs",
    "server": "hookline.server",
    "sft": "hookline.loops.sft",
    "Sink": "hookline._record.sink:Sink",
    "sinks": "hookline.sinks",
    "start": "hookline.loops.run:start",
    "status": "hookline.status",
    "store": "hookline.store",
    "logging": "hookline.logging",
    "main": "hookline.loops.worker:main",
    "testing": "hookline.testing",
    "wrap": "hookline.compat:wrap",
}
"""What is imported when it is first used, so that `import hookline` stays cheap."""

_EXTRAS = {"SFTPolicyWorker": "hf"}
"""The extra that a name needs, where it is another one than ``torch``."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hookline' has no attribute {name!r}")
    from hookline._engine.optional import load_lazy

    value = load_lazy(f"hookline.{name}", _LAZY[name], extra=_EXTRAS.get(name, "torch"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

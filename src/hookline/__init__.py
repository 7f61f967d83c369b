"""Hooks, callbacks and logging for every training loop."""

from typing import TYPE_CHECKING, Any

from hookline.core.callback import MOMENTS, Callback
from hookline.core.collection import CallbackCollection, load_callbacks
from hookline.core.errors import (
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
from hookline.core.functions import on
from hookline.core.hook import Hook, HookContext, HookManager
from hookline.core.policy import Failure, Policy
from hookline.core.registry import register
from hookline.core.schedule import At, Every, Once, Schedule, Seconds, When
from hookline.core.timing import Cost, Costs

if TYPE_CHECKING:
    from hookline import (
        callbacks,
        experiment,
        functions,
        hooks,
        integrations,
        logging,
        rewards,
        rl,
        sinks,
        status,
        testing,
    )
    from hookline.core.state import (
        ArmResult,
        EvalResult,
        LogContext,
        LoopArtifacts,
        LoopState,
        ManifestRow,
        RunResult,
        TrainingBatch,
    )
    from hookline.experiment.arm import Arm
    from hookline.experiment.benchmark import Benchmark
    from hookline.experiment.experiment import Experiment
    from hookline.experiment.grid import grid
    from hookline.experiment.results.result import ExperimentResult
    from hookline.experiment.stage import Stage
    from hookline.integrations.foreign import wrap
    from hookline.loops.run import Run, run, start
    from hookline.loops.trainer import Trainer
    from hookline.loops.trainer import Trainer as DreamTrainer
    from hookline.loops.trainer_config import TrainerConfig
    from hookline.loops.trainer_config import TrainerConfig as DreamTrainerConfig
    from hookline.loops.worker import SFTPolicyWorker
    from hookline.loops.worker_entry import main
    from hookline.record.reader import follow, read
    from hookline.record.recorder import Recorder
    from hookline.record.sink import Sink
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
    "experiment",
    "follow",
    "functions",
    "grid",
    "hooks",
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
    "sinks",
    "start",
    "status",
    "testing",
    "wrap",
]


_LAZY = {
    "Arm": "hookline.experiment.arm:Arm",
    "ArmResult": "hookline.core.state:ArmResult",
    "Benchmark": "hookline.experiment.benchmark:Benchmark",
    "DreamTrainer": "hookline.loops.trainer:Trainer",
    "DreamTrainerConfig": "hookline.loops.trainer_config:TrainerConfig",
    "EvalResult": "hookline.core.state:EvalResult",
    "Experiment": "hookline.experiment.experiment:Experiment",
    "ExperimentResult": "hookline.experiment.results.result:ExperimentResult",
    "LogContext": "hookline.core.state:LogContext",
    "LoopArtifacts": "hookline.core.state:LoopArtifacts",
    "LoopState": "hookline.core.state:LoopState",
    "ManifestRow": "hookline.core.state:ManifestRow",
    "RunResult": "hookline.core.state:RunResult",
    "TrainingBatch": "hookline.core.state:TrainingBatch",
    "Recorder": "hookline.record.recorder:Recorder",
    "Stage": "hookline.experiment.stage:Stage",
    "Run": "hookline.loops.run:Run",
    "SFTPolicyWorker": "hookline.loops.worker:SFTPolicyWorker",
    "Trainer": "hookline.loops.trainer:Trainer",
    "TrainerConfig": "hookline.loops.trainer_config:TrainerConfig",
    "callbacks": "hookline.callbacks",
    "experiment": "hookline.experiment",
    "follow": "hookline.record.reader:follow",
    "functions": "hookline.functions",
    "grid": "hookline.experiment.grid:grid",
    "hooks": "hookline.hooks",
    "integrations": "hookline.integrations",
    "read": "hookline.record.reader:read",
    "rewards": "hookline.rewards",
    "rl": "hookline.rl",
    "run": "hookline.loops.run:run",
    "runs": "hookline.store.runs:runs",
    "Sink": "hookline.record.sink:Sink",
    "sinks": "hookline.sinks",
    "start": "hookline.loops.run:start",
    "status": "hookline.status",
    "logging": "hookline.logging",
    "main": "hookline.loops.worker_entry:main",
    "testing": "hookline.testing",
    "wrap": "hookline.integrations.foreign:wrap",
}
"""What is imported when it is first used, so that `import hookline` stays cheap."""

_EXTRAS = {"SFTPolicyWorker": "hf"}
"""The extra that a name needs, where it is another one than ``torch``."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hookline' has no attribute {name!r}")
    from hookline.core.lazy_names import load

    value = load(f"hookline.{name}", _LAZY[name], extra=_EXTRAS.get(name, "torch"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

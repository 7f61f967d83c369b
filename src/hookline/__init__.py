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
    from hookline import callbacks, functions, hooks, logging, rewards, rl, sinks, status, testing
    from hookline.core.state import (
        ArmResult,
        EvalResult,
        ExperimentResult,
        LogContext,
        LoopArtifacts,
        LoopState,
        ManifestRow,
        RunResult,
        TrainingBatch,
    )
    from hookline.loops.run import Run, run
    from hookline.loops.trainer import Trainer
    from hookline.loops.trainer_config import TrainerConfig
    from hookline.loops.worker import SFTPolicyWorker
    from hookline.loops.worker_entry import main
    from hookline.record.reader import follow, read
    from hookline.record.recorder import Recorder
    from hookline.record.sink import Sink

__version__ = "0.1.0"

__all__ = [
    "MOMENTS",
    "ArmResult",
    "At",
    "Callback",
    "CallbackCollection",
    "CheckpointError",
    "ConfigError",
    "Cost",
    "Costs",
    "DuplicateError",
    "EvalResult",
    "Every",
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
    "Trainer",
    "TrainerConfig",
    "TrainingBatch",
    "UnknownNameError",
    "When",
    "callbacks",
    "follow",
    "functions",
    "hooks",
    "load_callbacks",
    "logging",
    "main",
    "on",
    "read",
    "register",
    "rewards",
    "rl",
    "run",
    "sinks",
    "status",
    "testing",
]


_LAZY = {
    "ArmResult": "hookline.core.state:ArmResult",
    "EvalResult": "hookline.core.state:EvalResult",
    "ExperimentResult": "hookline.core.state:ExperimentResult",
    "LogContext": "hookline.core.state:LogContext",
    "LoopArtifacts": "hookline.core.state:LoopArtifacts",
    "LoopState": "hookline.core.state:LoopState",
    "ManifestRow": "hookline.core.state:ManifestRow",
    "RunResult": "hookline.core.state:RunResult",
    "TrainingBatch": "hookline.core.state:TrainingBatch",
    "Recorder": "hookline.record.recorder:Recorder",
    "Run": "hookline.loops.run:Run",
    "SFTPolicyWorker": "hookline.loops.worker:SFTPolicyWorker",
    "Trainer": "hookline.loops.trainer:Trainer",
    "TrainerConfig": "hookline.loops.trainer_config:TrainerConfig",
    "callbacks": "hookline.callbacks",
    "follow": "hookline.record.reader:follow",
    "functions": "hookline.functions",
    "hooks": "hookline.hooks",
    "read": "hookline.record.reader:read",
    "rewards": "hookline.rewards",
    "rl": "hookline.rl",
    "run": "hookline.loops.run:run",
    "Sink": "hookline.record.sink:Sink",
    "sinks": "hookline.sinks",
    "status": "hookline.status",
    "logging": "hookline.logging",
    "main": "hookline.loops.worker_entry:main",
    "testing": "hookline.testing",
}
"""What is imported when it is first used, so that `import hookline` stays cheap."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hookline' has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _LAZY[name].partition(":")
    value = import_module(module)
    value = getattr(value, attribute) if attribute else value
    globals()[name] = value
    return value

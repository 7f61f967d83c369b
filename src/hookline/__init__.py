"""Hooks, callbacks and logging for every training loop."""

from typing import TYPE_CHECKING, Any

from hookline._engine.collection import CallbackCollection
from hookline._engine.costs import Cost, Costs
from hookline._engine.errors import (
    ArtifactError,
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
from hookline._engine.failures import Failure, Policy
from hookline._engine.functions import on
from hookline._engine.hook_manager import HookManager
from hookline._engine.hooks import Hook, HookContext
from hookline._engine.moments import MOMENTS, Callback
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
        plots,
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
    from hookline._record.artifacts import Artifact, artifact
    from hookline._record.commands import Command, control
    from hookline._record.media import Audio, Figure, File, Histogram, Html, Image, Markdown, Text, Video
    from hookline._record.media_table import Table
    from hookline._record.reader import follow, read
    from hookline._record.recorder import Recorder
    from hookline._record.sink import Sink
    from hookline._record.tokens import Tokens
    from hookline.compat import wrap
    from hookline.config.loading import load_callbacks
    from hookline.experiment.arms import Arm, Stage, grid
    from hookline.experiment.benchmark import Benchmark
    from hookline.experiment.experiment import Experiment
    from hookline.experiment.results.result import ExperimentResult
    from hookline.experiment.search import Optuna
    from hookline.loops import sft
    from hookline.loops.replay import replay
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
    "Artifact",
    "ArtifactError",
    "At",
    "Audio",
    "Benchmark",
    "Callback",
    "CallbackCollection",
    "CheckpointError",
    "Command",
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
    "Figure",
    "File",
    "Histogram",
    "Hook",
    "HookContext",
    "HookManager",
    "HooklineError",
    "Html",
    "Image",
    "LogContext",
    "LoopArtifacts",
    "LoopState",
    "ManifestRow",
    "Markdown",
    "MissingExtraError",
    "MomentError",
    "NonFiniteError",
    "NotOfferedError",
    "Once",
    "OptionError",
    "Optuna",
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
    "Table",
    "Text",
    "Tokens",
    "Trainer",
    "TrainerConfig",
    "TrainingBatch",
    "UnknownNameError",
    "Video",
    "When",
    "artifact",
    "callbacks",
    "compat",
    "control",
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
    "plots",
    "read",
    "register",
    "replay",
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
    "Audio": "hookline._record.media:Audio",
    "Figure": "hookline._record.media:Figure",
    "File": "hookline._record.media:File",
    "Histogram": "hookline._record.media:Histogram",
    "Html": "hookline._record.media:Html",
    "Image": "hookline._record.media:Image",
    "Markdown": "hookline._record.media:Markdown",
    "Table": "hookline._record.media_table:Table",
    "Text": "hookline._record.media:Text",
    "Tokens": "hookline._record.tokens:Tokens",
    "Video": "hookline._record.media:Video",
    "Arm": "hookline.experiment.arms:Arm",
    "ArmResult": "hookline._engine.state:ArmResult",
    "Artifact": "hookline._record.artifacts:Artifact",
    "Command": "hookline._record.commands:Command",
    "Benchmark": "hookline.experiment.benchmark:Benchmark",
    "DreamTrainer": "hookline.loops.trainer:Trainer",
    "DreamTrainerConfig": "hookline.loops.trainer_config:TrainerConfig",
    "EvalResult": "hookline._engine.state:EvalResult",
    "Experiment": "hookline.experiment.experiment:Experiment",
    "ExperimentResult": "hookline.experiment.results.result:ExperimentResult",
    "Optuna": "hookline.experiment.search:Optuna",
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
    "artifact": "hookline._record.artifacts:artifact",
    "callbacks": "hookline.callbacks",
    "compat": "hookline.compat",
    "control": "hookline._record.commands:control",
    "experiment": "hookline.experiment",
    "follow": "hookline._record.reader:follow",
    "functions": "hookline.functions",
    "grid": "hookline.experiment.arms:grid",
    "hooks": "hookline.hooks",
    "importers": "hookline.importers",
    "integrations": "hookline.integrations",
    "load_callbacks": "hookline.config.loading:load_callbacks",
    "plots": "hookline.plots",
    "read": "hookline._record.reader:read",
    "replay": "hookline.loops.replay:replay",
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

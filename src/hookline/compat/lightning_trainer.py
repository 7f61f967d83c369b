"""What a Lightning callback is given as ``trainer``.

What a Lightning callback finds in its ``trainer``: the state, the loops' counters, the strategy, the logger.
"""

import os
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hookline._engine.errors import OptionError
from hookline.compat.base import LoopFacts, StandIn
from hookline.loops import checkpoint
from hookline.loops.trainer_setup import is_plateau

if TYPE_CHECKING:
    from hookline.compat.base import ForeignCallback


class TrainerState(StandIn):
    """``trainer.state``: that it fits, and which stage it is in."""

    def __init__(self, bridge: "ForeignCallback", loop: Any, path: str, words: Any) -> None:
        super().__init__(bridge, loop, path)
        vars(self)["_words"] = words

    @property
    def fn(self) -> Any:
        """FITTING, or VALIDATING where the loop does not train."""
        return self._words.TrainerFn.FITTING if self._bridge.is_training else self._words.TrainerFn.VALIDATING

    @property
    def stage(self) -> Any:
        """TRAINING or VALIDATING."""
        stages = self._words.RunningStage
        return stages.VALIDATING if self._bridge.is_validating else stages.TRAINING

    @property
    def status(self) -> Any:
        """RUNNING."""
        return self._words.TrainerStatus.RUNNING


class FitLoop(StandIn):
    """``trainer.fit_loop``: the counters of it."""

    def __init__(self, bridge: "ForeignCallback", loop: Any, path: str) -> None:
        super().__init__(bridge, loop, path)
        vars(self)["epoch_loop"] = EpochLoop(bridge, loop, f"{path}.epoch_loop")

    @property
    def max_epochs(self) -> int:
        """The planned number of epochs; -1 where it is not known."""
        return -1 if self._loop.num_epochs is None else int(self._loop.num_epochs)


class EpochLoop(StandIn):
    """``trainer.fit_loop.epoch_loop``."""

    def __init__(self, bridge: "ForeignCallback", loop: Any, path: str) -> None:
        super().__init__(bridge, loop, path)
        vars(self)["batch_progress"] = BatchProgress(bridge, loop, f"{path}.batch_progress")
        vars(self)["val_loop"] = ValidationLoop(bridge, loop, f"{path}.val_loop")

    @property
    def global_step(self) -> int:
        """The number of completed steps."""
        return int(self._loop.step)

    _batches_that_stepped = global_step


class BatchProgress(StandIn):
    """How far the epoch is."""

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch is the last of the epoch, where its length is known."""
        batches = LoopFacts(self._loop).batches_per_epoch
        return batches is not None and self._bridge.batch_idx + 1 == batches


class ValidationLoop(StandIn):
    """The validations inside a training."""

    @property
    def _has_run(self) -> bool:
        return bool(getattr(self._loop, "validation_metrics", None))


class LoggerConnector(StandIn):
    """Says when to log: at every step, as hookline does."""

    should_update_logs = True


class Strategy(StandIn):
    """``trainer.strategy``: what processes that train together settle; the callback has to run on all of them."""

    @property
    def root_device(self) -> Any:
        """Where the model is trained."""
        import torch

        return getattr(self._loop, "device", None) or torch.device("cpu")

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Rank zero's object."""
        if src != 0:
            raise self._not_offered(f"for trainer.strategy.broadcast(src={src})", "broadcast")
        return obj if self._loop.world_size == 1 else self._loop.processes.share(obj)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        """What all processes, or any of them, decided."""
        decisions = [decision] if self._loop.world_size == 1 else self._loop.processes.gather(bool(decision))
        return bool(min(decisions) if all else max(decisions))

    def barrier(self, name: str | None = None) -> None:
        """Wait for the other processes."""
        if self._loop.world_size > 1:
            self._loop.processes.gather(None)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Delete a checkpoint of hookline's."""
        path = Path(filepath)
        if self._loop.rank != 0 or not path.exists():
            return
        if not checkpoint.is_checkpoint(path):
            raise OptionError(f"{path} is not deleted: it is no checkpoint of hookline's.")
        shutil.rmtree(path)


class Accelerator(StandIn):
    """``trainer.accelerator``: what the device of the loop has to report."""

    def __init__(self, bridge: "ForeignCallback", loop: Any, path: str, kinds: Any) -> None:
        super().__init__(bridge, loop, path)
        vars(self)["_kinds"] = {"cpu": kinds.CPUAccelerator, "cuda": kinds.CUDAAccelerator, "mps": kinds.MPSAccelerator}

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Lightning's own statistics of a device."""
        if device.type not in self._kinds:
            raise self._not_offered(f"for statistics of {device}", "get_device_stats")
        stats: dict[str, Any] = self._kinds[device.type]().get_device_stats(device)
        return stats


class LoopLogger(StandIn):
    """``trainer.logger``: records what it is given as metrics of the loop."""

    hints: ClassVar[Mapping[str, str]] = {
        "experiment": "log_metrics() records; the loop's sinks deliver that to W&B, MLflow and others."
    }

    group_separator = "/"

    @property
    def save_dir(self) -> str | None:
        """The folder of runs; it, the name and the version make the run's directory."""
        return None if self._loop.output_dir is None else str(Path(self._loop.output_dir).parents[1])

    @property
    def log_dir(self) -> str | None:
        """The run's directory."""
        return None if self._loop.output_dir is None else str(self._loop.output_dir)

    @property
    def name(self) -> str:
        """The folder of the run."""
        return "hookline" if self._loop.output_dir is None else Path(self._loop.output_dir).parent.name

    @property
    def version(self) -> str:
        """The run's own directory in it."""
        return "run" if self._loop.output_dir is None else Path(self._loop.output_dir).name

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Record metrics, at the step under way."""
        self._loop.log(metrics)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Nothing: the loop has recorded the checkpoint."""

    def save(self) -> None:
        """Nothing: what was logged is recorded."""


class LightningTrainer(StandIn):
    """The loop, as Lightning's `Trainer`.

    Args:
        root: The package that the callback is of: ``lightning.pytorch`` or ``pytorch_lightning``.
    """

    hints: ClassVar[Mapping[str, str]] = {
        "accumulate_grad_batches": "TrainerConfig(accumulation=...) says how many batches make a step.",
        "save_checkpoint": "A checkpoint holds everything that training goes on from, in a directory.",
        "callbacks": "The loop's callbacks are loop.callbacks, in a callback of hookline's own.",
    }

    def __init__(self, bridge: "ForeignCallback", loop: Any, root: str) -> None:
        super().__init__(bridge, loop, "trainer")
        vars(self).update(
            _types=import_module(f"{root}.utilities.types"),
            _progress_bars=import_module(f"{root}.callbacks.progress.progress_bar"),
            _metrics={},
            fit_loop=FitLoop(bridge, loop, "trainer.fit_loop"),
            strategy=Strategy(bridge, loop, "trainer.strategy"),
            state=TrainerState(bridge, loop, "trainer.state", import_module(f"{root}.trainer.states")),
            loggers=[LoopLogger(bridge, loop, "trainer.logger")],
            accelerator=Accelerator(bridge, loop, "trainer.accelerator", import_module(f"{root}.accelerators")),
            _logger_connector=LoggerConnector(bridge, loop, "trainer._logger_connector"),
            lightning_module=None,
        )

    fast_dev_run = False
    sanity_checking = False
    num_sanity_val_steps = 0
    log_every_n_steps = 1
    testing = predicting = False
    datamodule = None

    @property
    def model(self) -> Any:
        """What stands in for the module."""
        return self.lightning_module

    @property
    def progress_bar_callback(self) -> Any:
        """The callback itself where it is a progress bar: it looks for itself here. None for others."""
        foreign = self._bridge.foreign
        return foreign if isinstance(foreign, self._progress_bars.ProgressBar) else None

    @property
    def logger(self) -> Any:
        """Records what it is given as metrics of the loop."""
        return self.loggers[0]

    @property
    def current_epoch(self) -> int:
        """The index of the epoch under way; after the last one, how many there were."""
        is_over = self._bridge.event in ("on_train_end", "on_fit_end", "teardown") and self._loop.step > 0
        return int(self._loop.epoch) + is_over

    @property
    def global_step(self) -> int:
        """The number of completed steps."""
        return int(self._loop.step)

    @property
    def max_epochs(self) -> int:
        """The planned number of epochs; -1 where it is not known."""
        return -1 if self._loop.num_epochs is None else int(self._loop.num_epochs)

    @property
    def max_steps(self) -> int:
        """The planned number of steps; -1 where it is not known."""
        return -1 if self._loop.num_steps is None else int(self._loop.num_steps)

    @property
    def estimated_stepping_batches(self) -> float:
        """The same; infinite where it is not known."""
        return float("inf") if self._loop.num_steps is None else int(self._loop.num_steps)

    @property
    def num_training_batches(self) -> float:
        """Batches in an epoch; infinite where it is not known."""
        batches = LoopFacts(self._loop).batches_per_epoch
        return float("inf") if batches is None else batches

    @property
    def num_val_batches(self) -> list[float]:
        """Batches in a validation."""
        batches = LoopFacts(self._loop).val_batches
        return [float("inf") if batches is None else batches]

    @property
    def enable_validation(self) -> bool:
        """Whether there is something to validate on."""
        return LoopFacts(self._loop).val_batches != 0

    @property
    def val_check_interval(self) -> float | None:
        """Batches from one validation to the next; 1.0 for the end of an epoch; None where the loop's body decides."""
        facts = LoopFacts(self._loop)
        if facts.settings is None:
            return None
        steps = facts.settings.validate_every_steps
        return 1.0 if steps is None else steps * facts.accumulation

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """Epochs from one validation to the next; None where steps are counted."""
        settings = LoopFacts(self._loop).settings
        if settings is None or settings.validate_every_steps is not None:
            return None
        return int(settings.validate_every_epochs or 1)

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches that make up a step."""
        return LoopFacts(self._loop).accumulation

    @property
    def gradient_clip_val(self) -> float | None:
        """The norm that gradients are scaled down to."""
        return getattr(LoopFacts(self._loop).settings, "gradient_clip_norm", None)

    @property
    def train_dataloader(self) -> Any:
        """What gives the training batches."""
        return LoopFacts(self._loop).train_data

    @property
    def val_dataloaders(self) -> Any:
        """What gives the validation batches."""
        return LoopFacts(self._loop).val_data

    @property
    def training(self) -> bool:
        """Whether it trains, rather than validates."""
        return bool(self._bridge.is_training and not self._bridge.is_validating)

    @property
    def validating(self) -> bool:
        """Whether it validates."""
        return bool(self._bridge.is_validating)

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch is the last of the epoch."""
        return bool(self.fit_loop.epoch_loop.batch_progress.is_last_batch)

    @property
    def global_rank(self) -> int:
        """This process's index."""
        return int(self._loop.rank)

    @property
    def local_rank(self) -> int:
        """The same on this machine."""
        return int(os.environ.get("LOCAL_RANK", self._loop.rank))

    @property
    def world_size(self) -> int:
        """How many processes train together."""
        return int(self._loop.world_size)

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return bool(self._loop.rank == 0)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizer, if the loop knows it."""
        return [] if self._loop.optimizer is None else [self._loop.optimizer]

    @property
    def lr_scheduler_configs(self) -> tuple[Any, ...]:
        """The schedule, if there is one; what is put in its place would not be followed."""
        scheduler = self._loop.scheduler
        if scheduler is None:
            return ()
        config, waits = self._types.LRSchedulerConfig, is_plateau(scheduler)
        return (config(scheduler, interval="epoch" if waits else "step", reduce_on_plateau=waits),)

    @property
    def default_root_dir(self) -> str:
        """Where the loop writes its files."""
        return str(self._loop.output_dir or Path.cwd())

    @property
    def log_dir(self) -> str:
        """The same."""
        return self.default_root_dir

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that was taken up."""
        path = getattr(self._loop, "resumed_from", None)
        return None if path is None else str(path)

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """The latest value of each metric as a tensor; ``val/loss`` is also called ``val_loss``."""
        import torch

        for name, value in self._loop.metrics.items():
            if isinstance(value, int | float):
                self._metrics[name] = self._metrics[name.replace("/", "_", 1)] = torch.tensor(float(value))
        metrics: dict[str, Any] = self._metrics
        return metrics

    @property
    def logged_metrics(self) -> dict[str, Any]:
        """The same."""
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The same as numbers."""
        return {name: value.item() for name, value in self.callback_metrics.items()}

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked for a stop; setting it asks the loop for one."""
        return bool(self._loop.stop_requested)

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value and not self._loop.stop_requested:
            self._loop.request_stop(f"{self._bridge.name} set trainer.should_stop")
        elif not value and self._loop.stop_requested:
            self._loop.should_stop = False

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Save a checkpoint of hookline's, a directory, at that path; in the middle of a step when that is complete."""
        if weights_only:
            raise self._not_offered("for a checkpoint of the weights only", "save_checkpoint")
        if storage_options is not None:
            raise self._not_offered("for a checkpoint with storage_options", "save_checkpoint")
        self._loop.save_checkpoint(Path(filepath))

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print, on the first process."""
        if self.is_global_zero:
            print(*args, **kwargs)  # noqa: T201 - what it is for

"""The objects that a Lightning callback receives from a hookline loop: ``trainer`` and ``pl_module``.

``pl_module`` is the torch model with Lightning's additions. ``trainer`` has the loop's counters, metrics, processes,
logger and plan under Lightning's names, including the few private attributes that Lightning's own callbacks read.
Everything else raises `NotOfferedError` (see `LoopFacade`). A plan that is unknown has Lightning's value for it: -1 or
infinity.
"""

import os
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from hookline._engine.errors import OptionError
from hookline.compat.base import CallbackAdapter, LoopFacade, LoopInfo
from hookline.loops import checkpoint
from hookline.loops.trainer_setup import is_plateau

_PER_BATCH = ("on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step", "on_validation_batch_end")


class LightningModule(LoopFacade):
    """The model with Lightning's additions: ``log``, ``trainer``, ``current_epoch``, ...

    Everything else is the torch model's: ``parameters()``, ``state_dict()``, its layers, calls, setting an attribute.
    The torch model itself is ``torch_module``.
    """

    hints: ClassVar[Mapping[str, str]] = {
        "torch_module": "Set run.model before the first step.",
        "copy": "Copy pl_module.torch_module, the model itself. hl.callbacks.EMA keeps an average of the weights.",
        "log": "log(name, value) records it at the current step, in any hook.",
    }
    automatic_optimization = True

    def __init__(self, adapter: CallbackAdapter, loop: Any, trainer: Any) -> None:
        super().__init__(adapter, loop, "pl_module")
        vars(self)["trainer"] = trainer

    def __getattr__(self, name: str) -> Any:
        is_own = name.startswith("__") or hasattr(type(self), name)
        model = None if is_own else vars(self)["_loop"].model
        if model is not None and hasattr(model, name):
            return getattr(model, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._loop.model is None or hasattr(type(self), name) or name in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self._loop.model, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.torch_module(*args, **kwargs)

    @property
    def torch_module(self) -> Any:
        if self._loop.model is None:
            raise self._not_offered("for the model", "torch_module", why="this loop does not know it")
        return self._loop.model

    @property
    def current_epoch(self) -> int:
        return int(self.trainer.current_epoch)

    @property
    def global_step(self) -> int:
        return int(self._loop.step)

    @property
    def global_rank(self) -> int:
        return int(self._loop.rank)

    @property
    def logger(self) -> Any:
        return self.trainer.logger

    @property
    def device(self) -> Any:
        return self.trainer.strategy.root_device

    def optimizers(self) -> Any:
        return self._loop.optimizer

    def lr_schedulers(self) -> Any:
        return self._loop.scheduler

    def log(
        self, name: str, value: Any, *, on_epoch: bool | None = None, sync_dist: bool = False, **options: Any
    ) -> None:
        """Record a metric at the current step, averaged over all processes with ``sync_dist``."""
        self.log_dict({name: value}, on_epoch=on_epoch, sync_dist=sync_dist, **options)

    def log_dict(
        self, dictionary: Mapping[str, Any], *, on_epoch: bool | None = None, sync_dist: bool = False, **options: Any
    ) -> None:
        if on_epoch and self._adapter.event in _PER_BATCH:
            raise self._not_offered("for log(on_epoch=True), a mean over the epoch", "log")
        if "reduce_fx" in options:
            raise self._not_offered(f"for log(reduce_fx={options['reduce_fx']!r})", "log")
        if sync_dist and self._loop.world_size > 1:
            self._loop.log(dict(dictionary), reduce="mean")
        else:
            self._loop.log(dict(dictionary))

    def print(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.print(*args, **kwargs)


class LightningTrainer(LoopFacade):
    """The loop as Lightning's `Trainer`.

    Args:
        root: The callback's package: ``lightning.pytorch`` or ``pytorch_lightning``.
    """

    hints: ClassVar[Mapping[str, str]] = {
        "accumulate_grad_batches": "TrainerConfig(accumulation=...) sets the number of batches in a step.",
        "save_checkpoint": "A checkpoint is a directory that holds everything needed to resume.",
        "callbacks": "The loop's callbacks are loop.callbacks, in a hookline callback.",
    }
    fast_dev_run = False
    sanity_checking = False
    num_sanity_val_steps = 0
    log_every_n_steps = 1
    testing = predicting = False
    datamodule = None

    def __init__(self, adapter: CallbackAdapter, loop: Any, root: str) -> None:
        super().__init__(adapter, loop, "trainer")
        vars(self).update(
            _types=import_module(f"{root}.utilities.types"),
            _progress_bars=import_module(f"{root}.callbacks.progress.progress_bar"),
            _metrics={},
            fit_loop=FitLoop(adapter, loop, "trainer.fit_loop"),
            strategy=Strategy(adapter, loop, "trainer.strategy"),
            state=TrainerState(adapter, loop, "trainer.state", import_module(f"{root}.trainer.states")),
            loggers=[LoopLogger(adapter, loop, "trainer.logger")],
            accelerator=Accelerator(adapter, loop, "trainer.accelerator", import_module(f"{root}.accelerators")),
            _logger_connector=LoggerConnector(adapter, loop, "trainer._logger_connector"),
            lightning_module=None,
        )

    @property
    def model(self) -> Any:
        return self.lightning_module

    @property
    def progress_bar_callback(self) -> Any:
        """The callback itself if it is a progress bar, which looks for itself here."""
        foreign = self._adapter.foreign
        return foreign if isinstance(foreign, self._progress_bars.ProgressBar) else None

    @property
    def logger(self) -> Any:
        return self.loggers[0]

    @property
    def current_epoch(self) -> int:
        """The index of the current epoch; after the last one, the number of epochs."""
        is_over = self._adapter.event in ("on_train_end", "on_fit_end", "teardown") and self._loop.step > 0
        return int(self._loop.epoch) + is_over

    @property
    def global_step(self) -> int:
        return int(self._loop.step)

    @property
    def max_epochs(self) -> int:
        return -1 if self._loop.num_epochs is None else int(self._loop.num_epochs)

    @property
    def max_steps(self) -> int:
        return -1 if self._loop.num_steps is None else int(self._loop.num_steps)

    @property
    def estimated_stepping_batches(self) -> float:
        return float("inf") if self._loop.num_steps is None else int(self._loop.num_steps)

    @property
    def num_training_batches(self) -> float:
        batches = LoopInfo(self._loop).batches_per_epoch
        return float("inf") if batches is None else batches

    @property
    def num_val_batches(self) -> list[float]:
        batches = LoopInfo(self._loop).val_batches
        return [float("inf") if batches is None else batches]

    @property
    def enable_validation(self) -> bool:
        return LoopInfo(self._loop).val_batches != 0

    @property
    def val_check_interval(self) -> float | None:
        """The number of batches between validations; 1.0 for each epoch; None if the loop's body decides."""
        info = LoopInfo(self._loop)
        if info.settings is None:
            return None
        steps = info.settings.validate_every_steps
        return 1.0 if steps is None else steps * info.accumulation

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """The number of epochs between validations; None if steps are counted."""
        settings = LoopInfo(self._loop).settings
        if settings is None or settings.validate_every_steps is not None:
            return None
        return int(settings.validate_every_epochs or 1)

    @property
    def accumulate_grad_batches(self) -> int:
        return LoopInfo(self._loop).accumulation

    @property
    def gradient_clip_val(self) -> float | None:
        return getattr(LoopInfo(self._loop).settings, "gradient_clip_norm", None)

    @property
    def train_dataloader(self) -> Any:
        return LoopInfo(self._loop).train_data

    @property
    def val_dataloaders(self) -> Any:
        return LoopInfo(self._loop).val_data

    @property
    def training(self) -> bool:
        return bool(self._adapter.is_training and not self._adapter.is_validating)

    @property
    def validating(self) -> bool:
        return bool(self._adapter.is_validating)

    @property
    def is_last_batch(self) -> bool:
        return bool(self.fit_loop.epoch_loop.batch_progress.is_last_batch)

    @property
    def global_rank(self) -> int:
        return int(self._loop.rank)

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", self._loop.rank))

    @property
    def world_size(self) -> int:
        return int(self._loop.world_size)

    @property
    def is_global_zero(self) -> bool:
        return bool(self._loop.rank == 0)

    @property
    def optimizers(self) -> list[Any]:
        return [] if self._loop.optimizer is None else [self._loop.optimizer]

    @property
    def lr_scheduler_configs(self) -> tuple[Any, ...]:
        """The schedule; a tuple, because replacing it would have no effect."""
        scheduler = self._loop.scheduler
        if scheduler is None:
            return ()
        config, waits = self._types.LRSchedulerConfig, is_plateau(scheduler)
        return (config(scheduler, interval="epoch" if waits else "step", reduce_on_plateau=waits),)

    @property
    def default_root_dir(self) -> str:
        return str(self._loop.output_dir or Path.cwd())

    @property
    def log_dir(self) -> str:
        return self.default_root_dir

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that training was resumed from."""
        path = getattr(self._loop, "resumed_from", None)
        return None if path is None else str(path)

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """The latest value of each metric as a tensor; ``val/loss`` is also ``val_loss``."""
        import torch

        for name, value in self._loop.metrics.items():
            if isinstance(value, int | float):
                self._metrics[name] = self._metrics[name.replace("/", "_", 1)] = torch.tensor(float(value))
        metrics: dict[str, Any] = self._metrics
        return metrics

    @property
    def logged_metrics(self) -> dict[str, Any]:
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        return {name: value.item() for name, value in self.callback_metrics.items()}

    @property
    def should_stop(self) -> bool:
        return bool(self._loop.stop_requested)

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value and not self._loop.stop_requested:
            self._loop.request_stop(f"{self._adapter.name} set trainer.should_stop")
        elif not value and self._loop.stop_requested:
            self._loop.should_stop = False

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Save a hookline checkpoint, a directory, at a path; during a step, when the step is complete."""
        if weights_only:
            raise self._not_offered("for a checkpoint of the weights only", "save_checkpoint")
        if storage_options is not None:
            raise self._not_offered("for a checkpoint with storage_options", "save_checkpoint")
        self._loop.save_checkpoint(Path(filepath))

    def print(self, *args: Any, **kwargs: Any) -> None:
        if self.is_global_zero:
            print(*args, **kwargs)  # noqa: T201 - its purpose


class TrainerState(LoopFacade):
    """``trainer.state``: the function and the stage of the trainer."""

    def __init__(self, adapter: CallbackAdapter, loop: Any, path: str, states: Any) -> None:
        super().__init__(adapter, loop, path)
        vars(self)["_states"] = states

    @property
    def fn(self) -> Any:
        return self._states.TrainerFn.FITTING if self._adapter.is_training else self._states.TrainerFn.VALIDATING

    @property
    def stage(self) -> Any:
        stages = self._states.RunningStage
        return stages.VALIDATING if self._adapter.is_validating else stages.TRAINING

    @property
    def status(self) -> Any:
        return self._states.TrainerStatus.RUNNING


class FitLoop(LoopFacade):
    """``trainer.fit_loop``: its counters."""

    def __init__(self, adapter: CallbackAdapter, loop: Any, path: str) -> None:
        super().__init__(adapter, loop, path)
        vars(self)["epoch_loop"] = EpochLoop(adapter, loop, f"{path}.epoch_loop")

    @property
    def max_epochs(self) -> int:
        return -1 if self._loop.num_epochs is None else int(self._loop.num_epochs)


class EpochLoop(LoopFacade):
    """``trainer.fit_loop.epoch_loop``."""

    def __init__(self, adapter: CallbackAdapter, loop: Any, path: str) -> None:
        super().__init__(adapter, loop, path)
        vars(self)["batch_progress"] = BatchProgress(adapter, loop, f"{path}.batch_progress")
        vars(self)["val_loop"] = ValidationLoop(adapter, loop, f"{path}.val_loop")

    @property
    def global_step(self) -> int:
        return int(self._loop.step)

    _batches_that_stepped = global_step


class BatchProgress(LoopFacade):
    """``trainer.fit_loop.epoch_loop.batch_progress``."""

    @property
    def is_last_batch(self) -> bool:
        batches = LoopInfo(self._loop).batches_per_epoch
        return batches is not None and self._adapter.batch_idx + 1 == batches


class ValidationLoop(LoopFacade):
    """``trainer.fit_loop.epoch_loop.val_loop``."""

    @property
    def _has_run(self) -> bool:
        return bool(getattr(self._loop, "validation_metrics", None))


class LoggerConnector(LoopFacade):
    """``trainer._logger_connector``: hookline records every step."""

    should_update_logs = True


class Strategy(LoopFacade):
    """``trainer.strategy``: communication between processes; the callback has to run on all of them."""

    @property
    def root_device(self) -> Any:
        import torch

        return getattr(self._loop, "device", None) or torch.device("cpu")

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if src != 0:
            raise self._not_offered(f"for trainer.strategy.broadcast(src={src})", "broadcast")
        return obj if self._loop.world_size == 1 else self._loop.processes.share(obj)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        decisions = [decision] if self._loop.world_size == 1 else self._loop.processes.gather(bool(decision))
        return bool(min(decisions) if all else max(decisions))

    def barrier(self, name: str | None = None) -> None:
        if self._loop.world_size > 1:
            self._loop.processes.gather(None)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Delete a hookline checkpoint."""
        path = Path(filepath)
        if self._loop.rank != 0 or not path.exists():
            return
        if not checkpoint.is_checkpoint(path):
            raise OptionError(f"{path} is not a hookline checkpoint; not deleting it.")
        shutil.rmtree(path)


class Accelerator(LoopFacade):
    """``trainer.accelerator``: statistics of the loop's device."""

    def __init__(self, adapter: CallbackAdapter, loop: Any, path: str, kinds: Any) -> None:
        super().__init__(adapter, loop, path)
        vars(self)["_kinds"] = {"cpu": kinds.CPUAccelerator, "cuda": kinds.CUDAAccelerator, "mps": kinds.MPSAccelerator}

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        if device.type not in self._kinds:
            raise self._not_offered(f"for statistics of {device}", "get_device_stats")
        stats: dict[str, Any] = self._kinds[device.type]().get_device_stats(device)
        return stats


class LoopLogger(LoopFacade):
    """``trainer.logger``: records metrics of the loop.

    As in Lightning, ``save_dir/name/version`` is the directory of the run.
    """

    hints: ClassVar[Mapping[str, str]] = {
        "experiment": "log_metrics() records; the loop's sinks deliver to W&B, MLflow and others."
    }
    group_separator = "/"

    @property
    def save_dir(self) -> str | None:
        return None if self._loop.output_dir is None else str(Path(self._loop.output_dir).parents[1])

    @property
    def log_dir(self) -> str | None:
        return None if self._loop.output_dir is None else str(self._loop.output_dir)

    @property
    def name(self) -> str:
        return "hookline" if self._loop.output_dir is None else Path(self._loop.output_dir).parent.name

    @property
    def version(self) -> str:
        return "run" if self._loop.output_dir is None else Path(self._loop.output_dir).name

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._loop.log(metrics)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Do nothing: the loop records its checkpoints."""

    def save(self) -> None:
        """Do nothing: metrics are recorded when they are logged."""

"""What a Lightning callback finds in its ``trainer``: the state, the loops' counters, the strategy, the logger."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hookline.core.errors import OptionError
from hookline.integrations.foreign.facts import LoopFacts
from hookline.integrations.foreign.stand_in import StandIn
from hookline.loops import checkpoint

if TYPE_CHECKING:
    from hookline.integrations.foreign.bridge import ForeignCallback


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
        return obj if self._loop.world_size == 1 else self._loop.agreement.share(obj)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        """What all processes, or any of them, decided."""
        decisions = [decision] if self._loop.world_size == 1 else self._loop.agreement.gather(bool(decision))
        return bool(min(decisions) if all else max(decisions))

    def barrier(self, name: str | None = None) -> None:
        """Wait for the other processes."""
        if self._loop.world_size > 1:
            self._loop.agreement.gather(None)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Delete a checkpoint of hookline's."""
        path = Path(filepath)
        if self._loop.rank != 0 or not path.exists():
            return
        if not checkpoint.is_one(path):
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

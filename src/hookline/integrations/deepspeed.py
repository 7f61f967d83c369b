"""DeepSpeed: `run` drives a loop over an engine of ``deepspeed.initialize``.

    from hookline.integrations.deepspeed import run

    engine, _, loader, _ = deepspeed.initialize(model=model, config=config, training_data=data)
    with run(engine, "warmup", resume="auto", callbacks=["checkpoint"]) as loop:
        for inputs, targets in loop.steps(loader, epochs=3):
            loss = criterion(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            loop.log(loss=loss)

A step is one update: with ``gradient_accumulation_steps`` it takes that many batches. The loop is DeepSpeed's own, and
``engine.step`` is wrapped until the run ends: `on_before_optimizer_step` fires before it updates. Checkpoints hold what
``engine.save_checkpoint`` writes, in a folder of hookline's, for every stage of ZeRO; all processes save together. A
resume (``engine.load_checkpoint``) is exact.

With ZeRO and with bf16 the engine keeps the gradients to itself: `GradientMonitor` logs nothing, and `NaNGuard` checks
the loss. Log ``engine.get_global_grad_norm()`` instead. A run does not import DeepSpeed.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="torch", what=__name__)

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.errors import CheckpointError, OptionError
from hookline.integrations.framework_run import FrameworkRun
from hookline.integrations.host_callback import WrappedMethods
from hookline.loops.batches import LoaderOrder
from hookline.loops.options import LoopOptions
from hookline.loops.updates import Updates

__all__ = ["DeepSpeedRun", "run"]

TAG = "engine"
NEEDED = ("backward", "step", "is_gradient_accumulation_boundary", "save_checkpoint", "load_checkpoint", "global_steps")


class EngineData:
    """The loader that DeepSpeed makes. It is an iterator, but each ``iter()`` of it begins an epoch.

    Args:
        loader: A `DeepSpeedDataLoader`.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


class EngineUpdates(Updates):
    """The updates of an engine, seen by its count of them, which includes those that an overflow skipped."""

    is_watching = True

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self._engine = engine

    @property
    def batches_per_step(self) -> int:  # type: ignore[override]
        """How many batches make a step."""
        return int(self._engine.gradient_accumulation_steps())

    def has_updated(self) -> bool:
        """Whether the weights were updated since the last step."""
        return self.count > 0

    def completes_step(self) -> bool:
        """Whether the batch that ends now is the last one of its step."""
        return self.has_updated()


class DeepSpeedRun(FrameworkRun):
    """Drives a loop of your own over a DeepSpeed engine.

    Args:
        engine: The engine; ``loop.native``. ``loop.model`` is the module inside.
        name: The name of the run.
        options: As for `hl.run`; the files of ``save`` and ``load`` come in addition.
    """

    framework = "DeepSpeed"
    folder = "deepspeed"

    def __init__(self, engine: Any, name: str | None = None, **options: Unpack[LoopOptions]) -> None:
        if not all(hasattr(engine, each) for each in NEEDED):
            raise OptionError(f"engine={type(engine).__name__}: give the engine that deepspeed.initialize() returned.")
        super().__init__(name, **options)
        if engine.world_size != self.world_size:
            raise OptionError(
                f"The engine was made for {engine.world_size} processes, and torch.distributed connects "
                f"{self.world_size}."
            )
        self._engine = engine
        self.model, self.optimizer, self.scheduler = engine.module, engine.optimizer, engine.lr_scheduler
        if engine.zero_optimization() or engine.bfloat16_enabled():
            self.no_gradients = "DeepSpeed's ZeRO and bf16 optimizers keep the gradients to themselves"
        self._order = LoaderOrder()
        self._updates: EngineUpdates = EngineUpdates(engine)
        self._methods = WrappedMethods(engine)
        self._skips_update = False

    @property
    def native(self) -> Any:
        """The engine."""
        return self._engine

    def steps(self, batches: Any, *, epochs: int = 1, total: int | None = None) -> Iterator[Any]:
        """Yield batches as `hookline.Run.steps` does, also those of the loader that DeepSpeed makes."""
        is_of_deepspeed = type(batches).__name__ == "DeepSpeedDataLoader"
        return super().steps(EngineData(batches) if is_of_deepspeed else batches, epochs=epochs, total=total)

    def begin(self) -> None:
        """Begin to record, and watch the engine."""
        super().begin()
        self._methods.wrap("step", self._step)
        if hasattr(self._engine, "clip_fp32_gradients"):
            self._methods.wrap("clip_fp32_gradients", self._clip)

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything, and restore the engine."""
        self._methods.restore()
        super().finish(error)

    def skip_update(self) -> None:
        """Note that a callback removed the gradients; for callbacks, in `on_before_optimizer_step`."""
        self._skips_update = True

    def _step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        engine, before = self._engine, self._engine.global_steps
        # Where the loop decides itself when to update, it calls engine.step() only then.
        self._skips_update = False
        managed = getattr(engine, "managed_gradient_accumulation", lambda: True)()
        if self.in_step and (engine.is_gradient_accumulation_boundary() or not managed):
            self.callbacks.on_before_optimizer_step(self, engine.optimizer)
        result = step(*args, **kwargs)
        self._updates.count += engine.global_steps - before
        return result

    def _clip(self, clip: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # DeepSpeed cannot clip gradients of which there are none; without any, the optimizer changes nothing.
        return None if self._skips_update else clip(*args, **kwargs)

    def _write_folder(self, folder: Path) -> None:
        # `latest` would be a file for the whole folder of checkpoints: hookline knows which one it is.
        self._engine.save_checkpoint(str(folder), tag=TAG, save_latest=False)

    def _read_folder(self, folder: Path) -> None:
        path, _ = self._engine.load_checkpoint(str(folder), tag=TAG)
        if path is None:
            raise CheckpointError("the engine found no checkpoint in it")


run = DeepSpeedRun

"""Which batches make a step of a run: each one, or those up to an update of the weights.

`OptimizerUpdates` sees the updates by hooks on torch's optimizers. The hooks fire `on_before_optimizer_step`, count the
updates of the step in progress, and refuse an update of weights that were evaluated in this step and are to be saved
when it ends.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import OptionError

if TYPE_CHECKING:
    from hookline.loops.session import Session


class Updates:
    """Decides which batches make a step: here each batch is one.

    Attributes:
        batches_per_step: How many batches make a step, as far as that is planned.
        is_watching: Whether updates of the weights are seen.
        count: The updates in the step in progress.
        forbidden: Whether the weights must not change until the step ends: they were evaluated, and are saved then.
    """

    batches_per_step: int = 1
    is_watching: bool = False

    def __init__(self) -> None:
        self.count = 0
        self.forbidden = False

    @property
    def needs_step_starts(self) -> bool:
        """Whether a checkpoint may have to go back to the beginning of a step."""
        return self.batches_per_step > 1

    def has_updated(self) -> bool:
        """Whether the weights were updated since the last step."""
        return True

    def completes_step(self) -> bool:
        """Whether the batch that ends now is the last one of its step; asked once for each batch."""
        return True

    def batch_ended(self, *, completed: bool) -> bool:
        """Note that a batch ended; returns whether `batches_per_step` changed."""
        return False


class OptimizerUpdates(Updates):
    """Watches optimizers; with several batches per step, the step ends with the batch in which one of them steps.

    Args:
        run: The run whose steps these are.
        accumulation: How many batches make a step.
    """

    def __init__(self, run: "Session", accumulation: int = 1) -> None:
        super().__init__()
        self._run = run
        self.batches_per_step = accumulation
        self._handles: list[Any] = []

    @property
    def is_watching(self) -> bool:  # type: ignore[override]
        """Whether updates of the weights are seen."""
        return bool(self._handles)

    def watch(self, optimizers: Iterable[Any]) -> None:
        """Watch optimizers of torch, until `unwatch`."""
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before_update))
            self._handles.append(optimizer.register_step_post_hook(self._after_update))

    def unwatch(self) -> None:
        """Remove the hooks from the optimizers; what was seen remains known."""
        for handle in self._handles:
            handle.remove()

    def has_updated(self) -> bool:
        """Whether the weights were updated since the last step."""
        # With one batch per step, a body that skips its update (an overflow of the scaler) is a step all the same.
        return self.batches_per_step == 1 or self.count > 0

    def completes_step(self) -> bool:
        """Whether the batch that ends now is the last one of its step."""
        return self.has_updated()

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        run = self._run
        if self.forbidden:
            raise OptionError(
                f"CheckpointCallback(monitor=...): step {run.step + 1} updates the weights again after the evaluation "
                "that a checkpoint was requested for, so the checkpoint would hold others than those evaluated. "
                "Evaluate after the last update of the step."
            )
        if run.in_step:
            run.callbacks.on_before_optimizer_step(run, optimizer)

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.count += 1

"""MosaicML Composer: hookline's callbacks observe and control ``Trainer.fit``.

    from hookline.integrations.composer import HooklineCallback

    with HooklineCallback(["early_stopping"], name="warmup") as hooks:
        trainer = Trainer(model=model, train_dataloader=loader, eval_dataloader=held_out, callbacks=[hooks], ...)
        trainer.fit()

How Composer's events become moments:

- Composer's batch is a step, one update, and its microbatches are hookline's batches. A step's row has Composer's
  losses (``loss/train/total``, and the total as ``loss``) and its metrics of the training.
- An evaluator is an evaluation by its label, ``val`` for Composer's default label ``eval``: ``val/<metric>``. The first
  metric of which less is better is ``val/loss`` as well. Composer's own names, ``metrics/eval/<metric>``, are recorded
  beside them.
- A stop ends the training after the step (``state.stop_training()``); Composer then evaluates again. A requested
  validation follows the same step. A checkpoint is a directory with ``composer.pt``.
- The callbacks' states are in every checkpoint that Composer saves: ``Trainer(..., load_path=...)`` continues the run.

Composer does not report errors, and not which checkpoints its own `CheckpointSaver` saves. As a context manager, the
callback learns at once that a fit raised; otherwise it is when the trainer is closed. A bridge imports Composer only to
save a checkpoint.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="torch", what=__name__)

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.state import ManifestRow
from hookline._engine.state_encoding import decode, encode
from hookline._engine.torch_models import unwrapped
from hookline.integrations.host_callback import HostCallback
from hookline.loops.options import RunOptions

__all__ = ["HooklineCallback"]

FILE = "composer.pt"
TOTAL = "loss/train/total"
DEFAULT_LABEL = "eval"


class HooklineCallback(HostCallback):
    """Fires hookline's moments in a Composer trainer: ``Trainer(..., callbacks=[hooks])``.

    Args:
        callbacks, name, options: As for every run of hookline.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "Composer"
    package = "composer"
    reports_epochs = True

    def __init__(self, callbacks: Iterable[Any] = (), *, name: str = NAME, **options: Unpack[RunOptions]) -> None:
        super().__init__(callbacks, name=name, **options)
        self._state: Any = None
        self._saved: dict[str, Any] | None = None
        self._saved_at: Path | None = None
        self._written = Path()
        self._intervals: list[tuple[Any, Callable[..., bool]]] = []
        self._epoch_is_open = self._is_alone = False
        self._wants_validation = self._is_at_end = self._evaluates_at_end = False

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        """Handle an event; Composer calls this, `close`, `post_close` and the methods for states."""
        self._state = state
        handler = HANDLERS.get(event.value)
        if handler is not None:
            handler(self, state)

    def close(self, state: Any, logger: Any) -> None:
        """End the run of a fit that raised."""
        self._fail_if_running(sys.exception())

    def post_close(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint of Composer, in plain values and tensors."""
        if not self.loop.has_started:
            return {}
        place = None if self._saved_at is None else str(self._saved_at)
        state: dict[str, Any] = encode(self.loop.state_dict() | {"saved at": place})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of the checkpoint that the next fit continues from."""
        self._saved = decode(dict(state)) or None

    def _fit_start(self, state: Any) -> None:
        loop, length = self.loop, state.max_duration
        loop.optimizer = state.optimizers[0] if state.optimizers else None
        loop.scheduler = state.schedulers[0] if state.schedulers else None
        per_epoch = None if state.dataloader_len is None else int(state.dataloader_len)
        epochs = int(length) if length.unit.value == "ep" else None
        steps = int(length) if length.unit.value == "ba" else epochs and per_epoch and epochs * per_epoch
        self._epoch_is_open = self._is_at_end = self._evaluates_at_end = self._wants_validation = False
        self._begin(
            unwrapped(state.model),
            native=state,
            step=int(state.timestamp.batch),
            num_steps=steps,
            epoch=int(state.timestamp.epoch),
            num_epochs=epochs,
        )
        self._restore_intervals()
        self._intervals = [(each, each.eval_interval) for each in state.evaluators]
        for number, (evaluator, interval) in enumerate(self._intervals):
            evaluator.eval_interval = self._observed(interval, is_last=number == len(self._intervals) - 1)

    def _resumed(self) -> tuple[dict[str, Any] | None, ManifestRow | None]:
        state, self._saved = self._saved, None
        if state is None:
            continues = 0 < self.loop.step == int(self._state.timestamp.batch)  # another fit of the same trainer
            return (self.loop.state_dict(), None) if continues else (None, None)
        place = state.pop("saved at") or state["run"]
        return state, None if place is None else self.loop.checkpoint_row(place, step=state["step"])

    def _observed(self, interval: Callable[..., bool], *, is_last: bool) -> Callable[..., bool]:
        """Return an evaluator's interval that also asks for requested validations, and notes those after the fit."""

        def evaluates(state: Any, event: Any) -> bool:
            due = bool(interval(state, event))
            if event.value == "batch_end" and self._wants_validation:
                due = True
                self._wants_validation = not is_last
            elif event.value == "fit_end":
                self._evaluates_at_end |= due
                if is_last and not self._evaluates_at_end:
                    self._finish()
            return due

        return evaluates

    def _restore_intervals(self) -> None:
        intervals, self._intervals = self._intervals, []
        for evaluator, interval in intervals:
            evaluator.eval_interval = interval

    def _epoch_start(self, state: Any) -> None:
        self._open_epoch(state)

    def _open_epoch(self, state: Any) -> None:
        if not self._epoch_is_open:
            self._epoch_is_open = True
            self.loop.epoch_start(int(state.timestamp.epoch))

    def _batch_start(self, state: Any) -> None:
        self._open_epoch(state)  # Composer does not report it where it continues in the middle of one
        self.loop.step_start()

    def _before_forward(self, state: Any) -> None:
        self.loop.batch_start(state.batch)

    def _after_backward(self, state: Any) -> None:
        self.loop.batch_end({"loss": state.loss, "outputs": state.outputs}, state.batch)

    def _after_train_batch(self, state: Any) -> None:
        for optimizer in state.optimizers:
            self.loop.before_optimizer_step(optimizer)

    def _batch_end(self, state: Any) -> None:
        losses = dict(state.total_loss_dict)
        row = ({"loss": losses[TOTAL]} if TOTAL in losses else {}) | losses
        row |= {f"metrics/train/{name}": value for name, value in (state.train_metric_values or {}).items()}
        self.loop.step_end(state.batch, self.loop.recordable(row), step=int(state.timestamp.batch))
        self._apply(state)

    def _apply(self, state: Any) -> None:
        if self._boundary() is not None:
            state.stop_training()

    def _eval_start(self, state: Any) -> None:
        self.loop.validation_start()

    def _eval_batch_start(self, state: Any) -> None:
        self.loop.validation_batch_start(state.batch)

    def _eval_batch_end(self, state: Any) -> None:
        self.loop.validation_batch_end({"predictions": state.outputs}, state.batch)

    def _eval_end(self, state: Any) -> None:
        label = state.dataloader_label
        name = "val" if label == DEFAULT_LABEL else label
        metrics = state.eval_metrics.get(label, {})
        values = {each: state.eval_metric_values[each] for each in metrics if each in state.eval_metric_values}
        loss = next((values[each] for each in values if _is_loss(each, metrics[each])), None)
        named = {} if loss is None else {f"{name}/loss": loss}
        named |= {f"{name}/{each}": value for each, value in values.items()}
        named |= {f"metrics/{label}/{each}": value for each, value in values.items()}
        self.loop.validation_end(name, self.loop.recordable(named))

    def _eval_after_all(self, state: Any) -> None:
        if self._is_at_end:
            self._finish()
        elif not self._is_alone:
            self._apply(state)

    def _eval_standalone_start(self, state: Any) -> None:
        if not self.loop.is_running:
            self._is_alone = True
            self.loop.begin(trains=False)
            self.loop.start()

    def _eval_standalone_end(self, state: Any) -> None:
        if self._is_alone:
            self._is_alone = False
            self.loop.train_end()

    def _epoch_checkpoint(self, state: Any) -> None:
        self._close_epoch()

    def _close_epoch(self) -> None:
        if self._epoch_is_open:
            self._epoch_is_open = False
            self.loop.epoch_end()

    def _fit_end(self, state: Any) -> None:
        self._is_at_end = True  # evaluators may follow, which are asked next
        if not self._intervals:
            self._finish()

    def _finish(self) -> None:
        self._restore_intervals()
        self._is_at_end = False
        self._close_epoch()
        self._end()

    def _fail_if_running(self, error: BaseException | None) -> None:
        if self.loop.is_running:
            self._restore_intervals()
        super()._fail_if_running(error)

    def _validate_now(self) -> None:
        self._wants_validation = True  # the evaluators are asked next

    def _cannot(self, command: str) -> str | None:
        if command == "validate" and self._state is not None and not self._state.evaluators:
            return "The trainer has no evaluators."
        return None

    def _save_now(self, path: Path) -> ManifestRow:
        # All processes save together, and rank zero makes it a checkpoint.
        self._saved_at, self._written = path, path.with_name(f".{path.name}.composer")
        try:
            import_module("composer.utils.checkpoint").save_checkpoint(self._state, str(self._written / FILE))
            return super()._save_now(path)
        finally:
            self._saved_at = None
            if self.loop.rank == 0:
                shutil.rmtree(self._written, ignore_errors=True)

    def _write_model(self, directory: Path) -> None:
        for file in self._written.iterdir():
            shutil.move(file, directory / file.name)


HANDLERS: dict[str, Callable[[HooklineCallback, Any], None]] = {
    name: getattr(HooklineCallback, f"_{name}")
    for name in (
        *("fit_start", "epoch_start", "batch_start", "before_forward", "after_backward", "after_train_batch"),
        *("batch_end", "eval_start", "eval_batch_start", "eval_batch_end", "eval_end", "eval_after_all"),
        *("eval_standalone_start", "eval_standalone_end", "epoch_checkpoint", "fit_end"),
    )
}
"""The methods by the names of Composer's events."""


def _is_loss(name: str, metric: Any) -> bool:
    """Whether less of a metric is better: torchmetrics says so, and Composer's own metrics are named so."""
    return getattr(metric, "higher_is_better", None) is False or any(
        word in name.lower() for word in ("loss", "crossentropy", "perplexity")
    )

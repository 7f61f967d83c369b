"""Tunix: hookline's callbacks observe and control the trainers of its `PeftTrainer`, for SFT, DPO and RL.

    from hookline.integrations.tunix import attach

    trainer = PeftTrainer(model, optimizer, config)
    attach(trainer, ["early_stopping"], name="lora")
    trainer.train(train_data, held_out)

MaxText trains with it after pre-training: attach to the trainer of its ``setup_trainer_state``.

How Tunix's hooks become moments:

- A step is one update, of ``gradient_accumulation_steps`` batches. Its row has the ``loss`` (the mean over its batches)
  and the ``grad_norm``, recorded without waiting for the device. There is one epoch.
- An evaluation is ``val``: ``val/loss``, ``val/perplexity``. Tunix evaluates every ``eval_every_n_steps``, and before
  it trains. Hooks that the trainer already has still run.
- A stop ends the training after the step. A requested checkpoint is one of the trainer's own, in its
  ``checkpoint_root_directory``. The callbacks' states are in a folder ``hookline`` there, also for those that Tunix
  saves, so a trainer that restores a checkpoint continues its run.
- `EMA` averages the trained parameters (those of LoRA, where there are any), and evaluations use the averages. With
  ``optax.inject_hyperparams`` callbacks and commands find and set the learning rate.

Tunix reports a step one step late, so `attach` wraps ``train`` and looks at the trainer before each batch. The
gradients are inside of a jitted function, and there are no predictions. With several processes callbacks run on the
first one, and can stop nothing.
"""

from hookline._engine.optional import require

require("jax", ">=0.4.30", extra="tunix", what=__name__)
require("tunix", ">=0.1.5", extra="tunix", what=__name__, distribution="google-tunix")

import inspect
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from tunix.sft.hooks import TrainingHooks

from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError
from hookline._engine.jax_trees import WeightTree
from hookline._engine.state import ManifestRow
from hookline.integrations.host_callback import LearningRateView, WrappedMethods
from hookline.integrations.jax_host import JaxHost
from hookline.loops import checkpoint
from hookline.loops.options import RunOptions

__all__ = ["AttachedTrainer", "attach"]

FOLDER = "hookline"
BUFFERS = ("_prev_buffered_train_metrics", "_buffered_train_metrics")
"""The attributes of a trainer with the metrics of the last step, and with those of the one in progress."""


def attach(
    trainer: Any, callbacks: Iterable[Any] = (), *, name: str = NAME, **options: Unpack[RunOptions]
) -> "AttachedTrainer":
    """Have callbacks run in every ``trainer.train`` that follows, each of which is a run.

    Args:
        trainer: A `PeftTrainer`, or one of its kind.
        callbacks, name, options: As for every run of hookline.
    """
    if not all(hasattr(trainer, each) for each in ("with_training_hooks", "train_steps", "checkpoint_manager")):
        raise OptionError(f"attach({type(trainer).__name__}): give a trainer of Tunix, such as PeftTrainer.")
    attached = AttachedTrainer(callbacks, name=name, **options)
    attached.attach(trainer)
    return attached


class AttachedTrainer(JaxHost):
    """What `attach` returns.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "Tunix"
    package = "tunix"
    reports_epochs = True  # one, which begins after the evaluation before the training
    no_gradients = "Tunix computes gradients and update in one jitted function"

    def attach(self, trainer: Any) -> None:
        """Wrap the trainer's methods and add the hooks; for `attach`."""
        self._trainer, self._hooks_before = trainer, trainer.training_hooks
        self._train_batch = self._eval_batch = None
        self._batch_is_open = self._epoch_is_open = False
        self._eval_batches, self._iterations = 0, 0
        self._without_loss: set[int] = set()
        self._saved_steps: list[int] = []
        self._methods = [WrappedMethods(each) for each in (trainer, trainer.checkpoint_manager)]
        self._methods[0].wrap("train", self._train)
        self._methods[0].wrap("close", self._close)
        self._methods[1].wrap("save", self._note_saved)
        trainer.with_training_hooks(_Hooks(self, trainer.training_hooks))

    def detach(self) -> None:
        """Restore the trainer."""
        for each in self._methods:
            each.restore()
        self._trainer.with_training_hooks(self._hooks_before)

    def _train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trainer = self._trainer
        given = inspect.signature(train).bind(*args, **kwargs)
        data, held_out = given.arguments["train_ds"], given.arguments.get("eval_ds")
        given.arguments["train_ds"] = self._observed(data)
        if held_out is not None:
            given.arguments["eval_ds"] = _Evaluated(self, held_out)
        by_hooks = None if trainer.data_hooks is None else WrappedMethods(trainer.data_hooks)
        try:
            if not self.loop.is_running:  # one of an RL cluster is called once for every batch
                self._begin_training()
            if by_hooks is not None:
                by_hooks.wrap("load_next_train_batch", self._load_train_batch)
                by_hooks.wrap("load_next_eval_batch", self._load_eval_batch)
            result = train(*given.args, **given.kwargs)
            if not trainer.is_managed_externally:
                self._finish()
        except BaseException as error:
            self._fail_if_running(error)
            raise
        finally:
            if by_hooks is not None:
                by_hooks.restore()
        return result

    def _begin_training(self) -> None:
        trainer = self._trainer
        kind = nnx.LoRAParam if len(nnx.to_flat_state(nnx.state(trainer.model, nnx.LoRAParam))) else nnx.Param
        self.loop.weight_tree = WeightTree(
            lambda: nnx.to_pure_dict(nnx.state(trainer.model, kind)), lambda named: _write(trainer.model, named)
        )
        self.loop.optimizer = _rate_of(trainer)
        self._batch_is_open = self._epoch_is_open = False
        self._eval_batches, self._iterations = 0, trainer.iter_steps
        self._without_loss, self._saved_steps = set(), []
        self._begin(trainer.model, native=trainer, step=trainer.train_steps, num_steps=trainer.config.max_steps)

    def _resumed(self) -> tuple[dict[str, Any] | None, ManifestRow | None]:
        step, root = self._trainer.train_steps, self._root
        place = None if root is None or not step else root / FOLDER / str(step)
        if place is None or root is None or not checkpoint.is_checkpoint(place):
            return None, None
        return checkpoint.load(place), self.loop.checkpoint_row(root / str(step), step=step)

    def _finish(self) -> None:
        self._end_step()
        self._announce_saved()
        if self._epoch_is_open:
            self.loop.epoch_end()
        self._end()

    def _close(self, close: Callable[..., Any]) -> Any:
        result = close()
        if self._trainer.is_managed_externally and self.loop.is_running:
            self._finish()
        return result

    def _observed(self, data: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of training until a callback requests a stop, with the end of a step before the next."""
        batches = iter(data)
        while not self._stops():
            try:
                self._train_batch = next(batches)
            except StopIteration:
                return
            yield self._train_batch

    def _load_train_batch(self, load: Callable[..., Any], *args: Any) -> Any:
        self._train_batch = None if self._stops() else load(*args)
        return self._train_batch

    def _load_eval_batch(self, load: Callable[..., Any], *args: Any) -> Any:
        self._eval_batch = load(*args)
        return self._eval_batch

    def _stops(self) -> bool:
        self._end_step()
        self._announce_saved()
        return not self.loop.in_step and self._boundary() is not None

    def training_started(self) -> None:
        """Begin the epoch; the hooks call this and the following methods."""
        if not self._epoch_is_open:
            self._epoch_is_open = True
            self.loop.epoch_start(0)

    def step_started(self) -> None:
        """Begin a batch, and a step with the first one."""
        if not self.loop.in_step:
            self.loop.step_start()
        self._batch_is_open = True
        self.loop.batch_start(self._train_batch)

    def _end_step(self) -> None:
        """End the batch that was trained on, and the step with the last one."""
        trainer, loop = self._trainer, self.loop
        if not self._batch_is_open or trainer.iter_steps == self._iterations:
            return
        self._batch_is_open, self._iterations = False, trainer.iter_steps
        is_update = trainer.train_steps > loop.step
        # Tunix shows the metrics of a step with the next one. Until then they are in private attributes, on the device.
        buffered = getattr(trainer, BUFFERS[not is_update], None)
        losses = list(getattr(buffered, "losses", ()))
        loop.batch_end({"loss": losses[-1]} if losses else None, self._train_batch)
        if not is_update:
            return
        row = {"loss": _mean(losses)} if losses else {}
        norms, _ = getattr(buffered, "additional_metrics", {}).get("grad_norm", ((), None))
        row |= {"grad_norm": _mean(norms)} if norms else {}
        if not losses:
            self._without_loss.add(trainer.train_steps)
        loop.step_end(self._train_batch, row, step=trainer.train_steps)

    def step_reported(self, step: int, loss: Any) -> None:
        """Record the loss of a step that had none when it ended."""
        if step in self._without_loss and self.loop.is_running:
            self._without_loss.remove(step)
            self.loop.host_log({"loss": float(loss)}, step=step)

    def evaluation_batch_started(self) -> None:
        """Begin a batch of an evaluation, and the evaluation with the first one."""
        if not self._eval_batches:
            self._end_step()
            self.loop.validation_start()
        else:
            self._end_evaluation_batch()
        self._eval_batches += 1
        self.loop.validation_batch_start(self._eval_batch)

    def _end_evaluation_batch(self) -> None:
        losses = getattr(getattr(self._trainer, "_buffered_eval_metrics", None), "losses", ())
        self.loop.validation_batch_end({"loss": losses[-1]} if losses else None, self._eval_batch)

    def evaluation_ended(self, total: Any) -> None:
        """End an evaluation, given the sum of its losses."""
        self._end_evaluation_batch()
        loss, self._eval_batches = total / self._eval_batches, 0
        self.loop.validation_end("val", {"val/loss": loss, "val/perplexity": jnp.exp(loss)})

    @property
    def _root(self) -> Path | None:
        root = self._trainer.config.checkpoint_root_directory
        return None if root is None else Path(root)

    def _note_saved(self, save: Callable[..., Any], step: int, *args: Any, **kwargs: Any) -> Any:
        saved = save(step, *args, **kwargs)
        if saved:
            self._saved_steps.append(step)
        return saved

    def _announce_saved(self) -> None:
        """Save the callbacks' states for the checkpoints that Tunix has saved since the last call, or is saving."""
        steps, self._saved_steps = self._saved_steps, []
        root = self._root
        for step in steps if root is not None and self.loop.is_running else ():
            self._save_states(root, step)  # type: ignore[arg-type]
            self.loop.checkpoint_saved(root / str(step), step=step)  # type: ignore[operator]

    def _save_states(self, root: Path, step: int) -> None:
        state = self.loop.state_dict()
        if self.loop.rank == 0:
            for old in (root / FOLDER).glob("*"):  # of checkpoints that Tunix has deleted
                if not (root / old.name).exists():
                    shutil.rmtree(old, ignore_errors=True)
            checkpoint.save(root / FOLDER / str(step), state, lambda directory: None, step=step, kind="host")

    def _cannot(self, command: str) -> str | None:
        if command == "checkpoint" and self._root is None:
            return "The trainer's config has no checkpoint_root_directory."
        if command == "validate":
            return "Tunix evaluates every eval_every_n_steps, and not on request."
        return super()._cannot(command)

    def _default_path(self) -> Path:
        return self._trainer_path(self.loop.step + self.loop.in_step)

    def _trainer_path(self, step: int) -> Path:
        return (self._root or Path()) / str(step)

    def _save_now(self, path: Path) -> ManifestRow:
        trainer, step = self._trainer, self.loop.step
        only_lora = bool(getattr(trainer, "_lora_enabled", False))
        metadata = trainer.custom_checkpoint_metadata()
        manager = trainer.checkpoint_manager
        if manager.latest_step() != step:
            manager.save(
                step,
                trainer.model,
                trainer.optimizer,
                save_only_lora_params=only_lora,
                custom_metadata=metadata,
                force=True,
            )
            self._saved_steps.clear()  # this one is announced here
            self._save_states(path.parent, step)
        orbax = getattr(manager, "_checkpoint_manager", None)
        if orbax is not None:
            orbax.wait_until_finished()  # subscribers must find it complete
        return self.loop.checkpoint_saved(self._trainer_path(step))


class _Hooks(TrainingHooks):  # type: ignore[misc]
    """Calls the bridge, and the hooks that the trainer had before."""

    def __init__(self, attached: AttachedTrainer, before: Any) -> None:
        self._attached, self._before = attached, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)  # MaxText's data hooks look things up in its training hooks

    def _also(self, name: str, *args: Any) -> None:
        if self._before is not None:
            getattr(self._before, name)(*args)

    def on_train_start(self, train_ctx: Any) -> None:
        self._also("on_train_start", train_ctx)
        self._attached.training_started()

    def on_train_end(self, train_ctx: Any) -> None:
        self._also("on_train_end", train_ctx)

    def on_train_step_start(self, train_ctx: Any) -> None:
        self._also("on_train_step_start", train_ctx)
        self._attached.step_started()

    def on_train_step_end(self, train_ctx: Any, train_step: int, train_loss: float) -> None:
        self._also("on_train_step_end", train_ctx, train_step, train_loss)
        self._attached.step_reported(train_step, train_loss)

    def on_eval_step_start(self, train_ctx: Any) -> None:
        self._also("on_eval_step_start", train_ctx)
        self._attached.evaluation_batch_started()

    def on_eval_step_end(self, train_ctx: Any, eval_loss: Any) -> None:
        self._also("on_eval_step_end", train_ctx, eval_loss)
        self._attached.evaluation_ended(eval_loss)


class _Evaluated:
    """The data of evaluations, which notes the present batch; Tunix iterates over it each time."""

    def __init__(self, attached: Any, data: Any) -> None:
        self._attached, self._data = attached, data

    def __iter__(self) -> Iterator[Any]:
        for batch in self._data:
            self._attached._eval_batch = batch
            yield batch


def _mean(values: Any) -> Any:
    return values[0] if len(values) == 1 else sum(values) / len(values)


def _write(module: Any, named: Mapping[str, Any]) -> None:
    """Replace arrays of a module by name."""
    state = nnx.state(module)
    for path, variable in nnx.to_flat_state(state):
        name = ".".join(str(part) for part in path)
        if name in named:
            variable.set_value(named[name])
    nnx.update(module, state)


def _rate_of(trainer: Any) -> LearningRateView | None:
    """Return the learning rate that ``optax.inject_hyperparams`` keeps in the optimizer's state, if it does."""

    def rates() -> dict[str, Any]:
        found = nnx.to_flat_state(nnx.state(trainer.optimizer))
        named = {".".join(str(part) for part in path): variable.get_value() for path, variable in found}
        return {name: value for name, value in named.items() if name.endswith("hyperparams.learning_rate")}

    def write(rate: float) -> None:
        _write(trainer.optimizer, {name: jnp.full_like(value, rate) for name, value in rates().items()})

    return LearningRateView(lambda: float(next(iter(rates().values()))), write) if rates() else None

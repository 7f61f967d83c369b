"""Accelerate: `run` drives a loop over what an `Accelerator` has prepared; `HooklineTracker` is one of its trackers.

    from hookline.integrations.accelerate import run

    with run(accelerator, "warmup", resume="auto", callbacks=["checkpoint"]) as loop:
        for batch in loop.steps(loader, epochs=3):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            loop.log(loss=loss)

A step is one update, whether ``accelerator.accumulate()`` or the loop itself decides when a prepared optimizer steps.
Checkpoints are Accelerate's own (``save_state``), in a folder of hookline's, whatever the sharding; a resume
(``load_state``) is exact, also in the middle of a shuffled epoch. `on_before_optimizer_step` fires when gradients are
complete and unscaled. A plain `hl.run` around such a loop works as well, where each batch is a step and nothing is to
be resumed.

`HooklineTracker` records what ``accelerator.log()`` is given, on the main process. Values on a device are fetched
without the training waiting for them. Anything but numbers, texts and truth values is left out, with one warning each.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="torch", what=__name__)
require("accelerate", ">=1.0", extra="torch", what=__name__)

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from torch import Generator

from hookline._engine.checks import require_integer
from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError
from hookline.integrations.framework_run import FrameworkRun
from hookline.integrations.passive_run import PassiveRun
from hookline.loops.batches import Batches, LoaderOrder
from hookline.loops.options import LoopOptions, RunOptions
from hookline.loops.run import Run
from hookline.loops.updates import OptimizerUpdates

__all__ = ["AccelerateRun", "HooklineTracker", "run"]


class PreparedOrder(LoaderOrder):
    """Opens the epochs of prepared loaders, and of others."""

    def batches_of(self, loader: Any) -> Batches:
        """Return the batches of a data loader."""
        is_prepared = hasattr(loader, "base_dataloader")
        return PreparedBatches(loader, what="The data loader") if is_prepared else super().batches_of(loader)


class PreparedBatches(Batches):
    """The batches that a prepared loader gives this process."""

    @property
    def saves_position(self) -> bool:
        """Whether ``accelerator.load_state()`` restores the position of the loader."""
        return bool(getattr(self.data, "use_stateful_dataloader", False))

    def position(self) -> Any:
        """Return None: ``accelerator.save_state()`` saves it."""
        return None

    def _generators(self) -> list[Generator]:
        """Return all that the loader and its nested samplers draw from."""
        found: dict[int, Generator] = {}
        waiting, seen = [self.data, getattr(self.data, "base_dataloader", None)], set[int]()
        while waiting:
            holder = waiting.pop()
            if holder is None or id(holder) in seen:
                continue
            seen.add(id(holder))
            held = (getattr(holder, name, None) for name in ("generator", "synchronized_generator"))
            found |= {id(each): each for each in held if isinstance(each, Generator)}
            waiting += [getattr(holder, name, None) for name in ("batch_sampler", "sampler")]
        return list(found.values())


class AcceleratorUpdates(OptimizerUpdates):
    """The updates of an accelerator's optimizers.

    Args:
        run: The run whose steps these are.
        accelerator: The accelerator.
        accumulation: How many batches make a step, where that is given; otherwise it is seen at the first update.
    """

    def __init__(self, run: Run, accelerator: Accelerator, accumulation: int | None) -> None:
        super().__init__(run)
        self._accelerator, self._accumulation = accelerator, accumulation
        self._found: int | None = None  # how many batches make a step, as far as that was seen
        self._is_found = False
        self._batches_in_step = 0
        self._uses_accumulate = False

    @property
    def batches_per_step(self) -> int:
        """How many batches make a step, as far as that is planned."""
        if self._accumulation is not None:
            return self._accumulation
        return max(int(self._accelerator.gradient_accumulation_steps), self._found or 1)

    @batches_per_step.setter
    def batches_per_step(self, count: int) -> None:
        pass  # the accelerator decides

    @property
    def needs_step_starts(self) -> bool:
        """Whether a checkpoint may have to go back to the beginning of a step."""
        unknown = self._found is None and self._accumulation is None
        return unknown or super().needs_step_starts

    def has_updated(self) -> bool:
        """Whether the weights were updated since the last step."""
        return self.count > 0 if self.is_watching else bool(self._accelerator.sync_gradients)

    def completes_step(self) -> bool:
        """Whether the batch that ends now is the last one of its step."""
        self._batches_in_step += 1
        synchronizes = bool(self._accelerator.sync_gradients)
        self._uses_accumulate = self._uses_accumulate or not synchronizes
        if not self.is_watching or (self._uses_accumulate and not self.count):
            return synchronizes
        # An update is left out where gradients overflow. Accelerate keeps reporting that until the next update.
        skipped = any(getattr(each, "step_was_skipped", False) for each in _prepared(self._accelerator)[1])
        is_skipped = skipped and self._batches_in_step >= self.batches_per_step
        return self.has_updated() or (synchronizes and is_skipped)

    def batch_ended(self, *, completed: bool) -> bool:
        """Note that a batch ended; returns whether `batches_per_step` changed."""
        if not completed:
            self._found = max(self._found or 1, 2)  # the beginnings of steps are noted from here on
            return False
        has_changed = self._batches_in_step > 1 and not self._is_found
        if has_changed:
            self._is_found, self._found = True, self._batches_in_step
        self._found, self._batches_in_step = self._found or 1, 0
        return has_changed and self.batches_per_step > 1


class AccelerateRun(FrameworkRun):
    """Drives a loop of your own over what an accelerator has prepared.

    Args:
        accelerator: The accelerator that prepared the model, the optimizer and the data; ``loop.native``.
        name: The name of the run.
        model, optimizer, scheduler: As ``accelerator.prepare()`` returned them, for callbacks; by default the one that
            the accelerator has prepared, where it is the only one of its kind.
        accumulation: How many batches make a step in a loop that accumulates gradients without
            ``accelerator.accumulate()``. By default it is seen at the first update, and ``num_steps`` is right from
            there on.
        options: As for `hl.run`; the files of ``save`` and ``load`` come in addition.
    """

    framework = "Accelerate"
    folder = "accelerate"

    def __init__(
        self,
        accelerator: Accelerator,
        name: str | None = None,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        accumulation: int | None = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        if not isinstance(accelerator, Accelerator):
            raise OptionError(f"accelerator={accelerator!r}: give an accelerate.Accelerator.")
        if accelerator.project_configuration.automatic_checkpoint_naming:
            raise OptionError(
                "The accelerator names its checkpoints itself (automatic_checkpoint_naming=True), and would save "
                "elsewhere than in the run's directory. Leave that off: hookline numbers them, and a "
                "CheckpointCallback limits them."
            )
        require_integer("accumulation", accumulation, optional=True)
        super().__init__(name, **options)
        if accelerator.num_processes != self.world_size:
            raise OptionError(
                f"Accelerate was set up for {accelerator.num_processes} processes, and torch.distributed connects "
                f"{self.world_size}: connect them, with a launcher or init_process_group(), before anything makes an "
                "Accelerator."
            )
        self._accelerator = accelerator
        self._given = (model, optimizer, scheduler)
        self._order = PreparedOrder()
        self._updates: AcceleratorUpdates = AcceleratorUpdates(self, accelerator, accumulation)

    @property
    def native(self) -> Any:
        """The accelerator."""
        return self._accelerator

    def begin(self) -> None:
        """Begin to record, with what the accelerator has prepared by now."""
        prepared = _prepared(self._accelerator)
        model, self.optimizer, self.scheduler = (
            some[0] if given is None and len(some) == 1 else given
            for given, some in zip(self._given, prepared, strict=True)
        )
        self.model = None if model is None else self._accelerator.unwrap_model(model)
        super().begin()
        optimizers = (getattr(each, "optimizer", each) for each in prepared[1])
        # Those of DeepSpeed and the like have no hooks: there the accelerator says when gradients are synchronized.
        self._updates.watch([each for each in optimizers if hasattr(each, "register_step_pre_hook")])

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything, and remove the hooks from the optimizers."""
        self._updates.unwatch()
        super().finish(error)

    def _write_folder(self, folder: Path) -> None:
        counted = self._accelerator.step
        if self._before_step:  # a resume does the batches of this step again
            self._accelerator.step = 0
        try:
            self._accelerator.save_state(str(folder))
        finally:
            self._accelerator.step = counted

    def _read_folder(self, folder: Path) -> None:
        self._accelerator.load_state(str(folder))


def _prepared(accelerator: Accelerator) -> tuple[list[Any], ...]:
    """Return the models, the optimizers and the schedules that an accelerator has prepared."""
    return tuple(list(getattr(accelerator, kind, ())) for kind in ("_models", "_optimizers", "_schedulers"))


run = AccelerateRun


class HooklineTracker(GeneralTracker):  # type: ignore[misc]
    """A tracker of Accelerate that writes hookline's record: ``Accelerator(log_with=HooklineTracker("warmup"))``.

    The run begins with the first record, so that ``init_trackers(config=...)`` gives its configuration, and ends with
    ``accelerator.end_training()``.

    Args:
        run_name: The name of the run.
        callbacks: Subscribers, which get the start and the end of the training and `on_log`: a tracker knows no more.
        options: As for every run of hookline.
    """

    name = "hookline"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        run_name: str = NAME,
        *,
        callbacks: Iterable[Any] = (),
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__()
        self._run = PassiveRun(run_name, callbacks=callbacks, **options)
        self._last_given: int | None = None

    @property
    def tracker(self) -> PassiveRun | None:
        """The run, e.g. for ``log_samples()``; None on processes that do not record."""
        if not _is_main():
            return None
        self._begin()
        return self._run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Add to the run's configuration; once the run has begun, also as an event."""
        if _is_main():
            self._run.update_config(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record metrics; without a step, at the last one that was given or, where there was none, at the next."""
        if not _is_main():
            return
        self._begin()
        self._run.record(values, self._step_for(step))

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Iterable[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the rows of a table as samples; columns such as ``prompt`` and ``completion`` are those of samples."""
        if not _is_main():
            return
        if dataframe is not None:
            columns, data = [str(name) for name in dataframe.columns], dataframe.to_numpy().tolist()
        if columns is None or data is None:
            raise OptionError(f"log_table({table_name!r}): give columns= and data=, or dataframe=.")
        self._begin()
        at = self._step_for(step)
        rows = [dict(zip(columns, row, strict=True)) for row in data]
        self._run.log_samples([{**row, "table": table_name, "step": at} for row in rows])

    def finish(self) -> None:
        """End the run."""
        if _is_main() and self._run.is_running:
            self._run.train_end()

    def _begin(self) -> None:
        if self._run.is_running:
            return
        if self._run.dir is not None:  # it was finished, and continues
            self._run.begin(state=self._run.state_dict())
        else:
            self._run.begin()
        self._run.train_start(step=self._run.step)

    def _step_for(self, step: int | None) -> int:
        if step is not None:
            self._last_given = step
        return self._run.step + 1 if self._last_given is None else self._last_given


# Accelerate finds it by this name: Accelerator(log_with="hookline").
LOGGER_TYPE_TO_CLASS.setdefault(HooklineTracker.name, HooklineTracker)


def _is_main() -> bool:
    return bool(PartialState().is_main_process)

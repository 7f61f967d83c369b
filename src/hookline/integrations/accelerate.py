"""Accelerate: `run` drives a loop over what an `Accelerator` has prepared, `HooklineTracker` is one of its trackers.

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

A plain `hl.run` around such a loop is right as well, where each batch is a step and nothing is to be resumed.

Data loaders that Accelerate has prepared, in the order that they had, so that a resume is exact.

`AccelerateRun`: `hl.run` for a loop over what an `Accelerator` has prepared.

A step is one update, whether ``accelerator.accumulate()`` or the loop itself decides when a prepared optimizer steps.
Checkpoints are Accelerate's own (``save_state``), in a
folder of hookline's, whatever the sharding; a resume (``load_state``) is exact, also in the middle of an epoch that is
shuffled. `on_before_optimizer_step` is fired by the prepared optimizers, when gradients are complete and unscaled.

`HooklineTracker`: what ``accelerator.log()`` is given reaches the record, as one of the accelerator's trackers.

The main process records. Values on a device are fetched without the training waiting for them. What is no number, text
or truth value (an image, a histogram) is not recorded, and said once by name.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="torch", what=__name__)
require("accelerate", ">=1.0", extra="torch", what=__name__)

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.tracking import GeneralTracker
from torch import Generator

from hookline._engine.errors import CheckpointError, OptionError
from hookline.integrations.passive_run import PassiveRun
from hookline.integrations.torch import LoaderReplay
from hookline.integrations.torch.joint_run import JointRun, check_accumulation
from hookline.loops.batches import Batches
from hookline.loops.data_position import length_of
from hookline.loops.options import LoopOptions, RunOptions

__all__ = ["AccelerateRun", "HooklineTracker", "run"]


class PreparedReplay(LoaderReplay):
    """Opens the epochs of prepared loaders, and of others."""

    def made_of(self, loader: Any) -> Batches:
        """The batches of a data loader."""
        is_prepared = hasattr(loader, "base_dataloader")
        return PreparedBatches(loader, what="The data loader") if is_prepared else super().made_of(loader)


class PreparedBatches(Batches):
    """The batches that a prepared loader gives this process."""

    @property
    def keeps_its_place(self) -> bool:
        """Whether ``accelerator.load_state()`` has put the loader where it was."""
        return bool(getattr(self.data, "use_stateful_dataloader", False))

    def place(self) -> Any:
        """None: ``accelerator.save_state()`` saves it."""
        return None

    def _generators(self) -> list[Generator]:
        """All that the loader, and the samplers inside of each other, draw from."""
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


FOLDER = "accelerate"
"""Where in a checkpoint the state of the accelerator lies."""


class AccelerateRun(JointRun):
    """Drives a loop of your own over what an accelerator has prepared.

    Args:
        accelerator: What prepared the model, the optimizer and the data; ``loop.native``.
        name: What the run is called.
        model, optimizer, scheduler: As ``accelerator.prepare()`` returned them, for callbacks; where the accelerator
            has prepared exactly one of a kind, that is it.
        accumulation: How many batches make a step in a loop that accumulates gradients without
            ``accelerator.accumulate()``. Left out, it is found out at the first update, and ``num_steps`` is right from
            there on.
        options: As for `hl.run`; what ``save`` writes and ``load`` reads comes in addition.
    """

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
        _check(accelerator)
        if accumulation is not None:
            check_accumulation(accumulation)
        super().__init__(name, replay=PreparedReplay(), **options)
        self._accelerator = accelerator
        _require_processes(accelerator.num_processes, self.world_size)
        self._given = (model, optimizer, scheduler)
        self._accumulation = accumulation
        self._found: int | None = None  # how many batches make a step, as far as that was seen
        self._is_found = False
        self._batches_in_step = 0
        self._uses_accumulate = False
        self._planned_length: int | None = None

    @property
    def native(self) -> Any:
        """The accelerator."""
        return self._accelerator

    @property
    def batches_per_step(self) -> int:
        """How many batches make a step, as far as that is planned."""
        if self._accumulation is not None:
            return self._accumulation
        return max(int(self._accelerator.gradient_accumulation_steps), self._found or 1)

    def begin(self) -> None:
        """Begin to record, with what the accelerator has prepared by now."""
        model, self.optimizer, self.scheduler = map(_only, self._given, self._prepared())
        self.model = None if model is None else self._accelerator.unwrap_model(model)
        super().begin()

    def _prepared(self) -> tuple[list[Any], ...]:
        """The models, the optimizers and the schedules."""
        kinds = ("_models", "_optimizers", "_schedulers")
        return tuple(list(getattr(self._accelerator, kind, ())) for kind in kinds)

    def _optimizers(self) -> Iterable[Any]:
        own = (getattr(each, "optimizer", each) for each in self._prepared()[1])
        return [each for each in own if hasattr(each, "register_step_pre_hook")]  # others have their own engine

    def _has_updated(self) -> bool:
        return self._updates > 0 if self._listening else bool(self._accelerator.sync_gradients)

    def _completes_step(self) -> bool:
        synchronizes = bool(self._accelerator.sync_gradients)
        self._uses_accumulate = self._uses_accumulate or not synchronizes
        if not self._listening or (self._uses_accumulate and not self._updates):
            return synchronizes
        return self._has_updated() or (synchronizes and self._was_skipped())

    def _was_skipped(self) -> bool:
        """Whether the update was left out because gradients overflowed; Accelerate keeps saying so until the next."""
        skipped = any(getattr(each, "step_was_skipped", False) for each in self._prepared()[1])
        return skipped and self._batches_in_step >= self.batches_per_step

    def _notes_step_starts(self) -> bool:
        unknown = self._found is None and self._accumulation is None
        return unknown or super()._notes_step_starts()

    def _plan(self, batches: Any, epochs: int, total: int | None) -> None:
        super()._plan(batches, epochs, total)
        self._planned_length = None if total is not None else length_of(batches)

    def _end_step(self) -> None:
        if self._step is None:
            super()._end_step()
            return
        self._batches_in_step += 1
        super()._end_step()
        if self._is_between_batches:
            self._found = max(self._found or 1, 2)  # where a step begins is noted from here on
            return
        if self._batches_in_step > 1 and not self._is_found:
            self._is_found, self._found = True, self._batches_in_step
            if self.batches_per_step > 1 and self._planned_length is not None:
                self._plan_updates(self._planned_length, self.epoch, self._batches_done)
        self._found, self._batches_in_step = self._found or 1, 0

    def _save_files(self, directory: Path) -> None:
        with self._counted_from_the_update():
            self._accelerator.save_state(str(directory / FOLDER))
        super()._save_files(directory)

    @contextmanager
    def _counted_from_the_update(self) -> Iterator[None]:
        """What the accelerator counts of the batches of a step, without those that a resume does again."""
        counted = self._accelerator.step
        self._accelerator.step = 0 if self._goes_back else counted
        try:
            yield
        finally:
            self._accelerator.step = counted

    def _load_files(self, directory: Path) -> None:
        if not (directory / FOLDER).is_dir():
            raise CheckpointError(f"{directory / FOLDER} is missing: that checkpoint was saved by another kind of run.")
        try:
            self._accelerator.load_state(str(directory / FOLDER))
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise CheckpointError(f"Accelerate cannot load {directory / FOLDER}: {why}") from error
        super()._load_files(directory)


run = AccelerateRun


def _check(accelerator: Any) -> None:
    if not isinstance(accelerator, Accelerator):
        raise OptionError(f"accelerator={accelerator!r}: give an accelerate.Accelerator.")
    if accelerator.project_configuration.automatic_checkpoint_naming:
        raise OptionError(
            "The accelerator names its checkpoints itself (automatic_checkpoint_naming=True), and would save elsewhere "
            "than in the run's directory. Leave that off: hookline numbers them, and a CheckpointCallback limits them."
        )


def _require_processes(prepared_for: int, here: int) -> None:
    if prepared_for != here:
        raise OptionError(
            f"Accelerate was set up for {prepared_for} processes, and torch.distributed connects {here}: connect them, "
            "with a launcher or init_process_group(), before anything makes an Accelerator."
        )


def _only(given: Any, prepared: list[Any]) -> Any:
    """What was given, or the only one that was prepared."""
    return prepared[0] if given is None and len(prepared) == 1 else given


class HooklineTracker(GeneralTracker):  # type: ignore[misc]
    """A tracker of Accelerate that writes hookline's record: ``Accelerator(log_with=HooklineTracker("warmup"))``.

    The run begins with the first thing to record, so that what ``init_trackers(config=...)`` is given is its
    configuration, and ends with ``accelerator.end_training()``.

    Args:
        run_name: What the run is called.
        callbacks: They are notified of the start and the end of the training and of what is logged: a tracker knows
            no more.
        options: As for every run of hookline.
    """

    name = "hookline"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        run_name: str = "run",
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
        """Add to the run's configuration; once it has begun, an event says so too."""
        if _is_main():
            self._run.update_config(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record metrics; without a step, at the last one that was given or, where none ever was, at the next."""
        if not _is_main():
            return
        self._begin()
        self._run.tell(values, self._place(step))

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
        at = self._place(step)
        rows = [dict(zip(columns, row, strict=True)) for row in data]
        self._run.log_samples([{**row, "table": table_name, "step": at} for row in rows])

    def finish(self) -> None:
        """End the run."""
        if _is_main() and self._run.is_running:
            self._run.train_end()

    def _begin(self) -> None:
        if self._run.is_running:
            return
        if self._run.dir is not None:  # it was finished, and goes on
            self._run.begin(state=self._run.state_dict())
        else:
            self._run.begin()
        self._run.train_start(step=self._run.step)

    def _place(self, step: int | None) -> int:
        if step is not None:
            self._last_given = step
        return self._run.step + 1 if self._last_given is None else self._last_given


def _is_main() -> bool:
    return bool(PartialState().is_main_process)

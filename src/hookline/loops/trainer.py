"""`Trainer`: trains a model, and fires every moment of training, validation and checkpoints around it.

    trainer = hl.Trainer(model, train_data, val_data, config=hl.TrainerConfig(epochs=3), loss=cross_entropy)
    trainer.fit()

One process on one device runs plain torch; several processes and mixed precision run on Accelerate, with the same
moments. The processes of a step have equal weight, or weight by their tokens where the batches bring those numbers, so
the results are those of one process with the same batches. A step is, and everything in it happens once::

    on_step_start
    for each of its batches:  on_train_batch_start, forward and backward, on_train_batch_end
    on_before_optimizer_step, clip the gradients, update the weights
    on_step_end, write the row of metrics, on_log
    when due: a validation, a checkpoint, the end

A checkpoint that is requested in the middle of a step is saved when the step is complete: only there is it exact.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from hookline._engine.errors import OptionError
from hookline._engine.metrics import MetricsRow, collect
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline._record.device import defer
from hookline.callbacks.nan_guard import NaNGuard
from hookline.loops import checkpoint, rng
from hookline.loops.backends import choose_backend, moved
from hookline.loops.batches import Batches, SharedOrder, evaluation_sets
from hookline.loops.checkpointing import all_callbacks
from hookline.loops.data_position import DataPosition
from hookline.loops.options import options_of
from hookline.loops.recording import check_resume
from hookline.loops.session import Session
from hookline.loops.sharded import require_supported
from hookline.loops.signals import is_signal
from hookline.loops.trainer_config import Plan, TrainerConfig, warn_of_changes
from hookline.loops.trainer_setup import (
    batch_size_for,
    checked_config,
    checked_model,
    is_plateau,
    make_optimizer,
    make_scheduler,
    step_function,
    subscribers,
)
from hookline.loops.training_state import TrainerState
from hookline.loops.training_step import (
    COUNTS,
    FiniteLoss,
    ProcessShares,
    StepFunction,
    combined,
    predictions_of,
    scalars,
    set_to_evaluate,
    shares_of,
    weight_of,
)
from hookline.loops.validation import Validation

logger = logging.getLogger("hookline")

VALIDATION = "val"
"""The name of the Trainer's own validations."""
TEST = "test"
"""The name of the evaluation of `Trainer.test`."""
Window = list[tuple[int, Any]]
"""The batches of one step, each with its index in the epoch."""


class Trainer(Session):
    """Trains a model on batches of data.

    Args:
        model: A torch module.
        train_data: A data set of samples, a `DataLoader`, or an iterable of batches.
        val_data: The same for validations, or several by name: ``{"easy": ..., "hard": ...}`` are validated one after
            the other, as ``val/easy/loss`` and ``val/hard/loss``.
        config: The settings; they have to say how long to train.
        loss: A function of the model's prediction and the targets, for batches of ``(inputs, targets)``.
        training_step: A function ``(model, batch)`` that returns ``{"loss": ..., ...}``: the loss to train on, and
            numbers to record with it. Or override the method. Without either, the model returns its own loss.
        optimizer: A torch optimizer, or a function of the parameters; made from the settings by default.
        scheduler: A torch scheduler, or a function of the optimizer; made from the settings by default. It steps
            once per optimizer step; `ReduceLROnPlateau` once per validation, with its loss (that of the first of
            several validation sets).
        test_data: What `test` evaluates by default, as for ``val_data``.
        callbacks: Callbacks besides those of the settings.
        custom_logger_fns: Functions ``(report_data, step)`` called after each step and validation, on rank zero.
        hook_fns: Functions ``(worker, report_data)`` by the name of a hook.
    """

    exchanges_rows = True
    saves_together = True
    measures_grad_norm: ClassVar[bool] = False
    """Whether the norm of the gradients is recorded where they are not clipped either."""
    config: TrainerConfig
    worker: Any
    """Passed to hook functions in place of the Trainer, once it is set."""

    def __init__(
        self,
        model: torch.nn.Module,
        train_data: Any,
        val_data: Any = None,
        *,
        config: TrainerConfig | None = None,
        loss: Callable[[Any, Any], Any] | None = None,
        training_step: StepFunction | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        test_data: Any = None,
        callbacks: Any = None,
        custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
        hook_fns: Mapping[str, Any] | None = None,
    ) -> None:
        config = checked_config(config, has_val_data=val_data is not None)
        given = subscribers(config, callbacks, custom_logger_fns, hook_fns)
        super().__init__(config.name, callbacks=given, **options_of(config))
        self._step_function = step_function(loss, training_step)
        shared: dict[str, Any] = {"rank": self.rank, "world_size": self.world_size}
        shared |= {"batch_size": batch_size_for(train_data, config), "workers": config.workers}
        self.train_batches = Batches(train_data, what="train_data", shuffle=config.shuffle, **shared)
        self._batch_options = shared
        self.val_sets = evaluation_sets(val_data, "val_data", **shared)
        """The batches of each validation set by name; a single set has the empty name."""
        self.test_sets = evaluation_sets(test_data, "test_data", **shared)
        self.plan = Plan(config, self.train_batches.length, validates=val_data is not None)
        self.num_steps, self.num_epochs = self.plan.num_steps, self.plan.num_epochs
        require_supported(checked_model(model), optimizer)
        self.optimizer = make_optimizer(optimizer, model, config)
        self.scheduler = make_scheduler(scheduler, self.optimizer, config, self.num_steps)
        if val_data is None and is_plateau(self.scheduler):
            raise OptionError("ReduceLROnPlateau needs the loss of validations: give val_data.")
        self.model = model
        self.backend = choose_backend(config.precision, config.device, model)
        self._training: TrainerState | None = None  # once the backend has prepared the model
        seed = config.seed or 0
        self._order = SharedOrder(self.train_batches, seed=seed, rank=self.rank, world_size=self.world_size)
        self._position = DataPosition()
        self._finite_loss: FiniteLoss | None = None
        self._process_shares: ProcessShares | None = None
        self._validated_at: int | None = None
        self._saves_waiting: list[tuple[Path | None, str]] = []
        self._validating = False

    @property
    def val_batches(self) -> Batches | None:
        """The batches of the validation set, the first where there are several; None where there is none."""
        return next(iter(self.val_sets.values()), None)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next step; after a complete epoch, the one after it."""
        return self.epoch + (self._position.epoch_complete and not self._is_done())

    @property
    def device(self) -> torch.device:
        """Where the model is trained."""
        device: torch.device = self.backend.device
        return device

    @property
    def best_checkpoint(self) -> Path | None:
        """The best checkpoint, by the metric that a checkpoint rule such as `CheckpointCallback` monitors."""
        return self.checkpointing.best

    def training_step(self, model: Any, batch: Any) -> Any:
        """Compute the loss of a batch, and what else is to be recorded: ``{"loss": ..., ...}``."""
        return self._step_function(model, batch)

    def validation_step(self, model: Any, batch: Any) -> Any:
        """Do the same for a validation batch. Numbers are recorded; `on_validation_batch_end` gets all outputs.

        By default it is the training step. The outputs of the Trainer's own step include the predictions.
        """
        return self.training_step(model, batch)

    def prediction_step(self, model: Any, batch: Any) -> Any:
        """Return the model's output for a batch, for `predict`; of ``(inputs, targets)`` it gets the inputs."""
        return predictions_of(model, batch)

    def fit(self) -> LoopArtifacts:
        """Train to the end, and return what training leaves behind."""
        if self.state == "completed":
            logger.warning("%s is already trained to the end: fit() has nothing to do.", self.name)
            return self.artifacts()
        if self.state != "created":
            raise OptionError(f"This training is {self.state}: continue it with resume(), or make another Trainer.")
        return self._run()

    def resume(self, path: str | Path = "last") -> LoopArtifacts:
        """Resume from a checkpoint, and train to the end.

        Args:
            path: A checkpoint's directory, a run's directory or id, or ``"last"`` for the latest checkpoint of the
                latest run of this name.
        """
        if self.state == "running":
            raise OptionError("resume(): this training is running.")
        check_resume(path)
        if self.root is None:
            raise OptionError("resume() with output_dir=None: a run that was not recorded cannot be resumed.")
        self.resume_from = path
        try:
            return self._run()
        finally:
            self.resume_from = self.config.resume

    def validate(self, name: str = VALIDATION) -> dict[str, Any]:
        """Validate now, record the metrics of all sets, and return them."""
        if not self.val_sets:
            raise OptionError("validate(): this Trainer has no val_data.")
        decides = self.state == "running" and name == VALIDATION
        metrics = self._evaluated(name, self.val_sets, limit=self.config.validation_batches, decides=decides)
        if decides and self.scheduler is not None and is_plateau(self.scheduler):
            loss = f"{_joined(name, next(iter(self.val_sets)))}/loss"
            if loss not in metrics:
                found = ", ".join(metrics) or "no metrics"
                raise OptionError(
                    f"ReduceLROnPlateau needs the loss of validations, which have {found}: "
                    "return a 'loss' from validation_step."
                )
            self.scheduler.step(metrics[loss])
        self._save_requested()
        return metrics

    def test(self, data: Any = None) -> dict[str, Any]:
        """Evaluate held-out data, and return the metrics: ``test/loss``.

        It takes the path of every evaluation: `validation_step`, the moments of a validation, and `on_eval` with the
        name "test". After a training, the metrics are recorded in its run.

        Args:
            data: A data set, a loader, or several by name (``test/<name>/loss``); by default the ``test_data``.
        """
        sets = self.test_sets if data is None else evaluation_sets(data, "data", **self._batch_options)
        if not sets:
            raise OptionError("test(): there is no data to test on. Give test(data), or Trainer(..., test_data=...).")
        metrics = self._evaluated(TEST, sets)
        self._save_requested()
        return metrics

    def predict(self, data: Any) -> list[Any]:
        """Return what `prediction_step` returns for each batch, on the CPU; nothing fires, and nothing is recorded.

        Of several processes, each returns the predictions for its share of the batches.

        Args:
            data: A data set, a loader, or an iterable of batches.
        """
        batches = Batches(data, what="data", last_round="filled up", **self._batch_options)
        self._prepared()
        predictions = []
        with self._evaluating(batches):
            for batch in self._placed(batches):
                given = self.backend.predict(self.prediction_step, batch)
                if batches.counts:
                    predictions.append(moved(given, "cpu"))
        if self.device.type != "cpu":  # the copies are asynchronous: none delays the next batch
            getattr(torch, self.device.type).synchronize()
        return predictions

    def _evaluated(
        self, name: str, sets: Mapping[str, Batches], *, limit: int | None = None, decides: bool = False
    ) -> dict[str, Any]:
        """Evaluate each of the sets, and return all their metrics.

        Args:
            limit: The maximum number of batches of each.
            decides: Whether this is the regular validation of this step.
        """
        self._prepared()
        metrics: dict[str, Any] = {}
        with self.recording.reopened():
            for own, batches in sets.items():
                validation = Validation(self, _joined(name, own), counts=COUNTS, everywhere=True)
                with self._evaluating(batches), validation:
                    self._evaluate_set(validation, batches, limit)
                    if decides and own == list(sets)[-1]:
                        self._validated_at = self.step
                metrics |= validation.metrics
        return metrics

    def _evaluate_set(self, validation: Validation, batches: Batches, limit: int | None) -> None:
        empty = True
        for batch in validation.batches(self._placed(batches, limit)):
            empty = False
            outputs = self.backend.evaluate(self.validation_step, batch)
            metrics = scalars(outputs)
            validation.add(metrics, weight_of(metrics, batch) if batches.counts else 0.0, outputs=outputs)
            del outputs  # free its predictions before the next batch is computed
        if empty:
            raise OptionError(f"{batches.what} gave no batch.{batches.advice}")

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save everything that training continues from, and return the manifest row.

        In the middle of a step or of a validation it is saved when that is complete. Where several processes train
        together, all of them have to call it; a `request_checkpoint()` by one is enough.
        """
        if self._must_wait():
            self._saves_waiting.append((None if path is None else Path(path), kind))
            step = self.step + self.in_step
            place = self.checkpointing.path_for(path, step)
            return ManifestRow(step=step, path=place, metrics=dict(self.metrics), kind=kind)
        self._prepared()
        if self._finite_loss is not None:  # weights that a NaN has spoilt must not replace good ones
            self._finite_loss.settle()
        return super().save_checkpoint(path, kind=kind)

    def _run(self) -> LoopArtifacts:
        self._prepared()
        self._reset()
        try:
            self.begin()
        except BaseException:
            self.backend.release()
            raise
        try:
            self._train()
            self._finalize()
        except BaseException as error:
            self.finish(error)
            raise
        finally:
            self.backend.release()
        self.finish(None)
        return self.artifacts()

    def _prepared(self) -> TrainerState:
        """Hand the model to the backend, once."""
        if self._training is None:
            self.backend.prepare(self.model, self.optimizer)
            self.model, self.optimizer = self.backend.model, self.backend.optimizer
            self._training = TrainerState(self.backend, self.scheduler, self.processes, rank=self.rank)
        return self._training

    def _reset(self) -> None:
        self.lifecycle.abandon()
        self._position.epoch_open = self._position.epoch_complete = False
        self._saves_waiting, self.checkpoint_requested, self.validation_requested = [], False, False
        guarded = self.config.nan_loss == "pass" or any(
            isinstance(each, NaNGuard) for each in all_callbacks(self.callbacks)
        )
        self._finite_loss = None if guarded else FiniteLoss()
        self._process_shares = None if self.world_size == 1 else ProcessShares(self.processes, self.backend.device)
        self.optimizer.zero_grad()  # a failed step left gradients behind
        if self.config.seed is not None:  # before begin(): a resumed checkpoint brings its own random states
            rng.seed(self.config.seed)

    def _train(self) -> None:
        self.model.train()  # before on_train_start, in which a subscriber may freeze a part for good
        self.start()
        at_start = self.config.validate_at_start and self.step == 0 and self._validated_at is None
        # A validation that was still due sees the checkpoint's states, and so does the epoch that is opened after it.
        self._order.proceed(keep=True)
        # Agreed on: a validation is a collective, and a rank that began one alone would wait forever.
        (is_requested,) = self._agree(self.validation_requested and self.val_batches is not None)
        if at_start or self._is_validation_due() or is_requested:  # also where a checkpoint was saved just before one
            self.validate()
        while not self._must_stop() and not self._is_done():
            if self._position.epoch_complete:
                self.epoch += 1
                self._position = DataPosition(epoch=self.epoch)
            self._train_epoch()
        if self._finite_loss is not None:
            # The last losses may still be on the device, and a training that ended in NaN must not count as completed.
            self._finite_loss.settle()
        # What is drawn from here on (the end's moments, benchmarks) is not part of what a resume continues.
        self._order.pause()

    def _is_done(self) -> bool:
        return self.plan.is_done(self.step, self.epoch, epoch_complete=self._position.epoch_complete)

    def _train_epoch(self) -> None:
        position, done = self._position, self._position.batches
        position.epoch_open = True
        # The order is drawn before a subscriber of on_train_epoch_start can draw anything.
        source = self._order.open(self.train_batches.data, self.epoch, done)
        self.callbacks.on_train_epoch_start(self)
        self._order.proceed()
        for window in self._windows(source, done):
            self._train_step(window)
            self._boundary()
            if self._agreed_to_stop or self.plan.has_all_steps(self.step):
                break
        else:
            position.epoch_complete = True
        if position.batches == 0 and not self.stop_requested:
            advice = self.train_batches.advice if self.epoch > 0 else ""
            raise OptionError(f"train_data gave no batch in epoch {self.epoch + 1}.{advice}")
        position.epoch_complete = position.epoch_complete or position.batches == self.train_batches.length
        if self._agreed_to_stop and self._is_validation_due(epoch_ends=True):
            position.epoch_complete = False  # so that a resume begins with the validation
        if not position.epoch_complete:
            self._order.pause()
        elif self._is_validation_due(epoch_ends=True):
            self.validate()
        position.epoch_open = False
        self.callbacks.on_train_epoch_end(self)

    def _windows(self, source: Iterator[Any], done: int) -> Iterator[Window]:
        """Yield the batches of each step; the last step of an epoch may have fewer."""
        numbered = zip(itertools.count(done), source, strict=False)
        accumulation = self.config.accumulation
        if accumulation == 1:
            for entry in numbered:
                yield [entry]
        else:
            while window := list(itertools.islice(numbered, accumulation)):
                yield window

    def _train_step(self, window: Window) -> None:
        # This is the hot path: after the work of a step the caches are cold, and each Python call costs a multiple of
        # what it costs in a loop of its own. So it has few calls, and uses dict's own methods on rows.
        parts = len(window)
        shares = [1.0] if parts == 1 else shares_of([batch for _, batch in window])
        weights = shares
        if self._process_shares is not None:
            weights = self._process_shares.weighed(shares, [batch for _, batch in window])
        callbacks, backend = self.callbacks, self.backend
        row = self.lifecycle.begin()
        recorded: list[dict[str, Any]] = []
        for part, (batch_idx, batch) in enumerate(window):
            batch = backend.place(batch)
            callbacks.on_train_batch_start(self, batch, batch_idx)
            outputs = backend.learn(self.training_step, batch, weights[part], last=part == parts - 1)
            # A subscriber that keeps the outputs would keep the graph, and its memory, with them.
            outputs["loss"] = outputs["loss"].detach()
            recorded.append(scalars(outputs))
            callbacks.on_train_batch_end(self, outputs, batch, batch_idx)
        metrics = recorded[0] if parts == 1 else combined(recorded, shares)
        # A plain dict is merged as a whole, the items of a row one by one, which takes several times as long.
        dict.update(row, metrics if type(metrics) is dict else dict.items(metrics))
        if type(metrics) is MetricsRow and metrics.media:
            row.media = (row.media or {}) | metrics.take_media()
        if self._finite_loss is not None:
            # While the weights are still good, where the loss is known by now.
            self._finite_loss.check(self.step + 1, dict.get(row, "loss"))
        self._update(row)
        dict.update(self.metrics, dict.items(row))  # subscribers of on_step_end find them
        # Before the step ends: a subscriber of on_log may save a checkpoint, which has to count this batch.
        self._position.batches = batch_idx + 1
        self.lifecycle.end(batch, commit=None if self.world_size == 1 else self._share_step())

    def _update(self, row: MetricsRow) -> None:
        """Update the weights, and log the learning rate and the gradient norm; learners add what follows an update."""
        optimizer, backend = self.optimizer, self.backend
        # That of this update: the schedule advances below.
        row["learning_rate"] = float(optimizer.param_groups[0]["lr"])
        self.callbacks.on_before_optimizer_step(self, optimizer)
        if self.config.gradient_clip_norm is not None:
            row.update(collect((), {"grad_norm": backend.clip(self.config.gradient_clip_norm)}, defer))
        elif self.measures_grad_norm:
            row.update(collect((), {"grad_norm": backend.gradient_norm()}, defer))
        backend.update()
        if self.scheduler is not None and not is_plateau(self.scheduler):
            self.scheduler.step()

    def _boundary(self) -> None:
        """Agree with the other processes, and validate or save between two steps."""
        # First: an evaluation that ended on another thread may make a rule request a checkpoint.
        self.commit_held_back()
        save, validate, has_commands = self._agree(
            bool(self.checkpoint_requested or self._saves_waiting), self.validation_requested, self.command_flag[0] != 0
        )
        if has_commands:
            self.control.receive()
            save, validate = self._agree(save or self.checkpoint_requested, validate or self.validation_requested)
        validate = validate and self.val_batches is not None
        self.validation_requested = validate and self._is_preempted()  # a resume begins with it
        if (validate or self._is_validation_due()) and not self._is_preempted():
            self.validate()  # saves what waits, too
        elif save:
            self._save_waiting()

    def command_refusal(self, name: str) -> str | None:
        """Return why this training cannot apply a command; None if it can."""
        return "This Trainer has no val_data." if name == "validate" and self.val_batches is None else None

    def _is_preempted(self) -> bool:
        """Whether a signal stops all processes: little time may be left."""
        return self._agreed_to_stop and is_signal(self.stop_reason or "")

    def _must_wait(self) -> bool:
        """Whether a checkpoint has to wait: training does not continue from the present state."""
        return self.lifecycle.row is not None or self._validating

    def _save_requested(self) -> None:
        if not self._must_wait() and self._is_under_way():
            (save,) = self._agree(bool(self.checkpoint_requested or self._saves_waiting))
            if save:
                self._save_waiting()

    def _save_waiting(self) -> None:
        """Save what was requested, on any rank."""
        self.checkpointing.share_requests(self.step)
        waiting, self._saves_waiting = self._saves_waiting, []
        if self.checkpoint_requested:
            self.checkpoint_requested = False
            waiting.append((None, "step"))
        kinds: dict[Path | None, str] = {}
        # Ranks may have requested different paths. All save all of them in the same order, since every save is a series
        # of collectives.
        for own in self.processes.gather(waiting):
            for path, kind in own:
                kinds.setdefault(path, kind)
        for path, kind in kinds.items():
            self.save_checkpoint(path, kind=kind)
        self._agree()  # a subscriber of on_checkpoint may request a stop

    def answer_requests(self) -> None:
        """Save a requested checkpoint; several processes do that together, at the step boundary."""
        if self.world_size == 1 and not self._must_wait() and self._is_under_way():
            super().answer_requests()

    def _is_under_way(self) -> bool:
        """Whether a training is live that checkpoints belong to."""
        return self.has_started and not self.has_ended

    def _is_validation_due(self, *, epoch_ends: bool = False) -> bool:
        if self._validated_at == self.step:
            return False
        return self.plan.is_validated_after_epoch(self.epoch) if epoch_ends else self.plan.is_validated_at(self.step)

    def _finalize(self) -> None:
        """Validate and save at an orderly end."""
        if self.step == 0:
            return
        stopped, validated = self._must_stop(), self.val_batches is None or self._validated_at == self.step
        if self.config.validate_at_end and not stopped and not validated:
            self._order.proceed(keep=True)
            self.validate()
        self._agree()  # one rank may have received a signal
        if (self.config.save_at_end or self._is_preempted()) and self.output_dir is not None and not self._is_saved():
            self.save_checkpoint(kind="stop" if stopped else "end")

    def _is_saved(self) -> bool:
        """Whether the present state is saved, or will be by a checkpoint rule when training ends."""
        is_saved = bool(self.checkpoints) and self.checkpoints[-1].step == self.step
        return is_saved or any(rule.save_last for rule in self.checkpointing.rules)

    @contextmanager
    def _evaluating(self, batches: Batches) -> Iterator[None]:
        """Set the model to evaluation mode; random draws inside do not change the training."""
        drawn = batches.state()  # the training may draw from the same generators
        with rng.kept(), torch.no_grad(), set_to_evaluate(self.model):
            self._validating = True
            try:
                yield
            finally:
                self._validating = False
                batches.load_state(drawn)

    def _placed(self, batches: Batches, limit: int | None = None) -> Iterator[Any]:
        return map(self.backend.place, itertools.islice(batches.epoch(self.epoch), limit))

    def _checkpoint_state(self, step: int) -> dict[str, Any]:
        return super()._checkpoint_state(step) | {
            **self._position.state(),
            "validated_at": self._validated_at,
            "validation_requested": self.validation_requested,
            "plan": self._shape(),
            "settings": self._settings(),
        }

    def _shape(self) -> dict[str, Any]:
        """Return what the meaning of a position in the data depends on."""
        return {
            "batch_size": getattr(self.train_batches.data, "batch_size", None),
            "accumulation": self.config.accumulation,
            "world_size": self.world_size,
        }

    def _settings(self) -> dict[str, Any]:
        """Return the settings that a resume takes from the checkpoint, or replaces."""
        return {"learning_rate": self.config.learning_rate, "num_steps": self.num_steps}

    def _restore_position(self, state: dict[str, Any]) -> None:
        super()._restore_position(state)
        self._position = DataPosition.of(state)
        # The rest of the epoch begins again, with its start moment.
        self._position.epoch_open = False
        self._validated_at, self.validation_requested = state["validated_at"], state["validation_requested"]
        # Those after it are of steps that are made again.
        self.checkpoints = [row for row in self.checkpoints if row.step <= self.step]
        warn_of_changes(state["plan"], self._shape(), "the position in the epoch is not the same")
        then, now = state["settings"], self._settings()
        warn_of_changes({"learning_rate": then["learning_rate"]}, now, "that of the checkpoint is used")
        if self.config.schedule != "constant":
            warn_of_changes({"num_steps": then["num_steps"]}, now, "the learning rate follows the new schedule")

    def _save_rank_files(self, directory: Path, *, before_step: bool = False) -> None:
        self._prepared().save(directory)
        state = self._order.state(nothing_done=self._position.epoch_open and self._position.batches == 0)
        state["validation_order"] = [batches.state() for batches in self.val_sets.values()]
        checkpoint.write_tensors(state, directory / checkpoint.random_file(self.rank))

    def load_checkpoint(self, path: str | Path) -> ManifestRow:
        """Restore a checkpoint, before training or as it starts."""
        if self.state == "running" and self._position.epoch_open:
            raise OptionError("load_checkpoint() in the middle of an epoch: request_stop(), and then resume(path).")
        return super().load_checkpoint(path)

    def _load_files(self, directory: Path) -> None:
        training = self._prepared()
        # Everything is read and compared before the first weight changes.
        found, state = training.read(directory), checkpoint.read_random_states(directory, self.rank)
        training.restore(found)
        self._order.load_state(state)
        for batches, order in zip(self.val_sets.values(), state["validation_order"], strict=False):
            batches.load_state(order)


def _joined(name: str, own: str) -> str:
    """Return the name of an evaluation, with that of its set where there are several."""
    return f"{name}/{own}" if own else name

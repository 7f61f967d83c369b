"""Hugging Face `Trainer` and the trainers of TRL: hookline's callbacks observe and control them.

from hookline.integrations.transformers import attach

attach(trainer, callbacks=["early_stopping", "progress_bar"], name="warmup")
trainer.train()

Hugging Face reports neither batches nor outputs nor errors to its callbacks. All of these pass through public methods
of the trainer that are meant to be overridden: ``train``, ``training_step``, ``evaluate`` and ``prediction_step``.
`attach` wraps these methods of one trainer. The wrappers change neither arguments nor results, and `detach` removes
them.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="hf", what=__name__)
require("transformers", ">=4.50", extra="hf", what=__name__)
require("accelerate", ">=1.0", extra="hf", what=__name__)

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

from transformers.trainer_utils import get_last_checkpoint

from hookline._engine.checks import require_integer
from hookline._engine.errors import DuplicateError, OptionError
from hookline.integrations.transformers.callback import HooklineCallback
from hookline.integrations.transformers.logging_callbacks import EnhancedLoggingCallback, OptimizedLoggingCallback
from hookline.integrations.transformers.reporting import register
from hookline.integrations.trl import observe
from hookline.loops.options import RunOptions

__all__ = ["EnhancedLoggingCallback", "HooklineCallback", "OptimizedLoggingCallback", "attach"]

logger = logging.getLogger("hookline")

register()
METHODS = ("train", "training_step", "evaluate", "prediction_step")


def attach(
    trainer: Any,
    callbacks: Iterable[Any] = (),
    *,
    name: str | None = None,
    samples: int | None = None,
    **options: Unpack[RunOptions],
) -> HooklineCallback:
    """Let hookline's callbacks observe and control a Hugging Face `Trainer`, or one of TRL.

    Each ``trainer.train()`` is recorded as a run. A later ``trainer.evaluate()`` is recorded in it; without a training
    it is a run of its own. The trainer's settings become the run's configuration.

    Args:
        trainer: The trainer, before it trains.
        callbacks: What a `CallbackCollection` accepts: callbacks, names, functions, ...
        name: The run's name; by default the settings' ``run_name``, or the trainer's class.
        samples: How many completions of each generation are recorded, if the trainer generates; None for all.
        options: As for every run of hookline; ``config`` replaces the trainer's settings as the run's configuration.

    Raises:
        DuplicateError: hookline is already attached to the trainer.
    """
    missing = [name for name in (*METHODS, "add_callback", "callback_handler", "args") if not hasattr(trainer, name)]
    if isinstance(trainer, type) or missing:
        raise OptionError(f"attach({trainer!r:.200}): give a transformers.Trainer, or a subclass such as TRL's.")
    if any(isinstance(each, HooklineCallback) for each in trainer.callback_handler.callbacks):
        raise DuplicateError(
            "hookline is already attached to this trainer: give all callbacks to one attach(), add to its "
            "loop.callbacks, or detach() it first."
        )
    require_integer("samples", samples, minimum=0, optional=True)
    settings = trainer.args
    options.setdefault("config", settings.to_sanitized_dict())
    run_name = name or getattr(settings, "run_name", None) or type(trainer).__name__
    callback = HooklineCallback(callbacks, name=run_name, **options)
    callback.trainer = callback.loop.native = trainer
    callback.attachment = Attachment(trainer, callback, samples)
    trainer.add_callback(callback)
    return callback


class Attachment:
    """The wrappers around a trainer's methods.

    Args:
        samples: How many samples of each generation are recorded; None for all.
    """

    def __init__(self, trainer: Any, callback: HooklineCallback, samples: int | None) -> None:
        self.trainer, self.callback = trainer, callback
        self.generations = observe(trainer, callback.loop, samples)
        self._evaluations = 0
        self._is_removed = False
        self._previous = {name: vars(trainer)[name] for name in METHODS if name in vars(trainer)}
        self._wrappers = {name: self._wrap(name, getattr(trainer, name)) for name in METHODS}
        vars(trainer).update(self._wrappers)

    def remove(self) -> None:
        """Restore the trainer's methods, except for those that were replaced since."""
        self._is_removed = True
        current = vars(self.trainer)
        for name in METHODS:
            if current.get(name) is not self._wrappers[name]:
                logger.warning("trainer.%s was replaced after attach(): it stays.", name)
            elif name in self._previous:
                current[name] = self._previous[name]
            else:
                del current[name]
        if self.generations is not None:
            self.generations.remove()

    def _wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        observe = getattr(self, f"_{name}")

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if self._is_removed else observe(method, *args, **kwargs)

        return call

    def _train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(train).bind_partial(*args, **kwargs).arguments.get("resume_from_checkpoint")
        if given is True:
            self.callback.resumes_from = get_last_checkpoint(self.trainer.args.output_dir)
        else:
            self.callback.resumes_from = str(given) if given else None
        try:
            return train(*args, **kwargs)
        except BaseException as error:
            self.callback.loop.failed(error)
            raise

    def _training_step(self, step: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.callback.loop.in_step:
            return step(model, inputs, *args, **kwargs)
        self.callback.loop.batch_start(inputs)
        if self.generations is not None:
            self.generations.before_training()
        loss = step(model, inputs, *args, **kwargs)
        if self.generations is not None:
            self.generations.after_training()
        self.callback.batch_end(loss, inputs)
        accelerator = self.trainer.accelerator
        # Scaled gradients are reported by Hugging Face, after it has unscaled them.
        is_scaled = getattr(accelerator, "scaler", None) is not None
        if accelerator.sync_gradients and not is_scaled:
            self.callback.before_optimizer_step(self.trainer.optimizer)
        return loss

    def _evaluate(self, evaluate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trains = self.callback.loop.is_running
        self._evaluations += 1  # nested: an evaluation of several data sets evaluates each of them
        try:
            return evaluate(*args, **kwargs)
        except BaseException as error:
            if not trains:
                self.callback.loop.failed(error)
            raise
        finally:
            self._evaluations -= 1

    def _prediction_step(self, predict: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._evaluations:  # predict() also calls this, and is not an evaluation
            return predict(model, inputs, *args, **kwargs)
        trainer, loop = self.trainer, self.callback.loop
        parts = {"model": trainer.model, "optimizer": trainer.optimizer, "lr_scheduler": trainer.lr_scheduler}
        self.callback.begin_validation(trainer.args, **parts)
        loop.validation_batch_start(inputs)
        with self._model_outputs() as outputs:
            result = predict(model, inputs, *args, **kwargs)
        named = zip(("loss", "logits", "labels"), result, strict=False)
        outputs |= {name: value for name, value in named if value is not None}
        if self.generations is not None:
            outputs |= self.generations.after_evaluation()
        loop.validation_batch_end(outputs, inputs)
        return result

    @contextmanager
    def _model_outputs(self) -> Iterator[dict[str, Any]]:
        """Collect the model's outputs for an evaluation batch, which a trainer without ``compute_metrics`` drops."""
        own, compute = vars(self.trainer), self.trainer.compute_loss
        previous = {name: own[name] for name in ("compute_loss",) if name in own}
        outputs: dict[str, Any] = {}

        @functools.wraps(compute)
        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            result = compute(*args, **kwargs)
            if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
                outputs.update(result[1])
            return result

        own["compute_loss"] = compute_loss
        try:
            yield outputs
        finally:
            del own["compute_loss"]
            own.update(previous)

"""Hugging Face `Trainer` and the trainers of TRL: callbacks of hookline observe and steer them.

from hookline.integrations.transformers import attach

attach(trainer, callbacks=["early_stopping", "progress_bar"], name="warmup")
trainer.train()

`attach`: hookline in a Hugging Face or TRL trainer, with all that there is to observe.

Hugging Face tells its callbacks neither batches nor outputs nor errors. All of these pass through public methods of
the trainer, which its documentation invites to override: ``train``, ``training_step``, ``evaluate`` and
``prediction_step``. `attach` puts a function before each of them, on this trainer only, that tells and then calls it.
It changes nothing of what they are given and return, and `detach` takes it away again.
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

from hookline._engine.errors import DuplicateError, OptionError
from hookline.integrations.transformers.callback import HooklineCallback
from hookline.integrations.transformers.logging_callbacks import EnhancedLoggingCallback, OptimizedLoggingCallback
from hookline.integrations.trl import Generations, generates
from hookline.loops.options import RunOptions

__all__ = ["EnhancedLoggingCallback", "HooklineCallback", "OptimizedLoggingCallback", "attach"]


logger = logging.getLogger("hookline")

METHODS = ("train", "training_step", "evaluate", "prediction_step")


class Attachment:
    """The functions before a trainer's methods.

    Args:
        samples: How many samples of each generation are recorded; None for all.
    """

    def __init__(self, trainer: Any, callback: HooklineCallback, samples: int | None) -> None:
        self.trainer, self.callback = trainer, callback
        self.generations = Generations(trainer, callback.loop, samples) if generates(trainer) else None
        self._evaluations = 0
        self._is_removed = False
        self._before = {name: vars(trainer)[name] for name in METHODS if name in vars(trainer)}
        self._ours = {name: self._telling(name, getattr(trainer, name)) for name in METHODS}
        vars(trainer).update(self._ours)

    def remove(self) -> None:
        """Give the trainer its own methods back; what somebody else has put there since stays, and is said."""
        self._is_removed = True
        now = vars(self.trainer)
        for name in METHODS:
            if now.get(name) is not self._ours[name]:
                logger.warning("trainer.%s was replaced behind hookline's back: it is left as it is.", name)
            elif name in self._before:  # somebody else had put something there as well
                now[name] = self._before[name]
            else:
                del now[name]
        if self.generations is not None:
            self.generations.remove()

    def _telling(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        tell = getattr(self, f"_{name}")

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if self._is_removed else tell(method, *args, **kwargs)

        return call

    def _train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Train; an error reaches the callbacks, which Hugging Face does not tell about it."""
        self.callback.resumes_from = self._checkpoint(train, args, kwargs)
        try:
            return train(*args, **kwargs)
        except BaseException as error:
            self.callback.loop.failed(error)
            raise

    def _training_step(self, step: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.callback.loop.in_step:
            return step(model, inputs, *args, **kwargs)
        self.callback.batch_start(inputs)
        if self.generations is not None:
            self.generations.before_training()
        loss = step(model, inputs, *args, **kwargs)
        if self.generations is not None:
            self.generations.after_training()
        self.callback.batch_end(loss, inputs)
        accelerator = self.trainer.accelerator
        is_scaled = getattr(accelerator, "scaler", None) is not None
        if accelerator.sync_gradients and not is_scaled:  # otherwise Hugging Face tells, once it has scaled them back
            self.callback.gradients_are_complete(self.trainer.optimizer)
        return loss

    def _evaluate(self, evaluate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trains = self.callback.loop.is_running
        self._evaluations += 1  # of several data sets, each is one inside of one for all
        try:
            return evaluate(*args, **kwargs)
        except BaseException as error:
            if not trains:
                self.callback.loop.failed(error)
            raise
        finally:
            self._evaluations -= 1

    def _prediction_step(self, predict: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._evaluations:  # predict() goes through here too, and is no evaluation
            return predict(model, inputs, *args, **kwargs)
        trainer, loop = self.trainer, self.callback.loop
        parts = {"model": trainer.model, "optimizer": trainer.optimizer, "lr_scheduler": trainer.lr_scheduler}
        self.callback.begin_validation(trainer.args, **parts)
        loop.validation_batch_start(inputs)
        with self._kept_outputs() as told:
            outputs = predict(model, inputs, *args, **kwargs)
        named = zip(("loss", "logits", "labels"), outputs, strict=False)
        told |= {name: value for name, value in named if value is not None}
        if self.generations is not None:
            told |= self.generations.after_evaluation()
        loop.validation_batch_end(told, inputs)
        return outputs

    @contextmanager
    def _kept_outputs(self) -> Iterator[dict[str, Any]]:
        """All that the model gives for a batch of an evaluation: without ``compute_metrics`` the trainer drops it."""
        own, compute = vars(self.trainer), self.trainer.compute_loss
        before = {name: own[name] for name in ("compute_loss",) if name in own}
        kept: dict[str, Any] = {}

        @functools.wraps(compute)
        def keep(*args: Any, **kwargs: Any) -> Any:
            result = compute(*args, **kwargs)
            if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
                kept.update(result[1])
            return result

        own["compute_loss"] = keep
        try:
            yield kept
        finally:
            del own["compute_loss"]
            own.update(before)

    def _checkpoint(self, train: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The checkpoint that ``train(resume_from_checkpoint=...)`` means."""
        given = inspect.signature(train).bind_partial(*args, **kwargs).arguments.get("resume_from_checkpoint")
        if given is True:
            last: str | None = get_last_checkpoint(self.trainer.args.output_dir)
            return last
        return str(given) if given else None


def attach(
    trainer: Any,
    callbacks: Iterable[Any] = (),
    *,
    name: str | None = None,
    samples: int | None = None,
    **options: Unpack[RunOptions],
) -> HooklineCallback:
    """Let callbacks of hookline observe and steer a Hugging Face `Trainer`, or one of TRL.

    Each ``trainer.train()`` is recorded as a run; ``trainer.evaluate()`` after it adds to that, and one on its own is a
    run too. The trainer's settings become the run's configuration.

    Args:
        trainer: The trainer, before it trains.
        callbacks: What a `CallbackCollection` takes: callbacks, names, functions, ...
        name: What the run is called; the settings' ``run_name``, or the trainer's class, where it is left out.
        samples: How many completions of each generation are recorded, where the trainer generates; None for all.
        options: As for every run of hookline; ``config`` replaces the trainer's settings as the run's configuration.

    Raises:
        DuplicateError: The trainer has hookline attached already.
    """
    _check(trainer, samples)
    settings = trainer.args
    options.setdefault("config", settings.to_sanitized_dict())
    called = name or getattr(settings, "run_name", None) or type(trainer).__name__
    callback = HooklineCallback(callbacks, name=called, **options)
    callback.trainer = callback.loop.native = trainer
    callback.attachment = Attachment(trainer, callback, samples)
    trainer.add_callback(callback)
    return callback


def _check(trainer: Any, samples: Any) -> None:
    missing = [name for name in (*METHODS, "add_callback", "callback_handler", "args") if not hasattr(trainer, name)]
    if isinstance(trainer, type) or missing:
        raise OptionError(f"attach({trainer!r:.200}): give a Trainer of transformers, or one made from it, as of TRL.")
    if any(isinstance(each, HooklineCallback) for each in trainer.callback_handler.callbacks):
        raise DuplicateError(
            "This trainer has hookline attached already: give all callbacks to one attach(), add to its "
            "loop.callbacks, or detach() it first."
        )
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 0):
        raise OptionError(f"samples={samples!r}: give a whole number of at least 0, or None for all.")

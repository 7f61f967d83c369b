"""What a step computes: functions ``(model, batch) -> {"loss": ..., ...}``, and the ones that need not be written.

A loss function makes one for batches of inputs and targets; a model that returns its own loss, as Hugging
Face's do, needs none at all.

A model set to evaluate for a while.

Finds a loss that is not finite: before the weights are moved by it, where it is known by then.

A loss that is still on its way from a device is not waited for, but looked at when it has arrived, some steps
later; and always before a checkpoint is written, so that a model that is lost never takes a good one's place.

What a step computed, as metrics: the numbers among its outputs, those of several batches combined, their weight.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from hookline._engine.errors import NonFiniteError, OptionError
from hookline._engine.metrics import Deferred, MetricsRow, collect, plain
from hookline._record.device import defer
from hookline.callbacks.throughput_monitor import samples_of
from hookline.loops.validation import mean

StepFunction: TypeAlias = Callable[[Any, Any], Any]
COUNTS = ("samples", "tokens")
"""Outputs that count something: they are added up where all others are averaged, and weigh a validation's batches."""


def step_with(loss: Callable[[Any, Any], Any]) -> StepFunction:
    """A step that gives the model the inputs of a batch and the loss its prediction and the targets."""

    def step(model: Any, batch: Any) -> dict[str, Any]:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise OptionError(
                f"loss= takes batches of (inputs, targets); this one is {_described(batch)}. "
                "Give training_step=, a function (model, batch) -> {'loss': ...}."
            )
        inputs, targets = batch
        predictions = model(inputs)
        return with_predictions(loss(predictions, targets), predictions)

    return step


def with_predictions(loss: Any, predictions: Any) -> dict[str, Any]:
    """The outputs of a step: in a validation with the predictions.

    A training step lets go of them before it goes backward: those of a language model are larger than the model.
    """
    import torch

    if torch.is_grad_enabled():
        return {"loss": loss}
    if isinstance(predictions, Mapping):
        return {**predictions, "loss": loss}
    return {"loss": loss, "predictions": predictions}


def predictions_of(model: Any, batch: Any) -> Any:
    """What a model gives for a batch; of a pair of inputs and targets it is given the inputs."""
    if isinstance(batch, Mapping):
        return model(**batch)
    is_pair = isinstance(batch, list | tuple) and len(batch) == 2
    return model(batch[0] if is_pair else batch)


def step_of_model(model: Any, batch: Any) -> dict[str, Any]:
    """A step of a model that returns its own loss."""
    try:
        outputs = model(**batch) if isinstance(batch, Mapping) else model(batch)
    except TypeError as error:
        if not isinstance(batch, list | tuple):
            raise
        raise OptionError(
            f"The model cannot be called with {_described(batch)} ({error}). For batches of (inputs, targets) give "
            "loss=, a function of (prediction, targets), or training_step=, a function (model, batch) -> {'loss': ...}."
        ) from error
    if getattr(outputs, "ndim", None) == 0:
        return {"loss": outputs}
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None:
        raise OptionError(
            f"The model returned {_described(outputs)}, which has no loss. Give loss=, a function of "
            "(prediction, targets), or training_step=, a function (model, batch) -> {'loss': ...}."
        )
    return with_predictions(loss, outputs)


def checked_outputs(returned: Any, *, trains: bool = True) -> dict[str, Any]:
    """What a step returned, as a dict with a loss that can be trained on; a validation's may have none.

    Raises:
        OptionError: It is something else.
    """
    outputs: dict[str, Any] = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
    loss = outputs.get("loss")
    if not trains and (isinstance(loss, int | float) or (loss is None and isinstance(returned, Mapping))):
        return outputs
    if loss is None:
        step = "training_step" if trains else "validation_step"
        given = _described(returned) if isinstance(returned, Mapping) else "None"
        raise OptionError(f"{step} returned {given}: give {{'loss': ...}} with a loss, or the loss alone.")
    if not hasattr(loss, "backward"):
        raise OptionError(f"The loss is {_described(loss)}: give a tensor with one element.")
    if loss.ndim != 0:
        if loss.numel() != 1:
            shape = tuple(loss.shape)
            raise OptionError(f"The loss has shape {shape}: give one number, e.g. its mean(), not {loss.numel()}.")
        outputs["loss"] = loss.squeeze()
    if trains and not outputs["loss"].requires_grad:
        raise OptionError(
            "The loss does not depend on a trainable parameter: it was detached, computed under no_grad(), "
            "or the whole model is frozen."
        )
    return outputs


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r}" if isinstance(value, int | float | str) else f"a {type(value).__name__}"


@contextmanager
def set_to_evaluate(model: Any) -> Iterator[None]:
    """Every module of the model evaluates, and is afterwards in the mode that it was in: some evaluate for good.

    A model's own `train` is called too: some do more in it.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, trains in modes:
            module.training = trains


class FiniteLoss:
    """The losses that have not been looked at yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Deferred]] = deque()

    def check(self, step: int, loss: Any) -> None:
        """Look at a step's loss, and at earlier ones that have arrived meanwhile.

        Raises:
            NonFiniteError: One is NaN or infinite.
        """
        if type(loss) is float:
            if not math.isfinite(loss):
                raise _error(step, loss)
        elif isinstance(loss, Deferred):
            self._waiting.append((step, loss))
            while self._waiting and self._waiting[0][1].source.ready():
                self._look()

    def settle(self) -> None:
        """Wait for all of them and look."""
        while self._waiting:
            self._look()

    def _look(self) -> None:
        step, deferred = self._waiting.popleft()
        loss = deferred.get()
        if isinstance(loss, float) and not math.isfinite(loss):
            raise _error(step, loss)


def _error(step: int, loss: float) -> NonFiniteError:
    return NonFiniteError(
        f"The loss of step {step} is {loss}. Training on would spoil the model; checkpoints saved before are good. "
        "Look at the data and the learning rate, set gradient_clip_norm, or add the callback 'nan_guard' with "
        "action 'skip' to leave out such steps."
    )


def scalars(outputs: dict[str, Any]) -> dict[str, Any]:
    """Those of a step's outputs that can be recorded; the others are for the callbacks only."""
    loss: Any = outputs.get("loss")
    is_there = getattr(loss, "is_cpu", False)
    values = outputs | {"loss": loss.item()} if is_there else outputs  # plain numbers need no second look
    if len(values) > 1:  # arrays are no metrics, even those with one element: such are the predictions of one sample
        values = {name: value for name, value in values.items() if not getattr(value, "ndim", 0)}
    try:
        return collect((values,), {}, defer)
    except OptionError:
        return collect(({name: value for name, value in values.items() if _is_scalar(value)},), {}, defer)


def _is_scalar(value: Any) -> bool:
    try:
        collect(({"value": value},), {}, lambda on_device: None)
    except OptionError:
        return False
    return True


def shares_of(batches: list[Any]) -> list[float]:
    """The share of each batch in a step: that of its tokens that are trained on where it brings their number."""
    counts = tokens_of(batches)
    total = sum(counts or ())
    if counts is None or not total:
        return [1 / len(batches)] * len(batches)
    return [count / total for count in counts]


def tokens_of(batches: list[Any]) -> list[int] | None:
    """How many tokens each batch is trained on; None where one of them does not bring the number."""
    held = [batch.get("counts") if isinstance(batch, dict) else None for batch in batches]
    counts = [getattr(each, "trained", None) for each in held]
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None


def combined(parts: list[dict[str, Any]], shares: list[float]) -> MetricsRow:
    """What the batches of a step gave, averaged by their shares; counts are added up."""
    names = dict.fromkeys(name for part in parts for name in part)
    row = MetricsRow()
    for name in names:
        values = [
            (dict.__getitem__(part, name), share) for part, share in zip(parts, shares, strict=True) if name in part
        ]
        given = [value for value, _ in values]
        row[name] = sum(plain(given)) if name in COUNTS else mean(given, [share for _, share in values])
    return row


def weight_of(metrics: dict[str, Any], batch: Any) -> float:
    """How much a batch weighs in a validation: its tokens or samples, as far as it tells."""
    for name in ("tokens", "samples"):
        count = plain(dict.get(metrics, name))
        if isinstance(count, int | float):
            return float(count)
    return float(samples_of(batch) or 1)

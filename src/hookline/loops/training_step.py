"""What a step computes: functions ``(model, batch) -> {"loss": ..., ...}``, and the ones that need not be written.

A loss function makes one for batches of inputs and targets; a model that returns its own loss, as Hugging
Face's do, needs none at all.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hookline.core.errors import OptionError

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

"""The computation of a step: functions ``(model, batch) -> {"loss": ..., ...}``, and handling of their outputs.

A loss function makes a step for batches of inputs and targets; a model that returns its own loss, as Hugging Face's
do, needs none. The numbers among the outputs become metrics; those of several batches are combined by their shares.

`FiniteLoss` finds a loss that is not finite, before the weights are updated with it where the loss is known by then. A
loss that is still on its way from a device is checked when it has arrived, some steps later, and always before a
checkpoint is saved, so that spoilt weights never replace good ones.

`ProcessShares` weighs the batches of a step that several processes make together. Averaging gradients gives each
process the same weight. Where batches bring the number of tokens that they are trained on, a process weighs by that
instead, as a batch does among those of one process. It takes one all-reduce of two numbers per step, on the device,
which nothing waits for. Data without such numbers costs one question at the first step.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from hookline._engine.errors import NonFiniteError, OptionError
from hookline._engine.metrics import Deferred, MetricsRow, collect, is_collected, plain
from hookline._record.device import defer
from hookline.callbacks.throughput_monitor import samples_of
from hookline.loops.distributed import ProcessGroup
from hookline.loops.validation import mean

StepFunction: TypeAlias = Callable[[Any, Any], Any]
COUNTS = ("samples", "tokens")
"""Outputs that are counts: they are added up instead of averaged, and weigh the batches of a validation."""


def step_with(loss: Callable[[Any, Any], Any]) -> StepFunction:
    """Return a step that calls the model with the inputs, and the loss with its prediction and the targets."""

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
    """Return the outputs of a step; in a validation with the predictions.

    A training step frees them before the backward pass: those of a language model are larger than the model.
    """
    import torch

    if torch.is_grad_enabled():
        return {"loss": loss}
    if isinstance(predictions, Mapping):
        return {**predictions, "loss": loss}
    return {"loss": loss, "predictions": predictions}


def predictions_of(model: Any, batch: Any) -> Any:
    """Return a model's output for a batch; of a pair of inputs and targets it gets the inputs."""
    if isinstance(batch, Mapping):
        return model(**batch)
    is_pair = isinstance(batch, list | tuple) and len(batch) == 2
    return model(batch[0] if is_pair else batch)


def step_of_model(model: Any, batch: Any) -> dict[str, Any]:
    """Compute a step of a model that returns its own loss."""
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
    """Return the outputs of a step as a dict with a loss that can be trained on; a validation's may have none.

    Raises:
        OptionError: They have no such loss.
    """
    is_mapping = type(returned) is dict or isinstance(returned, Mapping)
    outputs: dict[str, Any] = dict(returned) if is_mapping else {"loss": returned}
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
    """Set every module to evaluation mode, and afterwards back to its own mode: some always evaluate.

    The model's own `train` is called too: some models do more in it.
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
    """The losses that have not been checked yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Deferred]] = deque()

    def check(self, step: int, loss: Any) -> None:
        """Check a step's loss, and earlier ones that have arrived in the meantime.

        Raises:
            NonFiniteError: One is NaN or infinite.
        """
        if type(loss) is float:
            if not math.isfinite(loss):
                raise _error(step, loss)
        elif isinstance(loss, Deferred):
            self._waiting.append((step, loss))
            while self._waiting and self._waiting[0][1].source.ready():
                self._check_oldest()

    def settle(self) -> None:
        """Wait for all of them and check them."""
        while self._waiting:
            self._check_oldest()

    def _check_oldest(self) -> None:
        step, deferred = self._waiting.popleft()
        loss = deferred.get()
        if isinstance(loss, float) and not math.isfinite(loss):
            raise _error(step, loss)


def _error(step: int, loss: float) -> NonFiniteError:
    return NonFiniteError(
        f"The loss of step {step} is {loss}. Training on would spoil the model; earlier checkpoints are good. "
        "Check the data and the learning rate, set gradient_clip_norm, or add the callback 'nan_guard' with "
        "action 'skip' to leave out such steps."
    )


def scalars(outputs: dict[str, Any]) -> dict[str, Any]:
    """Return those of a step's outputs that can be recorded; callbacks get the others only."""
    loss: Any = outputs.get("loss")
    values = outputs
    if getattr(loss, "is_cpu", False):
        values = outputs.copy()
        values["loss"] = loss.item()
    if is_collected(values):  # the usual case, decided by one call: this runs at each step
        return values
    if len(values) > 1:
        # Arrays are no metrics, even with one element: the predictions of one sample are such.
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
    """Return the share of each batch in a step, by its trained tokens where it brings their number."""
    counts = tokens_of(batches)
    total = sum(counts or ())
    if counts is None or not total:
        return [1 / len(batches)] * len(batches)
    return [count / total for count in counts]


def tokens_of(batches: list[Any]) -> list[int] | None:
    """Return how many tokens each batch is trained on; None where one of them does not say."""
    held = [batch.get("counts") if isinstance(batch, dict) else None for batch in batches]
    counts = [getattr(each, "trained", None) for each in held]
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None


class ProcessShares:
    """Weighs the batches of this process in the steps of all.

    Args:
        processes: The processes of the training.
        device: Where the model is trained.
    """

    def __init__(self, processes: ProcessGroup, device: Any) -> None:
        self._processes, self._device = processes, device
        self._counts: bool | None = None

    def weighed(self, shares: list[float], batches: list[Any]) -> list[Any]:
        """Turn shares among this process's batches into shares among all; a collective."""
        counts = tokens_of(batches)
        if self._counts is None:  # agreed on once: a rank that left out an all-reduce would block the others
            self._counts = any(self._processes.gather(counts is not None))
        if not self._counts:
            return list(shares)
        import torch
        from torch import distributed

        own = sum(counts or ())
        total = torch.tensor([own, counts is None]).to(self._device, non_blocking=True)
        distributed.all_reduce(total)
        tokens, unknown = total
        # On the device: an `if` here would make the host wait for it.
        weighs = (unknown == 0) & (tokens > 0)
        # Gradients are averaged over the processes: the number of processes undoes that, so the tokens alone decide.
        factor = torch.where(weighs, distributed.get_world_size() * own / tokens, 1.0)
        return [factor * share for share in shares]


def combined(parts: list[dict[str, Any]], shares: list[float]) -> MetricsRow:
    """Combine the metrics of a step's batches: averages by their shares, and sums of counts."""
    names = dict.fromkeys(name for part in parts for name in part)
    row = MetricsRow()
    for name in names:
        values = [
            (dict.__getitem__(part, name), share) for part, share in zip(parts, shares, strict=True) if name in part
        ]
        given = [value for value, _ in values]
        row[name] = sum(plain(given)) if name in COUNTS else mean(given, [share for _, share in values])
    for part in parts:
        for name, captured in part.take_media().items() if isinstance(part, MetricsRow) else ():
            row.media = row.media or {}
            row.media[name] = [*row.media.get(name, ()), *captured]
    return row


def weight_of(metrics: dict[str, Any], batch: Any) -> float:
    """Return the weight of a batch in a validation: its tokens or samples, where they are known."""
    for name in ("tokens", "samples"):
        count = plain(dict.get(metrics, name))
        if isinstance(count, int | float):
            return float(count)
    return float(samples_of(batch) or 1)

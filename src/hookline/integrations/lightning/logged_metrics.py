"""`LoggedMetrics`: what a module has logged since the last time somebody asked.

``trainer.callback_metrics`` keeps the latest value of each name for ever: after a validation, ``val_loss`` stands there
at every step. A name was logged anew where its tensor is another one, which is seen without reading the value, so that
no device is waited for.

A metric that is logged with both ``on_step`` and ``on_epoch`` has three names in Lightning: its values at steps are
``NAME_step``, those of epochs ``NAME_epoch``, and ``NAME`` is whichever came last. Here ``NAME`` is that of epochs.
"""

from typing import Any

_LOADER = "/dataloader_idx_"


class LoggedMetrics:
    """The metrics of a trainer, each of them once."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # held, so that no later tensor takes its place in memory

    def take(self, trainer: Any) -> dict[str, Any]:
        """What was logged since the last time."""
        now = dict(trainer.callback_metrics)
        new = {name: value for name, value in now.items() if not _is_same(value, self._seen.get(name))}
        self._seen.update(new)
        return {name: value for name, value in new.items() if f"{name}_step" not in new}

    def forget(self) -> None:
        """Let go of everything: the trainer has as well."""
        self._seen.clear()


def also_as_ours(metrics: dict[str, Any], evaluation: str) -> dict[str, Any]:
    """The metrics of an evaluation, also by the names that hookline's own loops use.

    >>> also_as_ours({"val_loss": 1.0, "accuracy": 0.5, "val_loss/dataloader_idx_1": 2.0}, "val")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'val/loss': 1.0, 'val/accuracy': 0.5, 'val/dataloader_idx_1/loss': 2.0,
     'val_loss': 1.0, 'accuracy': 0.5, 'val_loss/dataloader_idx_1': 2.0}
    """
    return {**{_our_name(name, evaluation): value for name, value in metrics.items()}, **metrics}


def _our_name(name: str, evaluation: str) -> str:
    metric, _, loader = name.partition(_LOADER)  # which Lightning adds where there are several
    own = metric.removeprefix(f"{evaluation}_").removeprefix(f"{evaluation}/")
    return f"{evaluation}/{_LOADER[1:]}{loader}/{own}" if loader else f"{evaluation}/{own}"


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    return callable(getattr(value, "data_ptr", None)) and type(value) is type(other) and _place(value) == _place(other)


def _place(tensor: Any) -> Any:
    return tensor.device, tensor.data_ptr()

"""``wandb.watch``: histograms of the gradients and parameters of torch models, every N batches.

They are computed by hookline: counted on the device, and fetched off the training thread.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hookline._record import media
from hookline._record.media_encoding import is_instance
from hookline.compat.wandb.errors import Error
from hookline.compat.wandb.terminal import termwarn

BINS = 64
KINDS = ("gradients", "parameters", "all", None)


class Watcher:
    """The hooks of one run.

    Args:
        log: Records values in the open row.
    """

    def __init__(self, log: Callable[[dict[str, Any]], None]) -> None:
        self._log = log
        self._handles: dict[int, list[Any]] = {}
        self._count = 0

    def watch(
        self, models: Any, criterion: Any, log: str | None, log_freq: int, idx: int | None, log_graph: bool
    ) -> None:
        """Log histograms of a model's parameters or gradients; see `Run.watch`.

        Raises:
            ValueError: ``log`` is not known.
            TypeError: A model is not one of torch.
        """
        if log not in KINDS:
            raise ValueError("log must be one of 'gradients', 'parameters', 'all', or None")
        listed = _models(models)
        for offset, model in enumerate(listed):
            number = (self._count if idx is None else idx) + offset
            prefix = f"graph_{number}" if number > 0 else ""
            handles = self._handles.setdefault(id(model), [])
            if log in ("parameters", "all"):
                handles.append(model.register_forward_hook(partial(self._log_parameters, _Every(log_freq), prefix)))
            if log in ("gradients", "all"):
                for name, parameter in model.named_parameters():
                    if parameter.requires_grad:
                        hook = partial(self._log_gradient, _Every(log_freq), f"gradients/{prefix}{name}")
                        handles.append(parameter.register_hook(hook))
            if log_graph:
                self._log({f"graph_{number}": media.Text(str(model))})
        self._count += len(listed)

    def unwatch(self, models: Any = None) -> None:
        """Remove the hooks of models; of all by default."""
        if models is None:
            chosen = list(self._handles)
        else:
            listed: Sequence[Any] = models if isinstance(models, list | tuple) else [models]
            chosen = [id(model) for model in listed]
            for model in listed:
                if id(model) not in self._handles:
                    termwarn(f"{type(model).__name__} model has not been watched")
        for each in chosen:
            for handle in self._handles.pop(each, ()):
                handle.remove()

    def _log_parameters(self, count: "_Every", prefix: str, model: Any, inputs: Any, outputs: Any) -> None:
        if count.is_due():
            for name, parameter in model.named_parameters():
                self._log({f"parameters/{prefix}{name}": media.Histogram(parameter.detach(), bins=BINS)})

    def _log_gradient(self, count: "_Every", name: str, gradient: Any) -> None:
        if count.is_due():
            values = gradient.detach()
            self._log({name: media.Histogram(values.coalesce().values() if values.is_sparse else values, bins=BINS)})


def _models(given: Any) -> list[Any]:
    listed = list(given) if isinstance(given, list | tuple) else [given]
    if "torch" not in sys.modules:
        raise Error("wandb.watch only works with pytorch, couldn't import torch.")
    for model in listed:
        if not is_instance(model, "torch.nn", "Module"):
            raise TypeError(f"Expected a pytorch model (torch.nn.Module). Received {type(model)}")
    return listed


class _Every:
    """Counts calls; each ``frequency``-th is due."""

    def __init__(self, frequency: int) -> None:
        self._frequency, self._count = max(1, int(frequency)), 0

    def is_due(self) -> bool:
        self._count += 1
        if self._count < self._frequency:
            return False
        self._count = 0
        return True

"""`wrap()`: a callback of Hugging Face, Lightning or Keras as a callback of hookline.

    trainer = hl.Trainer(model, data, val_data, callbacks=[hl.wrap(keras.callbacks.EarlyStopping(patience=2))])

Which framework it is of shows in its class. No framework is imported that the program has not imported itself.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hookline.core.callback import Callback
from hookline.core.errors import MomentError, OptionError
from hookline.integrations.foreign.bridge import ForeignCallback

_FOREIGN = [
    ("transformers.trainer_callback", "TrainerCallback", "transformers:TransformersBridge"),
    ("lightning.pytorch.callbacks.callback", "Callback", "lightning:LightningBridge"),
    ("pytorch_lightning.callbacks.callback", "Callback", "lightning:LightningBridge"),
    ("keras.src.callbacks.callback", "Callback", "keras:KerasBridge"),
]
"""Where each framework has its class of callbacks, and what bridges it."""
_ACCEPTED = "give a transformers.TrainerCallback, a lightning.pytorch.Callback or a keras.callbacks.Callback."


def wrap(foreign: Any, *, args: Mapping[str, Any] | None = None, **options: Any) -> ForeignCallback:
    """The callback of another framework as one of hookline's, to be given to any of its loops.

    Args:
        foreign: A Hugging Face `TrainerCallback`, a Lightning `Callback` or a Keras `Callback`.
        args: For Hugging Face's: settings of its `TrainingArguments` that the loop does not know, e.g.
            ``{"metric_for_best_model": "accuracy"}``.
        options: Options as for any subscriber: ``name``, ``priority``, ``every``, ...

    Raises:
        MomentError: It is none of these.
    """
    base, bridge = _found(foreign)
    if args is None:
        wrapped: ForeignCallback = bridge(foreign, base)
    elif bridge.framework == "Hugging Face":
        wrapped = bridge(foreign, base, args)
    else:
        raise OptionError(f"wrap(args={args!r}): {bridge.framework}'s callbacks are given no TrainingArguments.")
    return wrapped.configure(**options)


def _found(foreign: Any) -> tuple[type, Any]:
    """The framework's class of callbacks, and the class that bridges it."""
    if isinstance(foreign, Callback) or type(foreign).__module__.partition(".")[0] == "hookline":
        raise MomentError(f"wrap({foreign!r}): it is hookline's own; {_ACCEPTED}")
    for module, name, place in _FOREIGN:
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(foreign, base):
            file, _, bridge = place.partition(":")
            return base, getattr(import_module(f"hookline.integrations.foreign.{file}"), bridge)
        if base is not None and isinstance(foreign, type) and issubclass(foreign, base):
            raise MomentError(f"{foreign.__name__} is a class: give an instance, wrap({foreign.__name__}(...)).")
    raise MomentError(f"wrap({foreign!r}): {_ACCEPTED}")

"""Keras: callbacks of hookline observe and steer ``model.fit``.

    from hookline.integrations.keras import HooklineCallback

    with HooklineCallback(["early_stopping", "progress_bar"], name="warmup") as hooks:
        model.fit(x, y, epochs=3, callbacks=[hooks])

It is the same whichever backend Keras runs on.
"""

# ruff: noqa: E402 - what is needed is checked before it is imported

from hookline.core.errors import MissingExtraError
from hookline.integrations.requirement import require

require("keras", ">=3.5", extra="keras", what=__name__)
try:
    import keras  # noqa: F401 - it imports its backend, which no extra brings
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"{__name__}: Keras cannot be imported without {error.name!r}. If that is its backend, install it, or choose "
        "one that is installed with the environment variable KERAS_BACKEND: 'torch', 'jax' or 'tensorflow'."
    ) from error

from hookline.integrations.keras.callback import HooklineCallback

__all__ = ["HooklineCallback"]

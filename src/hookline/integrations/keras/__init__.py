"""Keras: callbacks of hookline observe and steer ``model.fit``.

    from hookline.integrations.keras import HooklineCallback

    with HooklineCallback(["early_stopping", "progress_bar"], name="warmup") as hooks:
        model.fit(x, y, epochs=3, callbacks=[hooks])

It is the same whichever backend Keras runs on.
"""

# ruff: noqa: E402 - what is needed is checked before it is imported

from hookline.integrations.requirement import require

require("keras", ">=3.5", extra="keras", what=__name__)

from hookline.integrations.keras.callback import HooklineCallback

__all__ = ["HooklineCallback"]

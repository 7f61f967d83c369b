"""``report_to="hookline"``: the callback that a trainer adds by its name in the settings.

Hugging Face finds a callback by name in a dict that it offers no entry points for, so importing
`hookline.integrations.transformers` registers it; `hookline exec` does so for scripts that do not.
"""

from typing import Any

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from hookline._engine.defaults import NAME_VARIABLE, Default, resolved
from hookline.integrations.transformers.callback import HooklineCallback

NAME = "hookline"


class ReportCallback(HooklineCallback):
    """Records a trainer in a run with the trainer's ``run_name`` and settings."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._take_settings(args)
        super().on_train_begin(args, state, control, **kwargs)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._take_settings(args)
        super().on_prediction_step(args, state, control, **kwargs)

    def _take_settings(self, args: Any) -> None:
        if self.loop.state == "created":
            self.loop.name = resolved(Default(args.run_name or self.loop.name, NAME_VARIABLE))
            self.loop.update_config(args.to_sanitized_dict())


def register() -> None:
    """Let ``report_to="hookline"`` find the callback."""
    INTEGRATION_TO_CALLBACK.setdefault(NAME, ReportCallback)

"""`ScriptCallback`: the callback added to each Lightning trainer in a script under `hookline exec`."""

from typing import Any

from hookline.integrations.lightning import HooklineCallback


class ScriptCallback(HooklineCallback):
    """Records the trainer in the script's run, unless the script added a callback of hookline itself."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if any(isinstance(each, HooklineCallback) and each is not self for each in trainer.callbacks):
            # A new list, because the trainer is iterating over the current one.
            trainer.callbacks = [each for each in trainer.callbacks if each is not self]
            return
        super().setup(trainer, pl_module, stage)

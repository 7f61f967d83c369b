"""Lightning: hookline's callbacks observe and control its `Trainer`, and a logger records what modules log.

    from hookline.integrations.lightning import HooklineCallback

    trainer = Trainer(callbacks=[HooklineCallback(["early_stopping", "progress_bar"], name="warmup")])
    trainer.fit(module, loader)

Both packages work, ``lightning`` and ``pytorch_lightning``.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="lightning", what=__name__)
require("lightning", ">=2.4", extra="lightning", what=__name__, alternative="pytorch_lightning")

from hookline.integrations.lightning.callback import HooklineCallback
from hookline.integrations.lightning.logger import HooklineLogger

__all__ = ["HooklineCallback", "HooklineLogger"]

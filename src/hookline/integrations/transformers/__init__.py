"""Hugging Face `Trainer` and the trainers of TRL: callbacks of hookline observe and steer them.

from hookline.integrations.transformers import attach

attach(trainer, callbacks=["early_stopping", "progress_bar"], name="warmup")
trainer.train()
"""

# ruff: noqa: E402 - what is needed is checked before it is imported

from hookline.integrations.requirement import require

require("torch", ">=2.4", extra="hf", what=__name__)
require("transformers", ">=4.50", extra="hf", what=__name__)
require("accelerate", ">=1.0", extra="hf", what=__name__)

from hookline.integrations.transformers.attachment import attach
from hookline.integrations.transformers.callback import HooklineCallback
from hookline.integrations.transformers.logging_callbacks import EnhancedLoggingCallback, OptimizedLoggingCallback

__all__ = ["EnhancedLoggingCallback", "HooklineCallback", "OptimizedLoggingCallback", "attach"]

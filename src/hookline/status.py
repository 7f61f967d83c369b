"""Status reports to monitors: loggers and hooks for HTTP endpoints and for TAO's ``status.json``."""

from hookline.sinks.status_hooks import (
    TAOStatusLogger,
    create_status_logger,
    create_training_hooks,
    create_validation_hooks,
)

__all__ = ["TAOStatusLogger", "create_status_logger", "create_training_hooks", "create_validation_hooks"]

"""`hookline.status` under the name that training scripts of Cosmos-RL import it by."""

from hookline.status import TAOStatusLogger, create_status_logger, create_training_hooks, create_validation_hooks

__all__ = ["TAOStatusLogger", "create_status_logger", "create_training_hooks", "create_validation_hooks"]

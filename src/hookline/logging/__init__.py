"""Logging on top of the standard library: a configuration, loggers by topic, and ``log_*`` functions for training."""

from hookline.logging.config import Categories, MetricSettings
from hookline.logging.functions import (
    log_generation_metrics,
    log_memory_usage,
    log_model_output,
    log_reward,
    log_reward_metrics,
    log_training_progress,
    log_validation_metrics,
    settings,
    validation_due,
)
from hookline.logging.handlers import CSVHandler, TensorBoardHandler
from hookline.logging.payloads import (
    JsonFormatter,
    extract_reasoning_and_answer,
    get_metrics_logger,
    get_model_logger,
    get_reward_logger,
    get_system_logger,
    get_training_logger,
)
from hookline.logging.setup import initialize, shutdown

__all__ = [
    "CSVHandler",
    "Categories",
    "JsonFormatter",
    "MetricSettings",
    "TensorBoardHandler",
    "extract_reasoning_and_answer",
    "get_metrics_logger",
    "get_model_logger",
    "get_reward_logger",
    "get_system_logger",
    "get_training_logger",
    "initialize",
    "log_generation_metrics",
    "log_memory_usage",
    "log_model_output",
    "log_reward",
    "log_reward_metrics",
    "log_training_progress",
    "log_validation_metrics",
    "settings",
    "shutdown",
    "validation_due",
]

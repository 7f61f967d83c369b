"""The five topics and their loggers: plain loggers of the standard library, usable at any time."""

import logging

TOPICS = ("training", "model", "reward", "metrics", "system")
PREFIX = "hookline."


def get_training_logger() -> logging.Logger:
    """The logger for the course of training."""
    return logging.getLogger("hookline.training")


def get_model_logger() -> logging.Logger:
    """The logger for the model and its outputs."""
    return logging.getLogger("hookline.model")


def get_reward_logger() -> logging.Logger:
    """The logger for rewards."""
    return logging.getLogger("hookline.reward")


def get_metrics_logger() -> logging.Logger:
    """The logger for metrics."""
    return logging.getLogger("hookline.metrics")


def get_system_logger() -> logging.Logger:
    """The logger for the machine: memory, devices."""
    return logging.getLogger("hookline.system")

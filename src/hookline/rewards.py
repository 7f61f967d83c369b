"""Reward functions that record their values per sample, a library of them, and their configuration."""

from hookline.logging.payloads import extract_reasoning_and_answer
from hookline.rl.rewards import library
from hookline.rl.rewards.batch import RewardError
from hookline.rl.rewards.config import RewardConfig
from hookline.rl.rewards.library import extract_xml_answer
from hookline.rl.rewards.logged import LoggedReward, logged, wrap
from hookline.rl.rewards.recording import flush, lost_rows, record_to
from hookline.rl.rewards.statistics import Accuracy, accuracy, reset_statistics, statistics

__all__ = [
    "Accuracy",
    "LoggedReward",
    "RewardConfig",
    "RewardError",
    "accuracy",
    "extract_reasoning_and_answer",
    "extract_xml_answer",
    "flush",
    "library",
    "logged",
    "lost_rows",
    "record_to",
    "reset_statistics",
    "statistics",
    "wrap",
]

"""The built-in callbacks. Each is also available by its registered name."""

from hookline._engine.collection import CallbackCollection
from hookline._engine.moments import Callback
from hookline.callbacks.alert import Alert, NoProgress
from hookline.callbacks.checkpoint import CheckpointCallback
from hookline.callbacks.csv_metrics import CsvMetrics
from hookline.callbacks.early_stopping import EarlyStoppingCallback
from hookline.callbacks.ema import EMA
from hookline.callbacks.gradient_monitor import GradientMonitor
from hookline.callbacks.heartbeat import Heartbeat
from hookline.callbacks.learning_rate_monitor import LearningRateMonitor
from hookline.callbacks.logger import LoggerCallback
from hookline.callbacks.nan_guard import NaNGuard
from hookline.callbacks.print_progress import PrintProgress
from hookline.callbacks.progress_bar import ProgressBar
from hookline.callbacks.progress_watchdog import ProgressWatchdog
from hookline.callbacks.resource_monitor import ResourceMonitor
from hookline.callbacks.sample_logger import SampleLogger
from hookline.callbacks.throughput_monitor import ThroughputMonitor
from hookline.callbacks.timer import Timer

__all__ = [
    "Alert",
    "Callback",
    "CallbackCollection",
    "CheckpointCallback",
    "CsvMetrics",
    "EMA",
    "EarlyStoppingCallback",
    "GradientMonitor",
    "Heartbeat",
    "LearningRateMonitor",
    "LoggerCallback",
    "NaNGuard",
    "NoProgress",
    "PrintProgress",
    "ProgressBar",
    "ProgressWatchdog",
    "ResourceMonitor",
    "SampleLogger",
    "ThroughputMonitor",
    "Timer",
]

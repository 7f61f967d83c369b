"""The callbacks that come with hookline, each also by its registered name."""

from hookline.callbacks.early_stopping import EarlyStoppingCallback
from hookline.callbacks.progress_bar import ProgressBar
from hookline.core.callback import Callback
from hookline.core.collection import CallbackCollection

__all__ = ["Callback", "CallbackCollection", "EarlyStoppingCallback", "ProgressBar"]

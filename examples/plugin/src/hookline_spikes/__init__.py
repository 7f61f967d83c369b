"""A callback, a hook, a sink and an environment that hookline finds by name."""

from hookline_spikes.best_metric import BestMetric
from hookline_spikes.loss_spikes import LossSpikes
from hookline_spikes.markdown_sink import MarkdownSink
from hookline_spikes.reversing import Reversing

__all__ = ["BestMetric", "LossSpikes", "MarkdownSink", "Reversing"]

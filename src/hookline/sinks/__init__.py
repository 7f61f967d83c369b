"""Destinations for records, one or two files each. A sink imports its libraries when it is opened."""

from hookline._record.reader import JournalEntry
from hookline._record.records import Event, LogLine, Media, Metrics, Rewards, Sample, SampleUse, Status, TableRows
from hookline._record.sink import Sink, register_sink
from hookline.sinks.console import ConsoleSink
from hookline.sinks.csv import CsvSink
from hookline.sinks.file import FileSink, JsonlSink
from hookline.sinks.function import FunctionSink
from hookline.sinks.hookline import HooklineSink
from hookline.sinks.mlflow import MlflowSink
from hookline.sinks.prometheus import PrometheusSink
from hookline.sinks.status import StatusSink
from hookline.sinks.tensorboard import TensorboardSink
from hookline.sinks.trackio import TrackioSink
from hookline.sinks.wandb import WandbSink

__all__ = [
    "ConsoleSink",
    "CsvSink",
    "Event",
    "FileSink",
    "FunctionSink",
    "HooklineSink",
    "JournalEntry",
    "JsonlSink",
    "LogLine",
    "Media",
    "Metrics",
    "MlflowSink",
    "PrometheusSink",
    "Rewards",
    "Sample",
    "SampleUse",
    "Sink",
    "Status",
    "StatusSink",
    "TableRows",
    "TensorboardSink",
    "TrackioSink",
    "WandbSink",
    "register_sink",
]

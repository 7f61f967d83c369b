"""Destinations for records, one file each; what each needs is imported when it is opened."""

from hookline.record.sink import Sink, register_sink
from hookline.sinks.csv import CsvSink
from hookline.sinks.jsonl import JsonlSink

__all__ = ["CsvSink", "JsonlSink", "Sink", "register_sink"]

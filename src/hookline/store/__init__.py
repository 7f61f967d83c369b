"""Queries over recorded runs: tables, data frames, SQL and chart lines."""

from hookline.store.bands import Band, Bands
from hookline.store.code_comparison import CodeComparison
from hookline.store.comparison import Comparison
from hookline.store.compression import CompressedRun
from hookline.store.filters import FilterError
from hookline.store.index import DamagedIndexError
from hookline.store.ingest import Ingested
from hookline.store.media import MediaItem
from hookline.store.query import Result
from hookline.store.query_limits import QueryError, QueryTimeoutError
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs, runs
from hookline.store.series import Series

__all__ = [
    "Band",
    "Bands",
    "CodeComparison",
    "Comparison",
    "CompressedRun",
    "DamagedIndexError",
    "FilterError",
    "Ingested",
    "MediaItem",
    "QueryError",
    "QueryTimeoutError",
    "Result",
    "RunInfo",
    "Runs",
    "Series",
    "runs",
]

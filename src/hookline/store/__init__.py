"""Queries over recorded runs: tables, data frames, SQL and chart lines."""

from hookline.store.bands import Band, Bands
from hookline.store.index import DamagedIndexError
from hookline.store.ingest import Ingested
from hookline.store.query import Result
from hookline.store.query_limits import QueryError, QueryTimeoutError
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs, runs
from hookline.store.series import Series

__all__ = [
    "Band",
    "Bands",
    "DamagedIndexError",
    "Ingested",
    "QueryError",
    "QueryTimeoutError",
    "Result",
    "RunInfo",
    "Runs",
    "Series",
    "runs",
]

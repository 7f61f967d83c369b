"""The query side: the runs that were recorded, as tables, data frames, SQL and lines of charts."""

from hookline.store.bands import Band, Bands
from hookline.store.index import DamagedIndexError
from hookline.store.intake import Taken
from hookline.store.query_error import QueryError, QueryTimeoutError
from hookline.store.result import Result
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs, runs
from hookline.store.series import Series

__all__ = [
    "Band",
    "Bands",
    "DamagedIndexError",
    "QueryError",
    "QueryTimeoutError",
    "Result",
    "RunInfo",
    "Runs",
    "Series",
    "Taken",
    "runs",
]

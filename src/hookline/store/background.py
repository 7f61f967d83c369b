"""`BackgroundIngest`: reads the records of all runs while a server waits for requests.

The first chart, query or search then finds its runs read already, and the search index has their samples. Only ended
runs are read, the latest first: people look at those, and they need to be read only once. Their columns come first,
because charts are what most people open, and the tables of SQL take longer. The thread pauses while
requests are answered, so a request waits for no more than a few megabytes of journals. It ends with its store.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hookline.store.run_info import RunInfo
from hookline.store.run_summary import Liveness
from hookline.store.store import Store

logger = logging.getLogger("hookline")

_BATCH_RUNS, _BATCH_BYTES = 50, 4 << 20
"""How many runs, and bytes of journals, are read between checks for requests."""
_GROUP_RUNS = 200
"""How many runs' columns are read before the tables of the first of them."""
_AGAIN_SECONDS = 30.0
"""How often to look for newly ended runs."""


class BackgroundIngest:
    """Reads runs in a thread, from `start` to `stop`.

    Attributes:
        remaining: The number of runs that are not read yet; 0 when all are.
    """

    def __init__(self, store: Store, liveness: Liveness) -> None:
        self.remaining = 0
        self._liveness = liveness
        self._requests = 0
        self._idle = threading.Condition()
        self._stopping = threading.Event()
        self._read: dict[str, float | None] = {}
        # The thread holds no reference to the store, which would keep its database open forever.
        self._store = weakref.ref(store)
        self._thread = threading.Thread(target=self._work, name="hookline-ingest", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        store = self._store()
        if store is not None:
            store.background = self
            self._thread.start()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Pause reading while a request is answered."""
        with self._idle:
            self._requests += 1
        try:
            yield
        finally:
            with self._idle:
                self._requests -= 1
                self._idle.notify_all()

    @property
    def note(self) -> str:
        """The progress as a sentence; empty when everything is read."""
        if not self.remaining:
            return ""
        runs = "1 run is" if self.remaining == 1 else f"{self.remaining:,} runs are"
        return f"{runs} still being read; searches and SQL over them take longer until then."

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is this thread, whose own reads are not requests."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the thread after the run that it is reading."""
        self._stopping.set()
        with self._idle:
            self._idle.notify_all()
        self._thread.join()
        store = self._store()
        if store is not None and store.background is self:
            store.background = None

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._index_texts(self._read_all())
            except Exception:
                # Continue after any error: runs that end later still have to be read.
                logger.debug("Runs cannot be read in the background", exc_info=True)
            self._stopping.wait(_AGAIN_SECONDS)
            if self._store() is None:
                return

    def _read_all(self) -> list[RunInfo]:
        """Read the ended runs that were not read; returns all runs."""
        while not self._stopping.is_set():
            infos = self._list()
            # Live runs are left to requests, because their new records would have to be read again and again.
            pending = [info for info in infos if info.is_over and self._read.get(info.id, -1.0) != info.ended]
            self.remaining = len(pending)
            if not pending:
                return infos
            for start in range(0, len(pending), _GROUP_RUNS):
                group = pending[start : start + _GROUP_RUNS]
                # Before they are read: runs that cannot be read must not keep the others waiting.
                self._read |= {info.id: info.ended for info in group}
                for read in (_read_columns, _read_tables):
                    if not self._read_batches(group, read):
                        return []
                self.remaining = len(pending) - start - len(group)
        return []

    def _read_batches(self, group: list[RunInfo], read: Callable[[Store, list[RunInfo]], None]) -> bool:
        """Read one batch of each run, between requests; returns whether all were read."""
        waiting = deque(group)
        while waiting:
            self._wait_for_requests()
            store = self._store()
            if store is None or self._stopping.is_set():
                return False
            batch: list[RunInfo] = []
            size = 0
            while waiting and len(batch) < _BATCH_RUNS and size < _BATCH_BYTES:
                batch.append(waiting.popleft())
                size += store.journal_bytes(batch[-1])
            try:
                read(store, batch)
            except Exception:
                # A request that needs these runs gets the same error, with an answer to its client.
                logger.debug("Some runs cannot be read in the background", exc_info=True)
            del store
        return True

    def _index_texts(self, infos: list[RunInfo]) -> None:
        """Add the samples of ended runs to the search index."""
        store = self._store()
        if store is None or self._stopping.is_set() or store.index.is_private:
            return

        def proceed() -> bool:
            self._wait_for_requests()
            return not self._stopping.is_set()

        # Only runs with samples: those missing from the search index are scanned, which is free without samples.
        states = store.index.states
        sampled = [
            info
            for info in infos
            if (read := states[info.id].read if info.id in states else None) is not None and read.rows.get("samples")
        ]
        store.search.update(sampled, lambda info: store.snapshot([info], "samples"), proceed)

    def _list(self) -> list[RunInfo]:
        store = self._store()
        if store is None or self._stopping.is_set():
            return []
        infos = store.list_runs(self._liveness)
        existing = {info.id for info in infos}
        self._read = {run: ended for run, ended in self._read.items() if run in existing}
        return infos

    def _wait_for_requests(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._requests or self._stopping.is_set())


def _read_columns(store: Store, runs: list[RunInfo]) -> None:
    for _ in store.metric_facts(runs):
        pass


def _read_tables(store: Store, runs: list[RunInfo]) -> None:
    store.ingest(runs)

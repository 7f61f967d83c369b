"""`Storage`: an object store with a server's knowledge of it, and the threads that keep its local copy up to date.

- **Scan**: lists all runs and artifacts, at the start and every few minutes, and copies those that changed.
- **Reports**: every two seconds a server replaces one object, ``servers/<id>``, with the runs for which it received
  data, and reads those of the other servers. So servers learn of each other's runs and heartbeats with a few requests
  in total. A run that a viewer has requested is copied at once, others within half a minute.
- **Compaction**: joins the batches of runs that have many or are idle, and deletes the batches later.
- **Collection**: deletes leftovers of deleted runs, and unused blobs.

Reports are only hints: if a server is killed before it writes one, the scan finds its batches.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hookline._engine.errors import ConfigError, HooklineError
from hookline._record.blobs import BLOBS, set_blob_source
from hookline.server.received_blobs import BlobLimits, ReceivedBlobs
from hookline.server.received_runs import ReceivedRuns
from hookline.server.storage.artifacts import ARTIFACTS, ArtifactCopies, ArtifactObjects, StoredArtifacts
from hookline.server.storage.blobs import BlobObjects
from hookline.server.storage.compaction import (
    CompactionPolicy,
    CompactionSchedule,
    Lease,
    acquire_lease,
    collect_run,
    compact_run,
    lease_name,
)
from hookline.server.storage.eviction import CopyLimit
from hookline.server.storage.mirror import (
    STORE,
    Mirror,
    Remembered,
    StoreIdentity,
    SyncQueue,
    lock_copy,
    open_copy,
)
from hookline.server.storage.objects import (
    DamagedStorageError,
    Entry,
    MissingObjectError,
    ObstoreObjects,
    StorageError,
    open_objects,
    without_secrets,
)
from hookline.server.storage.protocol import (
    RUNS,
    Claim,
    KnownNames,
    RunObjects,
    RunView,
    ends_of,
    group_runs,
    is_deleted,
    list_run,
    remove_leftovers,
)
from hookline.server.storage.received import ObjectBlobs, StoredRuns
from hookline.store import Runs
from hookline.store.run_info import RunInfo
from hookline.store.store import Store

logger = logging.getLogger("hookline")

SERVERS = "servers"
TRUST_SECONDS = 60.0
"""How long a server trusts a known end of a file: much less than objects are kept after compaction."""
READERS = 24
"""How many batches are read at a time, for compaction."""
_NAME_LOCKS = 64
_COLLECTION = "leases/~blobs/00"
"""The lease of the server that collects blobs; a project's name has no ``~`` in it."""
_COLLECTION_SECONDS = 3600.0
_REPORTED_SECONDS = 120.0
_STALE_SECONDS = 86_400.0
_WANTED_SECONDS = 60.0
_LOG_SECONDS = 60.0


class _ServerReport(msgspec.Struct):
    """The runs and artifacts that a server has received recently.

    Attributes:
        runs: For each run, the seconds since the last contact, the time of the last batch by this server's clock (None
            if there was none), and the heartbeat interval.
        artifacts: For each artifact, how many changes it has.
    """

    runs: dict[str, tuple[float, float | None, float | None]]
    artifacts: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How a server uses an object store.

    Args:
        url: ``s3://bucket/prefix`` and the like.
        cache_bytes: The maximum size of the local copy.
        scan_seconds: How often all runs are listed.
        report_seconds: How often servers report to each other what they have received.
        copy_seconds: The maximum age of the copy of a run that gets new batches and has no viewer.
        compact_seconds: How often batches are joined.
        collect_seconds: How often unused blobs are deleted.
        trim_seconds: How often the size of the copy is measured.
        threads: How many runs are copied at a time.
    """

    url: str
    cache_bytes: int = 50 << 30
    scan_seconds: float = 300.0
    report_seconds: float = 2.0
    copy_seconds: float = 30.0
    compact_seconds: float = 30.0
    collect_seconds: float = 6 * 3600.0
    trim_seconds: float = 60.0
    threads: int = 24
    policy: CompactionPolicy = field(default_factory=CompactionPolicy)


class Storage:
    """An opened object store with a local copy.

    Args:
        objects: The store.
        root: The directory of the copy.
        clock: Seconds since 1970.

    Raises:
        ConfigError: The directory is the copy of another store, or is used by another server.
    """

    def __init__(
        self,
        options: StorageOptions,
        root: Path,
        *,
        objects: ObstoreObjects | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.options, self.root, self.clock = options, root, clock
        self.objects = open_objects(options.url) if objects is None else objects
        self.id = secrets.token_hex(8)
        self._lock_file = lock_copy(root)
        try:
            open_copy(root, self._identity().id, options.url)
        except BaseException:
            os.close(self._lock_file)
            raise
        self.blobs = BlobObjects(self.objects, root)
        self.mirror = Mirror(self.objects, ReceivedRuns(root, clock))
        self.names: Remembered[RunObjects, KnownNames] = Remembered(10_000)
        self._ends: Remembered[tuple[RunObjects, str], tuple[int, float]] = Remembered()
        self._name_locks = [threading.Lock() for _ in range(_NAME_LOCKS)]
        self._queue: SyncQueue[RunObjects | ArtifactObjects] = SyncQueue()
        self._wanted: Remembered[RunObjects, float] = Remembered(10_000)
        self._received: dict[RunObjects, tuple[float, float | None, float | None]] = {}
        self._received_artifacts: dict[ArtifactObjects, tuple[float, int]] = {}
        self._received_lock = threading.Lock()
        self._seen: dict[str, str] = {}
        self._batches: Remembered[tuple[str, RunObjects], float] = Remembered()
        self._compactions = CompactionSchedule(options.policy)
        self._cleaned_at = clock()
        self._logged: dict[str, float] = {}
        self._runs: Runs | None = None
        self._limit: CopyLimit | None = None
        self._readers = ThreadPoolExecutor(READERS, "hookline-storage-read")
        self.artifacts = ArtifactCopies(self.objects, root, self._readers.map)
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        set_blob_source(self.root / BLOBS, self.blobs.fetch)
        works: list[Callable[[], None]] = [
            *[self._copy_runs] * self.options.threads,
            lambda: self._repeat(self.scan, self.options.scan_seconds),
            lambda: self._repeat(self.scan_artifacts, self.options.scan_seconds),
            lambda: self._repeat(self.exchange_reports, self.options.report_seconds),
            lambda: self._repeat(self.compact, self.options.compact_seconds, at_once=False),
            lambda: self._repeat(self.collect, self.options.collect_seconds, at_once=False),
            lambda: self._repeat(self.trim, self.options.trim_seconds, at_once=False),
        ]
        for work in works:
            thread = threading.Thread(target=work, name="hookline-storage", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads. Everything acknowledged is stored already."""
        self._closing.set()
        self._queue.close()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        set_blob_source(self.root / BLOBS, None)
        self.blobs.close()
        self._readers.shutdown()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def received_runs(self) -> StoredRuns:
        """The receiver of runs, in place of a directory."""
        return StoredRuns(self.root, self.clock, storage=self)

    def received_blobs(self, runs: ReceivedRuns, limits: BlobLimits) -> ObjectBlobs:
        """The receiver of blobs, in place of a directory."""
        # The limits of the disk do not apply: the store has its own, and the disk holds only a copy.
        limits = replace(limits, total_bytes=None, free_bytes=-(1 << 62))
        return ObjectBlobs(runs, limits, self.clock, storage=self)

    def received_artifacts(self, blobs: ReceivedBlobs) -> StoredArtifacts:
        """The receiver of artifacts, in place of a directory."""
        return StoredArtifacts(blobs, self.clock, storage=self)

    def note_artifact(self, objects: ArtifactObjects, changes: int) -> None:
        """Note that an artifact was changed, for the other servers."""
        with self._received_lock:
            self._received_artifacts[objects] = (self.clock(), changes)

    def known_end(self, run: RunObjects, file: str) -> int | None:
        """The size of the stored part of a file, if it is known."""
        known = self._ends.get((run, file))
        return known[0] if known is not None and self.clock() - known[1] < TRUST_SECONDS else None

    def note_ends(self, run: RunObjects, ends: Mapping[str, int]) -> None:
        """Note the sizes of files."""
        for file, end in ends.items():
            self._ends.set((run, file), (end, self.clock()))

    def forget_end(self, run: RunObjects, file: str) -> None:
        """Have the size of a file looked up the next time."""
        self._ends.forget((run, file))

    def forget_run(self, run: RunObjects) -> None:
        """Note that a run was deleted: its copy is removed soon."""
        self.mirror.claims.forget(run)
        self.names.forget(run)
        self.request_sync(run)

    def sent_blobs(self, run: RunObjects) -> set[str]:
        """Return the digests of the blobs recorded as sent by the run's own sender."""
        return {entry.name.rpartition("/")[2] for entry in self.objects.list(run.sent())}

    def note_batch(self, run: RunObjects, file: str, end: int) -> None:
        """Note that a batch was stored, for this server and the others."""
        now = self.clock()
        self._ends.set((run, file), (end, now))
        with self._received_lock:
            _, _, every = self._received.get(run, (0.0, None, None))
            self._received[run] = (now, now, every)
        self._compactions.note_batch(run, now)

    def note_contact(self, run: RunObjects, claim: Claim, *, every_seconds: float | None = None) -> None:
        """Note that the sender of a run contacted this server, and report it to the others."""
        now = self.clock()
        with self._received_lock:
            _, batch, every = self._received.get(run, (0.0, None, None))
            self._received[run] = (now, batch, every if every_seconds is None else every_seconds)
        self.mirror.note_contact(run, claim, now, every_seconds)

    def names_lock(self, run: RunObjects) -> threading.Lock:
        """Held while the metric names of a run are changed."""
        return self._name_locks[hash(run.prefix) % _NAME_LOCKS]

    def request_sync(self, run: RunObjects | ArtifactObjects, *, within_seconds: float = 0.0) -> None:
        """Have a run or an artifact copied."""
        self._queue.add(run, self.clock() + within_seconds)

    def attach(self, runs: Runs, store: Store) -> None:
        """Update the copy's runs before they are read, and keep the copy within its size limit."""
        limit = CopyLimit(
            store,
            self.options.cache_bytes,
            last_use=lambda info: self._wanted.get(_objects(info)),
            fill=lambda info: self.mirror.fill(_objects(info)),
        )

        def before_read(infos: Sequence[RunInfo]) -> None:
            self.want(infos)
            for info in infos:
                limit.before_read(info)

        store.before_read = before_read
        self._runs, self._limit = runs, limit

    def trim(self) -> None:
        """Remove the least recently used content from the copy if it is too large."""
        if self._limit is not None and self._runs is not None:
            self._limit.trim(list(self._runs.filter().refresh()))

    def want(self, runs: Iterable[RunInfo]) -> None:
        """Note that some runs have viewers: they are copied first, and more often."""
        now = self.clock()
        for info in runs:
            run = _objects(info)
            last = self._wanted.get(run)
            self._wanted.set(run, now)
            if last is None or now - last > self.options.copy_seconds:
                self.request_sync(run)

    def scan(self) -> None:
        """List all runs, and copy those that changed."""
        waiting: deque[Future[None]] = deque()
        with ThreadPoolExecutor(self.options.threads, "hookline-storage-scan") as pool:
            for run, entries in group_runs(self.objects.list(RUNS)):
                if self._closing.is_set():
                    return
                if not self.mirror.is_current(run, entries):
                    waiting.append(pool.submit(self._copy_run, run, entries))
                while len(waiting) > 4 * self.options.threads:  # their listings are held in memory
                    waiting.popleft().result()

    def scan_artifacts(self) -> None:
        """List all artifacts, and have those copied that changed."""
        for artifact, changes in self.artifacts.groups():
            if not self.artifacts.is_current(artifact, changes):
                self.request_sync(artifact)

    def _copy_artifact(self, artifact: ArtifactObjects) -> None:
        try:
            self.artifacts.sync(artifact)
        except (HooklineError, OSError) as error:  # the next scan finds it again
            self._report("copy", error)
        except Exception:
            logger.exception("%s cannot be copied from the storage", artifact.prefix)

    def _copy_run(self, run: RunObjects, entries: list[Entry] | None = None) -> None:
        try:
            view = self.mirror.sync(run, entries)
        except StorageError as error:
            self._report("copy", error)
            if not isinstance(error, DamagedStorageError):
                self.request_sync(run, within_seconds=5.0)
        except (HooklineError, OSError) as error:
            self._report("copy", error)
        except Exception:
            logger.exception("%s cannot be copied from the storage", run.prefix)
        else:
            if view.leftovers:
                self._remove_leftovers(view)
            for file, end in ends_of(view).items():
                if self.known_end(run, file) is None:  # data that this server stored itself is newer than any listing
                    self.note_ends(run, {file: end})
            self._compactions.note(view, self.clock())

    def _remove_leftovers(self, view: RunView) -> None:
        """Remove objects that servers added to a run while it was deleted, or that a killed server left behind."""
        try:
            remove_leftovers(self.objects, view)
        except StorageError as error:  # the next scan finds them again
            self._report("delete", error)

    def collect(self) -> None:
        """Delete unused blobs, unless another server does."""
        if acquire_lease(self.objects, _COLLECTION, self.id, now=self.clock(), seconds=_COLLECTION_SECONDS) is None:
            return
        gone: dict[str, bool] = {}

        def is_gone(user: str) -> bool:
            if user.startswith(f"{RUNS}/") and user not in gone:
                # An existing run is checked again next time; a deleted one stays deleted.
                gone[user] = is_deleted(self.objects, user)
            return gone.get(user, False)

        count = self.blobs.collect(is_gone, self._closing.is_set)
        if count:
            logger.info("Storage: %s unused files were deleted", f"{count:,}")

    def exchange_reports(self) -> None:
        """Publish this server's report, and read those of the other servers."""
        now = self.clock()
        with self._received_lock:
            # By then, the dates of its objects also show the run as killed.
            self._received = {run: each for run, each in self._received.items() if now - each[0] < _REPORTED_SECONDS}
            runs = {
                run.prefix: (now - contact, batch, every) for run, (contact, batch, every) in self._received.items()
            }
            self._received_artifacts = {
                each: known for each, known in self._received_artifacts.items() if now - known[0] < _REPORTED_SECONDS
            }
            artifacts = {each.prefix: changes for each, (_, changes) in self._received_artifacts.items()}
        own = f"{SERVERS}/{self.id}"
        self.objects.put(own, msgspec.json.encode(_ServerReport(runs, artifacts)))
        listed = list(self.objects.list(SERVERS))
        for entry in listed:
            if entry.name == own:
                self.mirror.clock_offset = entry.modified - now
        stale = []
        for entry in listed:
            if entry.name == own or self._seen.get(entry.name) == entry.tag:
                continue
            reported = entry.modified - self.mirror.clock_offset
            if now - reported > _STALE_SECONDS:  # it was killed
                stale.append(entry.name)
                continue
            with contextlib.suppress(MissingObjectError, msgspec.DecodeError):
                report = msgspec.json.decode(self.objects.get(entry.name), type=_ServerReport)
                self._seen[entry.name] = entry.tag
                self._apply_report(entry.name, report, reported)
        self.objects.delete(stale)

    def _apply_report(self, server: str, report: _ServerReport, reported: float) -> None:
        for prefix, changes in report.artifacts.items():
            if prefix.startswith(f"{ARTIFACTS}/") and prefix.count("/") == 2:
                artifact = ArtifactObjects(prefix)
                if not self.artifacts.is_current(artifact, changes):
                    self.request_sync(artifact)
        now = self.clock()
        for prefix, (contact, batch, every) in report.runs.items():
            if not prefix.startswith(f"{RUNS}/") or prefix.count("/") != 2:
                continue
            run = RunObjects(prefix)
            claim = self.mirror.claims.get(run)
            is_copied = claim is not None and self.mirror.contacts.get(run) is not None
            if claim is not None and is_copied:
                self.mirror.note_contact(run, claim, reported - contact, every)
            # Only compared with earlier reports of the same server, because its clock may be wrong.
            if not is_copied or (batch is not None and batch != self._batches.get((server, run))):
                self._batches.set((server, run), batch or 0.0)
                wanted = self._wanted.get(run)
                is_urgent = not is_copied or (wanted is not None and now - wanted < _WANTED_SECONDS)
                self.request_sync(run, within_seconds=0.0 if is_urgent else self.options.copy_seconds)

    def compact(self) -> None:
        """Compact the runs that need it, except those that another server compacts."""
        leases: dict[str, list[tuple[RunObjects, bool]]] = {}
        for run, is_idle in self._compactions.due(self.clock()):
            leases.setdefault(lease_name(run), []).append((run, is_idle))
        with ThreadPoolExecutor(self.options.threads, "hookline-compaction") as pool:
            for done in [pool.submit(self._compact_under, name, runs) for name, runs in leases.items()]:
                done.result()
        if self.clock() - self._cleaned_at > 3600.0:
            self._cleaned_at = self.clock()
            self.blobs.remove_abandoned(self.clock() + self.mirror.clock_offset)

    def _compact_under(self, name: str, runs: list[tuple[RunObjects, bool]]) -> None:
        lease: Lease | None = None
        policy = self.options.policy
        for run, is_idle in runs:
            now = self.clock()
            if lease is None or now > lease.taken + lease.seconds / 2:
                lease = acquire_lease(self.objects, name, self.id, now=now)
            if lease is None or self._closing.is_set():
                return  # another server does it; if that one dies, this one takes over
            try:
                compact_run(
                    self.objects, run, lease, now=now, policy=policy, is_idle=is_idle, in_parallel=self._readers.map
                )
                collect_run(self.objects, run, now=now + self.mirror.clock_offset, policy=policy)
                self._compactions.note(list_run(self.objects, run), now, is_fresh=True)
            except MissingObjectError:
                continue  # the lease had expired, and another server compacted the run
            except DamagedStorageError as error:  # the others may be whole
                self._report("compact", error)

    def _copy_runs(self) -> None:
        while (next_one := self._queue.take(self.clock)) is not None:
            if isinstance(next_one, RunObjects):
                self._copy_run(next_one)
            else:
                self._copy_artifact(next_one)

    def _repeat(self, work: Callable[[], None], seconds: float, *, at_once: bool = True) -> None:
        if at_once is False and self._closing.wait(seconds):
            return
        while True:
            try:
                work()
            except (HooklineError, OSError) as error:
                self._report(work.__name__, error)
            except Exception:
                logger.exception("The storage thread %r failed; it continues", work.__name__)
            if self._closing.wait(seconds):
                return

    def _report(self, what: str, error: Exception) -> None:
        now = self.clock()
        if now - self._logged.get(what, 0.0) >= _LOG_SECONDS:
            self._logged[what] = now
            logger.warning("Storage: %s: %s", what, error)

    def _identity(self) -> StoreIdentity:
        own = StoreIdentity(secrets.token_hex(16))
        if self.objects.create(STORE, msgspec.json.encode(own)):
            if self.objects.create(STORE, msgspec.json.encode(own)):
                raise ConfigError(
                    f"storage={without_secrets(self.options.url)!r} does not refuse to create an object that exists "
                    "(If-None-Match: *), which servers need to share it. Use a newer version of it, or another store."
                )
            return own
        found = msgspec.json.decode(self.objects.get(STORE), type=StoreIdentity)
        if found.version != own.version:
            raise ConfigError(
                f"storage={without_secrets(self.options.url)!r} has format {found.version}; this version of hookline "
                f"uses {own.version}. Use the version that wrote it, or another prefix."
            )
        return found


def _objects(info: RunInfo) -> RunObjects:
    return RunObjects.of(info.project, info.directory.name)

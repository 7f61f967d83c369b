"""Compaction: joins the small batches of a run into larger segments, and deletes obsolete objects.

- A **manifest** is numbered, and created only if its number is free. It keeps the segments of the previous one and adds
  new ones, which are stored first. A server that is late finds its number taken and gives up: if two servers compact
  the same run at once, the work of one is lost.
- A **segment** is stored under the number of the manifest that introduces it. If that manifest exists and does not name
  the segment, no later one will.
- A **batch** is deleted when a published manifest covers all of it, and a grace period has passed, in which readers
  finish with the objects they listed. A reader that finds an object missing lists the run again.

So clocks only affect how much work is wasted. To waste little, a server compacts a run under a **lease**, of which each
project has a few, so that several servers can share the work. Leases are numbered objects, too, each with a holder and
a duration. Another server takes over when the last lease has expired by its own clock, plus an allowance for clock
skew.
"""

import hashlib
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec

from hookline._record.console import is_console_file, middle_files
from hookline.server.storage.objects import Entry, MissingObjectError, ObjectStore
from hookline.server.storage.protocol import (
    Extent,
    Manifest,
    Piece,
    RunObjects,
    RunView,
    list_run,
    pack,
    read_manifest,
    read_piece,
    remove_leftovers,
)

LEASES = "leases"
LEASE_SECONDS = 60.0
SKEW_SECONDS = 15.0
"""The clock skew between servers up to which they do not compact the same runs."""
SEGMENT_BYTES = 32 << 20
"""The maximum size of a segment, before it is compressed: what compaction holds in memory."""
MIN_BATCHES = 32
GRACE_SECONDS = 600.0
_MERGE_FACTOR = 2
"""A segment is joined with what follows it unless it is this many times larger: each byte is written again only a few
times, and a run has few segments."""


LEASES_PER_PROJECT = 16


Map: TypeAlias = Callable[[Callable[[Piece], bytes], Iterable[Piece]], Iterable[bytes]]


class Lease(msgspec.Struct, frozen=True):
    """A server's right to compact some runs of a project.

    Attributes:
        taken: In seconds since 1970, by the clock of the holder.
    """

    epoch: int
    holder: str
    taken: float
    seconds: float

    def is_over(self, now: float, skew_seconds: float) -> bool:
        """Whether another server may take over."""
        return now > self.taken + self.seconds + skew_seconds


def lease_name(run: RunObjects) -> str:
    """The name of the lease under which a run is compacted."""
    shard = zlib.crc32(run.prefix.encode()) % LEASES_PER_PROJECT
    return f"{LEASES}/{run.project}/{shard:02}"


def acquire_lease(
    objects: ObjectStore,
    prefix: str,
    holder: str,
    *,
    now: float,
    seconds: float = LEASE_SECONDS,
    skew_seconds: float = SKEW_SECONDS,
) -> Lease | None:
    """Take or renew a lease; None if another server has it.

    Args:
        prefix: Its name.
        holder: Identifies this server.
        now: Seconds since 1970.
    """
    epochs = sorted(_epochs(prefix, objects.list(prefix)))
    latest = epochs[-1] if epochs else 0
    if latest:
        try:
            current = msgspec.json.decode(objects.get(f"{prefix}/{latest:010}"), type=Lease)
        except (MissingObjectError, msgspec.DecodeError):
            current = Lease(latest, "", now, seconds)  # another server is taking over right now
        if current.holder != holder and not current.is_over(now, skew_seconds):
            return None
    lease = Lease(latest + 1, holder, now, seconds)
    if not objects.create(f"{prefix}/{lease.epoch:010}", msgspec.json.encode(lease)):
        return None
    if max(_epochs(prefix, objects.list(prefix)), default=0) != lease.epoch:
        return None  # this server was so slow that its epoch had been used and deleted
    objects.delete([f"{prefix}/{epoch:010}" for epoch in epochs[:-1]])
    return lease


def _epochs(prefix: str, entries: Iterable[Entry]) -> Iterator[int]:
    for entry in entries:
        text = entry.name.removeprefix(f"{prefix}/")
        if text.isascii() and text.isdigit():
            yield int(text)


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When and how runs are compacted.

    Args:
        min_batches: How many batches of a file are worth a segment.
        segment_bytes: The maximum size of a segment.
        grace_seconds: How long objects stay after a manifest replaced them.
    """

    min_batches: int = MIN_BATCHES
    segment_bytes: int = SEGMENT_BYTES
    grace_seconds: float = GRACE_SECONDS

    def due(self, view: RunView, *, is_idle: bool = False) -> list[str]:
        """The files of a run that are worth compacting.

        Args:
            is_idle: The run gets no more batches for now, so two are enough.
        """
        least = 2 if is_idle else self.min_batches
        return [
            file
            for file in view.files
            if (pending := view.pending(file)) and (len(pending) >= least or _size(pending) >= self.segment_bytes)
        ]


def _size(pieces: list[Piece]) -> int:
    return pieces[-1].extent.end - pieces[0].begin if pieces else 0


def compact_run(
    objects: ObjectStore,
    run: RunObjects,
    lease: Lease,
    *,
    now: float,
    policy: CompactionPolicy,
    is_idle: bool = False,
    in_parallel: Map = map,
) -> Manifest | None:
    """Join the batches of a run and publish a manifest; returns it, or None if another server did or nothing is due.

    Args:
        in_parallel: Reads several batches at a time, in their order.

    Raises:
        MissingObjectError: Another server has compacted the run meanwhile, and deleted the batches.
    """
    view = list_run(objects, run)
    due = policy.due(view, is_idle=is_idle)
    if not due:
        return None
    number = view.manifest.number + 1
    middle = set(middle_console_files(view.files))
    files = {file: segments for file, segments in view.manifest.files.items() if file not in middle}
    for file in due:
        if file in middle:
            continue
        files[file] = _join(objects, view, file, number, policy, in_parallel)
    manifest = Manifest(number, lease.epoch, lease.holder, now, files)
    content = msgspec.json.encode(manifest)
    # Only now, when all segments are stored: from here on readers use them, and batches may be deleted.
    if objects.create(run.manifest(number), content):
        return manifest
    try:
        # It may be this one: the response was lost and the request repeated.
        return manifest if objects.get(run.manifest(number)) == content else None
    except MissingObjectError:
        return None


def _join(
    objects: ObjectStore, view: RunView, file: str, number: int, policy: CompactionPolicy, in_parallel: Map
) -> list[Extent]:
    segments = list(view.manifest.files.get(file, []))
    pending = view.pending(file)
    new = _size(pending)
    merged: list[Piece] = []
    while segments:
        size = segments[-1].end - segments[-1].first
        if size > _MERGE_FACTOR * new or size + new > policy.segment_bytes:
            break
        last = segments.pop()
        merged.insert(0, Piece(last.first, last))
        new += size
    pieces = [*merged, *pending]
    for group in _groups(pieces, policy.segment_bytes):
        # The pieces of one segment at a time, which are held in memory.
        content = b"".join(in_parallel(partial(read_piece, objects), group))
        begin, end, digest = group[0].begin, group[-1].extent.end, hashlib.sha256(content).hexdigest()
        name = view.objects.segment(number, file, begin, end, digest)
        objects.create(name, pack(content))  # if there is one, it is the same: its digest is in its name
        segments.append(Extent(begin, end, name, digest))
    return segments


def _groups(pieces: list[Piece], size: int) -> Iterator[list[Piece]]:
    """Split pieces into those of each segment: as many as fit, but at least one."""
    group: list[Piece] = []
    for piece in pieces:
        if group and piece.extent.end - group[0].begin > size:
            yield group
            group = []
        group.append(piece)
    yield group


def collect_run(objects: ObjectStore, run: RunObjects, *, now: float, policy: CompactionPolicy) -> int:
    """Delete the obsolete objects of a run, and return how many.

    Args:
        now: By the clock of the store.
    """
    view = list_run(objects, run)
    if view.deleted is not None:
        return remove_leftovers(objects, view)
    middle = middle_console_files(view.files)
    unneeded = [batch.name for file in middle for batch in view.batches.get(file, [])]
    old = max((n for n, entry in view.manifests.items() if now - entry.modified >= policy.grace_seconds), default=None)
    if old is not None:
        try:
            kept = {n: read_manifest(objects, run, n) for n in view.manifests if n >= old}
        except MissingObjectError:
            return 0  # another server is doing this
        # Covered by a manifest older than the grace period, and also by the latest, which readers use.
        covered = {file: min(kept[old].end(file), view.manifest.end(file)) for file in kept[old].files}
        for file, batches in view.batches.items():
            unneeded += [batch.name for batch in batches if batch.end <= covered.get(file, 0)]
        named = {segment.name for each in kept.values() for segments in each.files.values() for segment in segments}
        for entry in view.segments:
            number = entry.name.removeprefix(f"{run.prefix}/segments/").partition("/")[0]
            # A segment with a later number belongs to a manifest that is not published yet.
            if entry.name not in named and number.isdecimal() and int(number) <= view.manifest.number:
                unneeded.append(entry.name)
        unneeded += [entry.name for n, entry in view.manifests.items() if n < old]
    if unneeded:
        objects.delete(unneeded)
    return len(unneeded)


def middle_console_files(files: Iterable[str]) -> list[str]:
    """The console files in the middle of a long output, which are not kept."""
    writers: dict[str, dict[str, int]] = {}
    for file in files:
        writer, _, end = file.rpartition("-")
        if is_console_file(file) and (number := end.removesuffix(".jsonl")).isdecimal():
            writers.setdefault(writer, {})[file] = int(number)
    return [file for numbers in writers.values() for file in middle_files(numbers)]


@dataclass(slots=True)
class _Due:
    batches: int = 0
    last: float = 0.0
    collect_at: float = math.inf


class CompactionSchedule:
    """The runs worth compacting, as known from a server's own batches and from listings."""

    def __init__(self, policy: CompactionPolicy) -> None:
        self._policy, self._runs, self._lock = policy, dict[RunObjects, _Due](), threading.Lock()

    def note_batch(self, run: RunObjects, now: float) -> None:
        """Note that a run has one more batch."""
        with self._lock:
            due = self._runs.setdefault(run, _Due())
            due.batches, due.last = due.batches + 1, now

    def note(self, view: RunView, now: float, *, is_fresh: bool = False) -> None:
        """Note how many batches a run has by its listing.

        Args:
            is_fresh: It was listed after an attempt, so nothing more can be compacted now.
        """
        pending = max((len(view.pending(file)) for file in view.files), default=0)
        has_waste = (
            bool(view.leftovers)
            or len(view.manifests) > 1
            or any(batch.end <= view.manifest.end(file) for file, batches in view.batches.items() for batch in batches)
        )
        with self._lock:
            due = self._runs.setdefault(view.objects, _Due(last=view.newest))
            due.batches = pending
            if not has_waste:
                due.collect_at = math.inf
            elif is_fresh or due.collect_at == math.inf:
                due.collect_at = now + self._policy.grace_seconds
            if pending < 2 and not has_waste:
                del self._runs[view.objects]

    def due(self, now: float) -> list[tuple[RunObjects, bool]]:
        """The runs to compact now, and whether each is idle."""
        found = []
        with self._lock:
            for run, due in self._runs.items():
                is_idle = now - due.last > self._policy.grace_seconds
                if due.batches >= (2 if is_idle else self._policy.min_batches) or now >= due.collect_at:
                    found.append((run, is_idle))
        return found

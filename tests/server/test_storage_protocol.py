"""The protocol of a shared object store, under random orders, crashes, lost answers and wrong clocks."""

import hashlib
import os

import pytest

pytest.importorskip("greenlet", reason="the simulation needs greenlet")

from storage_simulation import RUN, DeletingWorld, Fault, SimulatedStore, World

from hookline.server.storage import blob_copies, compaction, protocol
from hookline.server.storage.objects import MissingObjectError

SEEDS = int(os.environ.get("HOOKLINE_SIMULATIONS", "300"))
"""More of them find more; a few seconds are enough for each change."""


@pytest.mark.parametrize("part", range(4))
def test_protocol_random_crashes_and_orders_lose_and_double_nothing(part):
    for seed in range(part, SEEDS, 4):
        try:
            World(seed).run()
        except Fault as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault


def test_simulation_reaches_what_it_is_about():
    """Compactions, deletions, merged segments and late manifests: without them it would prove nothing."""
    seen = dict.fromkeys(("published", "late", "deleted", "several segments"), 0)

    def compact(store, run, lease, **options):
        manifest = compaction.compact_run(store, run, lease, **options)
        seen["published"] += manifest is not None
        seen["late"] += manifest is None and bool(protocol.list_run(store, run).pending(protocol_file))
        seen["several segments"] += manifest is not None and any(len(each) > 1 for each in manifest.files.values())
        return manifest

    def collect(store, run, **options):
        deleted = compaction.collect_run(store, run, **options)
        seen["deleted"] += deleted
        return deleted

    protocol_file = "main-0000-0-a-000000.jsonl"
    for seed in range(60):
        World(seed, compact=compact, collect=collect).run()
    assert [name for name, count in seen.items() if count < 20] == [], seen


def _delete_before_publishing(store, run, lease, *, now, policy):
    """Compaction with the order of its two steps exchanged."""
    view = protocol.list_run(store, run)
    files = policy.due(view)
    pending = {file: view.pending(file) for file in files}
    content = {file: [protocol.read_piece(store, piece) for piece in pending[file]] for file in files}
    store.delete([piece.extent.name for file in files for piece in pending[file]])
    segments = dict(view.manifest.files)
    for file in files:
        data = b"".join(content[file])
        begin, digest = pending[file][0].begin, hashlib.sha256(data).hexdigest()
        name = run.segment(view.manifest.number + 1, file, begin, begin + len(data), digest)
        store.create(name, protocol.pack(data))
        segments[file] = [*segments.get(file, []), protocol.Extent(begin, begin + len(data), name, digest)]
    if files:
        manifest = protocol.Manifest(view.manifest.number + 1, lease.epoch, lease.holder, now, segments)
        store.create(run.manifest(manifest.number), protocol.msgspec.json.encode(manifest))


def _delete_unnamed_segments(store, run, *, now, policy):
    """A collection that takes a segment for unneeded because no manifest names it yet."""
    view = protocol.list_run(store, run)
    named = {segment.name for segments in view.manifest.files.values() for segment in segments}
    store.delete([entry.name for entry in view.segments if entry.name not in named])
    return compaction.collect_run(store, run, now=now, policy=policy)


def _append_where_it_was_sent(store, run, file, offset, data, known_end=None):
    """A batch stored under the offset that its sender gave, whatever is there already."""
    store.create(run.batch(file, offset), data)
    return offset + len(data)


def _append_replacing(store, run, file, offset, data, known_end=None):
    """A batch stored at the known end, replacing what another server has stored there."""
    end = known_end if known_end is not None else protocol.list_run(store, run).end(file)
    if offset > end:
        raise protocol.GapError(end)
    name = run.batch(file, end)
    store.delete([name])
    store.create(name, data[end - offset :])
    return max(end, offset + len(data))


@pytest.mark.parametrize(
    "broken",
    [
        {"compact": _delete_before_publishing},
        {"collect": _delete_unnamed_segments},
        {"append": _append_where_it_was_sent},
        {"append": _append_replacing},
    ],
    ids=lambda broken: next(iter(broken.values())).__name__.strip("_"),
)
def test_simulation_of_a_broken_protocol_finds_the_fault(broken):
    def run(seed):
        try:
            World(seed, **broken).run()
        except (Fault, MissingObjectError, AssertionError):
            return True
        return False

    assert any(run(seed) for seed in range(SEEDS))


@pytest.mark.parametrize("part", range(4))
def test_protocol_deletions_and_collections_remove_no_blob_that_a_run_refers_to(part):
    for seed in range(part, SEEDS // 4, 4):
        try:
            DeletingWorld(seed).run()
        except Fault as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault


def test_simulation_of_deletions_reaches_what_it_is_about():
    """Deleted runs, collected copies, and content that is copied because a new user appeared."""
    seen = dict.fromkeys(("deleted", "collected", "copied"), 0)

    def collect(store, view, is_gone):
        before = sum("/copies/" in name for name in store.objects)
        found = blob_copies.collect_blob(store, view, is_gone)
        seen["copied"] += bool(found) and sum("/copies/" in name for name in store.objects) >= before
        return found

    for seed in range(40):
        world = DeletingWorld(seed, collect_blob=collect)
        world.run()
        seen["deleted"] += len(world.deleted)
        seen["collected"] += world.collected
    assert [name for name, count in seen.items() if count < 3] == [], seen


def _collect_at_once(store, view, is_gone):
    """A collection that deletes blobs that were unused when they were listed."""
    if not all(map(is_gone, view.users)):
        return 0
    store.delete([view.copy(token) for token in view.copies])
    return len(view.copies)


def _collect_without_looking_again(store, view, is_gone):
    """A collection that marks copies, and deletes them although they may have a user by now."""
    if not all(map(is_gone, view.users)):
        return 0
    for token in view.copies:
        store.create(view.mark(token), b"")
    store.delete([view.copy(token) for token in view.copies])
    return len(view.copies)


def _use_after_looking(store, digest, user):
    """A use that is created when the blob was found."""
    found = blob_copies.find_copy(store, digest)
    store.create(blob_copies.BlobView(digest).use(user), b"")
    return found


@pytest.mark.parametrize(
    "broken",
    [
        {"collect_blob": _collect_at_once},
        {"collect_blob": _collect_without_looking_again},
        {"use": _use_after_looking},
    ],
    ids=lambda broken: next(iter(broken.values())).__name__.strip("_"),
)
def test_simulation_of_a_broken_collection_finds_the_fault(broken):
    def run(seed):
        try:
            DeletingWorld(seed, **broken).run()
        except Fault:
            return True
        return False

    assert any(run(seed) for seed in range(SEEDS))


class PlainStore(SimulatedStore):
    """The store without interruptions."""

    def __init__(self, now=1000.0):
        self.objects, self.now = {}, now
        self.world = self

    def give_way(self):
        pass

    def chance(self, probability):
        return False


def test_lease_is_held_by_one_server_until_its_time_and_the_allowance_are_over():
    store, name = PlainStore(), compaction.lease_name(RUN)

    def acquire(holder, now):
        lease = compaction.acquire_lease(store, name, holder, now=now, seconds=60, skew_seconds=15)
        return None if lease is None else (lease.holder, lease.epoch)

    took = [
        acquire("a", 0),
        acquire("b", 30),
        acquire("a", 50),
        acquire("b", 120),
        acquire("b", 126),
        acquire("a", 127),
    ]
    assert took == [("a", 1), None, ("a", 2), None, ("b", 3), None]


def test_lease_of_a_server_that_was_late_is_not_given_although_its_epoch_is_free_again():
    store, name = PlainStore(), compaction.lease_name(RUN)
    real, is_late = store.create, [True]

    def create(created, data):
        if is_late and is_late.pop():  # meanwhile others took the lease several times, and deleted the old epochs
            for now in (1000, 2000, 3000, 4000):
                assert compaction.acquire_lease(store, name, f"other-{now}", now=now)
        return real(created, data)

    store.create = create
    assert compaction.acquire_lease(store, name, "late", now=500) is None


def test_append_repeated_batch_is_acknowledged_and_other_bytes_are_refused():
    store = PlainStore()

    def append(offset, data, known=None):
        try:
            return protocol.append(store, RUN, "f", offset, data, known)
        except (protocol.GapError, protocol.OtherDataError) as error:
            return type(error).__name__

    ends = [
        append(0, b"aa\nbb\n"),
        append(0, b"aa\nbb\n"),
        append(0, b"aa\n"),
        append(3, b"bb\ncc\n"),
        append(3, b"XX\n"),
    ]
    ends += [append(12, b"dd\n"), append(0, b"aa\nbb\ncc\ndd\n", 0), append(None, b"ee\n"), append(None, b"ff\n", 12)]
    assert ends == [6, 6, 6, 9, "OtherDataError", "GapError", 12, 15, 18]
    assert sorted(int(name[-16:]) for name in store.objects) == [0, 6, 9, 12, 15]


def test_append_beyond_a_compaction_by_a_server_that_does_not_know_of_it_is_read_once():
    store = PlainStore()
    lines = [b"%02d\n" % number for number in range(8)]
    for number, line in enumerate(lines[:4]):
        protocol.append(store, RUN, "f", 3 * number, line)
    lease = compaction.Lease(1, "a", 0, 60)
    policy = compaction.CompactionPolicy(min_batches=2, grace_seconds=0)
    assert compaction.compact_run(store, RUN, lease, now=0, policy=policy)
    assert compaction.collect_run(store, RUN, now=2000, policy=policy) == 4
    # It knows the first line only: it stores a batch within what is compacted, and beyond.
    assert protocol.append(store, RUN, "f", 3, b"".join(lines[1:6]), 3) == 18
    assert protocol.append(store, RUN, "f", 18, b"".join(lines[6:]), None) == 24
    view = protocol.list_run(store, RUN)
    assert b"".join(data for _, data in protocol.read_file(store, view, "f", 0)) == b"".join(lines)


def test_segment_that_is_damaged_is_refused():
    store = PlainStore()
    for number in range(3):
        protocol.append(store, RUN, "f", 3 * number, b"%02d\n" % number)
    policy = compaction.CompactionPolicy(min_batches=2)
    manifest = compaction.compact_run(store, RUN, compaction.Lease(1, "a", 0, 60), now=0, policy=policy)
    assert manifest is not None
    name = manifest.files["f"][0].name
    store.objects[name] = (protocol.pack(b"00\n01\nXX\n"), 0.0)
    view = protocol.list_run(store, RUN)
    with pytest.raises(protocol.DamagedStorageError, match="does not have the content that its manifest says"):
        list(protocol.read_file(store, view, "f", 0))


@pytest.mark.parametrize("name", ["plain", "a b/c", "ü" * 100, "x" * 300, "~", "%7E", ".."])
def test_component_of_a_name_is_short_and_plain(name):
    others = ["plain", "a b/c", "ü" * 100, "x" * 300, "~", "%7E", "..", "x" * 301, "ü" * 101]
    found = protocol.component(name)
    assert (found.isascii(), "/" in found, len(found) <= 180) == (True, False, True)
    assert [other for other in others if protocol.component(other) == found] == [name]


def test_names_of_two_servers_are_merged():
    store = PlainStore()
    first, second = protocol.load_names(store, RUN), protocol.load_names(store, RUN)
    assert protocol.add_names(store, RUN, first, ["a", "b"])
    assert not protocol.add_names(store, RUN, second, ["c"])
    assert (second.names, protocol.add_names(store, RUN, second, ["a", "b", "c"])) == (["a", "b"], True)
    for number in range(100):
        assert protocol.add_names(store, RUN, second, [*second.names, f"n{number}"])
    loaded = protocol.load_names(store, RUN)
    assert (loaded.names, loaded.number) == (["a", "b", "c", *(f"n{number}" for number in range(100))], 102)


def test_schedule_names_runs_with_many_batches_and_idle_ones_and_what_is_to_be_deleted():
    store, policy = PlainStore(), compaction.CompactionPolicy(min_batches=3, grace_seconds=100.0)
    schedule, lease = compaction.CompactionSchedule(policy), compaction.Lease(1, "a", 0, 60)

    def add(count):
        for _ in range(count):
            protocol.append(store, RUN, "f", None, b"x\n")
            schedule.note_batch(RUN, 1000.0)

    due = [schedule.due(1000.0)]
    add(2)
    due += [schedule.due(1000.0), schedule.due(1101.0)]  # few, until nothing more comes
    add(1)
    due.append(schedule.due(1000.0))
    compaction.compact_run(store, RUN, lease, now=1000, policy=policy)
    schedule.note(protocol.list_run(store, RUN), 1000.0, is_fresh=True)
    due += [schedule.due(1050.0), schedule.due(1101.0)]  # the batches stay for a while
    compaction.collect_run(store, RUN, now=1101, policy=policy)
    schedule.note(protocol.list_run(store, RUN), 1101.0, is_fresh=True)
    due.append(schedule.due(9999.0))
    assert due == [[], [], [(RUN, True)], [(RUN, False)], [], [(RUN, True)], []]

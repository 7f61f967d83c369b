"""A simulation of servers that share an object store: the functions of the protocol run as they are, on a store that
interrupts them at every call.

Everything that happens follows from a seed. At each call of the store another actor may run first; the process may be
killed before or after the effect; the answer may be lost, so that the caller sees an error although the object exists,
or the client of the store repeats the request and finds its own object. A listing comes in pages, between which others
run. Clocks are off by up to a minute, and leases are therefore held by two servers at times.
"""

import contextlib
import hashlib
import random
from dataclasses import dataclass, field
from functools import partial

from greenlet import getcurrent, greenlet

from hookline.server.storage import blob_copies, compaction, protocol
from hookline.server.storage.objects import Entry, MissingObjectError, StorageError

RUN = protocol.RunObjects.of("p", "r")


class Killed(BaseException):
    """Thrown into an actor where its process is killed."""


class Fault(AssertionError):
    """A violated guarantee: acknowledged bytes that cannot be read, or bytes that were never sent."""


class SimulatedStore:
    """The store, in memory; each call gives way to the other actors."""

    def __init__(self, world):
        self.world, self.objects = world, {}

    def create(self, name, data):
        self._before()
        is_new = name not in self.objects
        if is_new:
            self.objects[name] = (data, self.world.now)
        if is_new and self.world.chance(0.05):
            is_new = False  # the answer was lost, and the client repeated the request
        self._after()
        return is_new

    def get(self, name):
        self._before()
        if name not in self.objects:
            raise MissingObjectError(name)
        data = self.objects[name][0]
        self._after()
        return data

    def size(self, name):
        self._before()
        size = len(self.objects[name][0]) if name in self.objects else None
        self._after()
        return size

    def list(self, prefix, start_after=""):
        last = start_after
        while True:
            self._before()
            names = sorted(name for name in self.objects if name.startswith(f"{prefix}/") and name > last)[:3]
            page = [Entry(name, len(self.objects[name][0]), self.objects[name][1]) for name in names]
            self._after()
            yield from page
            if not names:
                return
            last = names[-1]

    def delete(self, names):
        for name in names:  # one by one: a killed server has deleted some of them
            self._before()
            self.objects.pop(name, None)
        self._after()

    def _before(self):
        self.world.give_way()
        if self.world.chance(0.01):
            raise StorageError("not reached")

    def _after(self):
        if self.world.chance(0.02):
            raise StorageError("the answer was lost")
        self.world.give_way()


@dataclass
class Server:
    """What a server knows by itself: it may be old, and is lost when it is killed."""

    skew: float
    ends: dict = field(default_factory=dict)
    lease: compaction.Lease | None = None


class World:
    """The actors, one of which runs at a time.

    Args:
        lines: How many lines each sender has.
        compact: Joins batches; a test may give a wrong one.
        collect: Deletes objects.
    """

    def __init__(
        self,
        seed,
        *,
        files=2,
        lines=16,
        kill=0.01,
        append=protocol.append,
        compact=compaction.compact_run,
        collect=compaction.collect_run,
    ):
        self.random, self.kill, self.now = random.Random(seed), kill, 1000.0
        self.append, self.compact, self.collect = append, compact, collect
        self.store = SimulatedStore(self)
        self.hub = getcurrent()
        self.actors = []
        self.is_over = False
        spread = self.random.choice((0.1, 2.0, 60.0))
        self.servers = [Server(self.random.uniform(-spread, spread)) for _ in range(3)]
        self.lease_seconds = self.random.choice((0.5, 5.0))
        self.policy = compaction.CompactionPolicy(
            min_batches=self.random.choice((1, 2, 3)),
            segment_bytes=self.random.choice((20, 60, 1000)),
            grace_seconds=self.random.choice((0.0, 5.0, 60.0)),
        )
        self.journals = {
            f"main-0000-{n}-a-000000.jsonl": [
                b"%d:%d:%s\n" % (n, line, b"x" * self.random.randrange(6)) for line in range(lines)
            ]
            for n in range(files)
        }
        self.acknowledged = dict.fromkeys(self.journals, 0)

    def chance(self, probability):
        return not self.is_over and self.random.random() < probability

    def give_way(self):
        """Let another actor run; this one may be killed here."""
        if self.is_over:
            return
        self.now += self.random.expovariate(2.0)
        self.hub.switch()
        if getcurrent().is_mortal and self.chance(self.kill):
            raise Killed

    def start(self, work, *, is_mortal=True):
        actor = greenlet(self._guarded(work), parent=self.hub)
        actor.is_mortal = is_mortal
        self.actors.append(actor)
        return actor

    def _guarded(self, work):
        def run():
            with contextlib.suppress(Killed, StorageError, MissingObjectError):
                work()

        return run

    def run(self):
        """Run until everything is sent, and check what is there."""
        senders = [self.start(lambda file=file: self.send(file), is_mortal=False) for file in self.journals]
        for server in self.servers[:2]:
            self.start(lambda server=server: self.keep_compacting(server), is_mortal=False)
        self.start(self.keep_reading, is_mortal=False)
        steps = 0
        while any(not sender.dead for sender in senders):
            self.actors = [actor for actor in self.actors if not actor.dead]
            self.random.choice(self.actors).switch()
            steps += 1
            assert steps < 50_000, "it never ends"
        for _ in range(self.random.randrange(400)):  # requests and compactions that are still under way
            self.actors = [actor for actor in self.actors if not actor.dead]
            self.random.choice(self.actors).switch()
        self.is_over = True
        try:
            self.check(dict(self.acknowledged), is_complete=True)
        except (StorageError, MissingObjectError) as error:
            raise Fault(f"nobody is at it, and it cannot be read: {error}") from error
        return steps

    def send(self, file):
        """Send a journal through any server, and again what was not acknowledged, perhaps cut elsewhere."""
        lines = self.journals[file]
        whole = b"".join(lines)
        offset = None
        while offset != len(whole):
            server = self.random.choice(self.servers)
            if offset is None or self.chance(0.1):
                offset = self._ask(file)
                continue
            starts = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
            first = starts.index(offset)
            last = self.random.randint(first + 1, min(len(lines), first + 4))
            answer = self._request(server, file, offset, whole[offset : starts[last]])
            if isinstance(answer, int):
                self.acknowledged[file] = max(self.acknowledged[file], answer)
            offset = answer

    def _ask(self, file):
        try:
            return protocol.list_run(self.store, RUN).end(file)
        except StorageError:
            return None

    def _request(self, server, file, offset, data):
        """Send a batch; None if the server was killed or did not answer in time: it may still work on it."""
        answers = []

        def handle():
            try:
                end = self.append(self.store, RUN, file, offset, data, server.ends.get(file))
            except protocol.GapError as gap:
                end = gap.end
            except Killed:
                server.ends.clear()
                raise
            if server.ends.get(file, 0) <= end:
                server.ends[file] = end
            answers.append(end)

        request = self.start(handle)
        while not request.dead:
            if self.chance(0.01):
                return None
            self.hub.switch()
        return answers[0] if answers else None

    def keep_compacting(self, server):
        while not self.is_over:
            work = self.start(lambda: self._compact_once(server))
            while not work.dead and not self.chance(0.005):
                self.hub.switch()
            self.hub.switch()

    def _compact_once(self, server):
        holder, now = f"server-{self.servers.index(server)}", self.now + server.skew
        if server.lease is None or not self.chance(0.3):  # otherwise it was suspended, and believes that it holds it
            server.lease = compaction.acquire_lease(
                self.store, compaction.lease_name(RUN), holder, now=now, seconds=self.lease_seconds, skew_seconds=1.0
            )
        if server.lease is not None:
            self.compact(self.store, RUN, server.lease, now=now, policy=self.policy)
            self.collect(self.store, RUN, now=self.now + server.skew, policy=self.policy)

    def keep_reading(self):
        while not self.is_over:
            with contextlib.suppress(StorageError, MissingObjectError):
                self.check(dict(self.acknowledged))
            self.hub.switch()

    def check(self, acknowledged, *, is_complete=False):
        """Read everything, as a new server would, and compare it with what was sent and acknowledged before."""
        view = protocol.list_run(self.store, RUN)
        for file, lines in self.journals.items():
            whole = b"".join(lines)
            content, place = b"", 0
            for offset, data in protocol.read_file(self.store, view, file, 0):
                if offset != place:
                    raise Fault(f"read {offset}, not {place}")
                content, place = content + data, place + len(data)
            if content != whole[: len(content)]:
                raise Fault(f"{file} has {content!r}, not {whole!r}")
            if len(content) < acknowledged[file] or (is_complete and content != whole):
                raise Fault(f"{file} has {len(content)} of {acknowledged[file]} acknowledged bytes")


class DeletingWorld(World):
    """Runs that refer to a few blobs which they share, deletions of runs, and collections of unused blobs.

    Args:
        use: Notes a use, and returns a copy; a test may give a wrong one.
        collect_blob: Deletes unused copies.
    """

    def __init__(self, seed, *, use=blob_copies.use_blob, collect_blob=blob_copies.collect_blob):
        super().__init__(seed, files=0)
        self.use, self.collect_blob = use, collect_blob
        self.runs = [protocol.RunObjects.of("p", f"r{number}") for number in range(4)]
        self.blobs = {hashlib.sha256(content).hexdigest(): content for content in (b"one", b"two", b"three", b"four")}
        self.sent = {run: [] for run in self.runs}
        self.referred = {run: set() for run in self.runs}
        self.deleted = set()
        self.collected = 0

    def run(self):
        """Run until everything is sent or deleted, and check what is left."""
        senders = [self.start(lambda run=run: self.send_run(run), is_mortal=False) for run in self.runs]
        doomed = self.random.sample(self.runs, self.random.randint(1, 3))
        deleters = [self.start(lambda run=run: self.delete(run), is_mortal=False) for run in doomed]
        for server in self.servers:
            self.start(lambda server=server: self.keep_collecting(), is_mortal=False)
        steps = 0
        while any(not each.dead for each in (*senders, *deleters)):
            self._step()
            steps += 1
            assert steps < 50_000, "it never ends"
        for _ in range(self.random.randrange(400)):
            self._step()
        self.is_over = True
        while any(not actor.dead for actor in self.actors):  # requests and collections that are still under way
            self._step()
        self.check_end()

    def _step(self):
        self.actors = [actor for actor in self.actors if not actor.dead]
        self.random.choice(self.actors).switch()
        self.check_runs()

    def attempt(self, work):
        """Do something on a server that may be killed; returns its result, or None."""
        found = []
        actor = self.start(lambda: found.append(work()))
        while not actor.dead:
            if self.chance(0.01):
                return None  # it may still be at it
            self.hub.switch()
        return found[0] if found else None

    def send_run(self, run):
        """Send lines that refer to blobs, each after its blob; ends early if the run is deleted."""
        file = "main-0000-0-a-000000.jsonl"
        claim = protocol.Claim("origin", "p", run.prefix[-2:])
        while self.attempt(lambda: self._or_deleted(lambda: protocol.claim_run(self.store, run, claim))) is None:
            pass
        offset = 0
        for number in range(4):
            digest = self.random.choice(list(self.blobs))
            line = b'{"blob":"%s","n":%d}\n' % (digest.encode(), number)
            while self.attempt(lambda digest=digest: self._send_blob(run, digest)) is None:
                pass
            # A server may rely on what it knows, although the run is deleted.
            known = self.random.choice((None, offset))
            append = partial(protocol.append, self.store, run, file, offset, line, known)
            while (end := self.attempt(lambda append=append: self._or_deleted(append))) is None:
                pass
            if end == "deleted":
                return
            offset = end
            self.sent[run].append(line)
            self.referred[run].add(digest)

    def _send_blob(self, run, digest):
        if self.use(self.store, digest, run.prefix) is None:
            self.store.create(blob_copies.new_copy(digest), self.blobs[digest])
            return "sent"
        return "there"

    def _or_deleted(self, work):
        try:
            return work()
        except (protocol.DeletedRunError, protocol.GapError):
            return "deleted"

    def delete(self, run):
        for _ in range(self.random.randrange(150)):
            self.hub.switch()
        deletion = protocol.Deletion("p", run.prefix[-2:])
        while self.attempt(lambda: protocol.delete_run(self.store, run, deletion)) is None:
            pass

    def keep_collecting(self):
        while not self.is_over:
            self.attempt(self.collect_all)
            self.hub.switch()

    def collect_all(self):
        for view in list(blob_copies.group_blobs(self.store.list(blob_copies.BLOBS))):
            self.collected += self.collect_blob(self.store, view, lambda user: protocol.is_deleted(self.store, user))
        return True

    def check_runs(self):
        """At any moment: the blobs of a living run are there, and a deleted run stays deleted."""
        for run in self.runs:
            if run.deleted in self.store.objects:
                self.deleted.add(run)
            elif run in self.deleted:
                raise Fault(f"{run.prefix} is back")
            else:
                for digest in self.referred[run]:
                    prefix = f"{blob_copies.BlobView(digest).prefix}/copies/"
                    copies = {data for name, (data, _) in self.store.objects.items() if name.startswith(prefix)}
                    if copies != {self.blobs[digest]}:
                        raise Fault(f"{run.prefix} refers to {self.blobs[digest]!r}, of which there is {copies}")

    def check_end(self):
        """Nobody is at it: deleted runs and unused blobs go, and the others are whole."""
        for run in self.runs:
            view = protocol.list_run(self.store, run)
            if view.deleted is not None:
                protocol.remove_leftovers(self.store, view)
                left = [name for name in self.store.objects if name.startswith(f"{run.prefix}/")]
                if left != [run.deleted]:
                    raise Fault(f"{left} is left of {run.prefix}")
                continue
            content = b"".join(data for file in view.files for _, data in protocol.read_file(self.store, view, file, 0))
            if content != b"".join(self.sent[run]):
                raise Fault(f"{run.prefix} has {content!r}, not {self.sent[run]!r}")
        for _ in range(2):
            self.collect_all()
        living = {run.prefix for run in self.runs if run not in self.deleted}
        for digest in self.blobs:
            blob = blob_copies.list_blob(self.store, digest)
            if blob.copies and not living & set(blob.users):
                raise Fault(f"{self.blobs[digest]!r} is still there, for {blob.users}")
        self.check_runs()

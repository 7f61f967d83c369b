"""`StoredRuns` and `ObjectBlobs`: store received runs and blobs in an object store.

They store first and answer the sender afterwards. The local copy is updated immediately if possible, otherwise soon by
the `Mirror`. Faults of the local disk do not affect senders.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hookline.server.limits import check_file, check_name, merge_names, metric_names, too_many_names_error
from hookline.server.received_blobs import (
    BlobPart,
    BlobRefusal,
    BlobsRefusedError,
    MissingBlobs,
    ReceivedBlobs,
    StoredBlobs,
    check_parts,
    other_content,
)
from hookline.server.received_runs import (
    ConflictError,
    ReceivedRuns,
    check_facts,
    check_lines,
    taken_error,
    unclaimed_error,
)
from hookline.server.storage import protocol
from hookline.server.storage.protocol import Claim, KnownNames, RunObjects

if TYPE_CHECKING:
    from hookline.server.storage.service import Storage


@dataclass(frozen=True, slots=True)
class StoredRuns(ReceivedRuns):
    """Stores received runs in an object store, and in a local copy below ``root``."""

    storage: "Storage" = field(kw_only=True)

    def claim(
        self, project: str, run: str, origin: str, facts: bytes, *, own_blobs_only: bool = False
    ) -> dict[str, int]:
        check_facts(facts)
        objects = self._objects(project, run)
        claim = self._claim_object(objects, project, run, origin, own_blobs_only=own_blobs_only)
        self.storage.objects.put(objects.facts, facts)
        view = protocol.list_run(self.storage.objects, objects)
        ends = dict(protocol.ends_of(view))
        self.storage.note_ends(objects, ends)
        with self._local(objects):
            local = super(StoredRuns, self).claim(project, run, origin, facts, own_blobs_only=claim.own_blobs_only)
            if local != ends:
                self.storage.request_sync(objects)
        return ends

    def append(self, project: str, run: str, file: str, *, origin: str, offset: int | None, lines: bytes) -> int:
        check_lines(lines)
        check_file(file)
        names = metric_names(lines)
        objects = self._objects(project, run)
        self._require_owner(objects, project, run, origin)
        self._add_names(objects, names)
        return self._store(objects, project, run, file, origin=origin, offset=offset, lines=lines)

    def replace(self, project: str, run: str, file: str, *, origin: str, content: bytes) -> int:
        check_file(file)
        objects = self._objects(project, run)
        self._require_owner(objects, project, run, origin)
        self.storage.objects.put(objects.whole(file), content)
        with self._local(objects):
            super(StoredRuns, self).replace(project, run, file, origin=origin, content=content)
        return len(content)

    def describe(self, project: str, run: str, *, origin: str, facts: bytes) -> None:
        check_facts(facts)
        objects = self._objects(project, run)
        self._require_owner(objects, project, run, origin)
        self.storage.objects.put(objects.facts, facts)
        with self._local(objects):
            super(StoredRuns, self).describe(project, run, origin=origin, facts=facts)

    def heartbeat(self, project: str, run: str, *, origin: str, every_seconds: float) -> None:
        objects = self._objects(project, run)
        claim = self._require_owner(objects, project, run, origin)
        self.storage.note_contact(objects, claim, every_seconds=every_seconds)

    @contextlib.contextmanager
    def owned(self, project: str, run: str, *, origin: str) -> Iterator[int]:
        objects = self._objects(project, run)
        claim = self._require_owner(objects, project, run, origin)
        if not (self.root / project / run).is_dir():
            self.storage.mirror.sync(objects)
        with super(StoredRuns, self).owned(project, run, origin=origin) as directory:
            yield directory
        self.storage.note_contact(objects, claim)

    def append_or_create(self, project: str, run: str, *, origin: str, file: str, facts: bytes, lines: bytes) -> int:
        names = metric_names(lines)
        objects = self._objects(project, run)
        self._claim_object(objects, project, run, origin)
        if not (self.root / project / run).is_dir():
            self.storage.objects.create(objects.facts, facts)
            self.storage.mirror.sync(objects)
        self._add_names(objects, names)
        return self._store(objects, project, run, file, origin=origin, offset=None, lines=lines)

    def refresh(self, project: str, run: str) -> None:
        self.storage.mirror.sync(self._objects(project, run))

    def stored_size(self, project: str, run: str, *, origin: str, file: str) -> int:
        objects = self._objects(project, run)
        if not (self.root / project / run).is_dir():
            self.storage.mirror.sync(objects)
        return super(StoredRuns, self).stored_size(project, run, origin=origin, file=file)

    def _objects(self, project: str, run: str) -> RunObjects:
        return RunObjects.of(check_name("project", project), check_name("run", run))

    def _claim_object(
        self, objects: RunObjects, project: str, run: str, origin: str, *, own_blobs_only: bool = False
    ) -> Claim:
        claim = self.storage.mirror.claims.get(objects)
        if claim is None:
            own = Claim(origin, project, run, self.clock(), own_blobs_only)
            try:
                claim = protocol.claim_run(self.storage.objects, objects, own)
            except protocol.DeletedRunError:
                raise _deleted_error(project, run) from None
            self.storage.mirror.claims.set(objects, claim)
        self._check_claim(claim, project, run, origin)
        return claim

    def _require_owner(self, objects: RunObjects, project: str, run: str, origin: str) -> Claim:
        claim = self.storage.mirror.claim_of(objects)
        if claim is None:
            raise unclaimed_error(project, run)
        self._check_claim(claim, project, run, origin)
        return claim

    def _check_claim(self, claim: Claim, project: str, run: str, origin: str) -> None:
        if (claim.origin, claim.project, claim.run) != (origin, project, run):
            raise taken_error(project, run, "a run of another sender")

    def _add_names(self, objects: RunObjects, names: Mapping[str, None]) -> None:
        known = self.storage.names.get(objects)
        if known is not None and names.keys() <= set(known.names):
            return
        with self.storage.names_lock(objects):
            known = self.storage.names.get(objects)
            if known is None:
                known = protocol.load_names(self.storage.objects, objects)
            # Changed as a copy: other threads read it without the lock.
            known = KnownNames(known.number, known.names)
            while True:
                merged, are_all = merge_names(known.names, names)
                if merged == known.names or protocol.add_names(self.storage.objects, objects, known, merged):
                    break
            self.storage.names.set(objects, known)
        if not are_all:
            raise too_many_names_error(merged)

    def _store(
        self, objects: RunObjects, project: str, run: str, file: str, *, origin: str, offset: int | None, lines: bytes
    ) -> int:
        known = self.storage.known_end(objects, file)
        try:
            end = protocol.append(self.storage.objects, objects, file, offset, lines, known)
        except protocol.GapError as error:
            self.storage.note_ends(objects, {file: error.end})
            raise ConflictError(
                f"{file} ends at byte {error.end:,}: continue there, not at {offset:,}.", offset=error.end
            ) from None
        except protocol.OtherDataError as error:
            raise ConflictError(str(error), conflict=True) from None
        except protocol.DeletedRunError:
            self.storage.forget_run(objects)
            raise _deleted_error(project, run) from None
        except BaseException:
            self.storage.forget_end(objects, file)  # it may be stored or not
            raise
        self.storage.note_batch(objects, file, end)
        begin = end - len(lines) if offset is None else offset
        with self._local(objects):
            size = self.write_lines(project, run, file, origin=origin, offset=begin, lines=lines)
            if size < end:
                self.storage.request_sync(objects)
        return end

    @contextlib.contextmanager
    def _local(self, objects: RunObjects) -> Iterator[None]:
        """Changes the local copy; if that fails, it is updated later."""
        try:
            yield
        except (ConflictError, OSError):
            self.storage.request_sync(objects)


def _deleted_error(project: str, run: str) -> ConflictError:
    return ConflictError(f"{project}/{run} was deleted: use another name or another project.", taken=True)


@dataclass(slots=True)
class ObjectBlobs(ReceivedBlobs):
    """Stores received blobs in an object store: ``blobs/<two digits>/<digest>``.

    The pieces of a blob are gathered in ``incoming/<origin>/<digest>/<offset>``, because they may arrive at several
    servers. The one that stores the last piece verifies the blob.

    Blobs are shared by all runs of the store. Which of them a run with a token for some projects has sent itself is
    noted in the store, for all servers, and in the local copy of the run.
    """

    storage: "Storage" = field(kw_only=True)

    def missing(
        self, project: str, run: str, *, origin: str, sizes: Mapping[str, int], own_only: bool = False
    ) -> MissingBlobs:
        reply = MissingBlobs({}, {})
        objects = RunObjects.of(project, run)
        with self.runs.owned(project, run, origin=origin) as directory:
            used = self.runs.blob_bytes(directory)
            lacking = set(self.storage.blobs.lacking(sizes, objects.prefix))
            is_limited = self.runs.sent_blobs(directory).is_limited
            if own_only or is_limited:
                sent = self.storage.sent_blobs(objects)
                if own_only:
                    lacking.update(digest for digest in sizes if digest not in sent)
                else:  # a token for all projects may let the run refer to any blob
                    self._note_sent(objects, directory, [each for each in sizes if each not in lacking | sent])
            held = self.storage.blobs.incoming(origin) if lacking else {}
            for digest, size in sizes.items():
                if digest not in lacking:
                    continue
                begun = held.get(digest, 0) if held.get(digest, 0) <= size else 0
                refusal = self.refusal(size, size - begun, used)
                if refusal is None:
                    reply.missing[digest] = begun
                else:
                    reply.refused[digest] = refusal
        return reply

    def receive(
        self,
        project: str,
        run: str,
        *,
        origin: str,
        parts: Sequence[BlobPart],
        content: memoryview,
        own_only: bool = False,
    ) -> StoredBlobs:
        check_parts(parts, content)
        blobs, stored, refused = self.storage.blobs, dict[str, int](), dict[str, BlobRefusal]()
        whole: dict[str, bytes] = {}
        objects = RunObjects.of(project, run)
        with self.runs.owned(project, run, origin=origin) as directory:
            used, written, start = self.runs.blob_bytes(directory), 0, 0
            lacking = set(blobs.lacking([part.digest for part in parts], objects.prefix))
            is_noted = own_only or self.runs.sent_blobs(directory).is_limited
            sent = self.storage.sent_blobs(objects) if is_noted else set[str]()
            for part in parts:
                piece = bytes(content[start : start + part.length])
                start += part.length
                digest = part.digest
                if digest not in lacking and (not own_only or digest in sent):
                    stored[digest] = part.size
                elif (refusal := self.refusal(part.size, part.length, used + written)) is not None:
                    refused[digest] = refusal
                elif part.length < part.size:
                    end, new = blobs.add_piece(origin, digest, part.offset, piece, part.size)
                    written += new
                    if end == part.size and not blobs.complete(origin, digest, objects.prefix):
                        refused[digest] = other_content()
                    else:
                        stored[digest] = end
                elif hashlib.sha256(piece).hexdigest() == digest:
                    whole[digest] = piece
                    written += part.length
                else:
                    refused[digest] = other_content()
            blobs.add({digest: piece for digest, piece in whole.items() if digest in lacking}, objects.prefix)
            stored |= {digest: len(piece) for digest, piece in whole.items()}
            if is_noted:  # only now, when they are verified and stored
                complete = {part.digest for part in parts if stored.get(part.digest) == part.size}
                self._note_sent(objects, directory, sorted(complete - sent))
            self.runs.add_blob_bytes(directory, written)
        if refused:
            raise BlobsRefusedError(stored, refused)
        return StoredBlobs(stored)

    def _note_sent(self, objects: RunObjects, directory: int, digests: Sequence[str]) -> None:
        for digest in digests:
            self.storage.objects.create(objects.sent(digest), b"")
        known = self.runs.sent_blobs(directory).digests
        self.runs.add_sent_blobs(directory, [digest for digest in digests if digest not in known])

"""The protocol of a shared object store: the objects, the meaning of their names, and how a batch is added.

Below ``runs/<project>/<run>/`` a run has:

- ``claim``: the sender that owns the run. Created once.
- ``run.json`` and ``whole/<file>``: files that are replaced as a whole. The last write counts.
- ``journal/<file>/<offset>``: a batch, the bytes of a journal file from an offset on. Created once, so its name is the
  idempotency key: of several servers that receive the same bytes, one stores them.
- ``names/<n>``: metric names that the n-th change added, for their limit.
- ``manifest/<n>`` and ``segments/<n>/...``: batches that were joined; see `hookline.server.storage.compaction`.
- ``sent/<digest>``: a blob that the sender has sent itself, where that matters; see `hookline.server.storage.blobs`.
- ``deleted``: the run is permanently deleted: any other objects are leftovers, and its name is not used again.

Guarantees, even if servers crash, stall, or see an old listing:

- The stored part of a file is everything readable from offset 0 without a gap, from segments and batches. A server adds
  a batch only at the end of the part that it knows. If its knowledge is old, that is the end of an earlier part: either
  there is a batch of that name already, and the server looks again; or it was deleted because a manifest covers it, and
  the new one begins within the stored part. Readers take from each object only the bytes that they do not have yet. So
  nothing is duplicated, and acknowledged data is never behind a gap.
- A batch counts as stored when its object exists. `append` returns only then.
- A run is deleted when its ``deleted`` exists. It is created first and never removed. If a server does not know of it
  and adds an object to the run, no reader uses the object, and the next collection removes it.

Everything here works on an `ObjectStore`, without threads, clocks and files of its own.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec

from hookline._engine.errors import HooklineError, OptionError
from hookline.server.storage.objects import DamagedStorageError, Entry, MissingObjectError, ObjectStore, StorageError

RUNS = "runs"
DIGITS = 16
"""Offsets have at most 53 bits; padded, they are listed in their order."""
_NUMBER_DIGITS = 10
_COMPONENT = 180
"""A longer name becomes its beginning and a digest: S3 allows 1,024 bytes for all parts together, file systems 255 for
each."""
_FILE_COMPONENT = 250
_ATTEMPTS = 20
_WHOLE_NAMES = 64
"""After this many changes, all metric names are written again, so that a reader needs few objects."""
_MAX_UNPACKED = 256 << 20


T = TypeVar("T")


class GapError(HooklineError, RuntimeError):
    """A batch begins beyond the end of the stored part, which is ``end``."""

    def __init__(self, end: int) -> None:
        super().__init__(f"The file ends at byte {end:,}.")
        self.end = end


class OtherDataError(HooklineError, RuntimeError):
    """Other bytes are stored already."""


class DeletedRunError(HooklineError, RuntimeError):
    """The run is deleted, and nothing can be added to it."""

    def __init__(self, run: "RunObjects") -> None:
        super().__init__(f"{run.prefix} is deleted; its name is not given again. Use another name.")


def component(name: str) -> str:
    """Return a name as a part of an object's name; different names stay different."""
    quoted = quote(name, safe="").replace("~", "%7E")
    if len(quoted) <= _COMPONENT:
        return quoted
    digest = hashlib.blake2s(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{quoted[: _COMPONENT - 40].rpartition('%')[0] or quoted[: _COMPONENT - 40]}~{digest}"


def file_component(file: str) -> str:
    """The name of a file as a part of an object's name, from which it can be read again.

    Raises:
        OptionError: It is too long.
    """
    quoted = quote(file, safe="").replace("~", "%7E")
    if len(quoted) > _FILE_COMPONENT:
        raise OptionError(f"file={file!r:.80} is too long for an object store: use a shorter name for its writer.")
    return quoted


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None


@dataclass(frozen=True, slots=True)
class RunObjects:
    """The names of a run's objects.

    Args:
        prefix: ``runs/<project>/<run>``.
    """

    prefix: str

    @classmethod
    def of(cls, project: str, run: str) -> "RunObjects":
        """Those of a run by its names."""
        return cls(f"{RUNS}/{component(project)}/{component(run)}")

    def names_of(self) -> tuple[str, str] | None:
        """The names of the project and the run; None if they are too long to be read from the prefix."""
        _, project, run = self.prefix.split("/")
        return None if "~" in self.prefix else (unquote(project), unquote(run))

    @property
    def project(self) -> str:
        """The part of the name that stands for the project."""
        return self.prefix.split("/")[1]

    @property
    def claim(self) -> str:
        """The name of the claim."""
        return f"{self.prefix}/claim"

    @property
    def deleted(self) -> str:
        """The name of the object that marks the run as deleted."""
        return f"{self.prefix}/deleted"

    def sent(self, digest: str = "") -> str:
        """The name for a blob that the sender has sent itself, or of the folder of all of them."""
        return f"{self.prefix}/sent/{digest}".rstrip("/")

    @property
    def facts(self) -> str:
        """The name of the ``run.json``."""
        return f"{self.prefix}/run.json"

    def whole(self, file: str) -> str:
        """The name of a file that is replaced whole."""
        return f"{self.prefix}/whole/{file_component(file)}"

    def batch(self, file: str, offset: int) -> str:
        """The name of the batch of a journal file at an offset."""
        return f"{self.prefix}/journal/{file_component(file)}/{offset:0{DIGITS}}"

    def names(self, number: int) -> str:
        """The name of a change of the metric names."""
        return f"{self.prefix}/names/{number:0{_NUMBER_DIGITS}}"

    def manifest(self, number: int) -> str:
        """The name of a manifest."""
        return f"{self.prefix}/manifest/{number:0{_NUMBER_DIGITS}}"

    def segment(self, number: int, file: str, first: int, end: int, digest: str) -> str:
        """The name of a segment that a manifest introduces."""
        place = f"{first:0{DIGITS}}-{end:0{DIGITS}}-{digest[:16]}"
        return f"{self.prefix}/segments/{number:0{_NUMBER_DIGITS}}/{file_component(file)}/{place}"


class Extent(NamedTuple):
    """A part of a file, in a batch or, with a digest of its content, in a segment."""

    first: int
    end: int
    name: str
    digest: str = ""


class Piece(NamedTuple):
    """The part of an extent to read: its bytes from ``begin`` on, which is an offset in the file."""

    begin: int
    extent: Extent


def contiguous(extents: Iterable[Extent], start: int = 0) -> list[Piece]:
    """Return the pieces that give a file from an offset on, each byte once, up to the first gap."""
    pieces, end = [], start
    for extent in sorted(extents):
        if extent.first > end:
            break
        if extent.end > end:
            pieces.append(Piece(end, extent))
            end = extent.end
    return pieces


class Manifest(msgspec.Struct, frozen=True):
    """Which segments hold the beginning of each file of a run.

    Attributes:
        epoch: That of the lease under which it was published.
        published: In seconds since 1970, by the clock of the server.
    """

    number: int = 0
    epoch: int = 0
    holder: str = ""
    published: float = 0.0
    files: dict[str, list[Extent]] = {}

    def end(self, file: str) -> int:
        """Return the offset up to which segments hold a file."""
        segments = self.files.get(file)
        return segments[-1].end if segments else 0


class Claim(msgspec.Struct, frozen=True):
    """The owner of a run, and its names, which an object's name may have shortened.

    Attributes:
        own_blobs_only: The run was claimed with a token for some projects, so it may refer to no blobs of others.
    """

    origin: str
    project: str
    run: str
    received: float = 0.0
    own_blobs_only: bool = False


class Deletion(msgspec.Struct, frozen=True):
    """The mark of a deleted run, with its names, which an object's name may have shortened."""

    project: str
    run: str


@dataclass(slots=True)
class RunView:
    """The listing of a run.

    Attributes:
        deleted: Exists if the run is deleted; then only ``leftovers`` is set, the names of other objects.
        sent: The digests of the blobs that its sender has sent itself.
        batches: The batches of each file.
        manifests: The manifests by their number.
        segments: All segments, also those that no manifest names.
        manifest: The latest one.
        newest: The last time that its sender sent something, by the store's clock.
    """

    objects: RunObjects
    claim: Entry | None = None
    facts: Entry | None = None
    whole: dict[str, Entry] = field(default_factory=dict)
    batches: dict[str, list[Extent]] = field(default_factory=dict)
    manifests: dict[int, Entry] = field(default_factory=dict)
    segments: list[Entry] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    manifest: Manifest = field(default_factory=Manifest)
    newest: float = 0.0
    deleted: Entry | None = None
    leftovers: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The journal files."""
        return sorted({*self.batches, *self.manifest.files})

    def pieces(self, file: str, start: int = 0) -> list[Piece]:
        """Return the pieces that give a file from an offset on."""
        return contiguous([*self.manifest.files.get(file, []), *self.batches.get(file, [])], start)

    def end(self, file: str) -> int:
        """The size of the stored part of a file."""
        covered = self.manifest.end(file)
        pieces = contiguous(self.batches.get(file, []), covered)
        return pieces[-1].extent.end if pieces else covered

    def pending(self, file: str) -> list[Piece]:
        """The batches behind the segments of a file."""
        return contiguous(self.batches.get(file, []), self.manifest.end(file))


def parse_listing(run: RunObjects, entries: Iterable[Entry]) -> RunView:
    """Sort the objects of a run by kind; unknown names are ignored."""
    entries = list(entries)
    deleted = next((entry for entry in entries if entry.name == run.deleted), None)
    if deleted is not None:
        return RunView(run, deleted=deleted, leftovers=[each.name for each in entries if each is not deleted])
    view = _parse_objects(run, entries)
    folder = run.sent() + "/"
    view.sent = [entry.name.removeprefix(folder) for entry in entries if entry.name.startswith(folder)]
    return view


def _parse_objects(run: RunObjects, entries: Iterable[Entry]) -> RunView:
    view = RunView(run)
    for entry in entries:
        parts = entry.name.removeprefix(f"{run.prefix}/").split("/")
        number = _number(parts[-1])
        if parts[0] in ("claim", "run.json", "whole", "journal"):
            view.newest = max(view.newest, entry.modified)
        match parts:
            case ["claim"]:
                view.claim = entry
            case ["run.json"]:
                view.facts = entry
            case ["whole", file]:
                view.whole[unquote(file)] = entry
            case ["journal", file, _] if number is not None:
                extent = Extent(number, number + entry.size, entry.name)
                view.batches.setdefault(unquote(file), []).append(extent)
            case ["manifest", _] if number is not None:
                view.manifests[number] = entry
            case ["names", _] if number is not None:
                view.names.append(number)
            case ["segments", *_]:
                view.segments.append(entry)
    view.names.sort()
    return view


def read_manifest(objects: ObjectStore, run: RunObjects, number: int) -> Manifest:
    """Read a manifest.

    Raises:
        MissingObjectError: It is deleted.
    """
    return _decode(objects.get(run.manifest(number)), Manifest, run.manifest(number))


def list_run(objects: ObjectStore, run: RunObjects, entries: Iterable[Entry] | None = None) -> RunView:
    """List a run, unless its listing is given, and read its latest manifest.

    Batches outlive the manifest that covers them by a grace time, which is longer than a listing takes: one that is
    missing from the listing is in the manifest that is read afterwards.
    """
    for _ in range(_ATTEMPTS):
        view = parse_listing(run, objects.list(run.prefix) if entries is None else entries)
        if not view.manifests:
            return view
        try:
            view.manifest = read_manifest(objects, run, max(view.manifests))
        except MissingObjectError:  # replaced and deleted since
            entries = None
            continue
        return view
    raise StorageError(f"{run.prefix} changes faster than it can be listed. Try again in a moment.")


def read_piece(objects: ObjectStore, piece: Piece) -> bytes:
    """Read the content of a piece.

    Raises:
        MissingObjectError: The object was replaced since it was listed.
        DamagedStorageError: A segment has other content than its manifest says.
    """
    extent = piece.extent
    data = objects.get(extent.name)
    if extent.digest:
        data = unpack(data, extent)
    elif len(data) != extent.end - extent.first:
        # Deleted, and created again by a server that did not know. Its content is stored elsewhere, too.
        raise MissingObjectError(f"The object {extent.name} is another one than was listed.")
    return data[piece.begin - extent.first :]


def read_file(objects: ObjectStore, view: RunView, file: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a file from an offset on, in pieces with their offsets; lists the run again if it must."""
    attempts = 0
    pieces = view.pieces(file, start)
    while pieces:
        try:
            data = read_piece(objects, pieces[0])
        except MissingObjectError:
            attempts += 1
            if attempts > _ATTEMPTS:
                raise StorageError(f"{view.objects.prefix} changes faster than it can be read. Try again.") from None
            pieces = list_run(objects, view.objects).pieces(file, pieces[0].begin)
            continue
        yield pieces[0].begin, data
        pieces = pieces[1:]


def claim_run(objects: ObjectStore, run: RunObjects, claim: Claim) -> Claim:
    """Claim a run, and return the valid claim, which is the first one.

    Raises:
        DeletedRunError: The run is deleted.
    """
    data = msgspec.json.encode(claim)
    for _ in range(_ATTEMPTS):
        found = claim if objects.create(run.claim, data) else read_claim(objects, run)
        # Checked after the claim exists: a deletion that missed the claim is seen here.
        if is_deleted(objects, run.prefix):
            raise DeletedRunError(run)
        if found is not None:
            return found
    raise StorageError(f"{run.prefix} is claimed and deleted repeatedly. Try again in a moment.")


def read_claim(objects: ObjectStore, run: RunObjects) -> Claim | None:
    """The claim of a run; None if it is not claimed."""
    try:
        return _decode(objects.get(run.claim), Claim, run.claim)
    except MissingObjectError:
        return None


def is_deleted(objects: ObjectStore, prefix: str) -> bool:
    """Whether the run of a prefix is deleted. Once it is, it stays so."""
    try:
        objects.get(RunObjects(prefix).deleted)
    except MissingObjectError:
        return False
    return True


def delete_run(objects: ObjectStore, run: RunObjects, deletion: Deletion) -> int:
    """Delete a run, and return how many objects were removed; can be repeated at any time.

    What a server adds at the same time is left over, and removed by `remove_leftovers` later.
    """
    objects.create(run.deleted, msgspec.json.encode(deletion))
    return remove_leftovers(objects, list_run(objects, run))


def read_deletion(objects: ObjectStore, run: RunObjects) -> Deletion:
    """Read the mark of a deleted run."""
    return _decode(objects.get(run.deleted), Deletion, run.deleted)


def remove_leftovers(objects: ObjectStore, view: RunView) -> int:
    """Remove the remaining objects of a deleted run; returns how many."""
    if view.leftovers:
        objects.delete(view.leftovers)
    return len(view.leftovers)


def append(
    objects: ObjectStore, run: RunObjects, file: str, offset: int | None, data: bytes, known_end: int | None = None
) -> int:
    """Add bytes to a file at an offset, or at its end, and return the size of its stored part.

    Bytes that are already stored are compared, not stored again: if a response was lost or the server was killed, the
    sender repeats the batch, perhaps with another length.

    Args:
        known_end: The size of the stored part as this server knows it; looked up if it is not known.

    Raises:
        GapError: The offset lies beyond the end.
        OtherDataError: Other bytes are stored there.
        DeletedRunError: The run is deleted, as far as this server has looked.
    """
    end, view = known_end, None
    for _ in range(_ATTEMPTS):
        if end is None or (offset is not None and offset > end):
            view = _list_living(objects, run)
            end = view.end(file)
        begin = end if offset is None else offset
        if begin > end:
            raise GapError(end)
        known = min(end - begin, len(data))
        if known:
            view = view or list_run(objects, run)
            _compare(objects, view, file, begin, data[:known])
        rest = data[known:]
        if not rest:
            return end
        if objects.create(run.batch(file, end), rest):
            return end + len(rest)
        # Another server was faster, or this request was repeated because its response was lost.
        if offset is None:
            try:
                if objects.get(run.batch(file, end)) == rest:
                    return end + len(rest)
            except MissingObjectError:
                pass
        end = view = None
    raise StorageError(f"{run.prefix} is written by too many servers at once. Try again in a moment.")


def _list_living(objects: ObjectStore, run: RunObjects) -> RunView:
    view = list_run(objects, run)
    if view.deleted is not None:
        raise DeletedRunError(run)
    return view


def _compare(objects: ObjectStore, view: RunView, file: str, begin: int, data: bytes) -> None:
    for place, stored in read_file(objects, view, file, begin):
        part = data[place - begin :]
        if stored[: len(part)] != part[: len(stored)]:
            raise OtherDataError(f"{file} has other data from byte {begin:,} on.")
        if len(stored) >= len(part):
            return


@dataclass(slots=True)
class KnownNames:
    """The metric names of a run, as far as a server knows them.

    Args:
        number: The number of the last change included.
    """

    number: int = 0
    names: list[str] = field(default_factory=list)


class _Names(msgspec.Struct):
    names: list[str]
    is_whole: bool = False


def load_names(objects: ObjectStore, run: RunObjects) -> KnownNames:
    """Read the metric names of a run."""
    known = KnownNames()
    numbers = sorted(number for each in objects.list(f"{run.prefix}/names") if (number := _last_number(each)))
    whole = max((number for number in numbers if number % _WHOLE_NAMES == 0), default=0)
    for number in numbers:
        if number >= whole:
            _take_names(objects, run, known, number)
    return known


def _last_number(entry: Entry) -> int | None:
    return _number(entry.name.rpartition("/")[2])


def _take_names(objects: ObjectStore, run: RunObjects, known: KnownNames, number: int) -> None:
    change = _decode(objects.get(run.names(number)), _Names, run.names(number))
    known.names = change.names if change.is_whole else list(dict.fromkeys([*known.names, *change.names]))
    known.number = number


def add_names(objects: ObjectStore, run: RunObjects, known: KnownNames, merged: list[str]) -> bool:
    """Add names to those of a run.

    Args:
        known: Updated in place.
        merged: The known names and the new ones.

    Returns:
        Whether they were added; False if another server added names first, which ``known`` has now.
    """
    number = known.number + 1
    is_whole = number % _WHOLE_NAMES == 0
    before = set(known.names)
    change = _Names(merged if is_whole else [name for name in merged if name not in before], is_whole)
    if objects.create(run.names(number), msgspec.json.encode(change)):
        known.number, known.names = number, merged
        return True
    _take_names(objects, run, known, number)
    return False


def pack(data: bytes) -> bytes:
    """Compress the content of a segment."""
    return zlib.compress(data, 1)


def unpack(data: bytes, extent: Extent) -> bytes:
    """The content of a segment.

    Raises:
        DamagedStorageError: Its content does not match the manifest.
    """
    size = extent.end - extent.first
    unpacker = zlib.decompressobj()
    try:
        # Never more than the expected size, regardless of the object's content.
        content = unpacker.decompress(data, min(size, _MAX_UNPACKED) + 1)
    except zlib.error:
        content = b""
    if len(content) != size or hashlib.sha256(content).hexdigest() != extent.digest:
        raise DamagedStorageError(f"The segment {extent.name} does not have the content that its manifest says.")
    return content


def _decode(data: bytes, kind: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedStorageError(f"The object {name} cannot be read: {error}.") from None


def group_runs(entries: Iterable[Entry]) -> Iterator[tuple[RunObjects, list[Entry]]]:
    """Group a listing of all runs by run; see `ObjectStore.list` for their order."""
    prefix, group = "", list[Entry]()
    for entry in entries:
        parts = entry.name.split("/", 3)
        if len(parts) < 4:
            continue
        own = "/".join(parts[:3])
        if own != prefix and group:
            yield RunObjects(prefix), group
            group = []
        prefix = own
        group.append(entry)
    if group:
        yield RunObjects(prefix), group


def ends_of(view: RunView) -> Mapping[str, int]:
    """The size of the stored part of each file."""
    return {file: view.end(file) for file in view.files}

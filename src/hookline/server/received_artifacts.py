"""`ReceivedArtifacts`: stores the versions of artifacts that received runs save, below the root's ``.artifacts``.

- Only the sender that claimed a run may send artifacts in its name, and only to the run's project. A use may be of
  another project's.
- Nothing of a manifest is trusted: names, aliases, counts, sizes, digests, paths and addresses are checked, its digest
  is computed here, and a version is made when all of its blobs are there, each of the size that it names.
- References to files of the sender's machine are kept and never followed (see `Artifact.place`).
- A version keeps its number where that is free; otherwise it gets the next one. The same content is one version,
  regardless of the sender.
- A request can be repeated at any time, also long after: nothing is stored twice, an alias that was set later stays, an
  older version does not become the latest, and a version that was deleted here stays deleted.
- Manifests count as blobs: they use up a run's share, and there must be room on the disk.

All methods may be called from any thread, and by several servers on the same root.
"""

import stat
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from hookline._engine.errors import ArtifactError, OptionError
from hookline._record.artifact_versions import (
    MAX_FILES,
    ArtifactFile,
    ArtifactFolder,
    Manifest,
    check_files,
    check_foreign_files,
    checked_aliases,
    checked_name,
    content_digest,
)
from hookline._record.blobs import BlobBatch
from hookline.server.limits import MAX_INTEGER, check_depth, check_name
from hookline.server.received_blobs import BlobsRefusedError, Digest, ReceivedBlobs, Size
from hookline.server.received_runs import ConflictError

MAX_ALIASES = 100
MAX_ARTIFACT_BYTES = 32_000_000
"""The maximum size of a request; a hundred thousand files take about 25 MB."""
MAX_METADATA_BYTES = 1_000_000
_MAX_PATH = 1024
_MAX_TEXT = 4096
_NUMBERS_AHEAD = 1000
"""How far above the next number a sender's own may be: a larger one would use up the numbers."""
_MISSING_NAMED = 100
Decoded = TypeVar("Decoded")
Text = Annotated[str, msgspec.Meta(max_length=_MAX_TEXT)]


class SentFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file of a sent version; see `ArtifactFile`."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_PATH)]
    size: Size | None = None
    blob: Digest | Literal[""] = ""
    uri: Text = ""
    sha256: Digest | Literal[""] = ""
    etag: Text = ""


class SentManifest(msgspec.Struct, forbid_unknown_fields=True):
    """What a sent version consists of; see `Manifest`."""

    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    metadata: msgspec.Raw  # decoded when its size is known: small values take far more memory than their text
    files: Annotated[list[SentFile], msgspec.Meta(min_length=1, max_length=MAX_FILES)]
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    step: Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)] | None = None


class SentArtifact(msgspec.Struct, forbid_unknown_fields=True):
    """What a run did with a version: saved it, named it by aliases, or used it; and the version, if it saved it."""

    role: Literal["saved", "tagged", "used"]
    name: str
    digest: Digest
    time: Annotated[float, msgspec.Meta(ge=0)]
    project: str = ""
    aliases: Annotated[list[str], msgspec.Meta(max_length=MAX_ALIASES)] = []
    manifest: SentManifest | None = None


class ArtifactReply(msgspec.Struct):
    """The version's name on this server; empty if it is not here."""

    version: str


@dataclass(frozen=True, slots=True)
class ReceivedArtifacts:
    """Stores received artifacts.

    Args:
        blobs: The received blobs of the root.
        clock: Seconds since 1970.
    """

    blobs: ReceivedBlobs
    clock: Callable[[], float] = time.time

    def receive(
        self, project: str, run: str, *, origin: str, sent: SentArtifact, own_only: bool = False
    ) -> ArtifactReply:
        """Store a version, its aliases, or that the run used it; returns the name of the version here.

        Args:
            own_only: The version may consist only of blobs that the run has sent.

        Raises:
            ConflictError: The run is not claimed, belongs to another origin, or blobs of the version are not here.
            OptionError: A name, an address or the metadata is not accepted.
            ArtifactError: The files cannot make a version, or not the one of this digest.
            BlobsRefusedError: There is no room for the manifest.
        """
        home = check_name("project", sent.project) if sent.project and sent.role == "used" else project
        folder = ArtifactFolder(self.blobs.runs.root, check_name("project", home), checked_name(sent.name))
        aliases, at = checked_aliases(sent.aliases), min(sent.time, self.clock())
        with self.blobs.runs.owned(project, run, origin=origin) as directory:
            number = folder.same(sent.digest)
            if sent.role == "saved":
                deleted = folder.deleted_at(sent.digest) if number is None else None
                if deleted is not None and deleted >= at:
                    return ArtifactReply("")
                number = self._save(folder, sent, f"{project}/{run}", at, directory, number, own_only=own_only)
            if number is None:
                return ArtifactReply("")
            if sent.role == "used":
                folder.note_run(number, f"{project}/{run}", "used", at=at)
            for alias in aliases if sent.role != "used" else ():
                folder.set_alias(alias, number, at=at)
        return ArtifactReply(f"v{number}")

    def _save(
        self,
        folder: ArtifactFolder,
        sent: SentArtifact,
        run: str,
        at: float,
        directory: int,
        number: int | None,
        *,
        own_only: bool,
    ) -> int:
        manifest = checked_manifest(sent, run, at)
        if number is not None and not folder.note_run(number, run, "saved", at=at):
            return number  # sent again: it does not become the latest by that
        # In the block, so that a collection of unused blobs waits until the manifest refers to them.
        with self.blobs.store.writing() as batch:
            own = self.blobs.runs.sent_blobs(directory).digests if own_only else None
            self._require_blobs(manifest, batch, own)
            size = len(msgspec.json.encode(manifest)) if number is None else 0
            runs = self.blobs.runs
            refusal = self.blobs.refusal(size, size, runs.blob_bytes(directory))
            if refusal is not None:
                raise BlobsRefusedError({}, {manifest.digest: refusal})
            highest = max([-1, *folder.versions(), *folder.versions(".deleted")])
            number, is_new = folder.publish(manifest, number=lowest_number(sent, highest))
            runs.add_blob_bytes(directory, size if is_new else 0)
        folder.note_run(number, run, "saved", at=at)
        return number

    def _require_blobs(self, manifest: Manifest, batch: BlobBatch, own: Collection[str] | None) -> None:
        """Check that every stored file is here, with its size; a collection keeps them from now on.

        Args:
            own: Only these count as stored; None for all.
        """
        missing: list[str] = []
        for file in manifest.files:
            if file.blob and ((own is not None and file.blob not in own) or not batch.exists(file.blob)):
                missing.append(file.blob)
            elif file.blob:
                found = self.blobs.store.path(file.blob).lstat()
                if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
                    raise ArtifactError(f"{file.path!r:.200} has another size than the blob {file.blob}.")
        if missing:
            raise missing_error(manifest.digest, missing)


def missing_error(digest: str, missing: Sequence[str]) -> ConflictError:
    """Return the error for a version whose blobs are not stored."""
    error = f"{len(missing):,} blobs of {digest} are not here: send them first."
    return ConflictError(error, missing=missing[:_MISSING_NAMED])


def lowest_number(sent: SentArtifact, highest: int) -> int:
    """Return the lowest number that a new version gets: the sender's own, unless it would use up the numbers."""
    given = sent.manifest.number if sent.manifest is not None else 0
    return given if given <= highest + _NUMBERS_AHEAD else 0


def checked_manifest(sent: SentArtifact, run: str, at: float) -> Manifest:
    """Return the manifest of a sent version, whose digest is computed here.

    Raises:
        OptionError: The metadata, an address or a name is not accepted.
        ArtifactError: The files cannot make a version, or not the one of this digest.
    """
    given = sent.manifest
    if given is None:
        raise OptionError("A saved artifact is sent with its manifest.")
    metadata = _metadata(bytes(given.metadata))
    if not given.kind.isprintable():
        raise OptionError(f"kind={given.kind!r:.80} is not accepted: give printable characters.")
    files = [ArtifactFile(file.path, file.size, file.blob, file.uri, file.sha256, file.etag) for file in given.files]
    check_foreign_files(files)
    check_files(files)
    digest = content_digest(given.kind, metadata, files)
    if digest != sent.digest:
        raise ArtifactError(f"The version has the digest {digest}, not {sent.digest}.")
    return Manifest(digest, given.kind, at, run, given.step, metadata, files, received=True)


def _metadata(content: bytes) -> dict[str, Any]:
    if len(content) > MAX_METADATA_BYTES:
        raise OptionError(f"The metadata is {len(content):,} bytes; the limit is {MAX_METADATA_BYTES:,}.")
    found = decode_body(content, dict[str, Any], "The metadata are not valid")
    check_depth("The metadata", found)
    return found


def decode_body(content: bytes, kind: type[Decoded], what: str) -> Decoded:
    """Decode JSON from a sender.

    Raises:
        OptionError: It is not valid.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"{what}: {error}.") from None


def decode_artifact(body: bytes) -> SentArtifact:
    """Decode the body of a request.

    Raises:
        OptionError: It does not describe an artifact, or one of too many files.
    """
    # Counted before they are decoded, for the same reason.
    if body.count(b'"path"') > MAX_FILES:
        raise OptionError(f"The artifact has more than {MAX_FILES:,} files.")
    return decode_body(body, SentArtifact, "The body does not describe an artifact")

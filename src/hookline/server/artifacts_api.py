"""Endpoints for artifacts: the list, one version with its lineage, and the download of a file.

A version never changes, so what the list needs of its manifest is read once. A file is sent as an attachment of unknown
type, whatever it is called: a browser stores it and never shows it. References are not followed.
"""

import contextlib
import errno
import hashlib
import os
import stat
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hookline._engine.errors import ArtifactError, UnknownNameError, closest
from hookline._record.artifact_versions import (
    ArtifactFile,
    ArtifactFolder,
    Reference,
    artifact_folders,
    parse_reference,
)
from hookline._record.artifacts import Artifact
from hookline._record.blobs import BLOBS, fetch_blob
from hookline.server.blob_api import OpenFileResponse
from hookline.server.endpoint import Endpoint, Parameter, Values, read_parameters, visible_scope
from hookline.server.listing import Listing
from hookline.store.media import safe_file_name

MAX_VERSIONS = 200
"""How many versions of an artifact are listed, the latest first."""
CHECKED_BYTES = 256 << 20
"""Files up to this size are compared with their digest before they are sent."""

_PROJECT = Parameter("project", "string", "Only artifacts of this project.")
_ARTIFACT = Parameter(
    "name", "string", "A version: project/name:v3, project/name:alias or project/name.", required=True
)
_FILE = Parameter("file", "string", "The name of a file in the artifact.", required=True)
_LIMIT = Parameter("limit", "integer", "The maximum number of files.", default=500, low=1, high=5000)
_OFFSET = Parameter("offset", "integer", "How many files to skip.", default=0, low=0)


class VersionRow(msgspec.Struct, frozen=True):
    """A version of an artifact; where its manifest is damaged, ``problem`` says how."""

    version: str
    aliases: list[str]
    kind: str = ""
    digest: str = ""
    time: float | None = None
    run: str = ""
    step: int | None = None
    files: int = 0
    bytes: int = 0
    problem: str = ""


class ArtifactRow(msgspec.Struct):
    """An artifact and its latest version."""

    id: str
    project: str
    name: str
    versions: int
    aliases: dict[str, str]
    latest: VersionRow


class Artifacts(msgspec.Struct):
    """All artifacts, by project and name."""

    artifacts: list[ArtifactRow]


class UsingRun(msgspec.Struct):
    """A run that saved or used a version, and whether it is still there."""

    run: str
    role: str
    time: float
    exists: bool


class ArtifactDetails(msgspec.Struct):
    """One version of an artifact: its files, metadata and lineage, and the artifact's versions, the latest first."""

    id: str
    version: VersionRow
    versions: list[VersionRow]
    total_versions: int
    metadata: dict[str, Any]
    runs: list[UsingRun]
    files: list[ArtifactFile]
    total_files: int


@lru_cache(maxsize=4096)
def _read_once(root: str, project: str, name: str, number: int, stamp: tuple[int, int, int]) -> dict[str, Any]:
    """What the list shows of a version; the stamp changes with its manifest."""
    try:
        found = Artifact(ArtifactFolder(Path(root), project, name), number)
    except (ArtifactError, UnknownNameError) as error:
        return {"problem": str(error)}
    facts: dict[str, Any] = {"kind": found.kind, "digest": found.digest, "time": found.time, "run": found.run}
    return facts | {"step": found.step, "files": len(found.files), "bytes": found.size}


def _folders(listing: Listing, project: str | None = None) -> list[ArtifactFolder]:
    """The artifacts of the projects that are listed."""
    found = artifact_folders(listing.now().runs.root, project)
    return [folder for folder in found if listing.scope.allows(folder.project)]


def _is_visible(listing: Listing, run: str) -> bool:
    """Whether a run, named ``<project>/<run>``, may be named in an answer: a run of another project may use it."""
    return listing.scope.allows(run.partition("/")[0])


def _version_row(listing: Listing, folder: ArtifactFolder, number: int, aliases: dict[str, int]) -> VersionRow:
    try:
        status = (folder.directory / f"v{number}.json").lstat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError:  # deleted meanwhile
        stamp = (0, 0, 0)
    facts = _read_once(str(folder.root), folder.project, folder.name, number, stamp)
    if not _is_visible(listing, facts.get("run", "")):
        facts = facts | {"run": ""}
    return VersionRow(f"v{number}", [alias for alias, named in aliases.items() if named == number], **facts)


def _list(listing: Listing, values: Values) -> Artifacts:
    rows = []
    for folder in _folders(listing, values["project"]):
        numbers, aliases = folder.versions(), folder.aliases()
        if not numbers:
            continue
        latest = _version_row(listing, folder, aliases.get("latest", numbers[-1]), aliases)
        named = {alias: f"v{number}" for alias, number in aliases.items()}
        rows.append(ArtifactRow(folder.id, folder.project, folder.name, len(numbers), named, latest))
    return Artifacts(rows)


def _found(listing: Listing, name: str) -> Artifact:
    reference: Reference = parse_reference(name)
    folder = ArtifactFolder(listing.now().runs.root, reference.project, reference.name)
    if not listing.scope.allows(folder.project) or not folder.versions():
        # Here, and not by the folder: its suggestions would include artifacts of other projects.
        others = [each.id for each in _folders(listing)]
        hint = closest(folder.id, others, listed=others[:8]) if others else "There are no artifacts."
        raise UnknownNameError(f"There is no artifact {folder.id!r} in {folder.root}. {hint}")
    return Artifact(folder, folder.resolve(reference.version))


def _details(listing: Listing, values: Values) -> ArtifactDetails:
    found = _found(listing, values["name"])
    folder, aliases, rows = found.folder, found.folder.aliases(), listing.now().rows
    numbers = folder.versions()
    runs = [
        UsingRun(each.run, each.role, each.time, each.run in rows)
        for each in found.runs
        if _is_visible(listing, each.run)
    ]
    is_shown = bool(found.run) and _is_visible(listing, found.run)
    if is_shown and not any(each.run == found.run and each.role == "saved" for each in runs):
        # Its process was killed before it could be noted: the manifest names it.
        runs.insert(0, UsingRun(found.run, "saved", found.time, found.run in rows))
    return ArtifactDetails(
        folder.id,
        _version_row(listing, folder, found.number, aliases),
        [_version_row(listing, folder, number, aliases) for number in numbers[: -MAX_VERSIONS - 1 : -1]],
        len(numbers),
        found.metadata,
        runs,
        list(found.files[values["offset"] : values["offset"] + values["limit"]]),
        len(found.files),
    )


DOWNLOAD_PATH = "/api/artifact/file"


def _open_file(path: Path, file: ArtifactFile) -> BufferedReader:
    """Open a stored file and verify it, unless it is large: what is verified is what is sent.

    Raises:
        OSError: It is missing, a link, or not a regular file. The directory may come from elsewhere.
        ArtifactError: It has another size or content than its version.
    """
    for folder in (path.parent.parent, path.parent):
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(opened.close)
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
            raise ArtifactError("it has another size")
        if found.st_size <= CHECKED_BYTES and hashlib.file_digest(opened, "sha256").hexdigest() != file.blob:
            raise ArtifactError("it has other content")
        on_failure.pop_all()
        return opened


def download_route(listing: Listing) -> Route:
    """The route that sends a file of an artifact."""

    def answer(visible: Listing, values: Values) -> Response:
        found = _found(visible, values["name"])
        file = next((file for file in found.files if file.path == values["file"] and not file.uri), None)
        if file is None:
            raise UnknownNameError(f"{found.id} has no stored file {values['file']!r:.200}.")
        fetch_blob(found.root / BLOBS, file.blob)
        try:
            content = _open_file(found.place(file), file)
        except (ArtifactError, OSError) as error:  # missing or damaged: there is nothing to send
            raise UnknownNameError(f"{found.id}: {file.path!r:.200} cannot be read: {error}.") from error
        stem, _, suffix = file.path.rpartition("/")[2].rpartition(".")
        name = safe_file_name(stem, suffix) if stem else safe_file_name(suffix, "bin")
        headers = {
            "Cache-Control": "no-store",
            "X-SHA256": file.blob,
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{name}"',
        }
        return OpenFileResponse(content, 0, file.size or 0, 200, headers, is_head=False)

    async def respond(request: Request) -> Response:
        values = read_parameters((_ARTIFACT, _FILE), request.query_params.multi_items())
        visible = listing.scoped(visible_scope(request))
        return await anyio.to_thread.run_sync(answer, visible, values)

    return Route(DOWNLOAD_PATH, respond, methods=["GET"])


ENDPOINTS = (
    Endpoint("/api/artifacts", "All artifacts with their latest versions.", Artifacts, _list, (_PROJECT,)),
    Endpoint(
        "/api/artifact",
        "A version of an artifact: files, metadata and lineage.",
        ArtifactDetails,
        _details,
        (_ARTIFACT, _LIMIT, _OFFSET),
    ),
)

"""`Upload` and `Download`: stream the content of artifacts, so that files of any size take little memory."""

import hashlib
import tempfile
from dataclasses import dataclass, field
from typing import IO, Any

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hookline._record.blobs import BlobError, open_blob
from hookline.server.blob_api import SANDBOX, OpenFileResponse
from hookline.server.endpoint import json_response
from hookline.server.limits import BodyError, UploadSlot
from hookline.server.mlflow.files import Place, place_of
from hookline.server.mlflow.messages import MISSING, MlflowError
from hookline.server.mlflow.service import WRITTEN, Mlflow, call_of

_SPOOL_BYTES = 1 << 20
_UPLOAD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Upload:
    """Receives a file, which is spooled to disk as it arrives and stored when it is complete."""

    mlflow: Mlflow

    async def __call__(self, request: Request) -> Response:
        mlflow, context = self.mlflow, self.mlflow.context
        context.check_load()
        announced = request.headers.get("content-length", "")
        call = call_of(request)

        def prepare() -> tuple[str, Place]:
            place = place_of(call.path["path"])
            project = mlflow.project(call, place.run_id)
            mlflow.files.check_place(project, place)
            mlflow.files.check_size(int(announced[:18]) if announced.isascii() and announced.isdigit() else 0)
            return project, place

        project, place = await context.run(prepare)
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise BodyError(415, "Send the file without Content-Encoding.")
        try:
            # The file has no name: it is gone when it is closed, whatever happens.
            with (
                mlflow.uploads.hold(f"{call.principal.id} {call.address}") as slot,
                tempfile.TemporaryFile(dir=context.received.root) as file,
            ):
                spool = _Spool(mlflow, file)
                await spool.fill(request, slot)
                digest, size = spool.digest.hexdigest(), spool.size
                await context.run(lambda: mlflow.files.add(project, place, file, digest, size))
        except ClientDisconnect:
            return Response(status_code=400)
        mlflow.note_change(call, WRITTEN)
        context.on_received()
        return json_response({})


@dataclass(slots=True)
class _Spool:
    """A file that is being received."""

    mlflow: Mlflow
    file: IO[bytes]
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    async def fill(self, request: Request, slot: UploadSlot) -> None:
        """Receive the whole body.

        Raises:
            BodyError: It arrives too slowly, or is too large.
        """
        chunk_seconds = self.mlflow.context.bodies.chunk_seconds
        waiting = bytearray()
        async for chunk in slot.receive(request.stream(), chunk_seconds=chunk_seconds, seconds=_UPLOAD_SECONDS):
            waiting += chunk
            if len(waiting) >= _SPOOL_BYTES:
                await self._write(bytes(waiting))
                waiting.clear()
        await self._write(bytes(waiting))

    async def _write(self, data: bytes) -> None:
        self.size += len(data)
        self.mlflow.files.check_size(self.size)

        def write() -> None:
            self.digest.update(data)
            self.file.write(data)

        await self.mlflow.context.run(write)


@dataclass(frozen=True, slots=True)
class Download:
    """Sends a file."""

    mlflow: Mlflow

    async def __call__(self, request: Request) -> Response:
        return await anyio.to_thread.run_sync(self._open, request)

    def _open(self, request: Request) -> Response:
        call = call_of(request)
        place = place_of(call.path["path"])
        project = self.mlflow.project(call, place.run_id)
        found = self.mlflow.files.found(project, place)
        directory = self.mlflow.context.received.root / project / place.run_id
        try:
            file = open_blob(directory, found.blob)
        except BlobError:
            raise MlflowError(MISSING, f"The content of {place.path!r:.200} is missing.") from None
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": "attachment",
            "Content-Security-Policy": SANDBOX,
            "Cache-Control": "no-store",
        }
        return OpenFileResponse(file, 0, found.size, 200, headers, is_head=request.method == "HEAD")

"""``/api/blob``: the content of images, sounds, texts and files that a run refers to.

A blob may come from another machine, so:

- It is sent only to those who name a run that refers to it.
- Its content type comes from a short list, by the recorded format, and only if its first bytes agree. Anything else is
  a download of unknown type. Browsers do not guess (``nosniff``).
- HTML and SVG are documents of an origin of their own, without scripts, requests or forms (a ``sandbox`` policy), which
  only this page may embed.
- Up to `VERIFIED_BYTES` are compared with the digest before they are sent, once for each file.

It never changes, so browsers keep it. Players may request parts of it.
"""

import contextlib
import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hookline._engine.errors import UnknownNameError
from hookline._record.blobs import BlobError, open_blob
from hookline.server.answers import cancelled_by_disconnect
from hookline.server.endpoint import Parameter, json_response, read_parameters, run_cancellable, visible_scope
from hookline.server.listing import Listing
from hookline.store.media import safe_file_name

PATH = "/api/blob"
VERIFIED_BYTES = 256 << 20
_REMEMBERED = 4096
_PIECE = 1 << 18
_HEAD = 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

PARAMETERS = (
    Parameter("run", "string", "The id of a run that refers to the blob.", required=True),
    Parameter("digest", "string", "The SHA-256 of the content.", required=True, pattern="[0-9a-f]{64}"),
    Parameter("download", "string", "Have a browser save it as a file.", default="no", choices=("no", "yes")),
)
_REFERENCE = (
    "SELECT name, step, type, format, file FROM blobs WHERE blob = ? "
    "ORDER BY type <> 'html', type, format, name, step LIMIT 1"
)
# 'unsafe-inline' styles and data: pictures cannot reach anything: the document has no scripts and no connections.
SANDBOX = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
DOCUMENT: dict[str, Any] = {
    "summary": "The content of a blob that a run refers to.",
    "parameters": [parameter.document() for parameter in PARAMETERS],
    "responses": {
        "200": {"description": "The content.", "content": {"*/*": {"schema": {"type": "string"}}}},
        "206": {"description": "The requested range of it.", "content": {"*/*": {"schema": {"type": "string"}}}},
        "304": {"description": "The browser has it already."},
        "416": {"description": "There is no such range."},
    },
}


def _starts(*signatures: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(signatures)


def _riff(kind: bytes) -> Callable[[bytes], bool]:
    return lambda head: head[:4] == b"RIFF" and head[8:12] == kind


def _is_mp4(head: bytes) -> bool:
    return head[4:8] == b"ftyp"


def _is_svg(head: bytes) -> bool:
    return b"<svg" in head.lower()


def _is_text(head: bytes) -> bool:
    return b"\0" not in head


_TYPES: dict[str, tuple[str, Callable[[bytes], bool]]] = {
    "png": ("image/png", _starts(b"\x89PNG\r\n\x1a\n")),
    "jpeg": ("image/jpeg", _starts(b"\xff\xd8\xff")),
    "jpg": ("image/jpeg", _starts(b"\xff\xd8\xff")),
    "gif": ("image/gif", _starts(b"GIF87a", b"GIF89a")),
    "webp": ("image/webp", _riff(b"WEBP")),
    "bmp": ("image/bmp", _starts(b"BM")),
    "svg": ("image/svg+xml", _is_svg),
    "wav": ("audio/wav", _riff(b"WAVE")),
    "mp3": ("audio/mpeg", _starts(b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xfa")),
    "ogg": ("audio/ogg", _starts(b"OggS")),
    "oga": ("audio/ogg", _starts(b"OggS")),
    "ogv": ("video/ogg", _starts(b"OggS")),
    "flac": ("audio/flac", _starts(b"fLaC")),
    "m4a": ("audio/mp4", _is_mp4),
    "mp4": ("video/mp4", _is_mp4),
    "webm": ("video/webm", _starts(b"\x1a\x45\xdf\xa3")),
    "txt": ("text/plain; charset=utf-8", _is_text),
    "md": ("text/plain; charset=utf-8", _is_text),
    "plotly.json": ("application/json", _is_text),
}


def content_type(kind: str, suffix: str, head: bytes) -> str:
    """The content type of a blob by its recorded type and format, if its first bytes agree with them."""
    if (kind, suffix) == ("html", "html"):
        return "text/html; charset=utf-8"
    found = _TYPES.get(suffix)
    return found[0] if found is not None and found[1](head) else "application/octet-stream"


@dataclass(slots=True)
class BlobEndpoint:
    """The route of blobs."""

    listing: Listing
    _verified: "OrderedDict[tuple[int, ...], bool]" = field(default_factory=OrderedDict)

    def route(self) -> Route:
        """The Starlette route."""
        return Route(PATH, self._respond, methods=["GET"])

    async def _respond(self, request: Request) -> Response:
        values = read_parameters(PARAMETERS, request.query_params.multi_items())
        return await run_cancellable(request, lambda: self._answer(request, values))

    def _answer(self, request: Request, values: dict[str, Any]) -> Response:
        visible = self.listing.scoped(visible_scope(request))
        runs, digest = visible.some([values["run"]]), values["digest"]
        rows = runs.sql(_REFERENCE, [digest]).rows()
        if not rows:
            raise UnknownNameError(f"{runs[0].id} refers to no blob {digest}.")
        try:
            file = open_blob(runs[0].directory, digest)
        except BlobError:
            raise UnknownNameError(f"The blob {digest} of {runs[0].id} is missing.") from None
        with contextlib.ExitStack() as on_failure:
            on_failure.enter_context(file)
            if not self._is_intact(file, digest):
                raise UnknownNameError(f"The blob {digest} of {runs[0].id} is damaged.")
            response = self._reply(request, file, rows[0], digest, is_download=values["download"] == "yes")
            if isinstance(response, OpenFileResponse):
                on_failure.pop_all()  # it closes the file
        return response

    def _is_intact(self, file: BufferedReader, digest: str) -> bool:
        found = os.fstat(file.fileno())
        if found.st_size > VERIFIED_BYTES:
            return True
        # The file is opened already: what is verified is what is sent. A file that is replaced has another number.
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, int(digest, 16))
        if key not in self._verified:
            is_intact = hashlib.file_digest(file, "sha256").hexdigest() == digest
            self._verified[key] = is_intact
            while len(self._verified) > _REMEMBERED:
                with contextlib.suppress(KeyError):  # another thread does the same
                    self._verified.popitem(last=False)
        return self._verified.get(key, True)

    def _reply(
        self, request: Request, file: BufferedReader, row: dict[str, Any], digest: str, *, is_download: bool
    ) -> Response:
        size = os.fstat(file.fileno()).st_size
        kind = content_type(row["type"], row["format"], os.pread(file.fileno(), _HEAD, 0))
        is_download = is_download or kind == "application/octet-stream"
        stem, _, suffix = (row["file"] or "").rpartition(".")
        stem, suffix = (stem, suffix) if stem else (f"{row['name']}-{row['step']}", row["format"])
        way, tag = "attachment" if is_download else "inline", f'"{digest}"'
        headers = {
            "Content-Type": kind,
            "Content-Disposition": f'{way}; filename="{safe_file_name(stem, suffix)}"',
            "Content-Security-Policy": SANDBOX,
            "X-Frame-Options": "SAMEORIGIN",
            "Cache-Control": "private, max-age=31536000, immutable",
            "Accept-Ranges": "bytes",
            "ETag": tag,
        }
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Cache-Control")})
        is_same = request.headers.get("if-range", tag) == tag
        part = _requested(request.headers.get("range", "") if is_same else "", size)
        if part is None:
            refused = json_response({"error": f"There is no such range in {size} bytes."}, 416)
            refused.headers["Content-Range"] = f"bytes */{size}"
            return refused
        first, last, is_part = part
        status = 206 if is_part else 200
        if is_part:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{size}"
        return OpenFileResponse(file, first, last, status, headers, is_head=request.method == "HEAD")


def _requested(text: str, size: int) -> tuple[int, int, bool] | None:
    """The first byte to send, the one after the last, and whether a range was requested; None if there is no such."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or match.group(1, 2) == ("", ""):  # none, several, or another unit: all of it
        return 0, size, False
    if match[1] == "":
        first, last = max(0, size - int(match[2])), size
    else:
        first, last = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
    return (first, last, True) if first < last else None


class OpenFileResponse(Response):
    """Sends a part of an open file piece by piece, and closes it."""

    def __init__(
        self, file: BufferedReader, first: int, last: int, status: int, headers: dict[str, str], *, is_head: bool
    ) -> None:
        super().__init__(status_code=status, headers=headers)
        self._file, self._first, self._last, self._is_head = file, first, last, is_head
        self.headers["Content-Length"] = str(last - first)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            async with cancelled_by_disconnect(receive):
                await self._send(send)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        place = self._last if self._is_head else self._first
        while place < self._last:
            count = min(_PIECE, self._last - place)
            piece = await anyio.to_thread.run_sync(os.pread, self._file.fileno(), count, place)
            if not piece:  # cut since it was opened: the client sees that bytes are missing
                break
            place += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

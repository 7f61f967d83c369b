"""`StaticFiles`: the page's own files, from memory.

A browser opens the page with some fifty requests for scripts and styles. Each is answered on the event loop, without
threads: while other threads read runs, every change to one of them would wait for the interpreter's lock.

A browser keeps the files and asks whether they have changed, so that an upgrade shows the new page. Files are read
again when they change.
"""

import hashlib
import mimetypes
import time
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

LIST_SECONDS = 2.0
"""How often names that are not there make the directory be listed again."""


class _File(NamedTuple):
    stamp: tuple[int, int]
    content: bytes
    tag: str
    media_type: str


class StaticFiles:
    """Answers requests for the files below a directory that this package comes with.

    Args:
        directory: All that it has is public. Only names that it lists are looked for, so no path leads out of it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._list()

    def _list(self) -> None:
        found = (path for path in self._directory.rglob("*") if path.is_file())
        self._paths = {path.relative_to(self._directory).as_posix(): path for path in found}
        self._listed = time.monotonic()

    async def respond(self, request: Request) -> Response:
        """The file that the path names."""
        return self.response(request, request.path_params["path"])

    def response(self, request: Request, name: str) -> Response:
        """A file, or 304 if the client has it."""
        file = self._find(name)
        headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
        known = (each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(","))
        if file.tag in known:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)

    def _find(self, name: str) -> _File:
        if name not in self._paths and time.monotonic() - self._listed > LIST_SECONDS:
            self._list()  # an upgrade may have brought it
        path = self._paths.get(name)
        try:
            found = None if path is None else path.stat()
        except FileNotFoundError:
            found = None
        if path is None or found is None:
            raise HTTPException(404)
        file, stamp = self._files.get(name), (found.st_mtime_ns, found.st_size)
        if file is None or file.stamp != stamp:
            content = path.read_bytes()
            tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
            media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
            file = self._files[name] = _File(stamp, content, tag, media_type)
        return file

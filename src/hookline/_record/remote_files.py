"""Files that artifacts refer to in object stores and on web servers, reached through fsspec where it is installed."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.errors import ArtifactError

_PIECE = 1 << 20


class RemoteFile(NamedTuple):
    """What a store reports about a file: its address, its size, and a text that changes with its content."""

    uri: str
    size: int | None
    etag: str


class UnreachableError(ArtifactError):
    """Nothing can be said about a file: its store cannot be asked from here."""


def fetch(uri: str, path: Path, *, size: int | None, etag: str, sha256: str) -> None:
    """Copy a file, and compare it with what is known of it.

    Raises:
        ArtifactError: It cannot be read, or has changed.
    """
    fs, place, info = _open(uri)
    found = _facts(uri, info)
    has_other_etag = bool(etag and found.etag) and etag != found.etag
    if has_other_etag or (size is not None and found.size is not None and size != found.size):
        raise ArtifactError(f"{uri} changed since it was saved: its size or version is another.")
    digest = hashlib.sha256()
    try:
        with fs.open(place, "rb") as reader, path.open("xb") as writer:
            while piece := reader.read(_PIECE):
                digest.update(piece)
                writer.write(piece)
    except Exception as error:  # every store has errors of its own
        raise ArtifactError(f"{uri} cannot be read: {type(error).__name__}: {error}") from error
    if sha256 and digest.hexdigest() != sha256:
        raise ArtifactError(f"{uri} changed since it was saved: its content has another digest.")


def look_up(uri: str) -> list[tuple[str, RemoteFile]]:
    """Return the file at an address, or all files below it, each with its path below the address.

    Raises:
        UnreachableError: fsspec, or its package for this kind of address, is missing, or the store refuses.
        ArtifactError: There is no such file.
    """
    fs, place, info = _open(uri)
    if info.get("type") != "directory":
        return [("", _facts(uri, info))]
    found: Mapping[str, dict[str, Any]] = fs.find(place, detail=True)
    base = place.rstrip("/") + "/"
    names = [name for name in sorted(found) if name.startswith(base)]
    if not names:
        raise ArtifactError(f"There are no files at {uri}.")
    head = uri.rstrip("/") + "/"
    return [(name.removeprefix(base), _facts(head + name.removeprefix(base), found[name])) for name in names]


def _open(uri: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the file system of an address, the path on it, and what it reports about the file."""
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        raise UnreachableError(f"{uri} cannot be read: install fsspec, and its package for this address.") from error
    try:
        fs, place = fsspec.core.url_to_fs(uri)
        return fs, place, dict(fs.info(place))
    except FileNotFoundError as error:
        raise ArtifactError(f"There is no file at {uri}.") from error
    except Exception as error:
        raise UnreachableError(f"{uri} cannot be read: {type(error).__name__}: {error}") from error


def _facts(uri: str, info: Mapping[str, Any]) -> RemoteFile:
    size = info.get("size")
    etag = next((info[key] for key in ("ETag", "etag", "md5Hash", "checksum", "crc32c") if info.get(key)), "")
    return RemoteFile(uri, size if isinstance(size, int) else None, str(etag).strip('"'))

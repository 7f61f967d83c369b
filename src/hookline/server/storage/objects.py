"""`ObjectStore`: the six operations that storage needs, and `open_objects`, which opens a store of obstore by its URL.

- Servers coordinate by `ObjectStore.create` only: of several concurrent calls, one succeeds. S3, GCS,
  Azure, MinIO, local directories and memory all have it.
- The number of simultaneous requests is bounded. A request that gets no slot within a few seconds fails, like one that
  takes too long: senders get 503 and retry.
- Credentials come from the environment. Errors and logs name the store's scheme, the operation and the fault, but never
  its full response, which may contain a signed request.

Listing must be consistent: an object that was created is listed from then on. This holds for S3, GCS and Azure.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from hookline._engine.errors import ConfigError, HooklineError, MissingExtraError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Opened

SCHEMES = ("s3", "gs", "az", "file", "memory")
MAX_REQUESTS = 128
"""How many concurrent requests a server makes to the store: to receive, to copy, and to compact."""
RECEIVING_THREADS = 64
"""How many of them are for senders."""
WAIT_SECONDS = 5.0
"""How long a request waits for a slot."""
REQUEST_SECONDS = 8.0
"""The time limit of a request: less than a sender's (10 seconds), so that the sender gets the error."""
_CHUNK = 1000
_RANGE = 4 << 20
_DETAIL = 160
_ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
"""Connection options that obstore reads itself, but only if no others are given, as they are here."""
_SECRET = re.compile(r"(?i)(signature|credential|token|sig|key|secret|password|authorization)[^,;\s]*")

_ADDRESS = re.compile(r"https?://\S+")


class StorageError(HooklineError, RuntimeError):
    """The object store cannot be reached, refuses a request, or takes too long. Try again later."""


class DamagedStorageError(StorageError):
    """An object does not have the content that it was created with."""


class MissingObjectError(HooklineError, LookupError):
    """There is no object of a name: it was never created, or is deleted."""


class Entry(NamedTuple):
    """An object in a listing.

    Attributes:
        modified: When it was created, in seconds since 1970 by the store's clock.
        tag: Changes with the content, as far as the store knows it.
    """

    name: str
    size: int
    modified: float
    tag: str = ""


class ObjectStore(Protocol):
    """The operations that storage needs. All methods are thread-safe and raise `StorageError`."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; False if there is one of that name. After an error it may exist or not."""

    def put(self, name: str, data: bytes) -> None:
        """Create or replace an object."""

    def get(self, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            MissingObjectError: There is none.
        """

    def size(self, name: str) -> int | None:
        """The size of an object; None if there is none."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Yield the objects whose names start with ``<prefix>/`` and come after a name.

        The objects of one sub-prefix are contiguous; their order is otherwise undefined.
        """

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""


class ObstoreObjects:
    """A store of obstore.

    Args:
        store: An opened store.
        kind: Names it in errors.
        max_requests: How many requests it gets at a time.
    """

    def __init__(self, store: "Opened", kind: str, *, max_requests: int = MAX_REQUESTS) -> None:
        self._store, self.kind = store, kind
        self._places = threading.BoundedSemaphore(max_requests)

    def create(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._request("create an object"):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def put(self, name: str, data: bytes) -> None:
        import obstore

        with self._request("replace an object"):
            obstore.put(self._store, name, data, use_multipart=False)

    def put_file(self, name: str, path: Path) -> None:
        """Create or replace an object with the content of a file, in parts because it may be large."""
        import obstore

        with self._request("upload a file"):
            obstore.put(self._store, name, path)

    def get(self, name: str) -> bytes:
        import obstore

        with self._request("read an object", name):
            return obstore.get(self._store, name).bytes().to_bytes()

    def read_chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in chunks, because it may be large."""
        import obstore

        size = self.size(name)
        if size is None:
            raise MissingObjectError(f"There is no object {name!r:.300}.")
        for first in range(0, size, _RANGE):  # each within the time of one request
            with self._request("read an object", name):
                yield bytes(obstore.get_range(self._store, name, start=first, end=min(size, first + _RANGE)))

    def size(self, name: str) -> int | None:
        import obstore

        try:
            with self._request("look for an object", name):
                return int(obstore.head(self._store, name)["size"])
        except MissingObjectError:
            return None

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        import obstore

        # Each page holds a slot, not the whole listing: the caller works between the pages.
        with self._request("list objects"):
            pages = iter(obstore.list(self._store, prefix or None, offset=start_after or None, chunk_size=_CHUNK))
        while True:
            with self._request("list objects"):
                page = next(pages, None)
            if page is None:
                return
            for each in page:
                yield Entry(each["path"], each["size"], each["last_modified"].timestamp(), each["e_tag"] or "")

    def delete(self, names: Sequence[str]) -> None:
        import obstore

        for first in range(0, len(names), _CHUNK):
            some = list(names[first : first + _CHUNK])
            try:
                with self._request("delete objects", some[0]):
                    obstore.delete(self._store, some)
            except MissingObjectError:
                # A directory reports files that another server has deleted; S3 does not.
                for name in some:
                    with contextlib.suppress(MissingObjectError), self._request("delete an object", name):
                        obstore.delete(self._store, name)

    @contextlib.contextmanager
    def _request(self, what: str, name: str = "") -> Iterator[None]:
        from obstore.exceptions import BaseError

        if not self._places.acquire(timeout=WAIT_SECONDS):
            raise StorageError(f"The {self.kind} storage has too many requests at once. Try again in a moment.")
        try:
            yield
        except FileNotFoundError:
            if not name:
                raise StorageError(
                    f"The {self.kind} storage cannot {what}: there is no such bucket or directory. Create it first."
                ) from None
            raise MissingObjectError(f"There is no object {name!r:.300}.") from None
        except (BaseError, OSError, NotImplementedError, ValueError) as error:
            # Without its cause, which a traceback in a log would print.
            raise StorageError(f"The {self.kind} storage cannot {what}: {_fault(error)}") from None
        finally:
            self._places.release()


def _fault(error: Exception) -> str:
    """Return the fault in a few words, without names and values that may be secrets."""
    text = _ADDRESS.sub("...", str(error).partition("\n")[0])
    return f"{type(error).__name__}: {_SECRET.sub('...', text)[:_DETAIL]}"


def check_url(url: str) -> str:
    """Return the scheme of a storage URL.

    Raises:
        ConfigError: It is not accepted.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            f"storage={without_secrets(url)!r}: give s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
            "file:///directory or memory://."
        )
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(
            f"storage={without_secrets(url)!r}: credentials and options come from the environment "
            "(AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, ...), not from the URL."
        )
    if parts.scheme in ("s3", "gs", "az") and not parts.netloc:
        raise ConfigError(f"storage={url!r} has no bucket: give {parts.scheme}://bucket/prefix.")
    if parts.scheme == "file" and (parts.netloc or parts.path in ("", "/")):
        raise ConfigError(f"storage={url!r}: give an absolute directory, file:///directory.")
    return parts.scheme


def without_secrets(url: str) -> str:
    """Return a storage URL that is safe to show: without user names and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:300]


def open_objects(url: str, *, max_requests: int = MAX_REQUESTS) -> ObstoreObjects:
    """Open a store by its URL.

    Raises:
        ConfigError: The URL is not accepted, or the store cannot be opened.
        MissingExtraError: obstore is not installed.
    """
    scheme = check_url(url)
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, MemoryStore, from_url
    except ImportError as error:
        raise MissingExtraError("hookline serve --storage", "storage") from error
    store: Any
    try:
        if scheme == "memory":
            store = MemoryStore()
        elif scheme == "file":
            store = LocalStore(unquote(urlsplit(url).path), mkdir=True)
        else:
            store = from_url(
                url,
                client_options={
                    "connect_timeout": timedelta(seconds=3),
                    "timeout": timedelta(seconds=REQUEST_SECONDS),
                    "allow_http": any(os.environ.get(name, "").lower() in ("1", "true") for name in _ALLOW_HTTP),
                },
                retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=REQUEST_SECONDS / 2)},
            )
    except (BaseError, OSError, ValueError) as error:
        raise ConfigError(f"storage={without_secrets(url)!r} cannot be opened: {_fault(error)}") from None
    return ObstoreObjects(store, scheme, max_requests=max_requests)

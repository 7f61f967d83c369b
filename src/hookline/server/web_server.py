"""`WebServer`: serves the page on the current thread or on a separate one.

Without tokens it receives nothing and is bound to a loopback address. With tokens it also receives runs from other
machines, on any address. Queries run in this process or, with ``separate_queries``, in one of their own.
"""

import atexit
import contextlib
import errno
import gc
import ipaddress
import logging
import math
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict

from hookline._engine.checks import require_number
from hookline._engine.errors import ConfigError, MissingExtraError
from hookline._record.seekable import zstd
from hookline.server.audit import AuditLog
from hookline.server.root_tokens import LOOPBACK, Tokens
from hookline.server.tokens import LiveTokens, TokenStore, default_tokens_file
from hookline.store import Runs
from hookline.store.background import BackgroundIngest
from hookline.store.compression import BackgroundCompression
from hookline.store.run_summary import STALL_SECONDS, Liveness
from hookline.store.store import missing_root_error, open_store

if TYPE_CHECKING:
    from hookline.server.application import EditOptions, ReceiveOptions
    from hookline.server.connections import ConnectionLimits
    from hookline.server.limits import BodyLimits
    from hookline.server.received_blobs import BlobLimits
    from hookline.server.storage.service import Storage, StorageOptions

logger = logging.getLogger("hookline")

_HOST = re.compile(r"(?:(?P<name>[A-Za-z0-9_.-]+)|\[(?P<bracketed>[0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
WANTED_DESCRIPTORS = 4096
_SWITCH_SECONDS = 0.001
"""A fifth of the default: with a hundred senders, the slowest of a hundred charts takes half to four fifths as long."""


_COLLECTED_OBJECTS = 5_000


class _AppOptions(TypedDict):
    is_closing: Callable[[], bool]
    receiving: "ReceiveOptions | None"
    max_streams: int
    editing: "EditOptions"


class WebServer:
    """The page for the runs below a directory. It is bound to its address on creation.

    As a context manager it serves on a thread until the context exits.

    Args:
        port: 0 picks a free port.
        stall_seconds: A run without progress for this long counts as stalled.
        tokens: The tokens for sending and viewing runs; without them nothing can be sent.
        allow_hosts: Other names that it is reached by, e.g. that of a proxy; a port is ignored.
        bodies: The limits of request bodies.
        limits: The limits of connections.
        blobs: The limits of received blobs.
        tokens_file: The file of the tokens with roles and projects (see ``hookline tokens``); with ``tokens`` only. By
            default ``.hookline/tokens.json`` in the root.
        compress_after_days: Compress the journals of runs that ended so many days ago, in the background while it
            serves; never by default.
        storage: The object store that received runs are kept in, e.g. ``s3://bucket/prefix``. The directory then holds
            a copy of them, and nothing else.
        separate_queries: Read runs in a process of its own (see `QueryProcess`), so that viewers never slow down
            senders. It costs a process, which takes about a second to start.
        read_only: Runs cannot be edited or deleted from the page.

    Attributes:
        root: The directory with the runs.
        run_count: How many runs there were at the start.
        note: Why the index is in memory; empty if it is on disk.
        reading_needs_token: Whether viewing needs a token, as of the start.

    Raises:
        ConfigError: The directory does not exist, the address or a name is not valid or in use, others can reach the
            server without a token, or the tokens file cannot be used.
        MissingExtraError: A package for the page is not installed.
    """

    def __init__(
        self,
        root: str | Path = "runs",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        stall_seconds: float = STALL_SECONDS,
        tokens: Tokens | None = None,
        allow_hosts: Sequence[str] = (),
        bodies: "BodyLimits | None" = None,
        limits: "ConnectionLimits | None" = None,
        blobs: "BlobLimits | None" = None,
        tokens_file: str | Path | None = None,
        compress_after_days: float | None = None,
        storage: "str | StorageOptions | None" = None,
        separate_queries: bool = False,
        read_only: bool = False,
    ) -> None:
        try:
            import uvicorn

            from hookline.server.application import EditOptions, ReceiveOptions, application, front_application
            from hookline.server.connections import ConnectionLimits
            from hookline.server.limits import BodyLimits
            from hookline.server.query_process import QueryProcess, Settings
            from hookline.server.received_blobs import BlobLimits
            from hookline.server.storage.service import Storage, StorageOptions
        except ImportError as error:
            raise MissingExtraError("The web page", "ui") from error
        others = [allowed_name(each) for each in allow_hosts]
        is_reachable = bool(others) or not is_loopback(host)
        _check_access(host, tokens, is_reachable=is_reachable, has_storage=storage is not None)
        if storage is not None and separate_queries:
            raise ConfigError("separate_queries cannot be used with storage: one process keeps the copy up to date.")
        require_number("stall_seconds", stall_seconds, above=0)
        require_number("compress_after_days", compress_after_days, minimum=0, optional=True)
        if compress_after_days is not None:
            zstd()  # now: later its absence would only be in the log
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise missing_root_error(self.root)
        # Received runs get some time to reconnect to a server that was down.
        since = None if tokens is None else time.time()
        self._liveness = Liveness(stall_seconds, since=-math.inf if since is None else since)
        self._runs: Runs | None = None
        self._queries: QueryProcess | None = None
        store = TokenStore(default_tokens_file(self.root) if tokens_file is None else Path(tokens_file))
        if tokens is not None:
            store.read()  # a file that cannot be used is reported now; a later one allows nothing
        self._audit = None if tokens is None else AuditLog(self.root)
        self._socket = _bind(host, port)
        self._storage: Storage | None = None
        if storage is not None:
            chosen = StorageOptions(storage) if isinstance(storage, str) else storage
            self._storage = self._open_storage(lambda: Storage(chosen, self.root))
        elif not separate_queries:
            open_store(self.root).before_read = None  # of an earlier server on this copy
        bodies = bodies or BodyLimits()
        limits = limits or ConnectionLimits(head_seconds=bodies.chunk_seconds)
        receiving, live = None, LiveTokens(store)
        self.reading_needs_token = tokens is not None and (tokens.read is not None or live.has_readers)
        if tokens is not None:
            names = host_names(host, others)
            receiving = ReceiveOptions(tokens, names, bodies, blobs or BlobLimits(), live, self._audit, self._storage)
        options: _AppOptions = {
            "is_closing": lambda: self._server.should_exit,
            "receiving": receiving,
            "max_streams": limits.connections // 2,  # streams must leave room for other requests
            "editing": EditOptions(self._liveness, "It was started read-only." if read_only else ""),
        }
        if separate_queries:
            self._queries = QueryProcess(Settings(str(self.root), stall_seconds, since, compress_after_days), tokens)
            self.run_count, self.note = self._queries.ready.runs, self._queries.ready.note
            app = front_application(self._queries, self.root, **options)
        else:
            self.run_count, self.note = len(self.runs), self.runs.note
            app = application(self.runs, **options)
        config = uvicorn.Config(
            app,
            log_config=None,  # uvicorn's own would close the log handlers that the program has
            log_level="error",  # a warning for each invalid request would fill the log
            access_log=False,
            lifespan="on" if separate_queries else "off",
            server_header=False,
            ws="none",
            http=limits.protocol(),
            backlog=limits.backlog,
            timeout_keep_alive=round(limits.head_seconds) + 1,
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None
        # A query process has threads of its own.
        self._background = [] if separate_queries else self._background_threads(compress_after_days)

    def _background_threads(self, compress_after_days: float | None) -> list[BackgroundCompression | BackgroundIngest]:
        threads: list[BackgroundCompression | BackgroundIngest] = []
        if compress_after_days is not None:
            # A listing of its own: that of the requests is refreshed by them.
            listed = Runs(open_store(self.root), self._liveness)
            threads.append(BackgroundCompression(listed.refresh, compress_after_days))
        if self._storage is None:  # the copy of an object store is made when it is asked for
            threads.append(BackgroundIngest(open_store(self.root), self._liveness))
        return threads

    def _open_storage(self, opened: "Callable[[], Storage]") -> "Storage":
        try:
            storage = opened()
        except BaseException:
            self._socket.close()
            raise
        storage.start()
        storage.attach(self.runs, open_store(self.root))
        return storage

    @property
    def runs(self) -> Runs:
        """The runs; with ``separate_queries``, the first use opens the index in this process, too."""
        if self._runs is None:
            self._runs = Runs(open_store(self.root), self._liveness)
        return self._runs

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def serve(self) -> None:
        """Serve until `stop` or a termination signal."""
        for thread in self._background:
            thread.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            if self._storage is not None:
                self._storage.close()
            if self._audit is not None:
                self._audit.close()
            for thread in self._background:
                thread.stop()
            if self._queries is not None:
                self._queries.close()

    @contextlib.contextmanager
    def stopped_by_interrupt(self) -> Iterator[None]:
        """Make Ctrl-C call `stop`, even before it serves: KeyboardInterrupt could be raised where Python ignores it."""
        before = signal.signal(signal.SIGINT, lambda number, frame: self.stop())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def stop(self) -> None:
        """Stop serving; may be called from any thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._runs is not None:
                self._runs.close()  # only now: requests that are still answered would open the index again

    def __enter__(self) -> Self:
        """Start serving on a thread."""
        self._thread = threading.Thread(target=self.serve, name="hookline-ui", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _check_access(host: str, tokens: Tokens | None, *, is_reachable: bool, has_storage: bool) -> None:
    """Refuse a server that others can reach without a token.

    Raises:
        ConfigError: They could, or the address is empty.
    """
    check_host(host)
    if tokens is None and not is_loopback(host):
        raise ConfigError(
            f"host={host!r}: the page has no password and is served to this machine only: give 127.0.0.1. From "
            "another machine, forward the port: ssh -L 8765:127.0.0.1:8765 <this machine>; or use hookline serve."
        )
    if tokens is not None and tokens.read is None and is_reachable:
        raise ConfigError("Others can reach this server: give a read token, too, or everyone can view the runs.")
    if tokens is None and has_storage:
        raise ConfigError("storage is given, but no tokens: a server without them receives nothing.")


def raise_descriptor_limit() -> None:
    """Raise the limit of open files, as far as the system allows: the default of macOS is 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def shorten_pauses() -> None:
    """Shorten the pauses that the interpreter makes: for a process that does nothing but serve, when it starts to."""
    # A request is handled by several threads in turn, each of which may wait so long for one that computes.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What was imported stays for ever: without it, a collection of everything takes milliseconds less.
    gc.collect()
    gc.freeze()
    # Requests leave hardly any cycles, but with the default of 700 objects the search for them takes 5% of the time.
    gc.set_threshold(_COLLECTED_OBJECTS)
    atexit.register(gc.unfreeze)  # or libraries report what is still there in the end as leaks


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_names(host: str, others: Sequence[str] = ()) -> list[str]:
    """The names and addresses by which a server on an address is reached."""
    if is_loopback(host):
        return [*LOOPBACK, host, *others]
    own = socket.gethostname()
    names = [host, own, own.partition(".")[0], socket.getfqdn()]
    with contextlib.suppress(OSError):
        names += [str(found[4][0]) for found in socket.getaddrinfo(own, None)]
    return [*LOOPBACK, *names, *others]


def check_host(host: str) -> None:
    """Refuse an empty address, which the system would read as all addresses.

    Raises:
        ConfigError: It is empty.
    """
    if not host.strip():
        raise ConfigError(
            f"host={host!r} is not an address: give 127.0.0.1 for this machine only, or 0.0.0.0 for all addresses."
        )


def allowed_name(given: str) -> str:
    """An accepted host name, without its port.

    Raises:
        ConfigError: It is not a host name.
    """
    found = _HOST.fullmatch(given)
    name = found["name"] or found["bracketed"] if found else given if _is_address(given) else None
    if not name:
        raise ConfigError(
            f"allow_host={given!r:.80} is not a host name: give the part between https:// and the next /, e.g. "
            "runs.example.org or runs.example.org:8443."
        )
    return name.lower()


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(1024)
    except (OSError, OverflowError) as error:
        bound.close()
        if isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"host={host!r}: this machine does not have that address. Give 127.0.0.1 for this machine only, or "
                "0.0.0.0 for all its addresses."
            ) from error
        raise ConfigError(
            f"{host}:{port} cannot be served: {error}. Give another port, or 0 for any free one."
        ) from error
    return bound

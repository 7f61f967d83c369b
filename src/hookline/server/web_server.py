"""`WebServer`: serves the page on the current thread or on a separate one.

Without tokens it is read-only and bound to a loopback address. With tokens it also receives runs from other machines,
on any address.
"""

import contextlib
import errno
import ipaddress
import logging
import math
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hookline._engine.checks import require_number
from hookline._engine.errors import ConfigError, MissingExtraError
from hookline.server.access import LOOPBACK
from hookline.server.tokens import Tokens
from hookline.store import Runs
from hookline.store.run_summary import STALL_SECONDS, Liveness
from hookline.store.store import open_store

if TYPE_CHECKING:
    from hookline.server.connections import ConnectionLimits
    from hookline.server.limits import BodyLimits

logger = logging.getLogger("hookline")

_HOST = re.compile(r"(?:(?P<name>[A-Za-z0-9_.-]+)|\[(?P<bracketed>[0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
WANTED_DESCRIPTORS = 4096


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

    Raises:
        ConfigError: The directory does not exist, the address or a name is not valid or in use, or others can reach the
            server without a token.
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
    ) -> None:
        try:
            import uvicorn

            from hookline.server.application import ReceiveOptions, application
            from hookline.server.connections import ConnectionLimits
            from hookline.server.limits import BodyLimits
        except ImportError as error:
            raise MissingExtraError("The web page", "ui") from error
        check_host(host)
        others = [allowed_name(each) for each in allow_hosts]
        if tokens is None and not is_loopback(host):
            raise ConfigError(
                f"host={host!r}: the page has no password and is served to this machine only: give 127.0.0.1. From "
                "another machine, forward the port: ssh -L 8765:127.0.0.1:8765 <this machine>; or use hookline serve."
            )
        if tokens is not None and tokens.read is None and (others or not is_loopback(host)):
            raise ConfigError("Others can reach this server: give a read token, too, or everyone can view the runs.")
        require_number("stall_seconds", stall_seconds, above=0)
        # Received runs get some time to reconnect to a server that was down.
        since = -math.inf if tokens is None else time.time()
        self.runs = Runs(open_store(root), Liveness(stall_seconds, since=since))
        self._socket = _bind(host, port)
        bodies = bodies or BodyLimits()
        limits = limits or ConnectionLimits(head_seconds=bodies.chunk_seconds)
        receiving = None if tokens is None else ReceiveOptions(tokens, host_names(host, others), bodies)
        app = application(
            self.runs,
            is_closing=lambda: self._server.should_exit,
            receiving=receiving,
            max_streams=limits.connections // 2,  # streams must leave room for other requests
        )
        config = uvicorn.Config(
            app,
            log_level="error",  # a warning for each invalid request would fill the log
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            http=limits.protocol(),
            backlog=limits.backlog,
            timeout_keep_alive=round(limits.head_seconds) + 1,
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def serve(self) -> None:
        """Serve until `stop` or a termination signal."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

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
            self.runs.close()

    def __enter__(self) -> Self:
        """Start serving on a thread."""
        self._thread = threading.Thread(target=self.serve, name="hookline-ui", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def raise_descriptor_limit() -> None:
    """Raise the limit of open files, as far as the system allows: the default of macOS is 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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

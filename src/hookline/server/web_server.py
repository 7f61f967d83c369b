"""`WebServer`: serves the page, in this thread or in one of its own.

Without tokens it can be read and no more, on a loopback address. With tokens it also takes runs of other machines, on
any address.
"""

import contextlib
import errno
import ipaddress
import logging
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

import hookline.store
from hookline._engine.checks import require_number
from hookline._engine.errors import ConfigError, MissingExtraError
from hookline.server.access import LOOPBACK
from hookline.server.tokens import Tokens
from hookline.store import Runs
from hookline.store.run_summary import STALL_SECONDS, Liveness
from hookline.store.store import open_store

if TYPE_CHECKING:
    from hookline.server.connections import ConnectionLimits
    from hookline.server.limits import Bodies

logger = logging.getLogger("hookline")

_HOST = re.compile(r"(?:(?P<name>[A-Za-z0-9_.-]+)|\[(?P<bracketed>[0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
DESCRIPTORS = 4096


class WebServer:
    """The page over the runs below a directory; its address is known, and taken, once this is made.

    As a context it serves on a thread until the context is left.

    Args:
        port: 0 takes any that is free.
        stall_seconds: After how long without progress a run counts as stalled.
        tokens: What is asked of those who send runs and of those who look; without them nothing can be sent.
        allow_hosts: Other names that it is reached by, e.g. that of a proxy; a port makes no difference.
        bodies: How much it takes at a time.
        limits: How many connections it has at a time, and how long each may take.

    Raises:
        ConfigError: There is no such directory, the address is none or taken, a name is none, or others reach it and no
            token is asked for.
        MissingExtraError: What the page needs is not installed.
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
        bodies: "Bodies | None" = None,
        limits: "ConnectionLimits | None" = None,
    ) -> None:
        try:
            import uvicorn

            from hookline.server.application import Receiving, application
            from hookline.server.connections import ConnectionLimits
            from hookline.server.limits import Bodies
        except ImportError as error:
            raise MissingExtraError("The web page", "ui") from error
        check_host(host)
        others = [allowed_name(each) for each in allow_hosts]
        _check_reach(host, tokens, others)
        self.runs = _runs(root, stall_seconds, receives=tokens is not None)
        self._socket = _bound(host, port)
        bodies = bodies or Bodies()
        limits = limits or ConnectionLimits(head_seconds=bodies.chunk_seconds)
        receiving = None if tokens is None else Receiving(tokens, host_names(host, others), bodies)
        app = application(
            self.runs,
            is_closing=lambda: self._server.should_exit,
            receiving=receiving,
            most_streams=limits.connections // 2,  # so that streams leave room for everybody else
        )
        config = uvicorn.Config(
            app,
            log_level="error",  # a warning for each request that is none would fill the log
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
        """Where the page is."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def serve(self) -> None:
        """Serve until `stop`, or until a signal asks to end."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    @contextlib.contextmanager
    def ended_by_interrupt(self) -> Iterator[None]:
        """Have Ctrl-C end it, also before it serves: an exception could be raised where Python ignores it."""
        before = signal.signal(signal.SIGINT, lambda number, frame: self.stop())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def stop(self) -> None:
        """Have it end; may be called from any thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self.runs.close()

    def __enter__(self) -> Self:
        """Serve on a thread; connections are accepted from now on."""
        self._thread = threading.Thread(target=self.serve, name="hookline-ui", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _runs(root: str | Path, stall_seconds: float, *, receives: bool) -> Runs:
    """The runs; those that are received have a while to come back to a server that was away."""
    if not receives:
        return hookline.store.runs(root, stall_seconds=stall_seconds)
    require_number("stall_seconds", stall_seconds, above=0)
    return Runs(open_store(root), Liveness(stall_seconds, since=time.time()))


def raise_descriptor_limit() -> None:
    """Let this process open as many files as a server needs, where the system allows it: macOS begins with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_names(host: str, others: Sequence[str] = ()) -> list[str]:
    """The names and addresses that a server on an address is reached by."""
    if is_loopback(host):
        return [*LOOPBACK, host, *others]
    own = socket.gethostname()
    names = [host, own, own.partition(".")[0], socket.getfqdn()]
    with contextlib.suppress(OSError):
        names += [str(found[4][0]) for found in socket.getaddrinfo(own, None)]
    return [*LOOPBACK, *names, *others]


def check_host(host: str) -> None:
    """Refuse an address that is none: the system would take it for every address that the machine has.

    Raises:
        ConfigError: It is empty.
    """
    if not host.strip():
        raise ConfigError(
            f"host={host!r} is no address: give 127.0.0.1 for this machine alone, or 0.0.0.0 for every address that it "
            "has."
        )


def allowed_name(given: str) -> str:
    """The name, without its port, that a request may call a server by.

    Raises:
        ConfigError: It is no name of a host.
    """
    found = _HOST.fullmatch(given)
    name = found["name"] or found["bracketed"] if found else given if _is_address(given) else None
    if not name:
        raise ConfigError(
            f"allow_host={given!r:.80} is no name of a host: give what stands between https:// and the next /, e.g. "
            "runs.example.org or runs.example.org:8443."
        )
    return name.lower()


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _check_reach(host: str, tokens: Tokens | None, allow_hosts: Sequence[str]) -> None:
    """Refuse to serve others who are asked for nothing."""
    if tokens is None and not is_loopback(host):
        raise ConfigError(
            f"host={host!r}: the page has no password and is served to this machine only: give 127.0.0.1. "
            "From another machine, forward the port: ssh -L 8765:127.0.0.1:8765 <this machine>; or use: hookline serve."
        )
    if tokens is not None and tokens.read is None and (allow_hosts or not is_loopback(host)):
        raise ConfigError("Others can reach this server: give a read token, too, or everybody could look.")


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
    except (OSError, OverflowError) as error:
        made.close()
        if isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"host={host!r}: this machine does not have that address. Give one of its own; 127.0.0.1 is for itself "
                "alone, 0.0.0.0 is every address that it has."
            ) from error
        raise ConfigError(f"{host}:{port} cannot be served: {error}. Give another port, or 0 for any.") from error
    return made

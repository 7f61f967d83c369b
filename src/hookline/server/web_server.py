"""`WebServer`: serves the page on a loopback address, in this thread or in one of its own."""

import ipaddress
import logging
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import hookline.store
from hookline.core.errors import ConfigError, MissingExtraError
from hookline.store.liveness import STALL_SECONDS

logger = logging.getLogger("hookline")


class WebServer:
    """The page over the runs below a directory; its address is known, and taken, once this is made.

    As a context it serves on a thread until the context is left.

    Args:
        port: 0 takes any that is free.
        stall_seconds: After how long without progress a run counts as stalled.

    Raises:
        ConfigError: There is no such directory, the address is not a loopback one, or it is taken.
        MissingExtraError: What the page needs is not installed.
    """

    def __init__(
        self,
        root: str | Path = "runs",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        try:
            import uvicorn

            from hookline.server.application import application
        except ImportError as error:
            raise MissingExtraError("The web page", "ui") from error
        check_loopback(host)
        self.runs = hookline.store.runs(root, stall_seconds=stall_seconds)
        self._socket = _bound(host, port)
        app = application(self.runs, is_closing=lambda: self._server.should_exit)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
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


def check_loopback(host: str) -> None:
    """Refuse an address that others can reach: the page asks nobody for a password.

    Raises:
        ConfigError: It is not a loopback address.
    """
    if host == "localhost":
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigError(
            f"host={host!r}: the page has no password and is served to this machine only: give 127.0.0.1. "
            "From another machine, forward the port: ssh -L 8765:127.0.0.1:8765 <this machine>."
        )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except (OSError, OverflowError) as error:
        made.close()
        raise ConfigError(f"{host}:{port} cannot be served: {error}. Give another port, or 0 for any.") from error
    return made

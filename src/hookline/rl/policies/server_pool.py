"""`ServerPool`: several inference servers used as one: load balancing, failures and updates of weights.

- A request goes to the server with the fewest requests in flight, except that those of a group go to one server, which
  then processes the tokens they begin with once.
- A server that does not answer, or answers that it is overloaded, gets no requests until it passes a check, which is
  made after a wait that grows with each failure and has jitter. Its requests are sent to the others.
- A check also compares the weights: a server that missed an update, or has been restarted, gets the present weights
  first. A server that was not used for `IDLE_SECONDS` is checked as well, since it may have been restarted meanwhile.
- During an update of the weights, no requests are sent.
- While no server can be used, requests wait for up to ``patience_seconds``.

Calls block their thread. All changes of the state are made under one lock, and no call to a server is.
"""

import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from hookline._engine.errors import OptionError, RefusedError
from hookline.rl.policies.base import PolicyError
from hookline.rl.policies.server_api import Call
from hookline.sinks.http import HttpClient, error_message, expanded, is_http_url, redacted

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("hookline")

MAX_WAIT_SECONDS = 30.0
CONTROL_SECONDS = 10.0
"""How long a call may take that is answered at once by a server in good health."""
IDLE_SECONDS = 1.0
"""A server without requests for so long may have been restarted: nothing would have failed. Loading takes longer."""
GROUPS = 10_000
"""How many groups the pool remembers the server of."""
FAILED = frozenset({500})
"""What servers answer both when they cannot handle one request and when they cannot handle any."""


class Server:
    """The state of a server.

    Attributes:
        outstanding: How many requests are in flight.
        failures: How many requests or checks have failed since the last answer.
        version: The version of its weights as far as known; None after a failure, which may have been a restart.
        refusal: Why it cannot be used before something else is changed; None if it may be used later, or now.
        is_processed: Whether its log-probabilities are those of the sampled distribution; None until it was probed.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_seconds: float, connections: int) -> None:
        self.url = url
        self.outstanding = 0
        self.failures = 0
        self.version: int | None = 0
        self.refusal: Exception | None = None
        self.is_processed: bool | None = None
        self.is_ready = False
        self.is_checked_now = False
        self.due_at = -1.0
        self.used_at = 0.0
        self._api_key, self._timeout = api_key, timeout_seconds

        def client(seconds: float) -> HttpClient:
            made = HttpClient(url, {}, option="urls", timeout_seconds=seconds, connections=connections)
            made.open()
            return made

        self._generating, self._controlling = client(timeout_seconds), client(min(CONTROL_SECONDS, timeout_seconds))

    def call(self, call: Call, *, is_generation: bool = False, more_seconds: float = 0.0) -> bytes:
        """Send a request and return the answer.

        Raises:
            EndpointError: The server does not answer, or not now.
            ServerError: It failed, for this request or for all.
            RefusedError: It refuses the request.
        """
        headers = {}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {expanded(self._api_key, 'api_key')}"
        client = self._generating if is_generation else self._controlling
        response = client.request(
            "GET" if call.body is None else "POST",
            b"" if call.body is None else msgspec.json.encode(call.body),
            path=call.path,
            params=call.params,
            headers=headers,
            permanent=FAILED,
            more_seconds=more_seconds,
        )
        if response.is_success:
            return response.content
        message = f"{redacted(self.url)}{call.path} answers {response.status_code} {response.reason_phrase}"
        detail = error_message(response.content)
        if response.status_code in FAILED:
            raise ServerError(f"{message}: {detail!r}")
        raise ServerRefusal(f"{message}: {detail!r}. {self._advice(response)}", response.status_code)

    def send_update(self, call: Call) -> bytes:
        """Send a call that may take as long as a generation."""
        return self.call(call, more_seconds=self._timeout)

    def close(self) -> None:
        """Close the connections."""
        self._generating.close()
        self._controlling.close()

    def _advice(self, response: "httpx.Response") -> str:
        if response.status_code in (401, 403):
            return "Give the right api_key=, e.g. api_key='${POLICY_API_KEY}'."
        if response.status_code == 404:
            return "Check urls=, api=, model=, and the options that the server was started with."
        return "Check api= and the version of the server."


class ServerError(PolicyError):
    """A server answers that it failed."""


class ServerRefusal(RefusedError):
    """A server refuses a request; `code` is the status."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class ServerPool:
    """Distributes requests among servers.

    Args:
        servers: The servers.
        check: Sends a server the weights it lacks; raises an error if the server cannot be used.
        patience_seconds: How long a request waits while no server can be used.
        retry_seconds: How long a server rests after its first failure; it doubles with each further one.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        check: Callable[[Server], None],
        *,
        patience_seconds: float,
        retry_seconds: float,
    ) -> None:
        self.servers = list(servers)
        self._check, self._patience, self._retry = check, patience_seconds, retry_seconds
        self._changed = threading.Condition()
        self._groups: OrderedDict[str, Server] = OrderedDict()
        self._jitter = random.Random()  # noqa: S311 - for waits
        self._checks = ThreadPoolExecutor(len(self.servers), thread_name_prefix="hookline-check")
        self._last_error: Exception | None = None
        self._is_updating = False
        self._is_closed = False

    def acquire(self, group: str, is_cancelled: Callable[[], bool]) -> Server:
        """Return the server for a request, which has to be released; waits for one.

        Raises:
            RefusedError, OptionError: No server can be used until its configuration changes.
            PolicyError: No server can be used for longer than the patience, or the pool is closed.
            Cancelled: The request was cancelled.
        """
        began: float | None = None
        with self._changed:
            while True:
                if self._is_closed:
                    raise PolicyError("The policy is closed.")
                if is_cancelled():
                    raise Cancelled
                now = time.monotonic()
                if not self._is_updating:
                    self._start_checks(now)
                    server = self._choose(group)
                    if server is not None:
                        server.outstanding += 1
                        server.used_at = now
                        return server
                    refusals = [each.refusal for each in self.servers if each.refusal and not each.is_checked_now]
                    if len(refusals) == len(self.servers):
                        raise refusals[0]
                    began = now if began is None else began
                    if now - began >= self._patience:
                        raise self._given_up(now - began) from self._last_error
                dues = [each.due_at - now for each in self.servers if not each.is_checked_now]
                self._changed.wait(max(0.001, min([1.0, *dues])))

    def release(self, server: Server, failure: Exception | None = None) -> None:
        """Note that a request has ended, and how."""
        with self._changed:
            server.outstanding -= 1
            now = time.monotonic()
            if failure is None:
                server.failures, server.used_at = 0, now
            elif server.is_ready:  # its other requests fail as well, which counts once
                self._put_aside(server, failure, now)
            self._close_unused()
            self._changed.notify_all()

    @contextmanager
    def updating(self) -> Iterator[list[Server]]:
        """Hold back requests inside the block; yields the servers, none of which is being checked."""
        with self._changed:
            while self._is_updating or any(each.is_checked_now for each in self.servers):
                self._changed.wait(1.0)
            self._is_updating = True
        try:
            yield self.servers
        finally:
            with self._changed:
                self._is_updating = False
                self._changed.notify_all()

    def put_aside(self, server: Server, failure: Exception) -> None:
        """Send a server no requests until it passes a check."""
        with self._changed:
            self._put_aside(server, failure, time.monotonic())

    def wake(self) -> None:
        """Let waiting requests look whether they were cancelled."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Fail the requests that wait, and close the connections; those in use are closed after it."""
        with self._changed:
            self._is_closed = True
            self._close_unused()
            self._changed.notify_all()
        self._checks.shutdown(wait=False)

    def _close_unused(self) -> None:
        for server in self.servers if self._is_closed else ():
            if not server.outstanding and not server.is_checked_now:
                server.close()

    def _choose(self, group: str) -> Server | None:
        ready = [each for each in self.servers if each.is_ready]
        # Servers in good health are waited for: otherwise the first to pass its check would get all groups.
        if not ready or any(each.is_checked_now and not each.failures for each in self.servers):
            return None
        server = self._groups.get(group) if group else None
        if server is None or not server.is_ready:
            server = min(ready, key=lambda each: each.outstanding)
        if group:
            self._groups[group] = server
            self._groups.move_to_end(group)
            while len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
        return server

    def _start_checks(self, now: float) -> None:
        for server in self.servers:
            if server.is_ready and not server.outstanding and now - server.used_at > IDLE_SECONDS:
                server.is_ready, server.due_at = False, now
            if not server.is_ready and not server.is_checked_now and now >= server.due_at:
                server.is_checked_now = True
                self._checks.submit(self._run_check, server)

    def _run_check(self, server: Server) -> None:
        failure: Exception | None = None
        try:
            self._check(server)
        except Exception as error:  # an error of one server must not keep the others from being used
            failure = error
        with self._changed:
            now = time.monotonic()
            server.is_checked_now = False
            if failure is not None:
                self._put_aside(server, failure, now)
                server.refusal = failure if isinstance(failure, RefusedError | OptionError) else None
            else:
                if server.failures:
                    logger.info("%s answers again.", redacted(server.url))
                server.is_ready, server.used_at, server.refusal = True, now, None
            self._close_unused()
            self._changed.notify_all()

    def _put_aside(self, server: Server, failure: Exception, now: float) -> None:
        self._last_error = failure
        if not server.failures:
            logger.warning("%s gets no requests until it answers again: %s", redacted(server.url), failure)
        server.is_ready, server.version, server.is_processed = False, None, None
        server.failures += 1
        wait = min(MAX_WAIT_SECONDS, self._retry * 2.0 ** min(server.failures - 1, 16)) * self._jitter.uniform(0.5, 1.5)
        server.due_at = now + max(wait, getattr(failure, "retry_after_seconds", 0.0))

    def _given_up(self, seconds: float) -> PolicyError:
        urls = ", ".join(redacted(each.url) for each in self.servers)
        return PolicyError(
            f"No server could be used for {seconds:.0f} s ({urls}): {self._last_error}. Start the servers, check "
            f"urls=, or wait for longer than patience_seconds={self._patience:g}."
        )


class Cancelled(Exception):
    """A request was cancelled while it waited."""


def checked_urls(urls: object) -> list[str]:
    """Return the addresses of servers.

    Raises:
        OptionError: They are not addresses, or contain a password.
    """
    given = [urls] if isinstance(urls, str) else list(urls) if isinstance(urls, list | tuple) else []
    if not given:
        raise OptionError(f"urls={urls!r}: give the addresses of the servers, such as ['http://localhost:8000'].")
    found: list[str] = []
    for url in given:
        if not is_http_url(url):
            raise OptionError(f"urls={url!r}: give the address of a server, such as 'http://localhost:8000'.")
        if urlsplit(url).password:
            raise OptionError(f"urls: {redacted(url)} contains a password. Give it as api_key='${{POLICY_API_KEY}}'.")
        found.append(str(url).rstrip("/").removesuffix("/v1"))
    if len(set(found)) < len(found):
        raise OptionError(f"urls={given!r} names a server twice: give each once.")
    return found

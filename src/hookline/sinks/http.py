"""`HttpClient`: the one HTTP client of hookline, and `MessageEndpoint`, which posts JSON messages with it.

Responses mean the same for all callers:

- No connection, a timeout, 5xx, 408, 409, 425 and 429 are temporary: `EndpointError`. No request is sent before
  the time in ``Retry-After``.
- 401 and 403 (credentials), 404, 405, 410 and redirects (address) are permanent: `RefusedError`.
- For any other 4xx the caller decides. `MessageEndpoint` refuses, so that the fault is noticed and no message is lost,
  or skips the message with a warning if it is configured to.

``${NAME}`` in the address and in headers is taken from the environment when a request is sent. A header or a token that
cannot be sent is refused, and no error message repeats it.

The client itself does not retry: sinks are retried by their delivery, which survives the process, and other callers
know best how long to wait.
"""

import email.utils
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from hookline._engine.errors import HooklineError, OptionError, RefusedError

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("hookline")

TEMPORARY = frozenset({408, 409, 425, 429})
"""Status codes below 500 that mean a temporary fault."""
WRONG_ADDRESS = frozenset({404, 405, 410})
TOKEN_PATTERN = re.compile(r"[!-~]+")
CONNECT_SECONDS = 10.0
MOST_RETRY_AFTER_SECONDS = 600.0

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_HEADER_PATTERN = re.compile(r"([!-~]+([ \t]+[!-~]+)*)?")
_PUBLIC_HEADERS = frozenset({"accept", "content-type", "user-agent"})


class EndpointError(HooklineError, ConnectionError):
    """An endpoint cannot be reached, or is temporarily unable to handle a request."""

    retry_after_seconds = 0.0


class HttpClient:
    """Sends requests to one address.

    Args:
        url: The address; may contain ``${NAME}``.
        headers: Sent with every request; values may contain ``${NAME}``.
        option: The name of the option that sets the address, for errors.
        token_file: Read for each request, and sent as a bearer token.
        ca_file: Certificates to trust instead of the system's.
        timeout_seconds: How long to wait for a response.
        connections: The maximum number of connections.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        option: str = "endpoint",
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 5.0,
        connections: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url, self.headers, self._option = url, headers, option
        self.token_file, self.ca_file = token_file, ca_file
        self._timeout, self._connections, self._clock = timeout_seconds, connections, clock
        self._client: httpx.Client | None = None
        self._not_before = 0.0

    def open(self) -> None:
        """Prepare for sending; nothing is sent. May be called again."""
        import httpx

        if self._client is None:
            verify = True if self.ca_file is None else ssl.create_default_context(cafile=str(self.ca_file))
            # Many servers close idle connections after five seconds; a request on a closing connection would fail.
            limits = httpx.Limits(max_connections=self._connections, keepalive_expiry=2.0)
            self._client = httpx.Client(timeout=self._timeouts(), verify=verify, limits=limits)
            for name in ("Accept", "Connection"):  # what HTTP/1.1 assumes anyway: a server parses each header
                del self._client.headers[name]

    def _timeouts(self, more_seconds: float = 0.0) -> "httpx.Timeout":
        import httpx

        return httpx.Timeout(
            self._timeout,
            connect=min(CONNECT_SECONDS, self._timeout),
            read=self._timeout + more_seconds,
            pool=None,
        )

    def close(self) -> None:
        """Close the connections. May be called again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def request(
        self,
        method: str,
        content: bytes,
        *,
        path: str = "",
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        permanent: Collection[int] = (),
        more_seconds: float = 0.0,
    ) -> "httpx.Response":
        """Send a request and return the response, successful or refused.

        Args:
            method: The HTTP method.
            content: The body, as JSON unless the headers say otherwise.
            path: Appended to the address.
            params: The query.
            headers: Added to those of the client.
            permanent: Status codes that are not temporary here.
            more_seconds: How much longer than usual the response may take.

        Raises:
            RefusedError: The address or a header is not valid.
            EndpointError: There was no response, or one that means a temporary fault.
        """
        import httpx

        assert self._client is not None
        if self._clock() < self._not_before:
            raise EndpointError(f"{redacted(self.url)} asked to wait before the next request")
        url = expanded(self.url, self._option).rstrip("/") + path if path else expanded(self.url, self._option)
        sent = {"Content-Type": "application/json"}
        sent |= {name: _header(name, value) for name, value in self.headers.items()}
        if self.token_file is not None:
            sent["Authorization"] = f"Bearer {_token(self.token_file)}"
        sent |= headers or {}
        try:
            response = self._client.request(
                method, url, content=content, headers=sent, params=params, timeout=self._timeouts(more_seconds)
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise RefusedError(
                f"{redacted(self.url)} is not a valid URL: {error}. Give {self._option}='https://host/path'."
            ) from error
        except httpx.HTTPError as error:
            raise EndpointError(f"{redacted(self.url)}: {type(error).__name__}: {error}".rstrip(".: ")) from error
        code = response.status_code
        if (code >= 500 or code in TEMPORARY) and code not in permanent:
            message = error_message(response.content)
            temporary = EndpointError(self.describe(response) + (f": {message!r}" if message else ""))
            temporary.retry_after_seconds = _retry_after(response.headers.get("Retry-After"))
            self._not_before = self._clock() + temporary.retry_after_seconds
            raise temporary
        return response

    def describe(self, response: "httpx.Response") -> str:
        """Describe the server's response, for an error."""
        return f"{redacted(self.url)} answers {response.status_code} {response.reason_phrase}".rstrip()


class MessageEndpoint(HttpClient):
    """Posts JSON messages to one address, each of them once.

    A message keeps its ``Idempotency-Key`` when it is sent again, so the receiver can recognize it. A message that was
    accepted is not sent again by this process, even if a later message of its batch fails.

    Args:
        url: The address; may contain ``${NAME}``.
        headers: Sent with every message; values may contain ``${NAME}``.
        skips_rejected: Skip a message that the endpoint rejects.
        options: Those of `HttpClient`.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, skips_rejected: bool = False, **options: Any) -> None:
        super().__init__(url, headers, **options)
        self._skips_rejected = skips_rejected
        self._accepted: set[str] = set()

    def send(self, key: str, payload: Mapping[str, Any]) -> None:
        """Post a message, unless it was accepted before.

        Raises:
            RefusedError: Sending it again will not help.
            EndpointError: It may work later.
        """
        if key in self._accepted:
            return
        response = self.request("POST", msgspec.json.encode(payload), headers={"Idempotency-Key": key})
        described = self.describe(response)
        if response.status_code in (401, 403):
            raise RefusedError(
                f"{described}. Give the credentials in headers, e.g. {{'Authorization': 'Bearer ${{TOKEN}}'}}."
            )
        if response.status_code in WRONG_ADDRESS or response.is_redirect:
            raise RefusedError(f"{described}. Check the address of the endpoint.")
        if not response.is_success:
            reason = f"{described} to message {key}: {response.text[:200]!r}"
            if not self._skips_rejected:
                raise RefusedError(f"{reason}. Check format=; skip_rejected=True skips such messages.")
            logger.warning("A message was skipped: %s", reason)
        self._accepted.add(key)

    def settle(self) -> None:
        """Forget which messages were accepted: the batch is complete, and none of them is sent again."""
        self._accepted.clear()


def expanded(text: str, what: str) -> str:
    """Replaces ``${NAME}`` in a text by variables of the environment.

    Raises:
        RefusedError: A variable is not set.
    """
    for name in _VARIABLE.findall(text):
        if name not in os.environ:
            raise RefusedError(f"{what} takes ${{{name}}} from the environment, where it is not set: export {name}=...")
    return _VARIABLE.sub(lambda match: os.environ[match[1]], text)


def without_secrets(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that are safe to write to disk: a literal value becomes a variable of the environment."""
    return {
        name: value
        if _VARIABLE.search(value) or name.lower() in _PUBLIC_HEADERS
        else f"${{HOOKLINE_HEADER_{re.sub(r'[^A-Z0-9]', '_', name.upper())}}}"
        for name, value in headers.items()
    }


def require_url(url: Any, what: str) -> str:
    """Checks that an option is a URL that is safe to write to disk: without a password.

    Raises:
        OptionError: It is not.
    """
    if isinstance(url, str) and _VARIABLE.search(url):
        return url
    if not is_http_url(url):
        raise OptionError(f"{what}={url!r}: give an address such as 'http://localhost:8080/status'.")
    if urlsplit(url).password:
        raise OptionError(
            f"{what}: {redacted(url)} is given with a password, and addresses are written to disk. Give it in headers, "
            "as {'Authorization': 'Basic ${CREDENTIALS}'}."
        )
    return str(url)


def is_http_url(url: Any) -> bool:
    """Whether a value is an address with a host, for HTTP or HTTPS."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def redacted(url: str) -> str:
    """An address without the parts that may be secret."""
    if _VARIABLE.match(url):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def error_message(content: bytes) -> str:
    """The error message in the body of a response, in any of the usual formats."""
    try:
        message = msgspec.json.decode(content)
    except msgspec.DecodeError:
        message = content.decode(errors="replace")
    for key in ("error", "message", "detail"):
        message = message.get(key, message) if isinstance(message, dict) else message
    return str(message).strip()[:500]


def _retry_after(value: str | None) -> float:
    """The seconds of a ``Retry-After`` header, within limits."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(MOST_RETRY_AFTER_SECONDS, max(0.0, seconds))


def _header(name: str, value: str) -> str:
    sent = expanded(value, f"headers[{name!r}]")
    if not _HEADER_PATTERN.fullmatch(sent):  # not repeated in the error: it may be secret, and errors are recorded
        raise RefusedError(
            f"headers[{name!r}] cannot be sent: it has line breaks, outer spaces or characters beyond ASCII. Check its "
            "value."
        )
    return sent


def _token(path: Path) -> str:
    try:
        token = path.read_bytes().strip().decode("ascii", "replace")
    except OSError as error:
        raise RefusedError(f"Cannot read the token in {path}: {error.strerror}.") from error
    if not TOKEN_PATTERN.fullmatch(token):
        raise RefusedError(
            f"{path} holds no token: it is empty, or has several lines, spaces or other characters that a token cannot "
            "have. Write the token into it, and nothing else."
        )
    return token

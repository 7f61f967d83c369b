"""`HttpEndpoint`: posts JSON to an address, each message once, and says what an answer means.

- Unreachable, too slow, 5xx, 408, 409, 425, 429: a fault that may pass. ``Retry-After`` is kept to.
- 401, 403: the credentials; 404, 405, 410 and redirects: the address. These are refused.
- Any other 4xx: the endpoint will not have this message. That is refused as well, so that it is seen
  and nothing is skipped; where the endpoint is told to skip, the message is left out, with a warning.

Every message carries an ``Idempotency-Key`` that it keeps when it is sent again, so that a receiver can
tell. What was accepted is not sent again by this process, also when a later message of its batch fails.

``${NAME}`` in the address and in headers is taken from the environment when a message is sent. A header or a token
that cannot be sent is refused, and no error repeats it.
"""

import email.utils
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from hookline._engine.errors import HooklineError, OptionError, RefusedError

if TYPE_CHECKING:
    import httpx


logger = logging.getLogger("hookline")

_REFERENCE = re.compile(r"\$\{(\w+)\}")
_PLAIN_HEADERS = frozenset({"accept", "content-type", "user-agent"})
_LONGEST_RETRY_AFTER = 600.0
PASSES = frozenset({408, 409, 425, 429})
"""Answers below 500 that mean a fault which may pass."""
ADDRESS = frozenset({404, 405, 410})
"""Answers that mean a wrong address."""
IN_TOKENS = re.compile(r"[!-~]+")
"""What a token is made of."""
_IN_HEADERS = re.compile(r"([!-~]+([ \t]+[!-~]+)*)?")


class EndpointError(HooklineError, ConnectionError):
    """An endpoint that cannot be reached or does not answer as it should, for now."""


class HttpEndpoint:
    """Posts messages to one address.

    Args:
        url: The address; may hold ``${NAME}``.
        headers: Sent with every message; values may hold ``${NAME}``.
        token_file: Read for each message, and sent as a bearer token.
        ca_file: Certificates to trust instead of the system's.
        timeout_seconds: How long to wait for a connection, and for an answer.
        skips_rejected: Leave out a message that the endpoint will not have.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 5.0,
        skips_rejected: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url, self.headers, self.token_file, self.ca_file = url, headers, token_file, ca_file
        self._timeout, self._skips, self._clock = timeout_seconds, skips_rejected, clock
        self._client: httpx.Client | None = None
        self._accepted: set[str] = set()
        self._not_before = 0.0

    def open(self) -> None:
        """Get ready to send; nothing is sent."""
        import httpx

        verify = True if self.ca_file is None else ssl.create_default_context(cafile=str(self.ca_file))
        limits = httpx.Limits(keepalive_expiry=2.0)  # before servers close an idle connection, five seconds for many
        self._client = httpx.Client(timeout=self._timeout, verify=verify, limits=limits)

    def send(self, key: str, payload: Mapping[str, Any]) -> None:
        """Post a message, unless it was accepted before.

        Raises:
            RefusedError: It is no use as things are set up.
            EndpointError: It may work later.
        """
        import httpx

        assert self._client is not None
        if key in self._accepted:
            return
        if self._clock() < self._not_before:
            raise EndpointError(f"{shown(self.url)} asked to be left alone for a while")
        url, headers = expanded(self.url, "endpoint"), self._headers(key)
        try:
            answer = self._client.post(url, content=msgspec.json.encode(payload), headers=headers)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise RefusedError(
                f"{shown(self.url)} is no address: {error}. Give endpoint='https://host/path'."
            ) from error
        except httpx.HTTPError as error:
            raise EndpointError(f"{shown(self.url)}: {type(error).__name__}: {error}".rstrip(".: ")) from error
        self._judge(key, answer)
        self._accepted.add(key)

    def settle(self) -> None:
        """Forget which messages were accepted: none of them comes again."""
        self._accepted.clear()

    def close(self) -> None:
        """Let go of the connection. May be called again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _headers(self, key: str) -> dict[str, str]:
        named = {name: _header(name, value) for name, value in self.headers.items()}
        if self.token_file is not None:
            named["Authorization"] = f"Bearer {_token(self.token_file)}"
        return {"Content-Type": "application/json"} | named | {"Idempotency-Key": key}

    def _judge(self, key: str, answer: "httpx.Response") -> None:
        code = answer.status_code
        if answer.is_success:
            return
        said = f"{shown(self.url)} answers {code} {answer.reason_phrase}".rstrip()
        if code >= 500 or code in PASSES:
            self._not_before = self._clock() + retry_after(answer.headers.get("Retry-After"))
            raise EndpointError(said)
        if code in (401, 403):
            raise RefusedError(
                f"{said}. Give the credentials in headers, e.g. {{'Authorization': 'Bearer ${{TOKEN}}'}}."
            )
        if code in ADDRESS or answer.is_redirect:
            raise RefusedError(f"{said}. Check the address of the endpoint.")
        reason = f"{said} to message {key}: {answer.text[:200]!r}"
        if not self._skips:
            raise RefusedError(f"{reason}. Check format=; skip_rejected=True leaves such messages out.")
        logger.warning("A message was left out: %s", reason)


def expanded(text: str, what: str) -> str:
    """A text with what it takes from the environment.

    Raises:
        RefusedError: A variable is not set.
    """
    for name in _REFERENCE.findall(text):
        if name not in os.environ:
            raise RefusedError(f"{what} takes ${{{name}}} from the environment, where it is not set: export {name}=...")
    return _REFERENCE.sub(lambda match: os.environ[match[1]], text)


def without_secrets(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as they may be written down: a value that was given literally becomes a name in the environment."""
    return {
        name: value
        if _REFERENCE.search(value) or name.lower() in _PLAIN_HEADERS
        else f"${{HOOKLINE_HEADER_{re.sub(r'[^A-Z0-9]', '_', name.upper())}}}"
        for name, value in headers.items()
    }


def require_url(url: Any, what: str) -> str:
    """An address that may be written down.

    Raises:
        OptionError: It is none, or it holds a password.
    """
    if not isinstance(url, str) or not url:
        raise OptionError(f"{what}={url!r}: give an address such as 'http://localhost:8080/status'.")
    if _REFERENCE.search(url):
        return url
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"{what}={url!r}: give an address such as 'http://localhost:8080/status'.")
    if parts.password:
        raise OptionError(
            f"{what}: {shown(url)} is given with a password, and addresses are written down. Give it in headers, as "
            "{'Authorization': 'Basic ${CREDENTIALS}'}."
        )
    return url


def shown(url: str) -> str:
    """An address without what may be secret in it."""
    if _REFERENCE.match(url):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def retry_after(value: str | None) -> float:
    """The seconds that a ``Retry-After`` header asks for, within limits."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(_LONGEST_RETRY_AFTER, max(0.0, seconds))


def _header(name: str, value: str) -> str:
    """A header as it is sent. One that cannot be sent is not repeated: it may hold a secret, and errors are kept."""
    given = expanded(value, f"headers[{name!r}]")
    if not _IN_HEADERS.fullmatch(given):
        raise RefusedError(
            f"headers[{name!r}] cannot be sent: it has line breaks, spaces at an end or letters beyond ASCII. Check "
            "what it is made of."
        )
    return given


def _token(path: Path) -> str:
    """The token in a file; what is none is not repeated either."""
    try:
        token = path.read_bytes().strip().decode("ascii", "replace")
    except OSError as error:
        raise RefusedError(f"The token in {path} cannot be read: {error.strerror}.") from error
    if not IN_TOKENS.fullmatch(token):
        raise RefusedError(
            f"{path} holds no token: it is empty, or has several lines, spaces or other characters that no token has. "
            "Write the token into it, and nothing else."
        )
    return token

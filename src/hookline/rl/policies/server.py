"""`ServerPolicy`: completions from an OpenAI-compatible server such as vLLM.

- Each prompt is a request of its own, and a bounded number of them is under way at the same time: the server batches.
- A server that does not answer (unreachable, too slow, 5xx, 408, 409, 425, 429) is waited for, longer each time, and
  said so once; ``Retry-After`` is kept to. What was answered before is not asked again. When nothing at all has
  come for ``patience_seconds``, that is a `PolicyError`.
- Any other refusal (a wrong model, a bad key, a prompt that is too long) is a `RefusedError` at once, with what the
  server says. An answer that is not what was asked for is a `PolicyError` at once.

Log-probabilities are taken as the server gives them. vLLM's are by default those of the model itself, before
temperature and top-p (``--logprobs-mode raw_logprobs``). At temperature 0 a prompt is asked once, whatever ``n`` is.

What an OpenAI-compatible server takes and gives at ``/v1/completions``.

Token ids are read in each form that servers give them: vLLM's ``token_ids`` and ``prompt_token_ids`` (asked for with
``return_token_ids``), ``"token_id:17"`` in place of token texts (older vLLM, ``return_tokens_as_token_ids``), and
llama.cpp's ``logprobs.content``. A server that gives no ids or no log-probabilities leaves them empty.
"""

import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import msgspec

from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline.rl.policies.base import PolicyError, check_request, check_version, derived_seed
from hookline.rl.types import Completion, Sampling
from hookline.sinks.http import PASSES, expanded, retry_after, shown

TOKEN_ID = "token_id:"  # noqa: S105 - how vLLM writes the id of a token
ENDED = frozenset({None, "stop", "eos", "eos_token", "stop_sequence"})


class Content(msgspec.Struct):
    """A token as llama.cpp gives it."""

    logprob: float
    id: int | None = None


class Logprobs(msgspec.Struct):
    """The tokens of a choice and their log-probabilities."""

    tokens: list[str] | None = None
    token_logprobs: list[float] | None = None
    content: list[Content] | None = None


class Choice(msgspec.Struct):
    """One completion."""

    text: str
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Answer(msgspec.Struct):
    """What the server says to one request."""

    choices: list[Choice]


def request_body(model: str, prompt: str, n: int, sampling: Sampling, *, index: int, token_ids: bool) -> dict[str, Any]:
    """What to ask for one prompt, which is the ``index``-th of its call."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "n": n,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "logprobs": 1,  # some servers take 0 for none
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = derived_seed(sampling.seed, index)
    if token_ids:
        body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    return body


def read_answer(content: bytes, n: int) -> list[Completion]:
    """The completions in an answer.

    Raises:
        PolicyError: It is not what was asked for.
    """
    try:
        choices = msgspec.json.decode(content, type=Answer).choices
    except msgspec.DecodeError as error:
        raise PolicyError(f"{error}: {content[:200].decode(errors='replace')!r}") from error
    if len(choices) != n:
        raise PolicyError(f"{n} completions were asked for, and {len(choices)} came")
    return [_completion(choice) for choice in sorted(choices, key=lambda choice: choice.index)]


def error_message(content: bytes) -> str:
    """What a server says is wrong, wherever it says it."""
    try:
        said = msgspec.json.decode(content)
    except msgspec.DecodeError:
        said = content.decode(errors="replace")
    for key in ("error", "message", "detail"):
        said = said.get(key, said) if isinstance(said, dict) else said
    return str(said).strip()[:500]


def _completion(choice: Choice) -> Completion:
    logprobs = _logprobs(choice.logprobs)
    ids = choice.token_ids if choice.token_ids is not None else _ids(choice.logprobs)
    if ids and logprobs and len(ids) != len(logprobs):
        raise PolicyError(f"a choice has {len(ids)} token ids and {len(logprobs)} log-probabilities")
    return Completion(
        text=choice.text,
        token_ids=ids,
        logprobs=logprobs,
        finish="stop" if choice.finish_reason in ENDED else "length",
        prompt_ids=choice.prompt_token_ids or [],
    )


def _logprobs(given: Logprobs | None) -> Sequence[float]:
    if given is None:
        return []
    return [each.logprob for each in given.content] if given.content is not None else given.token_logprobs or []


def _ids(given: Logprobs | None) -> Sequence[int]:
    if given is None:
        return []
    if given.content is not None:
        ids = [each.id for each in given.content if each.id is not None]
        return ids if len(ids) == len(given.content) else []
    written = [token.removeprefix(TOKEN_ID) for token in given.tokens or [] if token.startswith(TOKEN_ID)]
    complete = len(written) == len(given.tokens or []) and all(number.isdecimal() for number in written)
    return [int(number) for number in written] if complete else []


if TYPE_CHECKING:
    import httpx
    import torch

    Update = Callable[[int, Mapping[str, torch.Tensor]], None]

logger = logging.getLogger("hookline")

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
CONNECT_SECONDS = 10.0


class ServerPolicy:
    """Asks a server for completions.

    Args:
        url: The server, with or without ``/v1``, e.g. ``"http://localhost:8000"``.
        model: The name that the server knows the model by.
        api_key: Sent as a bearer token; ``"${NAME}"`` is taken from the environment when a request is sent.
        timeout_seconds: The longest wait for all completions of one prompt.
        patience_seconds: How long to go on asking a server that does not answer.
        connections: The most requests at the same time.
        token_ids: Ask for token ids as vLLM gives them; False for a server that refuses options it does not know.
        update: Gives the server new weights: called by `load_weights` with version and weights. This interface has no
            way of its own to do so; with vLLM it is where e.g. a collective RPC or a new LoRA adapter is sent.
        clock: Seconds that go on.
        wait: Waits for a number of seconds.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 300.0,
        patience_seconds: float = 600.0,
        connections: int = 16,
        token_ids: bool = True,
        update: "Update | None" = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("ServerPolicy", "status")
        _check_numbers(timeout_seconds, patience_seconds, connections)
        self.url, self.model = _completions_url(url), model
        self._api_key, self._token_ids, self._update = api_key, token_ids, update
        self._timeout, self._patience, self._connections = timeout_seconds, patience_seconds, connections
        self._clock, self._wait = clock, wait
        self._client: httpx.Client | None = None
        self._version = 0

    @property
    def version(self) -> int:
        """That of the weights, 0 until some were loaded."""
        return self._version

    def load_weights(self, version: int, weights: "Mapping[str, torch.Tensor]") -> None:
        """Hand new weights to ``update``, and write under their version from now on.

        Raises:
            OptionError: There is no ``update``.
        """
        check_version(version)
        if self._update is None:
            raise OptionError(
                f"The server at {shown(self.url)} cannot be given weights through its completions API. Give "
                "ServerPolicy(..., update=function), which is called with version and weights and brings them there."
            )
        self._update(version, weights)
        self._version = version

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[Completion]]:
        """``n`` completions for each prompt; at temperature 0 they are the same.

        Raises:
            RefusedError: The server will not have a request.
            PolicyError: It does not answer, or not as it should.
        """
        distinct = n if sampling.temperature else 1
        bodies = [
            request_body(self.model, prompt, distinct, sampling, index=index, token_ids=self._token_ids)
            for index, prompt in enumerate(check_request(prompts, n))
        ]
        return [group * (n // distinct) for group in self._ask_all(bodies)]

    def close(self) -> None:
        """Let go of the connections; the next request opens them again. May be called again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask_all(self, bodies: list[dict[str, Any]]) -> list[list[Completion]]:
        answered: dict[int, list[Completion]] = {}
        outage = _Outage(self)
        while len(answered) < len(bodies):
            before = len(answered)
            fault = self._ask_missing(bodies, answered)
            if len(answered) > before:
                outage.end()
            if fault is not None:
                outage.sit_out(fault)
        return [answered[place] for place in range(len(bodies))]

    def _ask_missing(self, bodies: list[dict[str, Any]], answered: dict[int, list[Completion]]) -> "_Fault | None":
        """Ask what was not answered yet, until all is or there is a fault that may pass."""
        missing = [place for place in range(len(bodies)) if place not in answered]
        client, halted = self._opened(), threading.Event()

        def ask(place: int) -> None:
            if not halted.is_set():
                try:
                    answered[place] = self._ask(client, bodies[place])
                except BaseException:
                    halted.set()  # here, so that no other request begins after it
                    raise

        pool = ThreadPoolExecutor(min(self._connections, len(missing)), thread_name_prefix="hookline-policy")
        try:
            return _first_fault([pool.submit(ask, place) for place in missing])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error nobody waits for what is under way

    def _ask(self, client: "httpx.Client", body: dict[str, Any]) -> list[Completion]:
        import httpx

        headers = {"Content-Type": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {expanded(self._api_key, 'api_key')}"
        try:
            answer = client.post(self.url, content=msgspec.json.encode(body), headers=headers)
        except httpx.HTTPError as error:
            raise _Fault(f"{type(error).__name__}: {error}".rstrip(".: ")) from error
        if not answer.is_success:
            raise self._refusal(answer)
        try:
            return read_answer(answer.content, body["n"])
        except PolicyError as error:
            raise PolicyError(
                f"{shown(self.url)} does not answer as an OpenAI-compatible completions server should: {error}. "
                "Check url=, and the server's version."
            ) from error

    def _refusal(self, answer: "httpx.Response") -> Exception:
        code, message = answer.status_code, error_message(answer.content)
        said = f"{code} {answer.reason_phrase}".rstrip()
        if code >= 500 or code in PASSES:
            return _Fault(f"{said}: {message!r}" if message else said, retry_after(answer.headers.get("Retry-After")))
        advice = "Check url= and model=."
        if code in (401, 403):
            advice = "Give the right api_key=, e.g. api_key='${POLICY_API_KEY}'."
        elif code in (400, 422) and self._token_ids:
            advice = "A server that does not know return_token_ids wants token_ids=False."
        return RefusedError(f"{shown(self.url)} answers {said} for model {self.model!r}: {message!r}. {advice}")

    def _opened(self) -> "httpx.Client":
        import httpx

        if self._client is None:
            limits = httpx.Limits(  # connections go before servers close an idle one, five seconds for many
                max_connections=self._connections, keepalive_expiry=2.0
            )
            timeout = httpx.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout), pool=None)
            self._client = httpx.Client(timeout=timeout, limits=limits)
        return self._client


class _Fault(Exception):
    """No answer, which may pass."""

    def __init__(self, reason: str, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class _Outage:
    """The times in which the server does not answer, during one call."""

    def __init__(self, policy: ServerPolicy) -> None:
        self._url, self._patience = shown(policy.url), policy._patience
        self._clock, self._wait = policy._clock, policy._wait
        self._since: float | None = None
        self._next = FIRST_WAIT_SECONDS
        self._is_said = False

    def sit_out(self, fault: _Fault) -> None:
        """Wait before the next attempt.

        Raises:
            PolicyError: It has lasted too long.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
        if not self._is_said:
            self._is_said = True
            logger.warning("No answer from %s (%s): asking again for up to %g s.", self._url, fault, self._patience)
        left = self._patience - (now - self._since)
        if left <= 0:
            raise PolicyError(
                f"No answer from {self._url} for {now - self._since:.0f} s: {fault}. Start the server, or check url=; "
                f"patience_seconds={self._patience:g} says how long to go on asking."
            ) from fault
        self._wait(min(left, max(self._next, fault.wait_seconds)))
        self._next = min(LONGEST_WAIT_SECONDS, 2 * self._next)

    def end(self) -> None:
        """There is an answer again."""
        if self._since is not None:
            logger.info("%s answers again, after %.0f s.", self._url, self._clock() - self._since)
        self._since, self._next = None, FIRST_WAIT_SECONDS


def _first_fault(asked: "list[Future[None]]") -> _Fault | None:
    """Wait for all, and give a fault that may pass; any other error is raised as soon as it comes."""
    fault: _Fault | None = None
    for future in as_completed(asked):
        try:
            future.result()
        except _Fault as error:
            fault = fault or error
    return fault


def _completions_url(url: Any) -> str:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"url={url!r}: give the address of the server, such as 'http://localhost:8000'.")
    if parts.password:
        raise OptionError(
            f"url: {shown(url)} is given with a password. Give it as api_key=, e.g. '${{POLICY_API_KEY}}'."
        )
    base = url.rstrip("/").removesuffix("/completions")
    return f"{base}/completions" if base.endswith("/v1") else f"{base}/v1/completions"


def _check_numbers(timeout_seconds: Any, patience_seconds: Any, connections: Any) -> None:
    for name, value, least in (("timeout_seconds", timeout_seconds, 0.001), ("patience_seconds", patience_seconds, 0)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            raise OptionError(f"{name}={value!r}: give a number of seconds of at least {least}.")
    if isinstance(connections, bool) or not isinstance(connections, int) or connections < 1:
        raise OptionError(f"connections={connections!r}: give a whole number of at least 1.")

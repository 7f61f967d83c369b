"""`CompletionsPolicy`: generates completions with an OpenAI-compatible server such as vLLM, at ``/v1/completions``.

- Each prompt is a separate request, and a bounded number of requests is in flight: the server batches them.
- If the server does not answer (unreachable, timeout, 5xx, 408, 409, 425, 429), requests are repeated with growing
  waits, respecting ``Retry-After``, and one warning is logged. Answered requests are not repeated. If nothing at all is
  answered for ``patience_seconds``, a `PolicyError` is raised.
- Any other refusal (a wrong model, a bad key, a prompt that is too long) raises a `RefusedError` at once, with the
  server's message. An answer that does not match the request raises a `PolicyError` at once.

Log-probabilities are those of the server. vLLM's are by default those of the model, before temperature and top-p
(``--logprobs-mode raw_logprobs``). At temperature 0 each prompt is requested once, for any ``n``.

Token ids are read in every form that servers use: vLLM's ``token_ids`` and ``prompt_token_ids`` (requested with
``return_token_ids``), ``"token_id:17"`` in place of token texts (older vLLM, ``return_tokens_as_token_ids``), and
llama.cpp's ``logprobs.content``. They are empty if the server sends none.
"""

import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import msgspec

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline.rl.policies.base import PolicyError, Prompt, check_request, derived_seed
from hookline.rl.types import Completion, Sampling
from hookline.sinks.http import EndpointError, HttpClient, error_message, expanded, is_http_url, redacted

if TYPE_CHECKING:
    import httpx
    import torch

    Update = Callable[[int, Mapping[str, torch.Tensor]], None]

logger = logging.getLogger("hookline")

FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 30.0
TOKEN_ID = "token_id:"  # noqa: S105 - vLLM's prefix of a token id
STOP_REASONS = frozenset({None, "stop", "eos", "eos_token", "stop_sequence"})


class TokenContent(msgspec.Struct):
    """A token in the format of llama.cpp."""

    logprob: float
    id: int | None = None


class Logprobs(msgspec.Struct):
    """The tokens of a choice and their log-probabilities."""

    tokens: list[str] | None = None
    token_logprobs: list[float] | None = None
    content: list[TokenContent] | None = None


class Choice(msgspec.Struct):
    """One completion."""

    text: str
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Response(msgspec.Struct):
    """The answer to one request."""

    choices: list[Choice]


def request_body(
    model: str, prompt: Prompt, n: int, sampling: Sampling, *, index: int, token_ids: bool
) -> dict[str, Any]:
    """Return the request for one prompt, the ``index``-th of its call."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "n": n,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "logprobs": 1,  # some servers treat 0 as none
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = derived_seed(sampling.seed, index)
    if token_ids:
        body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    return body


def read_response(content: bytes, n: int) -> list[Completion]:
    """Return the completions in an answer.

    Raises:
        PolicyError: The answer does not match the request.
    """
    try:
        choices = msgspec.json.decode(content, type=Response).choices
    except msgspec.DecodeError as error:
        raise PolicyError(f"{error}: {content[:200].decode(errors='replace')!r}") from error
    if len(choices) != n:
        raise PolicyError(f"{n} completions were requested, and {len(choices)} received")
    return [_completion(choice) for choice in sorted(choices, key=lambda choice: choice.index)]


def _completion(choice: Choice) -> Completion:
    given = choice.logprobs or Logprobs()
    logprobs: Sequence[float] = given.token_logprobs or []
    ids: Sequence[int] = []
    if given.content is not None:
        logprobs = [each.logprob for each in given.content]
        ids = [each.id for each in given.content if each.id is not None]
        ids = ids if len(ids) == len(given.content) else []
    elif given.tokens and all(
        each.startswith(TOKEN_ID) and each.removeprefix(TOKEN_ID).isdecimal() for each in given.tokens
    ):
        ids = [int(each.removeprefix(TOKEN_ID)) for each in given.tokens]
    ids = ids if choice.token_ids is None else choice.token_ids
    if ids and logprobs and len(ids) != len(logprobs):
        raise PolicyError(f"a choice has {len(ids)} token ids and {len(logprobs)} log-probabilities")
    return Completion(
        text=choice.text,
        token_ids=ids,
        logprobs=logprobs,
        finish="stop" if choice.finish_reason in STOP_REASONS else "length",
        prompt_ids=choice.prompt_token_ids or [],
    )


class CompletionsPolicy:
    """Requests completions from a server.

    Args:
        url: The server, with or without ``/v1``, e.g. ``"http://localhost:8000"``.
        model: The server's name of the model.
        api_key: Sent as a bearer token; ``"${NAME}"`` is read from the environment when a request is sent.
        timeout_seconds: The time limit for all completions of one prompt.
        patience_seconds: How long to retry while the server does not answer.
        connections: The largest number of simultaneous requests.
        token_ids: Request token ids with vLLM's options; False for a server that rejects unknown options.
        update: Sends new weights to the server; `load_weights` calls it with version and weights. The completions API
            cannot do this itself; with vLLM, it could use a collective RPC or load a new LoRA adapter.
        clock: A monotonic clock in seconds.
        wait: Sleeps for a number of seconds.
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
            raise MissingExtraError("CompletionsPolicy", "status")
        self.url, self.model = _completions_url(url), model
        self._api_key, self._token_ids, self._update = api_key, token_ids, update
        self._patience = require_number("patience_seconds", patience_seconds, minimum=0)
        self._connections = require_integer("connections", connections)
        self._clock, self._wait = clock, wait
        self._client = HttpClient(
            self.url,
            {},
            option="url",
            timeout_seconds=require_number("timeout_seconds", timeout_seconds, minimum=0.001),
            connections=self._connections,
            clock=clock,
        )
        self._version = 0

    @property
    def version(self) -> int:
        """The version of the weights; 0 until weights are loaded."""
        return self._version

    def load_weights(self, version: int, weights: "Mapping[str, torch.Tensor]") -> None:
        """Pass new weights to ``update``, and set the version.

        Raises:
            OptionError: There is no ``update``.
        """
        require_integer("version", version, minimum=0)
        if self._update is None:
            raise OptionError(
                f"The server at {redacted(self.url)} cannot load weights through its completions API. Give "
                "CompletionsPolicy(..., update=function), a function of version and weights that sends them."
            )
        self._update(version, weights)
        self._version = version

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Generate ``n`` completions for each prompt; at temperature 0 they are equal.

        Raises:
            RefusedError: The server refuses a request.
            PolicyError: It does not answer, or answers incorrectly.
        """
        distinct = n if sampling.temperature else 1
        bodies = [
            request_body(self.model, prompt, distinct, sampling, index=index, token_ids=self._token_ids)
            for index, prompt in enumerate(check_request(prompts, n))
        ]
        return [group * (n // distinct) for group in self._request_all(bodies)]

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _request_all(self, bodies: list[dict[str, Any]]) -> list[list[Completion]]:
        answered: dict[int, list[Completion]] = {}
        outage = _Outage(self)
        while len(answered) < len(bodies):
            before = len(answered)
            failure = self._request_missing(bodies, answered)
            if len(answered) > before:
                outage.end()
            if failure is not None:
                outage.wait(failure)
        return [answered[index] for index in range(len(bodies))]

    def _request_missing(
        self, bodies: list[dict[str, Any]], answered: dict[int, list[Completion]]
    ) -> EndpointError | None:
        """Send the unanswered requests; returns a transient failure, and raises any other as soon as it occurs."""
        missing = [index for index in range(len(bodies)) if index not in answered]
        halted = threading.Event()
        self._client.open()

        def request(index: int) -> None:
            if not halted.is_set():
                try:
                    answered[index] = self._request(bodies[index])  # no lock: each thread has keys of its own
                except BaseException:
                    halted.set()  # on this thread, so that no other request starts after the failure
                    raise

        pool = ThreadPoolExecutor(min(self._connections, len(missing)), thread_name_prefix="hookline-policy")
        failure: EndpointError | None = None
        try:
            for future in as_completed([pool.submit(request, index) for index in missing]):
                try:
                    future.result()
                except EndpointError as error:
                    failure = failure or error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error, requests in flight are abandoned
        return failure

    def _request(self, body: dict[str, Any]) -> list[Completion]:
        headers = {}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {expanded(self._api_key, 'api_key')}"
        response = self._client.request("POST", msgspec.json.encode(body), headers=headers)
        if not response.is_success:
            raise self._refusal(response)
        try:
            return read_response(response.content, body["n"])
        except PolicyError as error:
            raise PolicyError(
                f"{redacted(self.url)} does not answer like an OpenAI-compatible completions server: {error}. "
                "Check url=, and the server's version."
            ) from error

    def _refusal(self, response: "httpx.Response") -> RefusedError:
        code, message = response.status_code, error_message(response.content)
        advice = "Check url= and model=."
        if code in (401, 403):
            advice = "Give the right api_key=, e.g. api_key='${POLICY_API_KEY}'."
        elif code in (400, 422) and self._token_ids:
            advice = "For a server without return_token_ids, give token_ids=False."
        return RefusedError(f"{self._client.describe(response)} for model {self.model!r}: {message!r}. {advice}")


class _Outage:
    """Waits while the server does not answer, during one call.

    All concurrent requests share the wait, and any answer ends the outage. A retry library repeats single calls.
    """

    def __init__(self, policy: CompletionsPolicy) -> None:
        self._url, self._patience = redacted(policy.url), policy._patience
        self._clock, self._sleep = policy._clock, policy._wait
        self._since: float | None = None
        self._next_wait = FIRST_WAIT_SECONDS
        self._is_logged = False

    def wait(self, failure: EndpointError) -> None:
        """Wait before the next attempt.

        Raises:
            PolicyError: The outage has lasted too long.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
        if not self._is_logged:
            self._is_logged = True
            logger.warning("No answer: %s. Retrying for up to %g s.", failure, self._patience)
        left = self._patience - (now - self._since)
        if left <= 0:
            raise PolicyError(
                f"No answer for {now - self._since:.0f} s: {failure}. Start the server, check url=, "
                f"or retry for longer than patience_seconds={self._patience:g}."
            ) from failure
        self._sleep(min(left, max(self._next_wait, failure.retry_after_seconds)))
        self._next_wait = min(MAX_WAIT_SECONDS, 2 * self._next_wait)

    def end(self) -> None:
        """Note that the server answers."""
        if self._since is not None:
            logger.info("%s answers again, after %.0f s.", self._url, self._clock() - self._since)
        self._since, self._next_wait = None, FIRST_WAIT_SECONDS


def _completions_url(url: Any) -> str:
    if not is_http_url(url):
        raise OptionError(f"url={url!r}: give the address of the server, such as 'http://localhost:8000'.")
    if urlsplit(url).password:
        raise OptionError(f"url: {redacted(url)} contains a password. Give it as api_key=, e.g. '${{POLICY_API_KEY}}'.")
    base = str(url).rstrip("/").removesuffix("/completions")
    return f"{base}/completions" if base.endswith("/v1") else f"{base}/v1/completions"

"""`ServerPolicy`: samples from vLLM and SGLang servers, and sends them new weights.

- Prompts and completions are token ids: sampled tokens are never tokenized again. Texts are decoded here.
- Log-probabilities are those of the distribution that tokens were sampled from. A server whose log-probabilities leave
  out temperature or top-p is refused as soon as these matter: a request shows it, whatever the server's options are
  called.
- A request that fails because a server does is sent to another one, and answered once. An answer that cannot be right
  is an error of that request alone.
- Weights are loaded by all servers at the same time, and requests wait meanwhile. With ``in_flight="abort"``, a
  completion that is interrupted continues from its tokens with the new weights; each token has the version of its own.
- Several servers, their health and waits are the matter of `ServerPool`, and how weights get there that of
  `hookline.rl.policies.weight_transfer`.
"""

import asyncio
import contextlib
import importlib.util
import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import HooklineError, MissingExtraError, OptionError, RefusedError
from hookline._record.tokens import token_texts
from hookline.config.loading import CheckedStruct
from hookline.rl.chat_format import ChatFormat
from hookline.rl.policies.base import PolicyError, Prompt, SampleRequest, StopTexts, check_prompt, with_first_token
from hookline.rl.policies.server_api import APIS, APIName, InFlight, Sampled, checked, read_models
from hookline.rl.policies.server_pool import Cancelled, Server, ServerError, ServerPool, ServerRefusal, checked_urls
from hookline.rl.policies.weight_transfer import (
    Broadcasts,
    DirectoryPublisher,
    Publisher,
    WeightsWay,
    WeightUpdate,
)
from hookline.rl.types import Completion, Sampling
from hookline.sinks.http import EndpointError, redacted

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("hookline")

ATTEMPTS_AFTER_FAILURE = 3
"""How often a request is sent that servers answer with 500: it may be the request that makes them fail."""
MAX_INTERRUPTIONS = 16
"""How often in a row a completion may be interrupted before it has got another token."""


class ServerPolicyConfig(CheckedStruct, kw_only=True):
    """The settings of a `ServerPolicy`; its arguments have the same names and meanings.

    Args:
        urls: The addresses of the servers, such as ``["http://localhost:8000"]``.
        api: Which API they speak: "vllm" or "sglang".
        model: The servers' name of the model; by default the first that they list.
        weights: How new weights get to the servers: as a "checkpoint" in ``directory``, as an "adapter" there, or by
            "broadcast" in a process group; None sends none.
        directory: Where checkpoints or adapters are written; the servers have to see it under the same path.
        in_flight: What happens to requests in flight while weights are replaced: "abort" interrupts them, and they
            continue from their tokens with the new weights, "keep" lets the server continue them, "wait" completes
            them first. Adapters are loaded beside the previous one, so that no request is affected.
        backend: The backend of the process group for "broadcast": "nccl", or "gloo".
        address: Under which servers reach this machine for "broadcast"; by default that from which they are reached.
        api_key: Sent as a bearer token; ``"${NAME}"`` is read from the environment when a request is sent.
        timeout_seconds: The time limit of one completion, and of each step of an update of the weights.
        patience_seconds: How long a request waits while no server can be used.
        retry_seconds: How long a server gets no requests after its first failure; it doubles with each further one, up
            to 30 s, and has jitter.
        connections: The largest number of requests in flight to each server.
    """

    urls: list[str]
    api: APIName
    model: str | None = None
    weights: WeightsWay | None = None
    directory: str | None = None
    in_flight: InFlight = "abort"
    backend: Literal["nccl", "gloo"] = "nccl"
    address: str | None = None
    api_key: str | None = None
    timeout_seconds: float = 600.0
    patience_seconds: float = 600.0
    retry_seconds: float = 1.0
    connections: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self.urls = checked_urls(self.urls)
        for name in ("timeout_seconds", "retry_seconds"):
            require_number(name, getattr(self, name), above=0)
        require_number("patience_seconds", self.patience_seconds, minimum=0)
        require_integer("connections", self.connections)
        if self.weights in ("checkpoint", "adapter") and self.directory is None:
            raise OptionError(
                f"weights={self.weights!r} without directory=: give a directory that the servers see under the same "
                "path."
            )


class _Request:
    """A request in progress."""

    def __init__(self, prompt_ids: list[int], sampling: Sampling, group: str) -> None:
        self.prompt_ids, self.sampling, self.group = prompt_ids, sampling, group
        self.is_cancelled = False
        self.in_flight: tuple[Server, str] | None = None


class ServerPolicy:
    """Samples from one or more vLLM or SGLang servers; implements `AsyncPolicy`.

    Args:
        urls: The addresses of the servers, such as ``["http://localhost:8000"]``, or one address.
        tokenizer: The tokenizer of the model.
        source: Where the files beside the weights come from, with ``weights="checkpoint"`` or ``"adapter"``: the model
            that is trained, or the directory of its checkpoint or adapter.
        options: The other settings of `ServerPolicyConfig`: ``api=`` is required.

    Raises:
        OptionError: An option is not valid.
    """

    exact_logprobs = False
    """A learner with the same weights computes slightly different log-probabilities: servers compute in another way."""
    needs_initial_weights = True
    """A learner sends its weights before the first rollout."""

    def __init__(self, urls: str | Sequence[str], *, tokenizer: Any, source: Any = None, **options: Any) -> None:
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("ServerPolicy", "status")
        self.config = config = ServerPolicyConfig(urls=checked_urls(urls), **options)
        self.tokenizer = tokenizer
        self._api = APIS[config.api]
        self._publisher = _publisher(config, source, tokenizer)
        self._vocabulary = _vocabulary(source, tokenizer)
        servers = [
            Server(
                url,
                api_key=config.api_key,
                timeout_seconds=config.timeout_seconds,
                connections=config.connections,
            )
            for url in config.urls
        ]
        self._pool = ServerPool(
            servers, self._check, patience_seconds=config.patience_seconds, retry_seconds=config.retry_seconds
        )
        self._threads = ThreadPoolExecutor(config.connections * len(servers), thread_name_prefix="hookline-policy")
        self._aborts = ThreadPoolExecutor(4, thread_name_prefix="hookline-abort")
        self._probing = threading.Lock()
        self._loading = threading.Lock()
        self._update: WeightUpdate | None = None
        self._version = 0
        self._adapters: list[str] = []
        self._model = config.model
        self._context_length: int | None = None
        self._knows_model = False

    @property
    def version(self) -> int:
        """The version of the weights; 0 until weights are loaded."""
        return self._version

    @property
    def weights_format(self) -> Literal["adapter", "merged"]:
        """The form of weights that `load_weights` takes."""
        return "adapter" if self.config.weights == "adapter" else "merged"

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How chats become tokens: by the chat template of the tokenizer."""
        return ChatFormat(self.tokenizer)

    @property
    def context_length(self) -> int | None:
        """The largest number of tokens of prompt and completion together, as far as the servers say it.

        Raises:
            PolicyError: No server answers.
        """
        if not self._knows_model:
            self._pool.release(self._pool.acquire("", lambda: False))  # a check of a server has asked for it
        return self._context_length

    async def sample(self, request: SampleRequest) -> Completion:
        """Generate a completion; ``versions`` has the version of the weights of each token.

        If an update meets a completion with ``in_flight="keep"``, its tokens have the older version.

        Raises:
            OptionError: The request is not accepted, or the log-probabilities of the servers are of the wrong kind.
            RefusedError: A server refuses the request.
            PolicyError: No server answers, or one answers incorrectly.
        """
        if request.images:
            raise OptionError("ServerPolicy generates from text alone: the prompt has images.")
        self._api.require_known(request.sampling)
        job = _Request(self._encode(request.prompt), request.sampling, request.group)
        try:
            future = self._threads.submit(self._complete, job)
        except RuntimeError as error:
            raise PolicyError("The policy is closed.") from error
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._cancel(job)
            raise

    def load_weights(self, version: int, weights: "Mapping[str, torch.Tensor]") -> None:
        """Send weights to all servers; requests wait until it is done.

        A server that does not answer, or not now, gets them before it serves again. With ``weights="broadcast"``, the
        tensors must not change before the next call.

        Raises:
            OptionError: There is no way to send weights.
            RefusedError: A server refuses them; none of them serves requests before it has the previous ones again.
            PolicyError: All servers that answer fail to load them.
        """
        require_integer("version", version, minimum=0)
        if self._publisher is None:
            raise OptionError(
                "ServerPolicy does not send weights: give weights='checkpoint', 'adapter' or 'broadcast'."
            )
        with self._loading:
            update = self._publisher.publish(version, weights)
            with self._pool.updating() as servers:
                failures = self._update_all(servers, update)
                refusals = [each for each in failures if isinstance(each, HooklineError) and not _may_pass(each)]
                if refusals:
                    for server in servers:
                        self._pool.put_aside(server, refusals[0])
                    raise refusals[0]
                answers = [each for each in failures if not isinstance(each, EndpointError)]
                if answers and len(failures) == len(servers):
                    raise PolicyError(f"No server has loaded version {version}: {answers[0]}") from answers[0]
                self._update, self._version = update, version
            self._forget_adapters(servers, update)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; for `RolloutConfig(tokens=...)`."""

        def decode(some: list[int]) -> str:
            return str(self.tokenizer.decode(some, skip_special_tokens=False, clean_up_tokenization_spaces=False))

        return token_texts(ids, decode)

    def close(self) -> None:
        """Fail the requests that wait, and close the connections."""
        self._pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._aborts.shutdown(wait=False, cancel_futures=True)
        if self._publisher is not None:
            self._publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Completions: each on its own thread.

    def _complete(self, job: _Request) -> Completion:
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        sampling, stop_texts = job.sampling, StopTexts(job.sampling.stop, self._decode)
        limit, finish = sampling.max_tokens, "length"
        interruptions = 0
        while len(tokens) < limit:
            sampled, version, room = self._request(job, tokens, limit)
            limit = min(limit, room)
            first = len(tokens)
            tokens += sampled.token_ids
            logprobs += sampled.logprobs
            versions += [version] * len(sampled.token_ids)
            if first:  # the server could not see a stop text that began before the interruption
                ends = (end for end in range(first + 1, len(tokens) + 1) if stop_texts.reached(tokens[:end]))
                if (end := next(ends, None)) is not None:
                    del tokens[end:], logprobs[end:], versions[end:]
                    finish = "stop"
                    break
            if sampled.finish != "abort":
                finish = sampled.finish
                break
            interruptions = 0 if sampled.token_ids else interruptions + 1
            if interruptions > MAX_INTERRUPTIONS:
                raise PolicyError(f"{self._api.title} interrupts a request again and again, without any token.")
        is_own = sampling.temperature == 0 or not sampling.is_processed
        return Completion(
            text=stop_texts.cut(self._decode(tokens)),
            token_ids=tokens,
            logprobs=logprobs if is_own else (),
            finish="stop" if finish == "stop" else "length",
            prompt_ids=job.prompt_ids,
            sampled_logprobs=() if is_own else logprobs,
            versions=versions,
        )

    def _request(self, job: _Request, tokens: list[int], limit: int) -> tuple[Sampled, int, int]:
        """Return a server's samples for some tokens, the version of its weights, and how many tokens fit."""
        began, failures = time.monotonic(), 0
        while True:
            server = self._pool.acquire(job.group, lambda: job.is_cancelled)
            failure: Exception | None = None
            try:
                update, room = self._update, self._room(job.prompt_ids, limit)
                self._require_processed(server, job.sampling)
                sampled = self._send(server, job, tokens, room, self._served_model(update))
            except EndpointError as error:
                failure = error
                if time.monotonic() - began > self.config.patience_seconds:
                    raise PolicyError(
                        f"{error}, for longer than patience_seconds={self.config.patience_seconds:g}."
                    ) from error
            except ServerError as error:
                failure, failures = error, failures + 1
                if failures >= ATTEMPTS_AFTER_FAILURE:
                    raise
            except ServerRefusal as error:
                # A server that was restarted does not have the adapter any longer.
                if self._update is None or self._update.adapter is None or error.code != 404 or failures:
                    raise
                failure, failures = PolicyError(str(error)), failures + 1
            else:
                return sampled, 0 if update is None else update.version, room
            finally:
                job.in_flight = None
                self._pool.release(server, failure)

    def _send(self, server: Server, job: _Request, tokens: list[int], room: int, model: str | None) -> Sampled:
        request_id = f"hookline-{uuid.uuid4().hex}"
        job.in_flight = (server, request_id)
        if job.is_cancelled:
            raise Cancelled
        sampling = replace(job.sampling, max_tokens=room - len(tokens))
        if tokens and sampling.seed is not None:  # the same seed would draw the same numbers again
            sampling = replace(sampling, seed=(sampling.seed + len(tokens)) % 2**31)
        call = self._api.generate(
            request_id, [*job.prompt_ids, *tokens], sampling, model, stop_token_ids=self._stop_tokens(sampling)
        )
        content = server.call(call, is_generation=True)
        return self._read(server, content, sampling.max_tokens)

    def _stop_tokens(self, sampling: Sampling) -> list[int]:
        """Return the stop texts that are special tokens: servers leave these out of the texts that they search."""
        special = [text for text in sampling.stop if text in getattr(self.tokenizer, "all_special_tokens", ())]
        return [int(token) for token in self.tokenizer.convert_tokens_to_ids(special)] if special else []

    def _read(self, server: Server, content: bytes, max_tokens: int) -> Sampled:
        try:
            return checked(self._api.read_generated(content), max_tokens=max_tokens, vocabulary=self._vocabulary)
        except (msgspec.DecodeError, PolicyError) as error:
            raise PolicyError(
                f"{redacted(server.url)} returned an invalid answer: {error}. Check urls=, api= and the "
                f"server's version; the answer begins with {content[:120].decode(errors='replace')!r}."
            ) from error

    def _served_model(self, update: WeightUpdate | None) -> str | None:
        """Return the name that requests give: that of the adapter, or of the model where the API has such."""
        if update is not None and update.adapter is not None:
            return update.adapter
        return self._model if self.config.api == "vllm" else None

    def _room(self, prompt_ids: list[int], limit: int) -> int:
        """Return how many tokens may follow a prompt."""
        positions = self._context_length
        if positions is None:
            return limit
        if len(prompt_ids) >= positions:
            raise OptionError(
                f"The prompt has {len(prompt_ids)} tokens, the servers {positions} positions: give a prompt of at most "
                f"{positions - 1} tokens, which leaves room for one."
            )
        return min(limit, positions - len(prompt_ids))

    def _require_processed(self, server: Server, sampling: Sampling) -> None:
        """Refuse a server whose log-probabilities are not those of the sampled distribution."""
        if sampling.temperature == 0 or not sampling.is_processed:
            return
        with self._probing:
            if server.is_processed is None:
                call = self._api.probe([self._first_token()], self._served_model(self._update))
                server.is_processed = self._api.is_processed(self._read(server, server.call(call), 1 << 10))
        if not server.is_processed:
            raise OptionError(
                f"{redacted(server.url)} gives log-probabilities of the model (raw_logprobs), not of what was sampled "
                f"with temperature={sampling.temperature:g} and top_p={sampling.top_p:g}, so a learner would be wrong "
                f"about every token. {self._api.processed_advice}"
            )

    def _first_token(self) -> int:
        found = (getattr(self.tokenizer, name, None) for name in ("bos_token_id", "eos_token_id"))
        return next((int(token) for token in found if token is not None), 0)

    def _cancel(self, job: _Request) -> None:
        job.is_cancelled = True
        self._pool.wake()
        if (sent := job.in_flight) is not None:
            server, request_id = sent

            def abort() -> None:
                with contextlib.suppress(HooklineError):  # the server then completes it in vain
                    server.call(self._api.abort(request_id))

            with contextlib.suppress(RuntimeError):  # closed
                self._aborts.submit(abort)

    def _encode(self, prompt: Prompt) -> list[int]:
        prompt = check_prompt(prompt, "prompt")
        if isinstance(prompt, str):
            return with_first_token(self.tokenizer, list(self.tokenizer(prompt)["input_ids"]))
        return list(prompt)

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    # Health and weights.

    def _check(self, server: Server) -> None:
        """Check that a server answers and has the present weights; it gets them otherwise."""
        server.call(self._api.health)
        names, length = read_models_of(server, server.call(self._api.models))
        if not self._knows_model:
            self._model = self._model or (names[0] if names else None)
            self._context_length, self._knows_model = length, True
        update = self._update
        if update is not None and not self._has(server, update, names):
            logger.info("%s gets the weights of version %d.", redacted(server.url), update.version)
            self._apply(server, update)
        elif update is not None and update.adapter is None and server.version is None:
            for call in self._api.resume(self.config.in_flight):  # it may have failed after it was paused
                server.call(call)
        server.version = self._version

    def _has(self, server: Server, update: WeightUpdate, names: list[str]) -> bool:
        """Return whether a server has an update."""
        if update.adapter is not None:
            return update.adapter in names
        try:
            reported = self._api.read_version(server.call(self._api.version))
        except msgspec.DecodeError as error:
            raise PolicyError(f"{redacted(server.url)}{self._api.version.path}: {error}") from error
        return reported == str(update.version)

    def _update_all(self, servers: Sequence[Server], update: WeightUpdate) -> list[Exception]:
        """Update servers at the same time; returns the failures."""

        def one(server: Server) -> Exception | None:
            try:
                self._apply(server, update)
                server.version = update.version
            except Exception as error:  # the servers' answers are independent of each other
                self._pool.put_aside(server, error)
                return error
            return None

        with ThreadPoolExecutor(len(servers), thread_name_prefix="hookline-weights") as threads:
            return [error for error in threads.map(one, servers) if error is not None]

    def _apply(self, server: Server, update: WeightUpdate) -> None:
        if update.adapter is not None:
            update.apply(server.url, server.send_update)
            return
        try:
            for call in self._api.pause(self.config.in_flight):
                server.send_update(call)
            try:
                update.apply(server.url, server.send_update)
            finally:
                for call in self._api.resume(self.config.in_flight):
                    server.call(call)
        except ServerRefusal as error:
            if error.code == 404:
                raise ServerRefusal(f"{error} {self._api.weights_advice}", error.code) from error
            raise

    def _forget_adapters(self, servers: Sequence[Server], update: WeightUpdate) -> None:
        """Unload adapters that no request uses any longer: all but the latest two."""
        if update.adapter is None:
            return
        self._adapters = [name for name in self._adapters if name != update.adapter] + [update.adapter]
        while len(self._adapters) > 2:
            name = self._adapters.pop(0)
            for server in servers:
                with contextlib.suppress(HooklineError):  # a server that was restarted does not have it
                    server.send_update(self._api.unload_adapter(name))


def read_models_of(server: Server, content: bytes) -> tuple[list[str], int | None]:
    """Return the names of a server's models and its context length.

    Raises:
        RefusedError: It is another kind of server.
    """
    try:
        return read_models(content)
    except msgspec.DecodeError as error:
        raise RefusedError(
            f"{redacted(server.url)}/v1/models is no list of models: {error}. Check urls= and api=."
        ) from error


def _may_pass(error: HooklineError) -> bool:
    """Return whether an error may be gone later."""
    return isinstance(error, EndpointError | PolicyError)


def _publisher(config: ServerPolicyConfig, source: Any, tokenizer: Any) -> Publisher | None:
    api = APIS[config.api]
    if config.weights is None:
        return None
    if config.weights == "broadcast":
        return Broadcasts(
            api,
            backend=config.backend,
            address=config.address,
            timeout_seconds=config.timeout_seconds,
            in_flight=config.in_flight,
        )
    is_adapter = config.weights == "adapter"
    is_model = hasattr(source, "peft_config") if is_adapter else hasattr(source, "config")
    if not (is_model or (isinstance(source, str | Path) and Path(source).is_dir())):
        kind = (
            "adapters, or the directory of an adapter" if is_adapter else "a config, or the directory of a checkpoint"
        )
        raise OptionError(
            f"source={source!r:.200} with weights={config.weights!r}: give the trained model with {kind}."
        )
    assert config.directory is not None
    return DirectoryPublisher(api, config.directory, source, tokenizer, is_adapter=is_adapter)


def _vocabulary(source: Any, tokenizer: Any) -> int:
    """Return the number of tokens of the model: tokenizers may have fewer, since models are padded."""
    config: Any = getattr(source, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return max(len(tokenizer), getattr(config, "vocab_size", None) or 0)

"""The APIs of vLLM and SGLang: the requests that `ServerPolicy` sends, and how answers are read. Nothing is sent here.

Prompts and completions are token ids in both directions. An answer is checked before it is used: token ids and
log-probabilities have equal lengths, are in range, finite, and no more than requested.

The log-probabilities of vLLM are those of the model by default. With ``--logprobs-mode processed_logprobs`` they are
those of the sampled distribution, temperature and top-p included. Those of SGLang include the temperature, but not
top-p; with ``SGLANG_RETURN_ORIGINAL_LOGPROB=1`` they are those of the model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from hookline._engine.errors import OptionError
from hookline.rl.policies.base import PolicyError
from hookline.rl.types import Sampling

APIName = Literal["vllm", "sglang"]
InFlight = Literal["abort", "keep", "wait"]

HOT = 1e6
"""A temperature at which all tokens are about equally likely."""
NARROW = 1e-9
"""A top-p that keeps the most likely token alone."""
PROBE_TOKENS = 8
PROBE_TOLERANCE = 1e-3
MISSING_LOGPROB = -9999.0
"""What vLLM sends in place of a log-probability that it does not have, or that is not finite."""
LOGPROB_TOLERANCE = 1e-3
"""How far above 0 rounding may take a log-probability."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a server: a GET without a body, else a POST of JSON."""

    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str | int] | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """The calls for one update by broadcast; the tensors are sent while ``receive`` is being answered."""

    before: Sequence[Call]
    receive: Call
    after: Sequence[Call]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The names, types and shapes of the tensors of a broadcast, in their order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens in an answer; "abort" if the server stopped before the completion was complete."""

    token_ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length", "abort"]


class ServerAPI(Protocol):
    """What differs between the servers."""

    title: str
    processed_advice: str
    """How to start the server such that its log-probabilities are those of the sampled distribution."""
    weights_advice: str
    """How to start the server such that it accepts weights."""
    health: Call
    models: Call
    version: Call

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        model: str | None,
        *,
        stop_token_ids: Sequence[int] = (),
    ) -> Call:
        """Return the request for one completion.

        Args:
            model: The name of the model, or of an adapter.
            stop_token_ids: Tokens that end it besides those that end every completion.
        """

    def read_generated(self, content: bytes) -> Sampled:
        """Decode the server's answer.

        Raises:
            msgspec.DecodeError: The answer has another form.
        """

    def read_version(self, content: bytes) -> str | None:
        """Return the version of the weights that the server reports."""

    def require_known(self, sampling: Sampling) -> None:
        """Raise an `OptionError` if the server cannot give log-probabilities of this distribution."""

    def probe(self, prompt_ids: Sequence[int], model: str | None) -> Call:
        """Return a request whose log-probabilities show which distribution they are of."""

    def is_processed(self, probed: Sampled) -> bool:
        """Whether the log-probabilities of a probe are those of the sampled distribution."""

    def abort(self, request_id: str) -> Call:
        """Stop generating for a request."""

    def pause(self, mode: InFlight) -> Sequence[Call]:
        """Stop generating until ``resume``."""

    def resume(self, mode: InFlight) -> Sequence[Call]:
        """Generate again."""

    def load_checkpoint(self, path: str, version: str) -> Sequence[Call]:
        """Load the weights in a directory."""

    def load_adapter(self, name: str, path: str) -> Call:
        """Load an adapter under a name."""

    def unload_adapter(self, name: str) -> Call:
        """Remove an adapter."""

    @property
    def parallelism(self) -> Call:
        """Return the request for the number of processes that receive a broadcast."""

    def read_world_size(self, content: bytes) -> int:
        """Return the number of processes that receive a broadcast."""

    def join(self, address: str, port: int, world_size: int, name: str, backend: str) -> Call:
        """Join the process group of a broadcast."""

    def leave(self, name: str) -> Sequence[Call]:
        """Leave the process group."""

    def transfer(self, tensors: TensorInfo, version: str, name: str, mode: InFlight) -> Transfer:
        """Receive weights from rank 0 of the process group."""


class _VLLMToken(msgspec.Struct):
    logprob: float


class _VLLMLogprobs(msgspec.Struct):
    content: list[_VLLMToken]


class _VLLMChoice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _VLLMLogprobs
    finish_reason: str


class _VLLMResponse(msgspec.Struct):
    choices: list[_VLLMChoice]


class _VLLMVersion(msgspec.Struct):
    weight_version: str | None = None


class _VLLMWorldSize(msgspec.Struct):
    world_size: int


def _sampling_params(sampling: Sampling, stop_token_ids: Sequence[int], *, seed: str) -> dict[str, Any]:
    """Return the parameters that both APIs have; ``seed`` is the API's name for the seed."""
    params: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if stop_token_ids:
        params["stop_token_ids"] = list(stop_token_ids)
    if sampling.seed is not None:
        params[seed] = sampling.seed
    return params


class VLLM:
    """vLLM 0.28 and later."""

    title = "vLLM"
    processed_advice = "Start vLLM with --logprobs-mode processed_logprobs, or give a temperature and top_p of 1."
    weights_advice = "Start vLLM with VLLM_SERVER_DEV_MODE=1, and for adapters VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
    health = Call("/health")
    models = Call("/v1/models")
    version = Call("/weight_info")
    parallelism = Call("/get_world_size")

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        model: str | None,
        *,
        stop_token_ids: Sequence[int] = (),
        **more: Any,
    ) -> Call:
        """Return the request for one completion."""
        params: dict[str, Any] = {
            "n": 1,
            "max_tokens": sampling.max_tokens,
            "logprobs": 0,
        }  # logprobs of the sampled tokens alone
        params |= _sampling_params(sampling, stop_token_ids, seed="seed") | more
        body: dict[str, Any] = {"request_id": request_id, "token_ids": list(prompt_ids), "sampling_params": params}
        return Call("/inference/v1/generate", body | {"stream": False} | ({"model": model} if model else {}))

    def read_generated(self, content: bytes) -> Sampled:
        """Decode the server's answer."""
        choices = msgspec.json.decode(content, type=_VLLMResponse).choices
        if len(choices) != 1:
            raise msgspec.ValidationError(f"1 completion was requested, and {len(choices)} received")
        (choice,) = choices
        finish: Literal["stop", "length", "abort"] = "stop"
        if choice.finish_reason in ("length", "abort"):
            finish = "length" if choice.finish_reason == "length" else "abort"
        return Sampled(choice.token_ids, [token.logprob for token in choice.logprobs.content], finish)

    def read_version(self, content: bytes) -> str | None:
        """Return the version of the weights that the server reports."""
        return msgspec.json.decode(content, type=_VLLMVersion).weight_version

    def require_known(self, sampling: Sampling) -> None:
        """Accept everything: processed log-probabilities include temperature and top-p."""

    def probe(self, prompt_ids: Sequence[int], model: str | None) -> Call:
        """Return a request whose tokens have a probability of 1 with top-p, and another one without."""
        sampling = Sampling(temperature=HOT, top_p=NARROW, max_tokens=PROBE_TOKENS)
        return self.generate("hookline-probe", prompt_ids, sampling, model, ignore_eos=True)

    def is_processed(self, probed: Sampled) -> bool:
        """Whether all probabilities are 1."""
        return all(abs(each) < PROBE_TOLERANCE for each in probed.logprobs)

    def abort(self, request_id: str) -> Call:
        """Stop generating for a request."""
        return Call("/abort_requests", {"request_ids": [request_id]})

    def pause(self, mode: InFlight) -> Sequence[Call]:
        """Stop generating until ``resume``."""
        return [Call("/pause", {}, {"mode": mode})]

    def resume(self, mode: InFlight) -> Sequence[Call]:
        """Generate again."""
        return [Call("/resume", {})]

    def load_checkpoint(self, path: str, version: str) -> Sequence[Call]:
        """Load the weights in a directory."""
        reload = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        # The version comes last: a server that reports it has everything else as well.
        return [Call("/collective_rpc", reload), self._reset, Call("/update_weight_version", {"new_version": version})]

    @property
    def _reset(self) -> Call:
        # Paused requests hold on to their part of the cache, which is of the old weights: it is computed again.
        return Call("/reset_prefix_cache", {}, {"reset_running_requests": "true"})

    def load_adapter(self, name: str, path: str) -> Call:
        """Load an adapter under a name."""
        return Call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    def unload_adapter(self, name: str) -> Call:
        """Remove an adapter."""
        return Call("/v1/unload_lora_adapter", {"lora_name": name})

    def read_world_size(self, content: bytes) -> int:
        """Return the number of processes that receive a broadcast."""
        return msgspec.json.decode(content, type=_VLLMWorldSize).world_size

    def join(self, address: str, port: int, world_size: int, name: str, backend: str) -> Call:
        """Join the process group of a broadcast."""
        info = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": world_size}
        return Call("/init_weight_transfer_engine", {"init_info": info})

    def leave(self, name: str) -> Sequence[Call]:
        """Do nothing: the next group replaces this one."""
        return []

    def transfer(self, tensors: TensorInfo, version: str, name: str, mode: InFlight) -> Transfer:
        """Receive weights from rank 0 of the process group."""
        info = {"names": tensors.names, "dtype_names": tensors.dtypes, "shapes": tensors.shapes}
        return Transfer(
            [Call("/start_weight_update", {})],
            Call("/update_weights", {"update_info": info}),
            [self._reset, Call("/finish_weight_update", {"weight_version": version})],
        )


class _SGLangFinish(msgspec.Struct):
    type: str


class _SGLangMeta(msgspec.Struct):
    finish_reason: _SGLangFinish
    output_token_logprobs: list[tuple[float, int, str | None]]


class _SGLangResponse(msgspec.Struct):
    output_ids: list[int]
    meta_info: _SGLangMeta


class _SGLangInfo(msgspec.Struct):
    weight_version: str | None = None


class _SGLangParallelism(msgspec.Struct):
    tp_size: int
    dp_size: int = 1
    pp_size: int = 1


class SGLang:
    """SGLang 0.5.6 and later."""

    title = "SGLang"
    processed_advice = "Start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB, or give a temperature of 1."
    weights_advice = "For adapters, start SGLang with --enable-lora, --max-lora-rank and --lora-target-modules."
    health = Call("/health")
    models = Call("/v1/models")
    version = Call("/model_info")
    parallelism = Call("/server_info")

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        model: str | None,
        *,
        stop_token_ids: Sequence[int] = (),
        **more: Any,
    ) -> Call:
        """Return the request for one completion."""
        params: dict[str, Any] = {"max_new_tokens": sampling.max_tokens}
        params |= _sampling_params(sampling, stop_token_ids, seed="sampling_seed") | more
        body: dict[str, Any] = {"rid": request_id, "input_ids": list(prompt_ids), "sampling_params": params}
        body |= {"return_logprob": True, "stream": False}
        return Call("/generate", body | ({"lora_path": model} if model else {}))

    def read_generated(self, content: bytes) -> Sampled:
        """Decode the server's answer."""
        response = msgspec.json.decode(content, type=_SGLangResponse)
        given = response.meta_info.output_token_logprobs
        if [token for _, token, _ in given] != response.output_ids:
            raise msgspec.ValidationError(
                f"the log-probabilities are of {len(given)} other tokens than the {len(response.output_ids)} output_ids"
            )
        reason = response.meta_info.finish_reason.type
        finish: Literal["stop", "length", "abort"] = "stop"
        if reason in ("length", "abort"):
            finish = "length" if reason == "length" else "abort"
        return Sampled(response.output_ids, [logprob for logprob, _, _ in given], finish)

    def read_version(self, content: bytes) -> str | None:
        """Return the version of the weights that the server reports."""
        return msgspec.json.decode(content, type=_SGLangInfo).weight_version

    def require_known(self, sampling: Sampling) -> None:
        """Refuse top-p, which SGLang's log-probabilities do not include."""
        if sampling.temperature and sampling.top_p != 1:
            raise OptionError(
                f"top_p={sampling.top_p!r} with SGLang, whose log-probabilities are those before top-p, so a learner "
                "would be wrong about every token: give top_p=1."
            )

    def probe(self, prompt_ids: Sequence[int], model: str | None) -> Call:
        """Return a request whose tokens are equally likely with the temperature, and not without."""
        sampling = Sampling(temperature=HOT, max_tokens=PROBE_TOKENS)
        return self.generate("hookline-probe", prompt_ids, sampling, model, ignore_eos=True)

    def is_processed(self, probed: Sampled) -> bool:
        """Whether all log-probabilities are equal."""
        return max(probed.logprobs) - min(probed.logprobs) < PROBE_TOLERANCE

    def abort(self, request_id: str) -> Call:
        """Stop generating for a request."""
        return Call("/abort_request", {"rid": request_id})

    def pause(self, mode: InFlight) -> Sequence[Call]:
        """Stop generating until ``resume``; with "wait", the update itself waits for all requests."""
        names = {"abort": "abort", "keep": "retract"}  # retracted requests continue with a cache of the new weights
        return [Call("/pause_generation", {"mode": names[mode]})] if mode in names else []

    def resume(self, mode: InFlight) -> Sequence[Call]:
        """Generate again."""
        return [] if mode == "wait" else [Call("/continue_generation", {})]

    def load_checkpoint(self, path: str, version: str) -> Sequence[Call]:
        """Load the weights in a directory."""
        body = {"model_path": path, "weight_version": version, "flush_cache": True}
        return [Call("/update_weights_from_disk", body)]

    def load_adapter(self, name: str, path: str) -> Call:
        """Load an adapter under a name."""
        return Call("/load_lora_adapter", {"lora_name": name, "lora_path": path})

    def unload_adapter(self, name: str) -> Call:
        """Remove an adapter."""
        return Call("/unload_lora_adapter", {"lora_name": name})

    def read_world_size(self, content: bytes) -> int:
        """Return the number of processes that receive a broadcast.

        Raises:
            OptionError: The server has several copies of the model, or divides it by layers.
        """
        found = msgspec.json.decode(content, type=_SGLangParallelism)
        if found.dp_size != 1 or found.pp_size != 1:
            raise OptionError(
                f"weights='broadcast' to an SGLang server with dp_size={found.dp_size} and pp_size={found.pp_size}: "
                "start one server for each copy of the model, with --tp-size alone."
            )
        return found.tp_size

    def join(self, address: str, port: int, world_size: int, name: str, backend: str) -> Call:
        """Join the process group of a broadcast."""
        body = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": world_size}
        return Call("/init_weights_update_group", body | {"group_name": name, "backend": backend})

    def leave(self, name: str) -> Sequence[Call]:
        """Leave the process group."""
        return [Call("/destroy_weights_update_group", {"group_name": name})]

    def transfer(self, tensors: TensorInfo, version: str, name: str, mode: InFlight) -> Transfer:
        """Receive weights from rank 0 of the process group."""
        body = {"names": tensors.names, "dtypes": tensors.dtypes, "shapes": tensors.shapes, "group_name": name}
        return Transfer(
            [], Call("/update_weights_from_distributed", body | {"weight_version": version, "flush_cache": True}), []
        )


APIS: Mapping[str, ServerAPI] = {"vllm": VLLM(), "sglang": SGLang()}


class _ModelCard(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelCards(msgspec.Struct):
    data: list[_ModelCard]


def read_models(content: bytes) -> tuple[list[str], int | None]:
    """Return the names in an answer of ``/v1/models``, and the context length of the first model."""
    cards = msgspec.json.decode(content, type=_ModelCards).data
    return [card.id for card in cards], cards[0].max_model_len if cards else None


def checked(sampled: Sampled, *, max_tokens: int, vocabulary: int) -> Sampled:
    """Return an answer if it can be one.

    Raises:
        PolicyError: Lengths differ, there are too many tokens or none, or a value is out of range.
    """
    tokens, logprobs = sampled.token_ids, sampled.logprobs
    if len(tokens) != len(logprobs):
        raise PolicyError(f"{len(tokens)} token ids and {len(logprobs)} log-probabilities")
    if len(tokens) > max_tokens:
        raise PolicyError(f"{len(tokens)} tokens, and at most {max_tokens} were requested")
    if not tokens and sampled.finish != "abort":
        raise PolicyError("no tokens")
    for token, logprob in zip(tokens, logprobs, strict=True):
        if not 0 <= token < vocabulary:
            raise PolicyError(f"the token {token}, and the vocabulary is from 0 to {vocabulary - 1}")
        if not math.isfinite(logprob) or logprob > LOGPROB_TOLERANCE or logprob <= MISSING_LOGPROB:
            raise PolicyError(f"the log-probability {logprob!r}")
    return sampled

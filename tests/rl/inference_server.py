"""A strict inference server that speaks the APIs of vLLM and SGLang, as far as documented, with a small real model.

Every request is checked against the schema: an unknown or missing field is a 400, a wrong type a 422. It samples token
by token with real log-probabilities, loads weights by every way that the APIs have, and can fail on demand.

In a process of its own (``python inference_server.py vllm``) it prints its port.
"""

import argparse
import asyncio
import copy
import json
import math
import random
import socket
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from fork_server import ForkServer

CONTEXT_LENGTH = 64
_LOADING = threading.Lock()
"""transformers replaces a method of all its models while it loads one: two at once would leave theirs replaced."""


class TableModel:
    """A model without torch: the logits depend on the last two tokens."""

    vocabulary = 15

    def logits(self, tokens: list[int], adapter: str | None) -> list[float]:
        drawn = random.Random(f"{tokens[-2:]}/{adapter}")
        return [drawn.gauss(0, 2) for _ in range(self.vocabulary)]

    def ends(self, token: int) -> bool:
        return token == 0

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(97 + token) for token in tokens)


class TorchModel:
    """A causal language model of transformers, with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        import torch

        self.torch, self.model, self.tokenizer = torch, copy.deepcopy(model).eval(), tokenizer
        self.adapters: dict[str, Any] = {}
        self.vocabulary = self.model.config.vocab_size

    def logits(self, tokens: list[int], adapter: str | None) -> list[float]:
        model = self.model if adapter is None else self.adapters[adapter]
        with self.torch.no_grad():
            found: list[float] = model(self.torch.tensor([tokens])).logits[0, -1].double().tolist()
        return found

    def ends(self, token: int) -> bool:
        return bool(token == self.tokenizer.eos_token_id)

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def load_directory(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        with _LOADING:
            self.model = AutoModelForCausalLM.from_pretrained(path).eval()

    def load_adapter(self, name: str, path: str) -> None:
        from peft import PeftModel

        self.adapters[name] = PeftModel.from_pretrained(copy.deepcopy(self.model), path).eval()

    def load_tensor(self, name: str, tensor: Any) -> None:
        with self.torch.no_grad():
            self.model.state_dict()[name].copy_(tensor)


def distribution(logits: list[float], temperature: float, top_p: float) -> list[float]:
    """The log-probabilities that tokens are sampled from; -inf for those that top-p leaves out."""
    scaled = [each / (temperature or 1.0) for each in logits]
    highest = max(scaled)
    total = highest + math.log(sum(math.exp(each - highest) for each in scaled))
    logprobs = [each - total for each in scaled]
    if top_p == 1 or not temperature:
        return logprobs
    order = sorted(range(len(logprobs)), key=lambda index: -logprobs[index])
    kept, mass = [], 0.0
    for index in order:
        kept.append(index)
        mass += math.exp(logprobs[index])
        if mass >= top_p:
            break
    return [each - math.log(mass) if index in kept else -math.inf for index, each in enumerate(logprobs)]


@dataclass
class Generation:
    """A request in progress."""

    id: str
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    is_aborted: bool = False


class BadRequest(Exception):
    """Answered with a status and a message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


Kind = Literal["processed_logprobs", "raw_logprobs"]


class Engine:
    """What both APIs share: generation, weights and faults."""

    def __init__(self, model: Any, kind: Kind, *, api: str) -> None:
        self.model, self.kind, self.api = model, kind, api
        self.version: str | None = None if api == "vllm" else "default"
        self.adapters: dict[str, str] = {}
        self.running: dict[str, Generation] = {}
        self.pause_mode: str | None = None
        self.group: Any = None
        self.is_updating = False
        self.calls: list[tuple[str, Any]] = []
        self.served = 0
        self.faults: Iterator[str] = iter(())
        """What goes wrong with the next generations: "" for nothing."""
        self.answers: dict[str, int] = {}
        """The status that all requests of a path are answered with."""
        self.hold_after: int | None = None
        """Generations stop before this many tokens until `let_go`."""
        self.changed = asyncio.Condition()
        self.held = threading.Event()
        self.is_healthy = True
        self.api_key = ""

    async def generate(self, made: Generation, params: Any, max_tokens: int, adapter: str | None) -> None:
        if len(made.prompt) + max_tokens > CONTEXT_LENGTH:
            raise BadRequest(400, f"{len(made.prompt)} + {max_tokens} tokens are more than {CONTEXT_LENGTH}")
        if not all(0 <= token < self.model.vocabulary for token in made.prompt):
            raise BadRequest(400, "a token is out of vocabulary")
        if adapter is not None and adapter not in self.adapters:
            raise BadRequest(404, f"The model `{adapter}` does not exist.")
        if made.id in self.running:
            raise BadRequest(400, f"the request {made.id} is running")
        seed = params.seed if hasattr(params, "seed") else params.sampling_seed
        drawn = random.Random(seed)
        self.running[made.id] = made
        try:
            while not made.finish:
                await self._until_allowed(made)
                if made.is_aborted:
                    made.finish = "abort"
                    break
                self._sample(made, params, adapter, drawn, max_tokens)
                await asyncio.sleep(0)
        finally:
            del self.running[made.id]
            async with self.changed:
                self.changed.notify_all()

    def _sample(self, made: Generation, params: Any, adapter: str | None, drawn: random.Random, limit: int) -> None:
        logits = self.model.logits(made.prompt + made.tokens, adapter)
        processed = distribution(logits, params.temperature, params.top_p)
        if params.temperature:
            token = drawn.choices(range(len(processed)), [math.exp(each) for each in processed])[0]
        else:
            token = max(range(len(processed)), key=processed.__getitem__)
        shown = processed
        if self.kind == "raw_logprobs":
            shown = distribution(logits, 1.0, 1.0)
        elif self.api == "sglang":
            shown = distribution(logits, params.temperature, 1.0)
        made.tokens.append(token)
        made.logprobs.append(shown[token])
        text = self.model.decode(made.tokens)
        is_end = token in params.stop_token_ids or (self.model.ends(token) and not params.ignore_eos)
        if is_end or any(stop in text for stop in params.stop):
            made.finish = "stop"
        elif len(made.tokens) == limit:
            made.finish = "length"

    async def _until_allowed(self, made: Generation) -> None:
        async with self.changed:
            while not made.is_aborted:
                if self.hold_after is not None and len(made.tokens) >= self.hold_after:
                    self.held.set()
                elif self.pause_mode not in ("abort", "keep", "retract", "in_place"):
                    return
                await self.changed.wait()

    async def set_pause(self, mode: str | None) -> None:
        async with self.changed:
            self.pause_mode = mode
            if mode == "abort":
                for each in self.running.values():
                    each.is_aborted = True
            self.changed.notify_all()
            if mode == "wait":
                await self.changed.wait_for(lambda: not self.running)
                self.pause_mode = "keep"  # later requests wait

    async def abort(self, ids: Sequence[str]) -> None:
        async with self.changed:
            for each in ids:
                if each in self.running:
                    self.running[each].is_aborted = True
            self.changed.notify_all()

    def require_group(self) -> Any:
        if self.group is None:
            raise BadRequest(400, "no process group was initialized")
        return self.group

    async def join(self, address: str, port: int, rank: int, world_size: int, name: str, backend: str) -> None:
        await asyncio.to_thread(self._join, address, port, rank, world_size, name, backend)

    def _join(self, address: str, port: int, rank: int, world_size: int, name: str, backend: str) -> None:
        from torch.distributed.distributed_c10d import (
            Backend,
            PrefixStore,
            _new_process_group_helper,
            _world,
            rendezvous,
        )

        store, rank, world_size = next(rendezvous(f"tcp://{address}:{port}", rank, world_size))
        self.group, _ = _new_process_group_helper(
            world_size,
            rank,
            [],
            Backend(backend),
            PrefixStore(name, store),
            group_name=name,
            timeout=timedelta(seconds=60),
        )
        _world.pg_group_ranks[self.group] = {each: each for each in range(world_size)}

    async def receive(self, names: list[str], dtypes: list[str], shapes: list[list[int]]) -> None:
        if not len(names) == len(dtypes) == len(shapes):
            raise BadRequest(400, "names, dtypes and shapes have different lengths")
        known = self.model.model.state_dict()
        for name, shape in zip(names, shapes, strict=True):
            if name not in known or list(known[name].shape) != shape:
                raise BadRequest(400, f"the model has no {name} of shape {shape}")
        await asyncio.to_thread(self._receive, self.require_group(), names, dtypes, shapes)

    def _receive(self, group: Any, names: list[str], dtypes: list[str], shapes: list[list[int]]) -> None:
        import torch

        for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            torch.distributed.broadcast(tensor, src=0, group=group)
            self.model.load_tensor(name, tensor)


# The schemas.


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Empty(Strict):
    pass


class VLLMSamplingParams(Strict):
    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    logprobs: int | None = None
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False


class VLLMGenerate(Strict):
    token_ids: list[int]
    sampling_params: VLLMSamplingParams
    request_id: str = ""
    model: str | None = None
    stream: bool = False


class AbortRequests(Strict):
    request_ids: list[str]


class CollectiveRPC(Strict):
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class NewVersion(Strict):
    new_version: str


class LoadAdapter(Strict):
    lora_name: str
    lora_path: str


class UnloadAdapter(Strict):
    lora_name: str


class InitInfo(Strict):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    packed: bool = False


class InitTransfer(Strict):
    init_info: InitInfo


class UpdateInfo(Strict):
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class UpdateWeights(Strict):
    update_info: UpdateInfo


class FinishUpdate(Strict):
    weight_version: str | None = None


class SGLangSamplingParams(Strict):
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    sampling_seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False


class SGLangGenerate(Strict):
    input_ids: list[int]
    sampling_params: SGLangSamplingParams
    rid: str = ""
    return_logprob: bool = False
    stream: bool = False
    lora_path: str | None = None


class AbortRequest(Strict):
    rid: str = ""
    abort_all: bool = False


class PauseGeneration(Strict):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class FromDisk(Strict):
    model_path: str
    weight_version: str | None = None
    flush_cache: bool = True


class InitGroup(Strict):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class DestroyGroup(Strict):
    group_name: str = "weight_update_group"


class FromDistributed(Strict):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    flush_cache: bool = True
    weight_version: str | None = None


def spoiled(fault: str, body: dict[str, Any], rows: list[Any]) -> Response:
    """An invalid answer; ``rows`` are the log-probabilities in it."""
    if fault == "lengths":
        rows.pop()
    content = json.dumps(body).encode()
    if fault == "nan":
        content = content.replace(b'"logprob": ', b'"logprob": NaN, "was": ', 1).replace(
            b"[[", b"[[NaN, 0, null], [", 1
        )
    elif fault == "truncated":
        content = content[: len(content) // 2]
    elif fault == "garbage":
        content = b"<html>it works</html>"
    return Response(content, media_type="application/json")


class API:
    """The endpoints of one server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def post(self, path: str, schema: Any, handler: Callable[[Any, Request], Awaitable[Any]]) -> Route:
        async def endpoint(request: Request) -> Response:
            content = await request.body()
            if refusal := self.unauthorized(request):
                return refusal
            try:
                body = msgspec.json.decode(content, type=schema)
            except msgspec.ValidationError as error:
                is_field = "unknown field" in str(error) or "missing required" in str(error)
                return JSONResponse({"error": {"message": str(error)}}, 400 if is_field else 422)
            except msgspec.DecodeError as error:
                return JSONResponse({"error": {"message": str(error)}}, 400)
            self.engine.calls.append((path, msgspec.to_builtins(body)))
            try:
                if path in self.engine.answers:
                    raise BadRequest(self.engine.answers[path], "not now")
                answer = await handler(body, request)
            except BadRequest as error:
                return JSONResponse({"error": {"message": str(error)}}, error.code)
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        return Route(path, endpoint, methods=["POST"])

    def get(self, path: str, handler: Callable[[], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            answer = handler()
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        return Route(path, endpoint, methods=["GET"])

    def unauthorized(self, request: Request) -> Response | None:
        expected = f"Bearer {self.engine.api_key}"
        if self.engine.api_key and request.headers.get("authorization") != expected:
            return JSONResponse({"error": "Unauthorized"}, 401)
        return None

    def health(self) -> Response:
        return Response(status_code=200 if self.engine.is_healthy else 503)

    def models(self) -> Any:
        names = ["tiny", *self.engine.adapters]
        return {"object": "list", "data": [{"id": name, "max_model_len": CONTEXT_LENGTH} for name in names]}

    def shared_routes(self) -> list[Route]:
        served = self.get("/served", lambda: self.engine.served)  # of no API: for tests
        return [self.get("/health", self.health), self.get("/v1/models", self.models), served]

    async def fault(self) -> str:
        fault = next(self.engine.faults, "")
        if fault.isdecimal():
            raise BadRequest(int(fault), "no room")
        return fault

    async def load_adapter(self, body: LoadAdapter, request: Request) -> Any:
        if body.lora_name in self.engine.adapters:
            raise BadRequest(400, f"{body.lora_name} has been loaded")
        if not (Path(body.lora_path) / "adapter_model.safetensors").is_file():
            raise BadRequest(404, f"No adapter found for {body.lora_path}")
        if isinstance(self.engine.model, TorchModel):
            self.engine.model.load_adapter(body.lora_name, body.lora_path)
        self.engine.adapters[body.lora_name] = body.lora_path
        return {"success": True}

    async def unload_adapter(self, body: UnloadAdapter, request: Request) -> Any:
        if self.engine.adapters.pop(body.lora_name, None) is None:
            raise BadRequest(404, f"The lora adapter {body.lora_name} cannot be found")
        return {"success": True}

    def load_directory(self, path: str) -> None:
        if not (Path(path) / "model.safetensors").is_file() or not (Path(path) / "config.json").is_file():
            raise BadRequest(400, f"{path} is no checkpoint")
        if isinstance(self.engine.model, TorchModel):
            self.engine.model.load_directory(path)


class VLLMAPI(API):
    def routes(self) -> list[Route]:
        return [
            *self.shared_routes(),
            self.get("/weight_info", lambda: {"weight_version": self.engine.version}),
            self.get("/get_world_size", lambda: {"world_size": 1}),
            self.post("/inference/v1/generate", VLLMGenerate, self.generate),
            self.post("/abort_requests", AbortRequests, self.abort),
            self.post("/pause", Empty, self.pause),
            self.post("/resume", Empty, self.resume),
            self.post("/collective_rpc", CollectiveRPC, self.rpc),
            self.post("/update_weight_version", NewVersion, self.set_version),
            self.post("/reset_prefix_cache", Empty, self.reset),
            self.post("/v1/load_lora_adapter", LoadAdapter, self.load_adapter),
            self.post("/v1/unload_lora_adapter", UnloadAdapter, self.unload_adapter),
            self.post("/init_weight_transfer_engine", InitTransfer, self.init),
            self.post("/start_weight_update", Empty, self.start),
            self.post("/update_weights", UpdateWeights, self.update),
            self.post("/finish_weight_update", FinishUpdate, self.finish),
        ]

    async def generate(self, body: VLLMGenerate, request: Request) -> Any:
        fault = await self.fault()
        if body.sampling_params.n != 1 or body.stream:
            raise BadRequest(400, "one completion, not streamed, is all that this server makes")
        adapter = None if body.model in (None, "tiny") else body.model
        made = Generation(body.request_id, body.token_ids)
        await self.engine.generate(made, body.sampling_params, body.sampling_params.max_tokens, adapter)
        self.engine.served += 1
        rows = [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(made.tokens, made.logprobs, strict=True)
        ]
        logprobs = {"content": rows} if body.sampling_params.logprobs is not None else None
        choice = {"index": 0, "token_ids": made.tokens, "finish_reason": made.finish, "logprobs": logprobs}
        return spoiled(fault, {"request_id": made.id, "choices": [choice], "prompt_logprobs": None}, rows)

    async def abort(self, body: AbortRequests, request: Request) -> Any:
        await self.engine.abort(body.request_ids)
        return {"status": "aborted"}

    async def pause(self, body: Empty, request: Request) -> Any:
        mode = request.query_params.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            raise BadRequest(422, f"mode={mode}")
        await self.engine.set_pause(mode)
        return {"status": "paused"}

    async def resume(self, body: Empty, request: Request) -> Any:
        await self.engine.set_pause(None)
        return {"status": "resumed"}

    async def rpc(self, body: CollectiveRPC, request: Request) -> Any:
        if body.method != "reload_weights" or body.args or set(body.kwargs) != {"weights_path"}:
            raise BadRequest(400, f"no method {body.method} with {body.kwargs}")
        self.load_directory(body.kwargs["weights_path"])
        return {"results": [None]}

    async def set_version(self, body: NewVersion, request: Request) -> Any:
        self.engine.version = body.new_version
        return {"success": True, "new_version": body.new_version}

    async def reset(self, body: Empty, request: Request) -> Any:
        return Response()

    async def init(self, body: InitTransfer, request: Request) -> Any:
        info = body.init_info
        name = f"hookline-{info.master_port}"
        await self.engine.join(info.master_address, info.master_port, info.rank_offset, info.world_size, name, "gloo")
        return {"message": "Weight transfer initialized"}

    async def start(self, body: Empty, request: Request) -> Any:
        self.engine.require_group()
        self.engine.is_updating = True
        return {"message": "Weight update started"}

    async def update(self, body: UpdateWeights, request: Request) -> Any:
        if not self.engine.is_updating:
            raise BadRequest(400, "start_weight_update comes first")
        info = body.update_info
        await self.engine.receive(info.names, info.dtype_names, info.shapes)
        return {"message": "Weights updated"}

    async def finish(self, body: FinishUpdate, request: Request) -> Any:
        if not self.engine.is_updating:
            raise BadRequest(400, "start_weight_update comes first")
        self.engine.is_updating, self.engine.version = False, body.weight_version
        return {"message": "Weight update finished"}


class SGLangAPI(API):
    def routes(self) -> list[Route]:
        return [
            *self.shared_routes(),
            self.get("/model_info", lambda: {"model_path": "tiny", "weight_version": self.engine.version}),
            self.get("/server_info", lambda: {"tp_size": 1, "dp_size": 1, "pp_size": 1}),
            self.post("/generate", SGLangGenerate, self.generate),
            self.post("/abort_request", AbortRequest, self.abort),
            self.post("/pause_generation", PauseGeneration, self.pause),
            self.post("/continue_generation", Empty, self.resume),
            self.post("/update_weights_from_disk", FromDisk, self.from_disk),
            self.post("/load_lora_adapter", LoadAdapter, self.load_adapter),
            self.post("/unload_lora_adapter", UnloadAdapter, self.unload_adapter),
            self.post("/init_weights_update_group", InitGroup, self.init),
            self.post("/destroy_weights_update_group", DestroyGroup, self.destroy),
            self.post("/update_weights_from_distributed", FromDistributed, self.from_distributed),
        ]

    async def generate(self, body: SGLangGenerate, request: Request) -> Any:
        fault = await self.fault()
        made = Generation(body.rid, body.input_ids)
        params = body.sampling_params
        await self.engine.generate(made, params, params.max_new_tokens, body.lora_path)
        self.engine.served += 1
        rows = [[logprob, token, None] for token, logprob in zip(made.tokens, made.logprobs, strict=True)]
        meta: dict[str, Any] = {"id": made.id, "finish_reason": {"type": made.finish}}
        meta |= {"weight_version": self.engine.version}
        if body.return_logprob:
            meta["output_token_logprobs"] = rows
        answer = {"text": self.engine.model.decode(made.tokens), "output_ids": made.tokens, "meta_info": meta}
        return spoiled(fault, answer, rows)

    async def abort(self, body: AbortRequest, request: Request) -> Any:
        await self.engine.abort(list(self.engine.running) if body.abort_all else [body.rid])
        return Response()

    async def pause(self, body: PauseGeneration, request: Request) -> Any:
        await self.engine.set_pause(body.mode)
        return {"status": "ok"}

    async def resume(self, body: Empty, request: Request) -> Any:
        await self.engine.set_pause(None)
        return {"status": "ok"}

    async def _before_update(self, *, flush_cache: bool) -> None:
        engine = self.engine
        if engine.pause_mode is None:  # an update waits for the requests that are running
            async with engine.changed:
                await engine.changed.wait_for(lambda: not engine.running)
        elif engine.pause_mode == "in_place" and engine.running and flush_cache:
            raise BadRequest(400, "the cache cannot be flushed while requests are paused in place")

    async def from_disk(self, body: FromDisk, request: Request) -> Any:
        await self._before_update(flush_cache=body.flush_cache)
        self.load_directory(body.model_path)
        self.engine.version = body.weight_version or self.engine.version
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    async def init(self, body: InitGroup, request: Request) -> Any:
        await self.engine.join(
            body.master_address, body.master_port, body.rank_offset, body.world_size, body.group_name, body.backend
        )
        return {"success": True, "message": "Succeeded to initialize custom process group."}

    async def destroy(self, body: DestroyGroup, request: Request) -> Any:
        self.engine.group = None
        return {"success": True, "message": ""}

    async def from_distributed(self, body: FromDistributed, request: Request) -> Any:
        await self._before_update(flush_cache=body.flush_cache)
        await self.engine.receive(body.names, body.dtypes, body.shapes)
        self.engine.version = body.weight_version or self.engine.version
        return {"success": True, "message": "Succeeded to update parameter online."}


def make_app(engine: Engine) -> Starlette:
    api = VLLMAPI(engine) if engine.api == "vllm" else SGLangAPI(engine)
    return Starlette(routes=api.routes())


class InferenceServer:
    """The server on a thread of this process."""

    def __init__(self, api: str, model: Any = None, *, kind: Kind = "processed_logprobs") -> None:
        self.api = api
        self.engine = Engine(TableModel() if model is None else model, kind, api=api)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(make_app(self.engine), log_level="critical", lifespan="off"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._server.serve([self._socket]))
        self._loop.close()

    def calls(self, *paths: str) -> list[Any]:
        """The bodies of the calls of some paths."""
        return [body for path, body in self.engine.calls if path in paths]

    def order(self, *left_out: str) -> list[str]:
        return [path for path, _ in self.engine.calls if path not in left_out]

    def let_go(self) -> None:
        """Let held generations continue."""

        async def change() -> None:
            async with self.engine.changed:
                self.engine.hold_after = None
                self.engine.changed.notify_all()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(60)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(60)


class ServerProcess:
    """The server in a process of its own, which can be killed and come back on its port."""

    def __init__(self, programs: "ForkServer", api: str, *options: str, port: int = 0) -> None:
        self.api = api
        self.process = programs.start(
            __file__, api, "--port", str(port), *options, env={"GLOO_SOCKET_IFNAME": "lo"}, merge=False
        )
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def served(self) -> int:
        with urllib.request.urlopen(f"{self.url}/served", timeout=60) as response:
            return int(response.read())

    def kill(self) -> None:
        self.process.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("api", choices=["vllm", "sglang"])
    parser.add_argument("--tiny", action="store_true", help="serve a model of torch instead of a table")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    model: Any = TableModel()
    if options.tiny:
        import torch

        from hookline.testing import character_tokenizer, tiny_causal_lm

        torch.set_num_threads(1)
        tokenizer = character_tokenizer("0123456789>")
        model = TorchModel(tiny_causal_lm(tokenizer, seed=7), tokenizer)
    listener = socket.create_server(("127.0.0.1", options.port))
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(
        uvicorn.Config(make_app(Engine(model, "processed_logprobs", api=options.api)), log_level="critical")
    )
    asyncio.run(server.serve([listener]))


if __name__ == "__main__":
    main()

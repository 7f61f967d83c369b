"""A real HTTP server on loopback that answers as vLLM does, and can fail in every way that matters."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loopback_server import Handler, LoopbackServer, Request


@dataclass(frozen=True)
class Reply:
    """What goes back."""

    code: int = 200
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    breaks_off: bool = False

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def choice(index: int, text: str, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": "stop", **more}


def as_vllm(body: dict[str, Any]) -> Reply:
    """Completes a prompt with its length and the number of the completion, a token for each character."""
    choices = []
    for index in range(body["n"]):
        text = f"{len(body['prompt'])}.{index}"
        ids = [ord(character) for character in text]
        logprobs = {"tokens": [f"token_id:{each}" for each in ids], "token_logprobs": [-0.5] * len(ids)}
        prompt_ids = [ord(character) for character in body["prompt"]]
        choices.append(choice(index, text, logprobs=logprobs, token_ids=ids, prompt_token_ids=prompt_ids))
    return Reply(body={"object": "text_completion", "choices": choices, "usage": {}})


class _CompletionHandler(Handler):
    def do_POST(self) -> None:
        owner, request = self.server.owner, self.read_request()
        with owner.lock:
            owner.requests.append(request)
        reply = owner.respond(request.body)
        self.send_response(reply.code)
        self.send_header("Content-Length", str(len(reply.content) + (10 if reply.breaks_off else 0)))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.content)
        self.close_connection = self.close_connection or reply.breaks_off


class CompletionServer(LoopbackServer):
    """Answers with `respond`, which gets the body of a request and may wait."""

    handler = _CompletionHandler

    def __init__(self) -> None:
        self.respond: Callable[[dict[str, Any]], Reply] = as_vllm
        self.requests: list[Request] = []
        super().__init__()

    @property
    def prompts(self) -> list[str]:
        return [request.body["prompt"] for request in self.requests]

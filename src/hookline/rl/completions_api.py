"""What an OpenAI-compatible server takes and gives at ``/v1/completions``.

Token ids are read in each form that servers give them: vLLM's ``token_ids`` and ``prompt_token_ids`` (asked for with
``return_token_ids``), ``"token_id:17"`` in place of token texts (older vLLM, ``return_tokens_as_token_ids``), and
llama.cpp's ``logprobs.content``. A server that gives no ids or no log-probabilities leaves them empty.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from hookline.rl.policy import PolicyError, derived_seed
from hookline.rl.types import Completion, Sampling

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

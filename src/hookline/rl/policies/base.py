"""`Policy` and `AsyncPolicy`: the protocols of objects that generate completions, and what implementations share.

`StopTexts` detects stop texts while tokens are generated. A stop text may begin and end anywhere within tokens, and a
character may span several tokens. Only the last tokens are searched, and only after a token that can complete a stop
text, so the cost per token does not grow with the length of the completion.
"""

import hashlib
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline._engine.checks import require_integer
from hookline._engine.errors import HooklineError, OptionError
from hookline.rl.types import Completion, Sampling

if TYPE_CHECKING:
    import torch

Prompt = str | Sequence[int]
"""A prompt as a text, or as the ids of its tokens."""


class PolicyError(HooklineError, RuntimeError):
    """A policy cannot generate completions: its server does not answer, or answers incorrectly."""


@runtime_checkable
class Policy(Protocol):
    """Generates completions, and loads new weights.

    With a `Sampling.seed`, the same prompts get the same completions. Generation uses no global random state, so an
    evaluation between two rollouts does not change the second.
    """

    @property
    def version(self) -> int:
        """The version of the weights; 0 until weights are loaded."""
        ...

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Generate ``n`` completions for each prompt, a text or a list of token ids, in the order of the prompts.

        Raises:
            OptionError: A prompt or ``n`` is not accepted.
            PolicyError: Generation failed.
        """
        ...

    def load_weights(self, version: int, weights: "Mapping[str, torch.Tensor]") -> None:
        """Use these weights from now on; after an error, the previous weights stay in use."""
        ...


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request for one completion.

    Attributes:
        prompt: A text, or the ids of its tokens.
        sampling: How it is sampled; its seed is that of this request alone.
        images: The images of the prompt, in the order of their places in it.
        group: Requests with the same group begin with the same tokens; a server can process these once.
    """

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    images: Sequence[Any] = ()
    group: str = ""


@runtime_checkable
class AsyncPolicy(Protocol):
    """Generates one completion for each request; requests that wait at the same time may be generated together.

    With a `Sampling.seed`, a request gets the same completion whichever requests are generated with it. A cancelled
    request stops being generated. `hookline.rl.policies.batching.as_async` adapts any `Policy`.
    """

    @property
    def version(self) -> int:
        """The version of the weights; 0 until weights are loaded."""
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Generate a completion.

        Raises:
            OptionError: The request is not accepted, e.g. because the prompt is too long.
            PolicyError: Generation failed.
        """
        ...

    def load_weights(self, version: int, weights: "Mapping[str, torch.Tensor]") -> None:
        """Use these weights from now on; after an error, the previous weights stay in use."""
        ...


def check_request(prompts: Sequence[Prompt], n: int) -> list[Prompt]:
    """Return the prompts of a request as a list.

    Raises:
        OptionError: The prompts are not texts or lists of token ids, or ``n`` is less than 1.
    """
    require_integer("n", n)
    if isinstance(prompts, str):
        raise OptionError(f"prompts={prompts[:60]!r}: give a list of texts; for one prompt, a list with it.")
    return [check_prompt(prompt, f"prompts[{index}]") for index, prompt in enumerate(prompts)]


def check_prompt(prompt: Any, name: str) -> Prompt:
    """Return a prompt: a text, or a list of token ids."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise OptionError(f"{name} is {type(prompt).__name__}: give texts or lists of token ids.")
    if not prompt:
        raise OptionError(f"{name} is an empty list: give at least one token id.")
    if all(type(token) is int for token in prompt):  # the usual case, in half the time
        return prompt
    wrong = [token for token in prompt if not isinstance(token, numbers.Integral) or isinstance(token, bool)]
    if wrong:
        raise OptionError(
            f"{name} contains {wrong[0]!r:.60}: give the ids of its tokens (messages become ids with ChatFormat)."
        )
    return [int(token) for token in prompt]


def with_first_token(tokenizer: Any, ids: list[int]) -> list[int]:
    """Return the tokens of a text as a prompt: with at least one token, and not with BOS twice.

    Raises:
        OptionError: There is no token for an empty prompt.
    """
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        return ids[1:]
    if ids:
        return ids
    first = bos if bos is not None else tokenizer.eos_token_id
    if first is None:
        raise OptionError("An empty prompt has no first token: the tokenizer has neither BOS nor EOS.")
    return [first]


def derived_seed(seed: int, index: int | str) -> int:
    """Return a seed for one prompt of a request, or one part of a whole: 31 bits, unrelated to those of the others."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
CONTEXT_TOKENS = 4
"""Tokens decoded before those that can contain a stop text: decoders treat the first token of a text differently."""


class StopTexts:
    """Detects the texts that end a completion.

    Args:
        texts: The stop texts.
        decode: Decodes tokens to text.
    """

    def __init__(self, texts: Sequence[str], decode: Callable[[list[int]], str]) -> None:
        self._texts = tuple(texts)
        self._decode = decode
        self._last = frozenset(text[-1] for text in texts)
        self._window = CONTEXT_TOKENS + max((len(text.encode("utf-8", "surrogatepass")) for text in texts), default=0)
        self._completes: dict[int, bool] = {}

    def reached(self, tokens: list[int]) -> bool:
        """Return whether the last token completes a stop text."""
        if not self._texts:
            return False
        can_complete = self._completes.get(tokens[-1])
        if can_complete is None:
            # Decoding a token alone may add or drop a space, and cannot show a character that spans several tokens.
            piece = self._decode([tokens[-1]])
            is_unclear = not piece or INCOMPLETE in piece or " " in self._last
            can_complete = self._completes[tokens[-1]] = is_unclear or not self._last.isdisjoint(piece)
        if not can_complete:
            return False
        tail = self._decode(tokens[-self._window :])
        return any(text in tail for text in self._texts)

    def cut(self, text: str) -> str:
        """Return a text up to the first stop text."""
        found = [position for position in (text.find(stop) for stop in self._texts) if position >= 0]
        return text[: min(found)] if found else text

"""`Policy`: what writes completions for prompts, wherever its model runs.

`StopTexts`: notices, token by token, that a completion has come to a text that ends it.

A stop text may lie anywhere across tokens, and in bytes of a character that several tokens make. It is looked for in
the last tokens only, and only after a token that can complete one: a long completion costs no more than a short one.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookline._engine.errors import HooklineError, OptionError
from hookline._engine.metrics import whole
from hookline.rl.types import Completion, Sampling

if TYPE_CHECKING:
    import torch


class PolicyError(HooklineError, RuntimeError):
    """A policy that cannot write completions: its server does not answer, or not as it should."""


@runtime_checkable
class Policy(Protocol):
    """Writes completions, and takes new weights.

    With a `Sampling.seed` the same prompts get the same completions again, and no random state but the policy's own
    is used: whoever evaluates between two rollouts does not change the second.
    """

    @property
    def version(self) -> int:
        """That of the weights, 0 until some were loaded."""
        ...

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[Completion]]:
        """``n`` completions for each prompt, in the order of the prompts.

        Raises:
            OptionError: A prompt or ``n`` is not accepted.
            PolicyError: There is no answer.
        """
        ...

    def load_weights(self, version: int, weights: "Mapping[str, torch.Tensor]") -> None:
        """Write with these weights from now on: all of them, or, with an error, those of before."""
        ...


def check_request(prompts: Sequence[str], n: int) -> list[str]:
    """The prompts of a request.

    Raises:
        OptionError: They are not texts, or there is nothing to do for each.
    """
    number = whole(n)
    if number is None or number < 1:
        raise OptionError(f"n={n!r}: give a whole number of at least 1, the completions for each prompt.")
    if isinstance(prompts, str):
        raise OptionError(f"prompts={prompts[:60]!r}: give a list of texts; for one prompt, a list with it.")
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise OptionError(
                f"prompts[{index}] is {type(prompt).__name__}: give texts (apply a chat template before)."
            )
    return list(prompts)


def check_version(version: Any) -> int:
    """A version of weights.

    Raises:
        OptionError: It is no whole number of at least 0.
    """
    number = whole(version)
    if number is None or number < 0:
        raise OptionError(f"version={version!r}: give a whole number of at least 0.")
    return number


def derived_seed(seed: int, index: int) -> int:
    """A seed for one prompt of a request: 31 bits, unrelated to those of its neighbours."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


UNFINISHED = "\N{REPLACEMENT CHARACTER}"
CONTEXT = 4
"""Tokens before those that can hold a stop text: decoders treat the first of a text differently."""


class StopTexts:
    """The texts that end a completion.

    Args:
        texts: What ends it.
        decode: Tokens to text.
    """

    def __init__(self, texts: Sequence[str], decode: Callable[[list[int]], str]) -> None:
        self._texts = tuple(texts)
        self._decode = decode
        self._last = frozenset(text[-1] for text in texts)
        self._window = CONTEXT + max((len(text.encode("utf-8", "surrogatepass")) for text in texts), default=0)
        self._completes: dict[int, bool] = {}

    def reached(self, tokens: list[int]) -> bool:
        """Whether the last token completes one of the texts."""
        if not self._texts or not self._can_complete(tokens[-1]):
            return False
        tail = self._decode(tokens[-self._window :])
        return any(text in tail for text in self._texts)

    def cut(self, text: str) -> str:
        """A text up to the first stop text in it."""
        found = [place for place in (text.find(stop) for stop in self._texts) if place >= 0]
        return text[: min(found)] if found else text

    def _can_complete(self, token: int) -> bool:
        known = self._completes.get(token)
        if known is None:
            known = self._completes[token] = self._may_hold_an_end(self._decode([token]))
        return known

    def _may_hold_an_end(self, piece: str) -> bool:
        # A space comes and goes where a token is decoded alone, and bytes of a character show only in company.
        if not piece or UNFINISHED in piece or " " in self._last:
            return True
        return not self._last.isdisjoint(piece)

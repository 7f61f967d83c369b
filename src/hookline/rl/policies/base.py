"""`Policy`: the protocol of objects that generate completions, and what implementations share.

`StopTexts` detects stop texts while tokens are generated. A stop text may begin and end anywhere within tokens, and a
character may span several tokens. Only the last tokens are searched, and only after a token that can complete a stop
text, so the cost per token does not grow with the length of the completion.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hookline._engine.checks import require_integer
from hookline._engine.errors import HooklineError, OptionError
from hookline.rl.types import Completion, Sampling

if TYPE_CHECKING:
    import torch


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

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Generate ``n`` completions for each prompt, in the order of the prompts.

        Raises:
            OptionError: A prompt or ``n`` is not accepted.
            PolicyError: Generation failed.
        """
        ...

    def load_weights(self, version: int, weights: "Mapping[str, torch.Tensor]") -> None:
        """Use these weights from now on; after an error, the previous weights stay in use."""
        ...


def check_request(prompts: Sequence[str], n: int) -> list[str]:
    """Return the prompts of a request as a list.

    Raises:
        OptionError: The prompts are not texts, or ``n`` is less than 1.
    """
    require_integer("n", n)
    if isinstance(prompts, str):
        raise OptionError(f"prompts={prompts[:60]!r}: give a list of texts; for one prompt, a list with it.")
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise OptionError(
                f"prompts[{index}] is {type(prompt).__name__}: give texts (apply a chat template before)."
            )
    return list(prompts)


def derived_seed(seed: int, index: int) -> int:
    """Return a seed for one prompt of a request: 31 bits, unrelated to the seeds of other prompts."""
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
            can_complete = self._completes[tokens[-1]] = self._may_complete(self._decode([tokens[-1]]))
        if not can_complete:
            return False
        tail = self._decode(tokens[-self._window :])
        return any(text in tail for text in self._texts)

    def cut(self, text: str) -> str:
        """Return a text up to the first stop text."""
        found = [position for position in (text.find(stop) for stop in self._texts) if position >= 0]
        return text[: min(found)] if found else text

    def _may_complete(self, piece: str) -> bool:
        # Decoding a token alone may add or drop a space, and cannot show a character that spans several tokens.
        if not piece or INCOMPLETE in piece or " " in self._last:
            return True
        return not self._last.isdisjoint(piece)

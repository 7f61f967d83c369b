"""`StopTexts`: notices, token by token, that a completion has come to a text that ends it.

A stop text may lie anywhere across tokens, and in bytes of a character that several tokens make. It is looked for in
the last tokens only, and only after a token that can complete one: a long completion costs no more than a short one.
"""

from collections.abc import Callable, Sequence

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

"""Metrics of a batch of completions: how long, how varied, how well formed.

Pure computation on texts. Words are what whitespace separates; tokens are counted only where their
counts are given, because nothing here knows the tokenizer. A metric without anything to compute it
from (an empty batch, no completion with an answer) is absent rather than 0 or NaN.

| metric | meaning |
|---|---|
| ``count`` | completions in the batch |
| ``words/mean``, ``std``, ``min``, ``max`` | length in words; the standard deviation is the population's |
| ``characters/mean`` | length in characters |
| ``tokens/mean``, ``std``, ``min``, ``max`` | length in tokens, where given |
| ``distinct_1``, ``distinct_2`` | different words (pairs of words) in the batch, as a share of all of them |
| ``repetition`` | share of a completion's runs of four words that stood in it before; the mean over completions |
| ``format_adherence`` | share of completions that are well formed |
| ``reasoning_to_answer`` | words of reasoning per word of answer; the mean over completions that have both |
| ``empty`` | share of completions without a visible character |
| ``truncated`` | share of completions that were cut off, where that can be told |
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.values import plain
from hookline.logging.completions import extract_reasoning_and_answer, generation_texts
from hookline.logging.statistics import mean, spread

_INSIDE = r"(?:(?!</?(?:reasoning|answer)>).)*"
WELL_FORMED = re.compile(
    rf"\s*<reasoning>{_INSIDE}</reasoning>\s*<answer>{_INSIDE}</answer>\s*",
    re.DOTALL,
)
"""One reasoning, then one answer, and nothing else."""
RUN = 4
"""How many words in a row count as repeated when they come again."""


def generation_metrics(
    generations: Sequence[Any],
    *,
    token_counts: Any = None,
    max_length: int | None = None,
    finished: Sequence[Any] | None = None,
    pattern: str | re.Pattern[str] | None = None,
) -> dict[str, float]:
    """The metrics of a batch.

    Args:
        generations: Texts, chats (``[{"role": ..., "content": ...}]``), or None for a completion that failed.
        token_counts: How many tokens each has.
        max_length: The longest completion allowed, in tokens: one of that length counts as cut off. Needs
            ``token_counts``.
        finished: Whether each ended by itself: booleans, or finish reasons of which ``"length"`` means cut off.
        pattern: What a well-formed completion matches as a whole, with ``.`` matching newlines too; a reasoning
            and an answer in tags where none is given.

    Raises:
        OptionError: An argument of a wrong type, or lists that do not have the same length.
    """
    texts = generation_texts(generations)
    well_formed = _compiled(pattern)
    tokens = _counts(token_counts, len(texts))
    cut_off = _cut_off(tokens, max_length, finished, len(texts))
    metrics: dict[str, float] = {"count": len(texts)}
    if not texts:
        return metrics
    words = [text.split() for text in texts]
    metrics |= spread("words/", [len(each) for each in words])
    metrics["characters/mean"] = mean([len(text) for text in texts])
    metrics |= spread("tokens/", tokens)
    metrics |= _variety(words)
    metrics["format_adherence"] = mean([well_formed.fullmatch(text) is not None for text in texts])
    metrics |= _named("reasoning_to_answer", _ratios(texts))
    metrics["empty"] = mean([not each for each in words])
    metrics |= _named("truncated", cut_off)
    return metrics


def _variety(words: Sequence[Sequence[str]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for length in (1, 2):
        runs = [run for each in words for run in _runs(each, length)]
        found |= {f"distinct_{length}": len(set(runs)) / len(runs)} if runs else {}
    own = [list(_runs(each, RUN)) for each in words]
    return found | _named("repetition", [1 - len(set(runs)) / len(runs) for runs in own if runs])


def _runs(words: Sequence[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)


def _ratios(texts: Iterable[str]) -> list[float]:
    parts = [extract_reasoning_and_answer(text) for text in texts]
    return [len(r.split()) / len(a.split()) for r, a in parts if r is not None and a is not None and a.split()]


def _named(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: mean(values)} if values else {}


def _compiled(pattern: str | re.Pattern[str] | None) -> re.Pattern[str]:
    if pattern is None:
        return WELL_FORMED
    try:
        return re.compile(pattern, re.DOTALL) if isinstance(pattern, str) else re.compile(pattern)
    except (re.error, TypeError) as error:
        raise OptionError(f"pattern={pattern!r}: give a regular expression: {error}.") from error


def _counts(token_counts: Any, count: int) -> list[int]:
    if token_counts is None:
        return []
    given = token_counts.tolist() if hasattr(token_counts, "tolist") else token_counts
    if not isinstance(given, list | tuple) or len(given) != count:
        raise OptionError(f"token_counts={token_counts!r:.200}: give a number for each of the {count} generations.")
    counts = [plain(each) for each in given]
    if not all(isinstance(each, int) for each in counts):
        raise OptionError(f"token_counts={token_counts!r:.200}: give whole numbers.")
    return counts


def _cut_off(tokens: list[int], max_length: int | None, finished: Sequence[Any] | None, count: int) -> list[bool]:
    """Which completions were cut off, where that can be told."""
    if finished is not None:
        flags: Any = finished.tolist() if hasattr(finished, "tolist") else finished
        if not isinstance(flags, list | tuple) or len(flags) != count:
            raise OptionError(f"finished={finished!r:.200}: give a flag for each of the {count} generations.")
        return [flag == "length" if isinstance(flag, str) else not flag for flag in flags]
    if max_length is None:
        return []
    if count and not tokens:
        raise OptionError(f"max_length={max_length!r} is in tokens: give token_counts too, or finished.")
    return [length >= max_length for length in tokens]

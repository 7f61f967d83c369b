"""Metrics of completions, rewards and memory: the computations behind the ``log_*`` functions.

Pure functions on lists, without NumPy or torch. A metric with nothing to compute it from (an empty batch, no completion
with an answer) is absent rather than 0 or NaN. Values that are None or not finite are left out of every statistic, and
counted.
"""

import contextlib
import importlib
import math
import os
import re
import sys
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.metrics import plain
from hookline.logging.payloads import extract_reasoning_and_answer, generation_texts


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Return the population's standard deviation of at least one value; exactly 0 if all are equal."""
    if min(values) == max(values):
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


def spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean, standard deviation, minimum and maximum under prefixed names; nothing without values."""
    if not values:
        return {}
    facts = {"mean": mean(values), "std": deviation(values), "min": min(values), "max": max(values)}
    return {prefix + name: value for name, value in facts.items()}


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of the least-squares line through points; None if they do not determine one."""
    if len({x for x, _ in points}) < 2:
        return None
    middle_x, middle_y = mean([x for x, _ in points]), mean([y for _, y in points])
    across = math.fsum((x - middle_x) * (y - middle_y) for x, y in points)
    return across / math.fsum((x - middle_x) ** 2 for x, _ in points)


_INSIDE = r"(?:(?!</?(?:reasoning|answer)>).)*"
WELL_FORMED = re.compile(
    rf"\s*<reasoning>{_INSIDE}</reasoning>\s*<answer>{_INSIDE}</answer>\s*",
    re.DOTALL,
)
"""One reasoning, then one answer, and nothing else."""
RUN = 4
"""How many consecutive words count as repeated when they occur again."""


def generation_metrics(
    generations: Sequence[Any],
    *,
    token_counts: Any = None,
    max_length: int | None = None,
    finished: Sequence[Any] | None = None,
    pattern: str | re.Pattern[str] | None = None,
) -> dict[str, float]:
    """Return statistics of a batch of completions.

    | metric | meaning |
    |---|---|
    | ``count`` | completions in the batch |
    | ``words/mean``, ``std``, ``min``, ``max`` | length in words; the standard deviation is the population's |
    | ``characters/mean`` | length in characters |
    | ``tokens/mean``, ``std``, ``min``, ``max`` | length in tokens, if given |
    | ``distinct_1``, ``distinct_2`` | different words (pairs of words) in the batch, as a share of all of them |
    | ``repetition`` | share of a completion's runs of four words that occurred in it before; mean over completions |
    | ``format_adherence`` | share of completions that are well formed |
    | ``reasoning_to_answer`` | words of reasoning per word of answer; mean over completions that have both |
    | ``empty`` | share of completions without a visible character |
    | ``truncated`` | share of completions that were truncated, if that is known |

    Words are separated by whitespace. Tokens are only counted if their counts are given: the tokenizer is unknown here.

    Args:
        generations: Strings, chats (``[{"role": ..., "content": ...}]``), or None for a completion that failed.
        token_counts: The number of tokens of each.
        max_length: The longest completion allowed, in tokens: one of that length counts as truncated. Needs
            ``token_counts``.
        finished: Whether each is complete: booleans, or finish reasons, of which ``"length"`` means truncated.
        pattern: What a well-formed completion matches as a whole, with ``.`` matching newlines as well; by default a
            reasoning and an answer in tags.

    Raises:
        OptionError: An argument of a wrong type, or lists of different lengths.
    """
    texts = generation_texts(generations)
    well_formed = _compiled(pattern)
    tokens = _counts(token_counts, len(texts))
    truncated = _truncated(tokens, max_length, finished, len(texts))
    metrics: dict[str, float] = {"count": len(texts)}
    if not texts:
        return metrics
    words = [text.split() for text in texts]
    metrics |= spread("words/", [len(each) for each in words])
    metrics["characters/mean"] = mean([len(text) for text in texts])
    metrics |= spread("tokens/", tokens)
    metrics |= _variety(words)
    metrics["format_adherence"] = mean([well_formed.fullmatch(text) is not None for text in texts])
    parts = [extract_reasoning_and_answer(text) for text in texts]
    ratios = [len(r.split()) / len(a.split()) for r, a in parts if r is not None and a is not None and a.split()]
    metrics |= _named("reasoning_to_answer", ratios)
    metrics["empty"] = mean([not each for each in words])
    metrics |= _named("truncated", truncated)
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


def _truncated(tokens: list[int], max_length: int | None, finished: Sequence[Any] | None, count: int) -> list[bool]:
    """Return which completions were truncated, if that is known."""
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


def reward_metrics(
    values: Any, *, groups: Sequence[Hashable] | None = None, group_size: int | None = None
) -> dict[str, float]:
    """Return statistics of one reward function's values for a batch, without the trend.

    | metric | meaning |
    |---|---|
    | ``count`` | values that count |
    | ``missing``, ``nonfinite`` | values left out: None (TRL's "does not apply"), and NaN or infinite |
    | ``mean``, ``std``, ``min``, ``max`` | the standard deviation is the population's |
    | ``zero_std_groups`` | share of groups whose values are all equal, of those with at least two that count |
    | ``trend`` | slope of the mean per step, over the last points recorded (`Trend`) |

    Args:
        values: Numbers or None; a list, an array or a tensor.
        groups: The group (prompt) of each value.
        group_size: How many consecutive values form a group, if ``groups`` is not given.

    Raises:
        OptionError: A value that is not a number, or groups that do not fit.
    """
    given = reward_values(values)
    ids = _group_ids(len(given), groups, group_size)
    counted = [value for value in given if value is not None and math.isfinite(value)]
    missing = sum(value is None for value in given)
    metrics: dict[str, float] = {"count": len(counted), "missing": missing}
    metrics["nonfinite"] = len(given) - missing - len(counted)
    metrics |= spread("", counted)
    return metrics | (_zero_std_groups(given, ids) if ids is not None else {})


def reward_values(values: Any, name: str = "values") -> list[float | None]:
    """Return values as a list of numbers and None; a single number becomes a list of one.

    Raises:
        OptionError: One of them is something else.
    """
    given = values.tolist() if hasattr(values, "tolist") else values
    given = [given] if given is None or isinstance(given, int | float) else given
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise OptionError(f"{name}={values!r:.200}: give a list of numbers.")
    numbers = [plain(each) for each in given]
    for index, number in enumerate(numbers):
        if number is not None and not isinstance(number, int | float):
            raise OptionError(f"{name}[{index}]={number!r:.200}: give a number or None.")
    return numbers


class Trend:
    """The slope of a metric over its last points.

    Args:
        window: The number of points.
    """

    def __init__(self, window: int) -> None:
        self._points: deque[tuple[int, float]] = deque(maxlen=window)

    def add(self, step: int, value: float) -> float | None:
        """Add a point, and return the slope per step; None while there is only one step.

        A step that comes again, after a resume, replaces the points from there on.
        """
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._points.append((step, value))
        return slope(self._points)


def _group_ids(count: int, groups: Sequence[Hashable] | None, group_size: int | None) -> list[Hashable] | None:
    if groups is not None:
        ids = groups.tolist() if hasattr(groups, "tolist") else groups
        if isinstance(ids, str) or not isinstance(ids, Sequence) or len(ids) != count:
            raise OptionError(f"groups={groups!r:.200}: give a group for each of the {count} values.")
        return list(ids)
    if group_size is None:
        return None
    size = require_integer("group_size", group_size)
    return [index // size for index in range(count)]


def _zero_std_groups(values: Sequence[float | None], ids: Sequence[Hashable]) -> dict[str, float]:
    grouped: dict[Hashable, list[float]] = {}
    for value, group in zip(values, ids, strict=True):
        if value is not None and math.isfinite(value):
            grouped.setdefault(group, []).append(value)
    usable = [group for group in grouped.values() if len(group) > 1]
    if not usable:
        return {}
    return {"zero_std_groups": sum(min(group) == max(group) for group in usable) / len(usable)}


MIB = 1 << 20
_STATM = Path("/proc/self/statm")


def memory_metrics() -> dict[str, float]:
    """Return the memory use of the process and its devices, in MiB.

    | metric | meaning |
    |---|---|
    | ``rss_mib`` | resident memory of the process |
    | ``peak_rss_mib`` | its peak, if the current value is not known |
    | ``cuda<N>/allocated_mib``, ``peak_mib`` | used by tensors, now and at most |
    | ``cuda<N>/reserved_mib`` | held by the allocator |
    | ``mps/allocated_mib``, ``driver_mib`` | used by tensors, and by the driver |

    The resident memory comes from ``/proc``, or from psutil if it is installed. Devices are only queried if torch is
    loaded and already uses them: this imports no torch, starts no CUDA, and waits for no device.
    """
    return _process() | _cuda(sys.modules.get("torch")) | _mps(sys.modules.get("torch"))


def _process() -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError, IndexError):  # only Linux has it
        pages = int(_STATM.read_bytes().split()[1])
        return {"rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / MIB}
    try:
        psutil: Any = importlib.import_module("psutil")
        return {"rss_mib": psutil.Process().memory_info().rss / MIB}
    except ImportError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak_rss_mib": peak / MIB if sys.platform == "darwin" else peak / 1024}


def _cuda(torch: Any) -> dict[str, float]:
    cuda = getattr(torch, "cuda", None)  # a torch that is still being imported has none
    if cuda is None or not cuda.is_initialized():
        return {}
    metrics = {}
    for device in range(cuda.device_count()):
        metrics[f"cuda{device}/allocated_mib"] = cuda.memory_allocated(device) / MIB
        metrics[f"cuda{device}/reserved_mib"] = cuda.memory_reserved(device) / MIB
        metrics[f"cuda{device}/peak_mib"] = cuda.max_memory_allocated(device) / MIB
    return metrics


def _mps(torch: Any) -> dict[str, float]:
    mps = getattr(torch, "mps", None)
    if mps is None or not hasattr(torch, "backends") or not torch.backends.mps.is_available():
        return {}
    return {
        "mps/allocated_mib": mps.current_allocated_memory() / MIB,
        "mps/driver_mib": mps.driver_allocated_memory() / MIB,
    }

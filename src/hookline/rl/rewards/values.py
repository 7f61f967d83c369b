"""What a reward function returned: handed on as it came, and read as plain numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

from hookline.core.values import plain
from hookline.rl.rewards.error import RewardError

Values = list[float | None]


def read(result: Any, name: str, count: int | None) -> tuple[Any, Values]:
    """What to hand on, which is the very result unless that can be read only once; and its numbers.

    Args:
        name: The reward function's, for errors.
        count: How many completions there are; None where nobody knows.

    Raises:
        RewardError: It is not a number or None for each completion.
    """
    wanted = f"a list with a number or None for each of the {'' if count is None else f'{count} '}completions"
    handed_on = result if hasattr(result, "tolist") or isinstance(result, list | tuple) else _listed(result)
    values = handed_on.tolist() if hasattr(handed_on, "tolist") else handed_on
    if not isinstance(values, list | tuple):
        raise RewardError(f"{name}: the reward function returned {result!r:.200}; {wanted} is needed.")
    if count is not None and len(values) != count:
        raise RewardError(f"{name}: the reward function returned {len(values)} values; {wanted} is needed.")
    return handed_on, [_number(value, index, name, wanted) for index, value in enumerate(values)]


def _listed(result: Any) -> Any:
    """A generator as a list; anything that is no series of values as it is."""
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        return result
    return list(result)


def _number(value: Any, index: int, name: str, wanted: str) -> float | None:
    number = plain(value)
    if number is None:
        return None
    if not isinstance(number, int | float):
        raise RewardError(
            f"{name}: value {index} that the reward function returned is {value!r:.200}; {wanted} is needed."
        )
    try:
        return float(number)
    except OverflowError:
        raise RewardError(f"{name}: value {index} that the reward function returned is larger than a float.") from None

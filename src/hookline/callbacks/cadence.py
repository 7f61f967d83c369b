"""Every so many steps or epochs, given as a number or None: what callbacks with such arguments share."""

from hookline.core.errors import OptionError
from hookline.core.values import whole


def is_nth(count: int, every: int | None) -> bool:
    """Whether a count is one of every so many; never where there is no cadence."""
    return every is not None and count % every == 0


def require_cadence(name: str, value: object) -> None:
    """Refuse what is neither a whole number of at least 1 nor None."""
    number = whole(value)
    if value is not None and (number is None or number < 1):
        raise OptionError(f"{name}={value!r}: give a whole number of at least 1, or None.")

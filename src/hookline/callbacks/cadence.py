"""Every so many steps or epochs, given as a number or None: what callbacks with such arguments share."""

from hookline.core.errors import OptionError


def is_nth(count: int, every: int | None) -> bool:
    """Whether a count is one of every so many; never where there is no cadence."""
    return every is not None and count % every == 0


def require_cadence(name: str, value: object) -> None:
    """Refuse what is neither a whole number of at least 1 nor None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise OptionError(f"{name}={value!r}: give a whole number of at least 1, or None.")

"""Argument checks with one wording for each kind of mistake.

Each function returns the checked value, or raises `OptionError` with what was given and what is accepted. Numbers of
NumPy and other libraries count as numbers; booleans do not.
"""

import math
import numbers
from typing import Any, Literal, overload

from hookline._engine.errors import OptionError


@overload
def require_integer(
    name: str, value: Any, *, minimum: int = 1, maximum: int | None = None, optional: Literal[False] = False
) -> int: ...


@overload
def require_integer(
    name: str, value: Any, *, minimum: int = 1, maximum: int | None = None, optional: bool
) -> int | None: ...


def require_integer(
    name: str, value: Any, *, minimum: int = 1, maximum: int | None = None, optional: bool = False
) -> int | None:
    """Check that an argument is a whole number within limits.

    Args:
        name: The argument's name, for the error.
        optional: Whether None is accepted as well.

    >>> require_integer("every", 10)
    10
    """
    if value is None and optional:
        return None
    if type(value) is int and value >= minimum and (maximum is None or value <= maximum):
        return value  # the usual case, without the check for an abstract class, which takes microseconds
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= minimum and (maximum is None or number <= maximum):
            return number
    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    raise OptionError(f"{name}={value!r}: give a whole number {limits}{', or None' if optional else ''}.")


@overload
def require_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    optional: Literal[False] = False,
) -> float: ...


@overload
def require_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    optional: bool,
) -> float | None: ...


def require_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    optional: bool = False,
) -> float | None:
    """Check that an argument is a finite number within limits.

    Args:
        name: The argument's name, for the error.
        above: The number must be greater than this.
        optional: Whether None is accepted as well.

    >>> require_number("seconds", 0.5, above=0)
    0.5
    """
    if value is None and optional:
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        if (
            math.isfinite(number)
            and (above is None or number > above)
            and (minimum is None or number >= minimum)
            and (maximum is None or number <= maximum)
        ):
            return number
    limits = [f"greater than {above:g}"] if above is not None else []
    limits += [f"of at least {minimum:g}"] if minimum is not None else []
    limits += [f"of at most {maximum:g}"] if maximum is not None else []
    accepted = " ".join(["a finite number", " and ".join(limits)]).strip()
    raise OptionError(f"{name}={value!r}: give {accepted}{', or None' if optional else ''}.")

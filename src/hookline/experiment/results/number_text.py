"""Numbers as people read them in tables and sentences."""

import math

from hookline.core.timing import duration

NOTHING = "—"


def shown(value: float | None) -> str:
    """A number with four digits that count.

    >>> shown(0.123456), shown(1234567.0), shown(None)
    ('0.1235', '1.235e+06', '—')
    """
    return NOTHING if value is None else f"{value:.4g}"


def mean_text(mean: float | None, std: float | None) -> str:
    """A mean with its spread, both to the same decimal.

    >>> mean_text(0.84312, 0.01234), mean_text(0.84312, None), mean_text(1.0, 0.0)
    ('0.843 ± 0.012', '0.8431', '1 ± 0')
    """
    if mean is None or std is None:
        return shown(mean)
    decimals = _decimals(std)
    if decimals is None or not math.isfinite(mean) or abs(mean) >= 1e6:
        return f"{shown(mean)} ± {std:.2g}"
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def signed(value: float) -> str:
    """A difference, with its sign also where it is positive.

    >>> signed(0.5), signed(-0.25)
    ('+0.5', '-0.25')
    """
    return f"{value:+.3g}"


def time_text(seconds: float) -> str:
    """A length of time, in the units that one would say it in.

    >>> time_text(12.34), time_text(754), time_text(7260)
    ('12.3 s', '12 min 34 s', '2 h 01 min')
    """
    if seconds < 60 or not math.isfinite(seconds):
        return duration(seconds) if math.isfinite(seconds) and seconds > 0 else f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def count(number: int, noun: str) -> str:
    """How many there are of something.

    >>> count(1, "run"), count(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _decimals(std: float) -> int | None:
    """The decimals that show two digits of a spread; None where that is no way to write it."""
    if not math.isfinite(std) or std == 0.0:
        return None
    decimals = 1 - math.floor(math.log10(abs(std)))
    return None if decimals > 8 else max(0, decimals)

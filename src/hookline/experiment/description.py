"""Where two descriptions of an experiment differ: that of an earlier run of it and the present one."""

from typing import Any


def differences(then: Any, now: Any, path: str = "") -> list[str]:
    """Where two descriptions differ, with both values.

    >>> differences({"lr": 0.1, "n": 1}, {"lr": 0.2, "n": 1})
    ['lr was 0.1, now it is 0.2']
    """
    if isinstance(then, dict) and isinstance(now, dict):
        inner = (
            (then.get(key), now.get(key), f"{path}.{key}" if path else key) for key in dict.fromkeys([*then, *now])
        )
        return [difference for old, new, where in inner for difference in differences(old, new, where)]
    return [] if then == now else [f"{path or 'it'} was {then!r:.80}, now it is {now!r:.80}"]

"""What differs between the configurations of arms: only those settings, by their dotted paths."""

from collections.abc import Mapping, Sequence
from typing import Any

from hookline.core.state import ArmResult
from hookline.record.description import describe

_NOT_SET = object()


def config_differences(arms: Sequence[ArmResult]) -> dict[str, dict[str, Any]]:
    """For each arm the settings that are not the same in all of them; one that an arm does not have is left out.

    An arm without any settings is not compared with the others: nothing would be the same.

    >>> config_differences([ArmResult("low", {"lr": 1, "n": 5}), ArmResult("high", {"lr": 2, "n": 5})])
    {'low': {'lr': 1}, 'high': {'lr': 2}}
    """
    settings = {arm.name: dict(_flat(describe(arm.config))) for arm in arms}
    paths = dict.fromkeys(path for flat in settings.values() for path in flat)
    compared = {name: flat for name, flat in settings.items() if flat}
    differing = [path for path in paths if _differs(path, compared)]
    return {name: {path: flat[path] for path in differing if path in flat} for name, flat in settings.items()}


def _differs(path: str, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    values = iter(settings.values())
    first = next(values).get(path, _NOT_SET)
    return any(not _same(first, flat.get(path, _NOT_SET)) for flat in values)


def _same(one: Any, other: Any) -> bool:
    """Whether two described values are equal; true is not 1, and what is not a number equals itself."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return bool(one is other or one == other or (one != one and other != other))


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, item in value.items() for pair in _flat(item, f"{path}.{key}" if path else key)]
    return [] if value is None and not path else [(path or "config", value)]

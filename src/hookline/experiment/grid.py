"""`grid`: arms for all combinations of some settings."""

import itertools
from collections.abc import Iterable
from typing import Any

from hookline.core.errors import OptionError
from hookline.experiment.arm import Arm


def grid(base: Any = None, /, **axes: Iterable[Any]) -> list[Arm]:
    """An arm for each combination of values.

    >>> [arm.name for arm in grid(lr=[0.1, 0.01], layers=[2, 4])]
    ['lr=0.1,layers=2', 'lr=0.1,layers=4', 'lr=0.01,layers=2', 'lr=0.01,layers=4']

    Args:
        base: What the settings are settings of: an `Arm`, or what one is made of. Without it they are all there is,
            and the Experiment is told what trains: ``train=function``.
        axes: The values of each setting; one inside another goes by its path: ``**{"train.learning_rate": [...]}``.

    Raises:
        OptionError: There is no such setting, or an axis has no values.
    """
    values = {name: _values(name, given) for name, given in axes.items()}
    if not values:
        raise OptionError("grid(): give the values of at least one setting, e.g. grid(config, learning_rate=[...]).")
    arm = base if isinstance(base, Arm) else Arm("grid", base)
    prefix = f"{arm.name}," if isinstance(base, Arm) else ""
    names = _shortest(values)
    arms = []
    for point in itertools.product(*values.values()):
        label = ",".join(f"{names[path]}={_text(value)}" for path, value in zip(values, point, strict=True))
        arms.append(arm.changed(prefix + label, dict(zip(values, point, strict=True))))
    return arms


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"grid({name}={given!r}): give a list of values.")
    values = list(given)
    if not values:
        raise OptionError(f"grid({name}=[]): give at least one value.")
    return values


def _shortest(paths: Iterable[str]) -> dict[str, str]:
    """The last part of each path, where that says which one it is."""
    ends = {path: path.rpartition(".")[2] for path in paths}
    return {path: end if list(ends.values()).count(end) == 1 else path for path, end in ends.items()}


def _text(value: Any) -> str:
    """A value as a part of a name."""
    text = str(getattr(value, "__name__", value))
    return text.replace("/", "_").replace("\\", "_")

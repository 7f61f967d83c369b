"""Public names that are imported when they are first used, so that ``import hookline`` stays cheap.

Where that takes a package of an extra which is not installed, the error says what to install.
"""

from importlib import import_module
from typing import Any

from hookline.core.errors import MissingExtraError

_OF_EXTRAS = frozenset({"accelerate", "torch", "transformers"})


def load(name: str, place: str, *, extra: str = "torch") -> Any:
    """What a public name stands for.

    Args:
        name: The name as users write it.
        place: Where it is: ``package.module:attribute``, or ``package.module`` for the module itself.
        extra: The extra that brings all that it needs.

    Raises:
        MissingExtraError: A package that it needs is not installed.
    """
    module, _, attribute = place.partition(":")
    try:
        value = import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_EXTRAS:
            raise
        raise MissingExtraError(name, extra) from error
    return getattr(value, attribute) if attribute else value

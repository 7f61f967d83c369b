"""All built-in callbacks, made as their own contract suite makes them."""

from typing import Any

from test_subscribers import NEEDS_ARGUMENTS, built_in

from hookline.core.registry import REGISTRY


def make_all() -> list[Any]:
    """A new one of each."""
    return [REGISTRY.find(name)(**NEEDS_ARGUMENTS.get(name, {})) for name in built_in()]

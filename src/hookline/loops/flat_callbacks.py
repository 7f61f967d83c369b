"""All callbacks of a collection, those in groups too."""

from collections.abc import Iterator
from typing import Any

from hookline.core.collection import CallbackCollection


def flat(callbacks: CallbackCollection) -> Iterator[Any]:
    """Go through them in their order."""
    for callback in callbacks:
        if isinstance(callback, CallbackCollection):
            yield from flat(callback)
        else:
            yield callback

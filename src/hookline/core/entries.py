"""`Entries`: a list of a configuration that knows where it stands, so that errors about an entry can say so."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookline.core.config_source import Source  # what reads files is only loaded where there is one


class Entries(list[Any]):
    """Entries, such as callbacks or sinks, and their place.

    Args:
        entries: What is in the list.
        source: What it was read from; None where it was given in Python.
        path: Where in that, such as ``train.callbacks``.
    """

    def __init__(self, entries: Iterable[Any], source: "Source | None" = None, path: str = "callbacks") -> None:
        super().__init__(entries)
        self.source, self.path = source, path

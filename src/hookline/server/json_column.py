"""Columns of the tables that hold a JSON text, such as the data of an event."""

from typing import Any

import msgspec


def mapping(text: str | None) -> dict[str, Any]:
    """The object that a text stands for; an empty one for no text, and anything else as its ``value``."""
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {"value": found}

"""Functions of ``wandb.util`` that programs call."""

import json
import re
import secrets
import string
from collections.abc import Callable
from importlib import import_module
from typing import Any

from hookline.compat.wandb.artifacts import make_artifact_name_safe
from hookline.compat.wandb.errors import Error
from hookline.compat.wandb.values import plain_value

__all__ = [
    "generate_id",
    "get_module",
    "json_dumps_safer",
    "json_friendly",
    "json_friendly_val",
    "make_artifact_name_safe",
    "to_forward_slash_path",
]

_LETTERS = string.ascii_lowercase + string.digits


def generate_id(length: int = 8) -> str:
    """Return a random id of letters and digits.

    Args:
        length: How many.
    """
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def get_module(name: str, required: str | bool | None = None, lazy: bool = True) -> Any:
    """Import a module; None if it is not installed.

    Args:
        name: Its name.
        required: The message of the error that is raised instead.
        lazy: Accepted.
    """
    try:
        return import_module(name)
    except ImportError as error:
        if required:
            raise Error(required if isinstance(required, str) else f"{name} is not installed.") from error
        return None


def json_friendly(obj: Any, **_: Any) -> tuple[Any, bool]:
    """Return a value as JSON-compatible data, and whether it was converted."""
    plain = plain_value(obj)
    return plain, plain is not obj


def json_friendly_val(val: Any) -> Any:
    """Return a value as JSON-compatible data."""
    return plain_value(val)


def json_dumps_safer(obj: Any, **kwargs: Any) -> str:
    """Return a value as JSON text.

    Args:
        kwargs: As of `json.dumps`.
    """
    default: Callable[[Any], Any] = kwargs.pop("default", str)
    return json.dumps(plain_value(obj), default=default, **kwargs)


def to_forward_slash_path(path: str) -> str:
    """Return a path with forward slashes."""
    return re.sub(r"\\", "/", path)

"""Whether a hook can work, settled when it is added: a mistake in its definition is no surprise at a later step."""

import inspect
from collections.abc import Callable
from typing import Any

from hookline.core.binding import is_async
from hookline.core.errors import MomentError


def require_workable(hook: Any) -> None:
    """Refuse a hook whose methods cannot be called, or whose base class was never set up."""
    who = type(hook).__name__
    for method in ("should_run", "run"):
        require_context(getattr(hook, method), f"{who}.{method}")
        _require_set_up(hook, method)
    if is_async(hook.should_run):
        raise MomentError(f"{who}.should_run is async, so it would always hold: write def should_run. Only run may be.")


def require_context(function: Callable[..., Any], name: str) -> None:
    """Refuse a function that cannot be called with a context and nothing else."""
    if not callable(function):
        raise MomentError(f"{name} is {function!r}; give a function that takes a context.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have none
        return
    try:
        signature.bind(None)
    except TypeError:
        raise MomentError(
            f"{name} cannot be called with a context.\n"
            f"    it is defined as    {name}{signature}\n"
            f"    it is called as     {name}(context)"
        ) from None


def _require_set_up(hook: Any, method: str) -> None:
    """Refuse a hook that lacks what the class needs whose method it uses; each such class names it in ``_needs``."""
    owner = next((kind for kind in type(hook).__mro__ if method in vars(kind)), type(hook))
    for name in vars(owner).get("_needs", ()):
        if not hasattr(hook, name):
            who, base = type(hook).__name__, owner.__name__
            raise MomentError(f"{who} has no {name}: its __init__ must call that of {base}, super().__init__(...).")

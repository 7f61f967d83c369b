"""Logger functions and hook functions as a `Trainer` is given them, checked before anything is made of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from hookline.core.callback import Callback
from hookline.core.errors import OptionError


def checked_logger_fns(given: Any) -> list[Any]:
    """The functions of ``custom_logger_fns``; what is no function there is named."""
    if given is None:
        return []
    if callable(given) or isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"custom_logger_fns={given!r}: give a list of functions (report_data, step).")
    functions = list(given)
    for function in functions:
        if not callable(function) and not isinstance(function, Callback):
            raise OptionError(f"custom_logger_fns: {function!r} is not a function. Give functions (report_data, step).")
    return functions


def checked_hook_fns(given: Any) -> list[Any]:
    """The dict of ``hook_fns``, in a list; an empty list if there is none."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise OptionError(
            f"hook_fns={given!r}: give a dict of functions (worker, report_data) by the name of a hook, e.g. "
            "{'post_training_step_hook': fn}. Two dicts are merged with {**a, **b}."
        )
    return [given] if given else []

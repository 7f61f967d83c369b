"""Callbacks and hooks from a file, a dict or a list.

    callbacks:
      - progress_bar
      - early_stopping: {monitor: val/loss, patience: 5}
      - use: my_package.hooks:GradientAlarm
        with: {threshold: 0.9}
        every: 25
        after: [early_stopping]

Every entry is checked before the first one is built. `hookline._engine.factories` describes the forms of an entry.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import ConfigError, HooklineError, closest
from hookline._engine.factories import Source, plan_subscriber
from hookline._engine.hook_manager import HookManager
from hookline._engine.policy import Policy
from hookline._engine.registry import REGISTRY
from hookline.config.sources import read_source


def load_callbacks(source: Any, *, strict: bool = False, policy: Policy | None = None) -> CallbackCollection:
    """Build the collection that a YAML, TOML or JSON file, a dict or a list describes."""
    collection = CallbackCollection(strict=strict, policy=policy)
    _add_all(source, collection.add_all)
    return collection


def load_hooks(source: Any, *, strict: bool = False, policy: Policy | None = None) -> HookManager:
    """Build the manager of the hooks that a YAML, TOML or JSON file, a dict or a list describes."""
    manager = HookManager(strict=strict, policy=policy)
    _add_all(source, manager.register_hooks)
    return manager


def _add_all(given: Any, add: Callable[[list[tuple[Any, Mapping[str, Any]]]], None]) -> None:
    if isinstance(given, str) and given in REGISTRY.names() and not Path(given).exists():
        raise ConfigError(f"{given!r} is the name of one callback, not a file: give a list of them, [{given!r}].")
    source = read_source(given)
    key, entries = _list_in(source)
    plans = [plan_subscriber(entry, source, f"{key}[{index}]") for index, entry in enumerate(entries)]
    subscribers = [(plan.build(), plan.options) for plan in plans]
    try:
        add(subscribers)
    except HooklineError as error:  # about how they go together, such as a cycle of before and after
        if source.file and not isinstance(error, ConfigError):
            raise ConfigError(f"{source.file}: {error}") from error
        raise


def _list_in(source: Source) -> tuple[str, list[Any]]:
    """Return the list of entries and its key."""
    key, entries = "callbacks", source.data
    if isinstance(source.data, Mapping):
        if one := next((key for key in source.data if key == "use" or key in REGISTRY.names()), None):
            raise source.error(str(one), "this is one callback: give a list of them, also of one.")
        if len(source.data) != 1:
            given = ", ".join(map(str, source.data)) or "nothing"
            raise source.error("", f"one key is needed, callbacks or hooks; {given} was given.")
        ((key, entries),) = source.data.items()
        if key not in ("callbacks", "hooks"):
            raise source.error(str(key), f"unknown key. {closest(str(key), ['callbacks', 'hooks'])}")
    if not isinstance(entries, list | tuple | None):
        raise source.error(key, f"{entries!r} is not a list of callbacks or hooks.")
    return key, list(entries or ())

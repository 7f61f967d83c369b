"""`Config`: the configuration of a run, as ``wandb.config``; and `parse_config`, which reads what `init` accepts.

A value that was set stays: changing it raises `ConfigError`, unless ``allow_val_change`` permits it. Keys that a sweep
sets are locked: changing them prints a warning and has no effect. Values are converted when they are set, as they are
recorded: a tuple becomes a list, a class its name, another object its text.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline.compat.wandb.errors import ConfigError, UsageError
from hookline.compat.wandb.terminal import termwarn
from hookline.compat.wandb.values import WBValue, plain_value

Record = Callable[[dict[str, Any]], None]
"""Called with the items that changed."""
UseArtifact = Callable[[str, Any], Any]
"""Called with a key and an artifact, or its name, that was put into a configuration; returns what is kept."""
DEFAULTS_FILE = "config-defaults.yaml"


class Config:
    """The configuration of a run; items are attributes too.

    ``config.lr`` is ``config["lr"]``. Nested settings are plain dicts.
    """

    def __init__(self) -> None:
        set_attribute = object.__setattr__
        set_attribute(self, "_items", {})
        set_attribute(self, "_locked", {})
        set_attribute(self, "_record", None)
        set_attribute(self, "_use_artifact", None)
        set_attribute(self, "_allows_changes", False)
        defaults = config_from_file(DEFAULTS_FILE)
        if defaults:
            self._update(defaults)

    def connect(self, record: Record | None, use_artifact: UseArtifact | None, *, allows_changes: bool) -> None:
        """Report later changes.

        Args:
            record: Called with the items that changed.
            use_artifact: Called with artifacts that are set.
            allows_changes: Whether values may be changed without ``allow_val_change``, as in notebooks.
        """
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_use_artifact", use_artifact)
        object.__setattr__(self, "_allows_changes", allows_changes)

    def __repr__(self) -> str:
        return str(self.as_dict())

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if self._is_locked(key):
            return
        key, value = self._checked(key, value, None)
        self._items[key] = value
        self._report({key: value})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._items[name]
        except KeyError:
            raise AttributeError(f"{type(self)!r} object has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def keys(self) -> list[str]:
        """Return the names of the settings, without wandb's own (``_wandb``)."""
        return [key for key in self._items if not key.startswith("_")]

    def items(self) -> list[tuple[str, Any]]:
        """Return the names and values."""
        return [(key, self._items[key]) for key in self.keys()]

    def values(self) -> list[Any]:
        """Return the values."""
        return [self._items[key] for key in self.keys()]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as a dict."""
        return dict(self.items())

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self._items.get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, setting it first where it is missing."""
        if key not in self._items:
            self[key] = default
        return self._items[key]

    def setdefaults(self, d: Any) -> None:
        """Add the settings that are missing."""
        self.update({key: value for key, value in parse_config(d).items() if key not in self._items})

    def update(self, d: Any, allow_val_change: bool | None = None) -> None:
        """Add settings: a dict, a namespace, or the path of a YAML file.

        Args:
            d: The settings.
            allow_val_change: Whether keys that have another value are changed.

        Raises:
            ConfigError: A key has another value.
        """
        self._report(self._update(d, allow_val_change))

    def update_locked(
        self, d: Mapping[str, Any], user: str | None = None, _allow_val_change: bool | None = None
    ) -> None:
        """Set items and lock them: later changes are ignored with a warning.

        Args:
            d: The items.
            user: Who locks them, for the warning.
        """
        changed = {}
        for given, each in d.items():
            key, value = self._checked(given, each, True)
            self._items[key] = changed[key] = value
            self._locked[key] = user
        self._report(changed)

    def merge_locked(
        self, d: Mapping[str, Any], user: str | None = None, _allow_val_change: bool | None = None
    ) -> None:
        """Set items like `update_locked`, merging nested dicts."""
        merged = {key: _merged(self._items.get(key), value) for key, value in d.items()}
        self.update_locked(merged, user)

    def persist(self) -> None:
        """Record all items again."""
        self._report(dict(self._items))

    def _as_dict(self) -> dict[str, Any]:
        return self._items  # type: ignore[no-any-return]

    def _report(self, changed: dict[str, Any]) -> None:
        if self._record is not None and changed:
            self._record(changed)

    def _is_locked(self, key: str) -> bool:
        if key in self._locked:
            termwarn(f"Config item '{key}' was locked by '{self._locked[key]}' (ignored update).")
            return True
        return False

    def _update(self, d: Any, allow_val_change: bool | None = None, *, ignore_locked: bool = False) -> dict[str, Any]:
        """Check all items first: either all are set, or none."""
        given = parse_config(d)
        open_keys = [key for key in given if ignore_locked or not self._is_locked(str(key).strip("-"))]
        changed = dict(self._checked(key, given[key], allow_val_change) for key in open_keys)
        self._items.update(changed)
        return changed

    def _checked(self, key: Any, value: Any, allow_val_change: bool | None) -> tuple[str, Any]:
        if isinstance(value, WBValue):
            raise TypeError("WBValue objects cannot be added to the run config")
        if _has_artifact(value):
            raise ValueError("Instances of wandb.Artifact can only be top level keys in a run's config")
        key = str(key).strip("-")
        if is_artifact(value):
            if self._use_artifact is not None:
                value = self._use_artifact(key, value)
        else:
            value = plain_value(value)
        allowed = self._allows_changes if allow_val_change is None else allow_val_change
        if not allowed and key in self._items and _differs(value, self._items[key]):
            raise ConfigError(
                f'Attempted to change value of key "{key}" from {self._items[key]} to {value}\n'
                "If you really want to do this, pass allow_val_change=True to config.update()"
            )
        return key, value


class ConfigStatic:
    """A copy of a configuration that cannot be changed, as ``run.config_static``."""

    def __init__(self, config: Config) -> None:
        object.__setattr__(self, "__dict__", config.as_dict())

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("Error: run.config_static is a readonly object")

    def __setitem__(self, key: str, value: Any) -> None:
        raise AttributeError("Error: run.config_static is a readonly object")

    def __getitem__(self, key: str) -> Any:
        return self.__dict__[key]

    def __str__(self) -> str:
        return str(self.__dict__)

    def keys(self) -> Any:
        """Return the names of the settings."""
        return self.__dict__.keys()


def parse_config(params: Any, exclude: Any = None, include: Any = None) -> dict[str, Any]:
    """Return the settings in a dict, a namespace, absl's flags, a dataclass, or a YAML file of wandb's form.

    Args:
        params: The settings.
        exclude: Names to leave out.
        include: The only names to keep.

    Raises:
        UsageError: Both ``exclude`` and ``include`` are given.
        ConfigError: The file is missing, or has another form.
    """
    if exclude and include:
        raise UsageError("Expected at most only one of exclude or include")
    found = (config_from_file(params, must_exist=True) or {}) if isinstance(params, str) else _as_dict(params)
    if include:
        found = {key: value for key, value in found.items() if key in include}
    if exclude:
        found = {key: value for key, value in found.items() if key not in exclude}
    return found


def config_from_file(filename: str | Path, must_exist: bool = False) -> dict[str, Any] | None:
    """Read a YAML file in which each setting is ``name: {value: ...}``.

    Args:
        filename: The path.
        must_exist: Raise if there is no such file; otherwise None is returned.

    Raises:
        ConfigError: It cannot be read, or has another form.
    """
    path = Path(filename)
    if not path.is_file():
        if must_exist:
            raise ConfigError(f"config file {filename} doesn't exist")
        return None
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Couldn't read config file: {filename}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"Invalid YAML in config yaml: {filename}: {error}") from error
    if loaded is None:
        termwarn(f"Found an empty default config file ({filename}). Proceeding with no defaults.")
        return None
    if not isinstance(loaded, dict) or loaded.pop("wandb_version", 1) != 1:
        raise ConfigError(f"{filename}: Unknown config version")
    wrong = [name for name, entry in loaded.items() if not isinstance(entry, dict) or "value" not in entry]
    if wrong:
        raise ConfigError(
            f"{filename}: {wrong[0]!r} has no 'value'. Write each setting as `{wrong[0]}: {{value: ...}}`."
        )
    return {str(name): entry["value"] for name, entry in loaded.items()}


def is_artifact(value: Any) -> bool:
    """Return whether a value is an artifact, or a reference to one, as a configuration may hold it."""
    from hookline.compat.wandb.artifacts import Artifact

    return isinstance(value, Artifact) or (isinstance(value, str) and value.startswith("wandb-artifact://"))


def _has_artifact(value: Any) -> bool:
    """Return whether a dict has an artifact somewhere in it."""
    return isinstance(value, Mapping) and any(is_artifact(each) or _has_artifact(each) for each in value.values())


def _as_dict(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, Config):
        return params.as_dict()
    if isinstance(params, Mapping):
        return dict(params)
    if hasattr(params, "keys") and hasattr(params, "__getitem__"):  # OmegaConf, ml_collections
        return {str(key): params[key] for key in params.keys()}  # noqa: SIM118
    if isinstance(params, types.ModuleType) and hasattr(params, "FLAGS"):
        params = params.FLAGS
    module = inspect.getmodule(params)
    if module is not None and module.__name__ == "absl.flags._flagvalues":
        return {name: params[name].value for name in dir(params)}
    if dataclasses.is_dataclass(params) and not isinstance(params, type):
        return dataclasses.asdict(params)
    if not hasattr(params, "__dict__"):
        raise TypeError("config must be a dict or have a __dict__ attribute.")
    return dict(vars(params))


def _merged(before: Any, after: Any) -> Any:
    if not isinstance(before, dict) or not isinstance(after, Mapping):
        return after
    return before | {key: _merged(before.get(key), value) for key, value in after.items()}


def _differs(value: Any, before: Any) -> bool:
    try:
        return bool(value != before)
    except Exception:  # an array that was kept unchanged
        return value is not before

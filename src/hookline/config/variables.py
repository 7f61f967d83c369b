"""Settings of a run that come from the environment where the program gives none.

Callbacks of the environment come in addition to those of the program. ``HOOKLINE_MODE`` is no default but a switch,
which no argument overrides.
"""

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.defaults import (
    CALLBACKS_VARIABLE,
    PROJECT,
    ROOT,
    SINKS_VARIABLE,
    TAGS_VARIABLE,
    mode,
    resolved,
)
from hookline._engine.errors import HooklineError, OptionError, closest
from hookline._engine.factories import build_subscriber
from hookline._engine.subscriber import Subscriber

CALLBACKS = "callbacks"
"""The list that a file of callbacks gives, unless another name follows the file."""


class Chosen(NamedTuple):
    """The settings of one run: given ones, those of the environment, and defaults."""

    name: str
    project: str
    root: Any
    tags: Iterable[str]
    sinks: Iterable[Any]
    callbacks: Iterable[Any]
    resume: Any


def choose(
    *,
    name: str,
    project: str = PROJECT,
    root: Any = ROOT,
    tags: Iterable[str] = (),
    sinks: Iterable[Any] = (),
    callbacks: Iterable[Any] = (),
    resume: Any = None,
) -> Chosen:
    """Return the settings of a run that is made with these arguments.

    Raises:
        OptionError: A variable has a value that is not accepted.
    """
    name, project, root = resolved(name), resolved(project), resolved(root)
    # None is no list of tags: it is refused where tags are checked.
    tags = tags if tags is None or tags else _tags()
    if mode() == "disabled":
        return Chosen(name, project, None, tags, (), _with_own(callbacks), None)
    return Chosen(name, project, root, tags, sinks or _sinks(), _with_own(callbacks), resume)


def _parts(variable: str) -> list[str]:
    """Return the parts of a variable that is separated by commas."""
    return [part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()]


def _tags() -> Iterable[str]:
    from hookline._record.run_directory import checked_tags

    return checked_tags(_parts(TAGS_VARIABLE))


def _sinks() -> list[Any]:
    text = os.environ.get(SINKS_VARIABLE, "").strip()
    if not text.startswith("["):
        return _checked_sinks(_parts(SINKS_VARIABLE)) if text else []
    import yaml

    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise OptionError(f"{SINKS_VARIABLE}={text!r:.200}: not a YAML list: {why}") from error
    return _checked_sinks(given)


def _checked_sinks(given: list[Any]) -> list[Any]:
    from hookline._record.sink import make_sink

    for entry in given:
        if not isinstance(entry, str | dict):
            raise OptionError(
                f"{SINKS_VARIABLE}: {entry!r} is not a sink: give names, or [{{name: {{setting: value}}}}]."
            )
        try:
            make_sink(entry)
        except HooklineError as error:
            raise OptionError(f"{SINKS_VARIABLE}={os.environ[SINKS_VARIABLE]!r:.200}: {error}") from error
    return given


def _with_own(given: Iterable[Any]) -> Iterable[Any]:
    """Return the callbacks of a program and those of the environment."""
    found = [each for text in _parts(CALLBACKS_VARIABLE) for each in _reported(text)]
    if not found:
        return given
    # A collection stays one: it is a group beside the others, and the program may still add to it.
    return [given, *found] if isinstance(given, Subscriber) else [*given, *found]


def _reported(text: str) -> list[Any]:
    try:
        return load_named_callbacks(text)
    except HooklineError as error:
        raise OptionError(f"{CALLBACKS_VARIABLE}={os.environ[CALLBACKS_VARIABLE]!r}: {error}") from error


def load_named_callbacks(text: str) -> list[Any]:
    """Return the callbacks that a text names, new ones at each call.

    Args:
        text: A registered name, ``package.module:Name``, a file of Python (``hooks.py`` with a list ``callbacks``, or
            ``hooks.py:Name``), or a configuration file.
    """
    path, _, name = text.partition(":")
    if path.endswith(".py"):
        return _from_python(Path(path), name or CALLBACKS)
    if Path(path).suffix in (".json", ".toml", ".yaml", ".yml"):
        from hookline.config.loading import load_callbacks

        return [load_callbacks(path)]
    return [build_subscriber(text)[0]]


def _from_python(path: Path, name: str) -> list[Any]:
    """Run a file of Python and return what it calls ``name``: a class, an object or a list of these."""
    if not path.is_file():
        raise OptionError(f"{path}: there is no such file.")
    spec = importlib.util.spec_from_file_location(f"hookline_callbacks_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file may raise anything
        raise OptionError(f"{path}: cannot be run: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        names = [each for each in vars(module) if not each.startswith("_")]
        hint = "" if name == CALLBACKS else f" {closest(name, names)}"
        raise OptionError(f"{path} has no {name!r}: give a list of that name, or FILE:NAME.{hint}")
    found = getattr(module, name)
    return [
        each() if isinstance(each, type) else each for each in (found if isinstance(found, list | tuple) else [found])
    ]

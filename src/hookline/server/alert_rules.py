"""Alert rules that people add in the page: what they may contain, and the callbacks that they become.

Such a rule is kept in the book of alerts (`hookline.store.alert_book`), which may come with a directory from anyone. So
it names one of a few callbacks, and plain values for some of their arguments: no code, no paths, no variables of the
environment, nothing that stops a run. A rule that is not accepted is left out when the book is read.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import HooklineError, OptionError, closest
from hookline._record.run_directory import METADATA
from hookline.callbacks.alert import reference_curves
from hookline.config.loading import load_callbacks
from hookline.store.alert_book import AlertRule
from hookline.store.run_info import RunLocation

logger = logging.getLogger("hookline")

ACCEPTED: Mapping[str, tuple[str, ...]] = {
    "alert": ("metric", "above", "below", "reference", "differs_by", "in_a_row", "rearm", "severity"),
    "no_progress": ("metric", "steps", "seconds", "mode", "min_delta", "severity"),
}
"""The callbacks of such rules, with the arguments that they may have."""
MOST_REFERENCES = 50
"""How many runs a rule compares with, the latest first."""
_MAX_NAME, _MAX_BYTES = 100, 4000
_PART = r"[^/\\\0.*?\[][^/\\\0*?\[]*"
_REFERENCE = re.compile(rf"({_PART})/({_PART}|\*)")
"""A run's id, or all runs of a project."""


def check_rule(rule: AlertRule) -> None:
    """Check a rule, and build its callback once.

    Raises:
        OptionError: Something in it is not accepted.
        ConfigError: An argument is wrong.
    """
    name, arguments = rule.name, rule.arguments
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable() or "/" in name:
        raise OptionError(f"name={name!r:.120}: give 1 to {_MAX_NAME} printable characters without '/'.")
    if len(rule.project) > _MAX_NAME or len(msgspec.json.encode(arguments)) > _MAX_BYTES:
        raise OptionError(f"{rule.use}: the rule is longer than {_MAX_BYTES:,} bytes.")
    if rule.use not in ACCEPTED:
        raise OptionError(f"use={rule.use!r:.60}: {closest(rule.use, ACCEPTED)}")
    for key, value in arguments.items():
        if key not in ACCEPTED[rule.use]:
            raise OptionError(f"{rule.use}: {key!r:.60}: {closest(key, ACCEPTED[rule.use])}")
        # Text that a configuration would read as something else is none of these.
        is_plain = isinstance(value, bool | int | float | str) or key == "reference"
        if not is_plain:
            raise OptionError(f"{rule.use}: {key}={value!r:.60}: give a number or a text.")
    for each in _references(arguments):
        if not isinstance(each, str) or not _REFERENCE.fullmatch(each):
            raise OptionError(f"reference={each!r:.120}: give ids of runs, or project/* for all runs of a project.")
    load_callbacks([_entry(rule, arguments)]).close()


def rule_text(rule: AlertRule) -> str:
    """Return a rule as a configuration file has it."""
    return entry_text({rule.use: rule.arguments})


def entry_text(entry: Any) -> str:
    """Return an entry of a list of callbacks as one line.

    >>> entry_text({"alert": {"metric": "loss", "above": 10}})
    'alert: {metric: loss, above: 10}'
    """
    if isinstance(entry, Mapping):
        return ", ".join(f"{key}: {_flow(value)}" for key, value in entry.items())
    return str(entry)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{entry_text(value)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def references(rule: AlertRule) -> list[str]:
    """Return the projects whose runs a rule reads: its own, and those of the runs that it compares with."""
    return [rule.project, *(each.partition("/")[0] for each in _references(rule.arguments))]


def add_rules(callbacks: CallbackCollection, rules: Iterable[AlertRule], location: RunLocation, root: Path) -> None:
    """Add the rules that are for a run to its callbacks; one that cannot be evaluated there is left out."""
    for rule in rules:
        if rule.project not in ("", location.project):
            continue
        try:
            check_rule(rule)
            arguments = dict(rule.arguments)
            if "reference" in arguments:
                arguments["reference"] = _reference_runs(rule, location, root)
            callbacks.add(_entry(rule, arguments, taken=callbacks.names()))
        except HooklineError as error:
            logger.warning("%s: the rule %r is not evaluated: %s", location.id, rule.name, error)


def _references(arguments: Mapping[str, Any]) -> list[Any]:
    found = arguments.get("reference", [])
    return found if isinstance(found, list) else [found]


def page_name(rule: AlertRule) -> str:
    """Return the name of a rule where a rule of the alert file has its own."""
    return f"{rule.name} (page)"


def _entry(rule: AlertRule, arguments: Mapping[str, Any], taken: Iterable[str] = ()) -> dict[str, Any]:
    name = page_name(rule) if rule.name in set(taken) else rule.name
    return {"use": rule.use, "with": dict(arguments), "name": name}


def _reference_runs(rule: AlertRule, location: RunLocation, root: Path) -> list[str]:
    """Return the directories of the runs that a rule compares a run with: those that have the metric, and not itself.

    Raises:
        OptionError: There are none.
    """
    wanted: list[Path] = []
    for each in _references(rule.arguments):
        project, _, name = each.partition("/")
        wanted += sorted((root / project).glob("*") if name == "*" else [root / project / name], reverse=True)
    found: list[str] = []
    for directory in wanted:
        is_run = not directory.is_symlink() and (directory / METADATA).is_file() and directory != location.directory
        if is_run and str(directory) not in found and len(found) < MOST_REFERENCES:
            try:
                reference_curves([str(directory)], rule.arguments["metric"])
            except OptionError:
                continue  # it has no such metric
            found.append(str(directory))
    if not found:
        raise OptionError(f"reference={rule.arguments['reference']!r:.200}: no run of these has the metric.")
    return found

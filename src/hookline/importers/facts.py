"""The facts of an exported run: what ``run.json`` says about it, without its id and its process.

`exported_facts` takes them from a run and redacts them. `checked_facts` reads those of an export, which is not trusted:
a fact of another type or size than it should have is left out and reported, and an unknown one is ignored.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hookline._record.records import clean
from hookline._record.redaction import Redactor

FACTS, FACTS_FILE = "facts", "facts.jsonl"
"""The table with the facts, and its file in a directory of `hookline runs export --what all`."""
_WORD, _TEXT, _ITEMS = 4096, 1 << 20, 10_000
"""The maximum length of a name or path, of notes, and of a list."""
_MAX_FOLDER_BYTES = 255
_MAX_TIME = 1e11
_MEMBERSHIP = {
    **dict.fromkeys(("name", "id", "group", "run_key", "group_id", "arm", "stage"), str),
    **dict.fromkeys(("repeat", "seed", "position"), int),
}
"""What a run's membership of an experiment consists of."""
_GIT: dict[str, type] = {"commit": str, "branch": str, "remote": str, "changed": bool}


class CheckedFacts(NamedTuple):
    """The facts that can be used, and the problems of those that cannot."""

    facts: dict[str, Any]
    problems: list[str]


def exported_facts(facts: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Return the facts of a run that describe it elsewhere too, redacted.

    Args:
        facts: The content of its ``run.json``.
        project: The project that it is in.
    """
    known = {**facts, "project": project}
    return redacted_facts({name: clean(known[name]) for name in _CHECKS if known.get(name) is not None})


def redacted_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Redact facts like those of a run that is recorded; the project stays, because it is a directory."""
    redactor = Redactor()
    redacted = {
        name: value if name in ("project", "imported") else redactor.settings(value) for name, value in facts.items()
    }
    if isinstance(facts.get("command"), list):
        redacted["command"] = redactor.command(facts["command"])
    return redacted


def checked_facts(given: Any) -> CheckedFacts:
    """Check the facts of an export.

    >>> checked_facts({"name": "baseline", "project": "../up", "pid": 7})
    CheckedFacts(facts={'name': 'baseline'}, problems=["project='../up' is not the name of a project"])
    """
    if not isinstance(given, dict):
        return CheckedFacts({}, [f"a {type(given).__name__} is not a mapping of facts"])
    facts: dict[str, Any] = {}
    problems = []
    for name, (is_valid, expected) in _CHECKS.items():
        value = clean(given.get(name))  # first: it bounds the nesting, and what follows is recursive
        if value is None:
            continue
        if is_valid(value):
            facts[name] = value
        else:
            problems.append(f"{name}={value!r:.80} is not {expected}")
    for name, types in (("experiment", _MEMBERSHIP), ("git", _GIT)):
        if name in facts:
            facts[name] = {key: facts[name][key] for key in types if key in facts[name]}
    return CheckedFacts(facts, problems)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _WORD


def _is_name(value: Any) -> bool:
    return _is_word(value) and bool(value)


def _is_project(value: Any) -> bool:
    if not _is_name(value) or not value.isprintable() or value[0] == "." or Path(value).name != value:
        return False
    try:
        return len(os.fsencode(value)) <= _MAX_FOLDER_BYTES
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _MAX_TIME


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _ITEMS and all(map(_is_word, value))


def _is_mapping_of_words(value: Any) -> bool:
    return isinstance(value, dict) and _are_words([*value]) and _are_words([*value.values()])


def _has_types(types: Mapping[str, type]) -> Callable[[Any], bool]:
    def has_types(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        found = [(value[name], kind) for name, kind in types.items() if value.get(name) is not None]
        return all(type(item) is kind and (kind is not str or _is_word(item)) for item, kind in found)

    return has_types


_WORDS = (_is_word, f"a text of at most {_WORD:,} characters")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_name, f"a name of at most {_WORD:,} characters"),
    "project": (_is_project, "the name of a project"),
    "config": (lambda value: True, ""),  # the length of the line bounds it
    "tags": (lambda value: _are_words(value) or _is_mapping_of_words(value), "a list of short texts"),
    "notes": (lambda value: isinstance(value, str) and len(value) <= _TEXT, f"a text of at most {_TEXT:,} characters"),
    "summary": (lambda value: isinstance(value, dict), "a mapping"),
    "group": _WORDS,
    "job_type": _WORDS,
    "experiment": (_has_types(_MEMBERSHIP), "the membership of an experiment"),
    "started": (_is_time, "a time"),
    "command": (lambda value: _is_word(value) or _are_words(value), "a command"),
    "cwd": _WORDS,
    "host": _WORDS,
    "user": _WORDS,
    "python": _WORDS,
    "platform": _WORDS,
    "git": (_has_types(_GIT), "a commit"),
    "packages": (_is_mapping_of_words, "a mapping of packages to versions"),
}
"""The facts that are exported, the check of each, and what it accepts."""

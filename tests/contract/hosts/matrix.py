"""What the tests found out about each host, as ``matrix.json`` beside this file; the documentation is made from it.

The tests compare what they find with the file. With ``UPDATE_MATRIX=1`` in the environment they write it instead::

    UPDATE_MATRIX=1 python -m pytest -n 0 tests/contract/test_{hosts,builtins_in_hosts}.py
    python scripts/moments_reference.py
"""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hookline import MOMENTS
from hosts import TABLE, differences
from hosts.differences import Difference
from hosts.effects import EFFECTS

FILE = Path(__file__).with_name("matrix.json")
Found = dict[str, Any]


def moments_found(reported: Collection[str], known: list[Difference]) -> Found:
    """What is known of the moments of a host, as the file has it."""
    notes: dict[str, list[str]] = {}
    for each in known:
        notes.setdefault(each.moment, []).append(each.reason)
    reasons = {moment: list(dict.fromkeys(given)) for moment, given in notes.items()}
    return {"fired": [name for name in MOMENTS if name in reported], "notes": reasons}


def builtins_found(host: str) -> Found:
    """What is known of the built-in callbacks in a host, as the file has it."""
    idle = differences.idle(host)
    works = [name for name in sorted(EFFECTS) if name not in idle]
    noted = {name: reason for (where, name), reason in differences.NOTES.items() if where == host}
    return {"works": works, "notes": differences.partly(host) | noted, "idle": idle}


def hosts_listed() -> list[Found]:
    """The hosts of the matrix in their order, as the file has them."""
    return [
        {"name": name, "title": entry.title, "group": entry.group, "stand_in": entry.stand_in}
        for name, entry in TABLE.items()
    ]


def read() -> Found:
    """All that was found."""
    matrix: Found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return matrix


def check(found: Any, *place: str) -> None:
    """Compare something found with its place in the file, or write it there."""
    matrix = read()
    *sections, name = place
    section: Any = matrix
    for each in sections:
        section = section.setdefault(each, {})
    if os.environ.get("UPDATE_MATRIX") == "1":
        section[name] = found
        FILE.write_text(json.dumps(matrix, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        assert section.get(name) == found, "matrix.json is not up to date: see hosts/matrix.py"

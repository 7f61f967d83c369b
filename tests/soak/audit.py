"""`audit`: whether every recorded row is in every sink exactly once, and the training is that of the quiet run.

Three claims, each a line of the table or several:

- *acknowledged*: every row whose `log` had returned is in the journal, whatever killed the session, except for those
  that the session itself counted as lost because the disk was full. A later session records those again.
- *quiet run*: the rows that count are those of a training to which nothing was done, bit by bit.
- every sink: what is there is what was recorded, nothing missing and nothing twice. A sink that takes back what a
  resume makes obsolete has the view, one that cannot has the whole history.

Beside the training: every power cut left what was synced (`power_cut`), and every flipped bit was found
(`flipped_bits`).

A terminal and a function cannot take anything back, and nobody can ask them what they have: a kill between the call
and the note of it repeats a function's last row, and a terminal's last batch. Such repeats are counted and allowed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from soak.flipped_bits import Flip
from soak.layout import Layout
from soak.power_cut import Cut
from soak.readers import KEEPS, READERS, Recorded, recorded
from soak.rows import history, reported, trained, view

REPEATS = {"console": 500, "function": 1}
"""How many rows a kill may repeat at most, where a destination cannot be asked."""


@dataclass(frozen=True)
class Finding:
    """How one destination stands.

    Args:
        doubled: How many rows are there too often, or were never recorded.
        allowed: How many of those its own page says may be.
    """

    name: str
    keeps: str
    expected: int
    found: int
    missing: int
    doubled: int
    allowed: int = 0
    error: str = ""
    examples: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return not self.error and self.missing == 0 and self.doubled <= self.allowed


def audit(layout: Layout, *, kills: int) -> list[Finding]:
    """Compare everything. ``kills`` is how many sessions did not end in an orderly way."""
    run = recorded(layout)
    findings = [_acknowledged(run), _quiet(run)]
    for name in (*layout.sinks, "store"):
        try:
            expected, found = READERS[name](run)
        except Exception as error:
            findings.append(Finding(name, "", 0, 0, 0, 0, error=f"{type(error).__name__}: {error}"))
        else:
            findings.append(_compared(name, KEEPS.get(name, "history"), expected, found, REPEATS.get(name, 0) * kills))
    return findings


def checked(name: str, found: Sequence[Cut | Flip]) -> Finding:
    """How many of the power cuts, or of the flipped bits, came out as promised."""
    wrong = [each for each in found if each.wrong]
    examples = tuple(f"{each}" for each in wrong[:3])
    return Finding(name, "", len(found), len(found) - len(wrong), len(wrong), 0, examples=examples)


def _compared(name: str, keeps: str, expected: Counter, found: Counter, allowed: int = 0) -> Finding:
    missing, doubled = expected - found, found - expected
    examples = [f"missing {each}" for each in list(missing)[:3]] + [f"doubled {each}" for each in list(doubled)[:3]]
    counts = (counter.total() for counter in (expected, found, missing, doubled))
    if doubled.keys() - expected.keys():  # what was never recorded is no repeat
        allowed = 0
    return Finding(name, keeps, *counts, allowed=allowed, examples=tuple(examples))


def _quiet(run: Recorded) -> Finding:
    (quiet,) = run.layout.quiet_root.glob("*/*/run.json")
    return _compared("quiet run", "view", trained(view(quiet.parent)), trained(run.view))


def _acknowledged(run: Recorded) -> Finding:
    """Acknowledged rows must be in the journal; as many as were counted as lost may be missing."""
    there: dict[int, Counter] = {}
    for record in history(run.run_dir):
        attempt = record.values.get("attempt", record.values.get("val/attempt"))
        if attempt is not None:
            there.setdefault(int(attempt), Counter())[record.step, tuple(sorted(record.values))] += 1
    expected = found = missing = doubled = 0
    for session, (rows, lost) in reported(run.layout.reported).items():
        own = Counter({key: n for key, n in rows.items() if any(name.endswith("attempt") for name in key[1])})  # type: ignore[attr-defined]
        arrived = there.get(session, Counter())
        expected, found = expected + own.total(), found + arrived.total()
        missing += max(0, (own - arrived).total() - lost)
        doubled += max(0, (arrived - own).total() - 1)  # one may be written and not acknowledged yet
    return Finding("acknowledged", "history", expected, found, missing, doubled)

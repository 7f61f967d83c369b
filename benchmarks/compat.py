"""What the drop-ins for other trackers cost beside the originals, and what a kill loses.

- ``wandb``: one call of ``wandb.log`` with ten scalars on the training thread, and the rows that are lost by ``kill
  -9`` of the process: those whose call had returned, and that are not found when its files are read. Beside wandb
  offline and trackio.
- ``tensorboard``: one call of ``add_scalar`` on the training thread, and the values that are lost by ``kill -9`` of the
  process: those whose call had returned, and that are not there afterwards. Beside torch's ``SummaryWriter``.
- ``mlflow``: metrics a second that ``hookline serve`` receives from MLflow's ``log_batch`` on one core, and those that
  it had acknowledged and lost when it was killed. Beside ``mlflow server`` with SQLite.

Figures are medians by the clock and by CPU time, which a busy machine changes less: a bar is held against that. Nothing
is asserted: a bar is marked as met or not met.
"""

import argparse
import importlib.metadata
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec

import compat_mlflow
import compat_tensorboard
import compat_wandb
from measure import met
from rich.console import Console
from rich.table import Table

WANDB_MICROSECONDS, SCALAR_MICROSECONDS, METRICS_A_SECOND = 6.0, 4.0, 10_000.0
_PACKAGES = ("hookline", "wandb", "trackio", "torch", "tensorboard", "mlflow")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, of hookline and of another system, by the clock and by CPU time.

    Attributes:
        what: What is measured.
        unit: In which unit.
        own: hookline's, by the clock, or a count.
        own_cpu: hookline's in CPU time; None for a count.
        other: The system beside it.
        others: Its figure, by the clock.
        others_cpu: Its figure in CPU time.
        bar: What hookline's figure is held against.
        is_high_good: Whether more is better, as of metrics a second.
    """

    what: str
    unit: str
    own: float
    own_cpu: float | None
    other: str = ""
    others: float | None = None
    others_cpu: float | None = None
    bar: float | None = None
    is_high_good: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether hookline meets the bar; None without one."""
        if self.bar is None:
            return None
        figure = self.own if self.own_cpu is None else self.own_cpu
        return figure >= self.bar if self.is_high_good else figure <= self.bar

    @property
    def ratio(self) -> float | None:
        """How many times the other's figure is hookline's, in CPU time."""
        if self.own_cpu is None or self.others_cpu is None:
            return None
        less, more = self.own_cpu, self.others_cpu
        return less / more if self.is_high_good else more / less


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int = 15
    kills: int = 10
    calls: int = 300
    scalars: int = 10_000
    posts: int = 200
    peer_posts: int = 10


SMALL = Size(rounds=1, kills=1, calls=30, scalars=200, posts=3, peer_posts=0)
"""To see that it works; without the server of MLflow, which takes long to start."""


def wandb(size: Size) -> list[Row]:
    """What ``wandb.log`` takes, and what a kill loses of it."""
    sizes = compat_wandb.Sizes(
        bursts=size.rounds,
        calls=size.calls,
        burst_seconds=0.15,
        kills=size.kills,
        kill_rows=1000 * size.kills,
        kill_seconds=1.5,
        idle_seconds=0.06,
    )
    found = compat_wandb.measure(sizes)
    own = found.pop("hookline")
    peers = found or {"": compat_wandb.Figures({}, {})}
    rows = []
    for kind in compat_wandb.KINDS:
        bar = WANDB_MICROSECONDS if kind == compat_wandb.IMPLICIT else None
        for name, peer in peers.items():
            beside = (name, peer.wall.get(kind), peer.cpu.get(kind))
            rows.append(Row(f"{kind}, ten scalars", "µs a call", own.wall[kind], own.cpu[kind], *beside, bar=bar))
            bar = None  # once
    rows.append(Row(f"{size.kills} kills, {own.logged:,} rows", "rows lost", own.lost, None, bar=0))
    rows += [
        Row(f"{size.kills} kills, {name}'s {peer.logged:,} rows", "rows lost", own.lost, None, name, peer.lost)
        for name, peer in found.items()
    ]
    return rows


def tensorboard(size: Size) -> list[Row]:
    """What ``add_scalar`` takes, and what a kill loses of it."""
    found = compat_tensorboard.microseconds(size.rounds, size.scalars)
    rows = []
    for situation in compat_tensorboard.SITUATIONS:
        own, others = found["hookline", situation], found["torch", situation]
        bar = SCALAR_MICROSECONDS if situation == "a number" else None
        rows.append(Row(f"add_scalar of {situation}", "µs a call", *own, "torch", *others, bar=bar))
    lost = compat_tensorboard.lost(size.kills)
    own_lost, others_lost = lost["hookline"], lost["torch"]
    rows.append(Row(f"{size.kills} kills, {own_lost.logged:,} values", "values lost", own_lost.lost, None, bar=0))
    what = f"{size.kills} kills, torch's {others_lost.logged:,} values"
    return [*rows, Row(what, "values lost", own_lost.lost, None, "torch", others_lost.lost)]


def mlflow(size: Size) -> list[Row]:
    """How many metrics a second a server receives, and what a kill loses of them."""
    found = compat_mlflow.received(size.posts, size.peer_posts)
    (own, own_cpu), (others, others_cpu) = found["hookline"], found.get("mlflow server", (None, None))
    figures = Row("log_batch of 1,000 metrics", "metrics/s", own, own_cpu, "mlflow server", others, others_cpu)
    first = replace(figures, bar=METRICS_A_SECOND, is_high_good=True)
    lost = compat_mlflow.lost(size.posts)
    return [first, Row(f"a kill of the server, {1000 * size.posts:,} metrics", "metrics lost", lost, None, bar=0)]


PARTS: dict[str, Callable[[Size], list[Row]]] = {"wandb": wandb, "tensorboard": tensorboard, "mlflow": mlflow}


def main() -> None:
    """Measure the parts, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description="What the drop-ins for other trackers cost beside the originals.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to measure")
    parser.add_argument("--small", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    found = {name: PARTS[name](SMALL if options.small else Size()) for name in options.only}
    environment = _environment()
    if options.json:
        parts = {
            name: [asdict(row) | {"met": row.is_met, "ratio": row.ratio} for row in rows]
            for name, rows in found.items()
        }
        print(json.dumps({"environment": environment, "parts": parts}))
    else:
        console = Console()
        console.print(_table([row for rows in found.values() for row in rows]))
        console.print(", ".join(f"{name} {version}" for name, version in environment.items()), highlight=False)


def _table(rows: list[Row]) -> Table:
    table = Table("", "unit", "times", "hookline", "CPU", "beside", "it", "its CPU", "bar", title="Drop-ins")
    for row in rows:
        bar = "" if row.bar is None or row.is_met is None else f"{row.bar:,.0f} {met(row.is_met)}"
        own, peer = (row.own, row.own_cpu), (row.others, row.others_cpu)
        table.add_row(row.what, row.unit, _shown(row.ratio), *map(_shown, own), row.other, *map(_shown, peer), bar)
    return table


def _shown(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.1f}" if abs(number) < 100 and number != int(number) else f"{number:,.0f}"


def _environment() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES if find_spec(name) is not None}
    return {"Python": platform.python_version(), "kernel": platform.release()} | versions


if __name__ == "__main__":
    main()

"""`Plan`: which faults come, in which order, and how long each lasts: the same for the same seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from soak import faults
from soak.faults import Fault
from soak.layout import Layout

PAUSE_SECONDS = (0.2, 2.5)
ROWS = (1, 200)
"""How many rows a session has acknowledged when a fault comes that waits for some."""


@dataclass(frozen=True)
class Planned:
    """A fault: how long after the one before and after how many rows of a session it comes, and how long it lasts."""

    fault: Fault
    pause_seconds: float
    rows: int
    seconds: float


class Plan:
    """Faults without end, in decks: every kind has come before one comes again more often than its share.

    Args:
        has_small_disk: Whether the disk can be filled.
        has_loop_devices: Whether the power of a disk can be cut.
        pace: How much shorter everything is than usual.
    """

    def __init__(
        self, layout: Layout, *, seed: int, has_small_disk: bool, has_loop_devices: bool, pace: float = 1.0
    ) -> None:
        self._rng = random.Random(seed)
        self._pace = pace
        self.deck = deck(layout, has_small_disk=has_small_disk, has_loop_devices=has_loop_devices)

    def __iter__(self) -> Iterator[Planned]:
        while True:
            shuffled = list(self.deck)
            self._rng.shuffle(shuffled)
            for fault in shuffled:
                yield self._planned(fault)

    def _planned(self, fault: Fault) -> Planned:
        pause, seconds = (self._rng.uniform(*limits) * self._pace for limits in (PAUSE_SECONDS, fault.seconds))
        return Planned(fault, pause, int(self._rng.randint(*ROWS) * self._pace), seconds)


def deck(layout: Layout, *, has_small_disk: bool, has_loop_devices: bool) -> list[Fault]:
    """Every fault that is possible here, the commonest more than once."""
    made: list[Fault] = [faults.Kill(), faults.Kill(), faults.Kill(), faults.KillAtStart()]
    made += [faults.Terminate(), faults.Freeze(), faults.DeliveryProcessKilled()]
    made += [faults.IndexCorrupted(), faults.IndexRemoved()]
    made += [faults.FilesTorn(), faults.CursorLost(), faults.CheckpointDamaged()]
    made += [faults.BitFlipped(), faults.BitFlipped()]
    made += [faults.OutputLost(), faults.OutputLost()]
    made += [kind(server) for server in layout.ports for kind in (faults.ServerDown, faults.ServerFrozen)]
    if "hookline" in layout.ports:
        made.append(faults.RawFlood())
    if "wandb" in layout.sinks:
        made.append(faults.WandbKilled())
    if has_loop_devices:
        made += [faults.PowerCut(), faults.PowerCut()]
    if has_small_disk:
        made += [faults.DiskFull(), faults.DiskFullAtStart()]
    return made

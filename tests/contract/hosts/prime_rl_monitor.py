"""A monitor of prime-rl's orchestrator, by a stand-in."""

from pathlib import Path
from typing import Any

from hookline.integrations.prime_rl import HooklineMonitor
from hosts.base import STEPS, Host
from hosts.stand_ins.prime_rl import orchestrate


class PrimeRL(Host):
    """The orchestrator of `prime_rl`."""

    name = "prime_rl"
    monitor = "sums/loss"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        with HooklineMonitor(callbacks, name=self.name, steps=STEPS, **self.options) as monitor:
            self.loop = monitor.loop
            orchestrate([monitor])

"""A monitor of prime-rl; the lines for hookline are marked with "hookline".

prime-rl's orchestrator calls each of its monitors as `orchestrate` does here.
"""

from collections.abc import Iterable
from typing import Any

from hookline.integrations.prime_rl import HooklineMonitor  # hookline


def orchestrate(monitors: Iterable[Any]) -> None:
    """Report eight steps, and an evaluation after each."""
    for step in range(8):
        for monitor in monitors:
            monitor.log({"loss/mean": 1 / (1 + step), "reward/sums/mean": step / 8}, step=step)
            monitor.log({"eval/sums/avg@1": step / 8}, step=step)
    for monitor in monitors:
        monitor.close()


def main() -> None:
    """Train with one more monitor."""
    monitor = HooklineMonitor(["print_progress"], name="math", steps=8)  # hookline
    orchestrate([monitor])


if __name__ == "__main__":
    main()

"""The output during a soak, and the table at its end."""

import time
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hookline._record.delivery import sink_states
from soak.abuser import Abuser
from soak.audit import Finding
from soak.supervisor import Supervisor

LAG_SECONDS = 2.0
"""How often the sinks are asked how far behind they are."""


class Display:
    """A live view on standard error; nothing where it is no terminal.

    Args:
        is_quiet: Show nothing.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=is_quiet)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._lag, self._asked = "", 0.0
        self._phase = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        """Say what is done now."""
        self._phase = text
        self._console.print(text, style="bold")

    def show(self, supervisor: Supervisor, abuser: Abuser, seconds: float, total: float) -> None:
        if not self._console.is_terminal:
            return
        step = supervisor.steps_done()
        faults = ", ".join(f"{name} {count}" for name, count in sorted(abuser.counts.items()))
        lines = [
            Text(f"{self._phase}  {seconds:.0f} of {total:.0f} s", style="bold"),
            Text(f"session {supervisor.session}  step {step:,} of {supervisor.layout.steps:,}"),
            Text(f"now     {', '.join(abuser.under_way) or '-'}", style="red"),
            Text(f"faults  {abuser.counts.total()}: {faults}"),
            Text(f"waiting {self._waiting(supervisor)}"),
            *(Text(line, style="dim") for line in abuser.story[-5:]),
        ]
        self._live.update(Group(*lines))

    def _waiting(self, supervisor: Supervisor) -> str:
        if time.monotonic() - self._asked > LAG_SECONDS:
            self._asked = time.monotonic()
            try:
                states = sink_states(supervisor.layout.run_dir)
            except (OSError, ValueError, KeyError):
                states = []
            self._lag = ", ".join(f"{state.name} {state.behind_bytes:,} B" for state in states if state.behind_bytes)
        return self._lag or "nothing"


def table(findings: list[Finding]) -> Table:
    """How each destination stands."""
    made = Table("destination", "keeps")
    for name in ("expected", "found", "missing", "doubled", "may repeat"):
        made.add_column(name, justify="right")
    made.add_column("")
    for each in findings:
        numbers = [f"{n:,}" for n in (each.expected, each.found, each.missing, each.doubled)]
        word = Text("ok", style="green") if each.is_right else Text(each.error or "DIFFERS", style="bold red")
        made.add_row(each.name, each.keeps, *numbers, f"{each.allowed:,}" if each.allowed else "", word)
    return made

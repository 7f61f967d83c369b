"""`Soak`: an undisturbed run, the abused one, delivery of the rest, and the audit."""

import json
import random
import subprocess
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from loopback_server import free_port

from soak import faults
from soak.abuser import PATIENCE_SECONDS, Abuser
from soak.audit import Finding, audit, checked
from soak.disk import SmallDisk
from soak.display import Display
from soak.faults import Arena
from soak.flipped_bits import FlippedBits
from soak.layout import Layout
from soak.leftovers import end_leftovers
from soak.observer import Observer
from soak.plan import Plan
from soak.power_cut import PowerCuts, why_not
from soak.rows import reported
from soak.server import Server, hookline_command, servers_for
from soak.supervisor import Supervisor

SERVED = ("status", "hookline", "mlflow")
"""Sinks that deliver to a server."""
LOOK_SECONDS = 3.0
TICK_SECONDS = 0.05
SYNC_SECONDS = 240.0
UP_SECONDS = 240.0


@dataclass(frozen=True)
class Result:
    """What came of a soak."""

    seed: int
    seconds: float
    steps: int
    sessions: int
    endings: dict[str, int]
    faults: dict[str, int]
    looks: int
    look_failures: list[str]
    lost: int
    findings: list[Finding]
    story: list[str]
    skipped: list[str]

    @property
    def is_right(self) -> bool:
        return all(finding.is_right for finding in self.findings) and not self.look_failures


class Soak:
    """One soak.

    Args:
        home: An empty directory for everything.
        seconds: How long the training is abused.
        rate: How many steps a second the training makes where it is left alone.
        pace: How much shorter faults and pauses are than usual.
        process_share: How many of the sessions deliver from a process of their own.
        least_faults: How many faults come at least, however long that takes.
    """

    def __init__(
        self,
        home: Path,
        *,
        seconds: float,
        seed: int,
        sinks: tuple[str, ...],
        rate: float = 30.0,
        megabytes: int = 256,
        pace: float = 1.0,
        least_faults: int = 0,
        process_share: float = 0.4,
        display: Display | None = None,
    ) -> None:
        self.seconds, self.seed, self.least_faults = seconds, seed, least_faults
        self.display = display or Display(is_quiet=True)
        self.disk = SmallDisk(home / "disk", megabytes)
        ports = {name: free_port() for name in SERVED if name in sinks}
        self.layout = Layout(home, self.disk.path, int(seconds * rate), seed, sinks, ports)
        self.layout.logs.mkdir()
        self.servers: dict[str, Server] = servers_for(self.layout)
        self.supervisor = Supervisor(self.layout, seed=seed, process_share=process_share)
        self.observer = Observer(self.layout)
        self.power = PowerCuts(home / "power", seed=seed)
        parts = (self.layout, self.supervisor, self.servers, self.disk, self.observer)
        arena = Arena(*parts, random.Random(seed + 1), self.power)
        can_mount = {"has_small_disk": self.disk.is_mounted, "has_loop_devices": not why_not()}
        plan = Plan(self.layout, seed=seed, pace=pace, **can_mount)
        self.abuser = Abuser(arena, plan, PATIENCE_SECONDS * pace)

    def run(self) -> Result:
        began = time.monotonic()
        self.display.phase("a quiet run, to compare with")
        for server in self.servers.values():
            server.start()
        self.supervisor.run_quietly()
        self.supervisor.wait_for_end(seconds=300.0)
        assert self.supervisor.endings == [0], f"the quiet run failed: see {self.layout.logs}/training-quiet.log"
        self._wait_for_servers()
        (quiet,) = self.layout.quiet_root.glob("*/*/run.json")
        bits = FlippedBits(quiet.parent, self.layout.home / "flipped", random.Random(self.seed + 2))
        self.abuser.arena.bits = bits
        self._abuse()
        self._cut_enough()
        self.display.phase("delivering what is left")
        self._wait_for_servers()
        self._sync()
        self.observer.look()
        self.display.phase("comparing")
        endings = self.supervisor.endings[1:]
        (self.layout.home / "story.txt").write_text("\n".join(self.abuser.story) + "\n")
        findings = audit(self.layout, kills=sum(status != 0 for status in endings))
        findings += [checked("power cuts", self.power.found)] if self.power.found else []
        findings += [checked("flipped bits", bits.found)]
        return self._result(findings, time.monotonic() - began)

    def close(self, *, keep: bool) -> None:
        """End everything that was started; what lies on the small disk is kept where it is asked for."""
        self.abuser.end_all()
        self.supervisor.close()
        for server in self.servers.values():
            server.kill()
        end_leftovers(self.layout)
        self.observer.close()
        self.power.close()
        if keep and self.disk.is_mounted:
            subprocess.run(["cp", "-a", f"{self.disk.path}/.", f"{self.layout.home / 'kept'}"], check=False)
        self.disk.close()

    def _abuse(self) -> None:
        self.display.phase("training, and everything that can go wrong")
        supervisor, abuser = self.supervisor, self.abuser
        supervisor.is_complete = False
        began = time.monotonic()
        abuser.begin()
        supervisor.until = time.time() + self.seconds
        looked = 0.0
        while not supervisor.is_complete:
            supervisor.tick()
            supervisor.keep_going()
            now = time.monotonic() - began
            if now < self.seconds or abuser.counts.total() < self.least_faults:
                abuser.tick()
            else:  # whatever is left of the training is left alone
                abuser.end_all()
                self.layout.is_over.touch()
            if now - looked > LOOK_SECONDS and not self.disk.is_full:
                looked = now
                self.observer.look()
            self.display.show(supervisor, abuser, now, self.seconds)
            assert now < 3 * self.seconds + 180, "the training does not come to its end"
            time.sleep(TICK_SECONDS)
        abuser.end_all()

    def _cut_enough(self) -> None:
        """Make as many power cuts as belong to the time, and flip as many bits, where the plan had fewer of them."""
        least = max(1, int(self.seconds // 30))
        while not why_not() and len(self.power.found) < least:
            self.abuser.do(faults.PowerCut())
        while len(self.abuser.arena.bits.found) < least:
            self.abuser.do(faults.BitFlipped())

    def _wait_for_servers(self) -> None:
        deadline = time.monotonic() + UP_SECONDS
        while not all(server.is_up() for server in self.servers.values()):
            assert time.monotonic() < deadline, f"a server does not come up: see {self.layout.logs}"
            time.sleep(0.2)

    def _sync(self) -> None:
        """Deliver what is left, as a user does; a delivery process that outlived its training may still be at it."""
        command = [hookline_command(), "runs", "sync", str(self.layout.run_dir), "--seconds", str(SYNC_SECONDS)]
        logs = self.layout.logs
        with (logs / "console-9999.txt").open("ab") as out, (logs / "sync.log").open("ab") as log:
            subprocess.run(command, env=self.layout.environment(), stdout=out, stderr=log, check=False)

    def _result(self, findings: list[Finding], seconds: float) -> Result:
        endings = Counter(_ending(status) for status in self.supervisor.endings[1:])
        return Result(
            seed=self.seed,
            seconds=round(seconds, 1),
            steps=self.layout.steps,
            sessions=self.supervisor.session,
            endings=dict(endings),
            faults=dict(sorted(self.abuser.counts.items())),
            looks=self.observer.looks,
            look_failures=self.observer.failures,
            lost=sum(lost for _, lost in reported(self.layout.reported).values()),
            findings=findings,
            story=self.abuser.story,
            skipped=[
                *([] if self.disk.is_mounted else ["disk full: a small file system can be mounted by root only"]),
                *([f"power cuts: {why_not()}"] if why_not() else []),
            ],
        )


def _ending(status: int) -> str:
    words = {0: "complete", 3: "stopped", -9: "killed"}
    return words.get(status, "failed" if status > 0 else f"signal {-status}")


def as_json(result: Result) -> str:
    return json.dumps(asdict(result) | {"ok": result.is_right}, indent=2)

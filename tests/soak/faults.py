"""The faults injected into the training and its surroundings: one class per fault; each reports what it did."""

import contextlib
import os
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from hookline._record.segment import journal_files
from hookline.store.index import DATABASE, FOLDER
from soak.disk import SmallDisk
from soak.flipped_bits import FlippedBits
from soak.flood import Flood
from soak.layout import Layout
from soak.observer import Observer
from soak.power_cut import PowerCuts
from soak.server import Server
from soak.supervisor import Supervisor

FORGETFUL = ("csv", "jsonl", "tensorboard", "trackio", "mlflow", "status", "prometheus", "hookline")
"""Sinks that are complete and exact again after their cursor was lost: they start again, or know what they have."""
MOST_GROWN_MEGABYTES = 64
"""How much more memory the server may have after a flood."""
TORN = b'{"kind":"metrics","time":1.0,"step":99999999,"val'


@dataclass
class Arena:
    """Everything that can be broken."""

    layout: Layout
    supervisor: Supervisor
    servers: dict[str, Server]
    disk: SmallDisk
    observer: Observer
    rng: random.Random
    power: PowerCuts
    bits: FlippedBits | None = None
    """Of the quiet run, once that has ended."""

    def kill(self, *, with_delivery: bool = False) -> None:
        """Kill the training, perhaps with the process that delivers for it, and leave it down."""
        deliveries = self.supervisor.children(b"_record.delivery_manager") if with_delivery else []
        self.supervisor.signal(signal.SIGKILL)
        for pid in deliveries:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.supervisor.wait_for_end()


class Fault:
    """Something bad that begins, lasts for some seconds, and ends.

    Attributes:
        seconds: The shortest and the longest that it lasts.
        waits_for_steps: Whether it comes only once the session has completed steps.
        is_alone: Whether no other fault comes meanwhile.
    """

    name = ""
    seconds = (0.0, 0.0)
    waits_for_steps = True
    is_alone = False

    def begin(self, arena: Arena) -> str:
        """Do it, and say what was done."""
        raise NotImplementedError

    def hold(self, arena: Arena) -> None:
        """Called again and again while it lasts."""

    def may_end(self, arena: Arena) -> bool:
        """Whether it has done what it is for; it does not last much longer than planned for that."""
        return True

    def end(self, arena: Arena) -> None:
        """Make it good again."""


class Kill(Fault):
    name = "kill -9"

    def begin(self, arena):
        arena.kill()
        return "the training"


class KillAtStart(Fault):
    name = "kill -9 at the start"
    seconds = (0.2, 1.5)
    waits_for_steps = False
    is_alone = True

    def begin(self, arena):
        arena.kill()
        arena.supervisor.keep_going()
        return "the training, and again while it takes itself up"

    def end(self, arena):
        arena.kill()


class Terminate(Fault):
    name = "SIGTERM"

    def begin(self, arena):
        arena.supervisor.signal(signal.SIGTERM)
        return "the training"


class Freeze(Fault):
    name = "SIGSTOP"
    seconds = (1.0, 4.0)
    is_alone = True

    def begin(self, arena):
        arena.supervisor.signal(signal.SIGSTOP)
        return "the training"

    def end(self, arena):
        arena.supervisor.signal(signal.SIGCONT)


class ServerDown(Fault):
    seconds = (1.0, 8.0)
    waits_for_steps = False

    def __init__(self, server: str) -> None:
        self.server, self.name = server, f"{server} down"

    def begin(self, arena):
        arena.servers[self.server].kill()
        return f"kill -9 of the server of {self.server}"

    def end(self, arena):
        if arena.servers[self.server].process is None:
            arena.servers[self.server].start()


class ServerFrozen(Fault):
    seconds = (1.0, 5.0)
    waits_for_steps = False

    def __init__(self, server: str) -> None:
        self.server, self.name = server, f"{server} hangs"

    def begin(self, arena):
        arena.servers[self.server].freeze()
        return f"SIGSTOP to the server of {self.server}"

    def end(self, arena):
        arena.servers[self.server].thaw()


class RawFlood(Fault):
    """Headers without end, idle connections, streams and nonsense, while the sink delivers to the same server."""

    name = "raw flood"
    seconds = (2.0, 6.0)
    waits_for_steps = False
    server = "hookline"

    def begin(self, arena):
        server = arena.servers[self.server]
        self._flood = Flood(arena.layout.url(self.server), seed=arena.rng.randrange(1000), sockets=60, threads=2)
        self._resident = server.resident_bytes() if server.is_up() else None
        if self._resident is not None:
            self._flood.__enter__()
        return f"to the server of {self.server}{'' if self._resident else ', which is not up yet'}"

    def hold(self, arena):
        if self._resident is not None and not any(arena.servers[self.server].is_up() for _ in range(3)):
            arena.observer.failures.append("The server of hookline did not answer during a flood.")
            self._resident = None

    def end(self, arena):
        self._flood.stop()
        if self._resident is not None:
            grown = (arena.servers[self.server].resident_bytes() - self._resident) >> 20
            if grown > MOST_GROWN_MEGABYTES:
                arena.observer.failures.append(f"The server of hookline grew by {grown} MiB during a flood.")


class WandbKilled(Fault):
    name = "wandb's process"

    def begin(self, arena):
        pids = arena.supervisor.children(b"wandb-core")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"kill -9 of {len(pids)} of them"


class DeliveryProcessKilled(Fault):
    name = "delivery process"

    def begin(self, arena):
        pids = arena.supervisor.children(b"_record.delivery_manager")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"kill -9 of {len(pids)} of them"


class DiskFull(Fault):
    name = "disk full"
    seconds = (2.0, 6.0)
    is_alone = True

    def begin(self, arena):
        arena.disk.fill()
        return "a ballast file takes all room"

    def hold(self, arena):
        arena.disk.fill()

    def may_end(self, arena):
        """It lasts until records are lost, or the session ends because it cannot save a checkpoint."""
        return arena.supervisor.has_lost() or arena.supervisor.pid is None

    def end(self, arena):
        arena.disk.free()


class DiskFullAtStart(DiskFull):
    name = "disk full at the start"

    def begin(self, arena):
        arena.kill()
        arena.disk.fill()
        return "kill -9, and no room when the training takes itself up"

    def may_end(self, arena):
        """It lasts until records are lost."""
        return arena.supervisor.has_lost()


class IndexCorrupted(Fault):
    name = "index corrupted"
    waits_for_steps = False

    def begin(self, arena):
        arena.observer.close()
        path = arena.layout.root / FOLDER / DATABASE
        if not path.exists():
            return "there is none yet"
        size = path.stat().st_size
        begin = arena.rng.randrange(max(1, size // 2))
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(arena.rng.randbytes(max(1, min(size - begin, 65536))))
        if arena.rng.random() < 0.5:
            os.truncate(path, size // 2)
        return f"random bytes in {path.name}"


class IndexRemoved(Fault):
    name = "index removed"
    waits_for_steps = False

    def begin(self, arena):
        shutil.rmtree(arena.layout.root / FOLDER, ignore_errors=True)
        return "deleted while it is open"


class FilesTorn(Fault):
    """What a crash in the middle of a write leaves behind the last line of each file."""

    name = "files torn"

    def begin(self, arena):
        arena.supervisor.is_paused = True
        try:
            arena.kill(with_delivery=True)
            torn = [path for path in _written(arena.layout.run_dir) if _is_idle(path)]
            for path in torn:
                _tear(path)
        finally:
            arena.supervisor.is_paused = False
        return f"kill -9, half a line behind {', '.join(path.name for path in torn)}"


class CursorLost(Fault):
    name = "cursor lost"

    def begin(self, arena):
        name = arena.rng.choice([name for name in FORGETFUL if name in arena.layout.sinks])
        arena.supervisor.is_paused = True
        try:
            arena.kill(with_delivery=True)
            path = arena.layout.run_dir / "sinks" / f"{name}.json"
            if not path.exists():
                return f"kill -9; {name} has none yet"
            path.write_bytes(path.read_bytes()[:17])
        finally:
            arena.supervisor.is_paused = False
        return f"kill -9, and all but 17 bytes of {path.name}"


class OutputLost(Fault):
    name = "output lost"

    def begin(self, arena):
        path = arena.rng.choice(_outputs(arena.layout.run_dir) or [None])  # type: ignore[list-item]
        if path is None:
            return "there is none yet"
        how = arena.rng.choice(("deleted", "cut", "replaced"))
        with contextlib.suppress(FileNotFoundError):  # deleted by us before, and not written again yet
            if how == "deleted":
                path.unlink()
            elif how == "cut":
                os.truncate(path, path.stat().st_size // 2)
            else:
                other = path.with_name(f".another-{path.name}")
                other.write_bytes(arena.rng.randbytes(path.stat().st_size + 100))
                other.replace(path)
        return f"{path.name} {how}, while it is written"


class CheckpointDamaged(Fault):
    name = "checkpoint damaged"

    def begin(self, arena):
        arena.supervisor.is_paused = True
        try:
            arena.kill()
            saved = sorted(arena.layout.run_dir.glob("checkpoints/step-*/learner.pt"))
            if len(saved) < 2:
                return "kill -9; there is no second one to go back to"
            size, is_cut = saved[-1].stat().st_size, arena.rng.random() < 0.5
            if is_cut:
                os.truncate(saved[-1], size // 2)
            else:
                with saved[-1].open("r+b") as file:
                    file.seek(arena.rng.randrange(size))
                    byte = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 1 << arena.rng.randrange(8)]))
        finally:
            arena.supervisor.is_paused = False
        return f"kill -9, and {'half' if is_cut else 'a flipped bit'} of {saved[-1].parent.name}"


class PowerCut(Fault):
    """Another training, on a disk of its own: what counts is on the disk when the power fails."""

    name = "power cut"
    waits_for_steps = False

    def begin(self, arena):
        cut = arena.power.cut()
        return f"at step {cut.acknowledged:,} of another training: {', '.join(cut.wrong) or 'all is there'}"


class BitFlipped(Fault):
    """A bit of the quiet run, which has ended."""

    name = "bit flipped"
    waits_for_steps = False

    def begin(self, arena):
        flip = arena.bits.flip()
        return f"byte {flip.byte:,} of {flip.file}: {flip.wrong or 'found'}"


def _outputs(run_dir: Path) -> list[Path]:
    """The files that sinks write."""
    found = [run_dir / "metrics.csv", run_dir / "records.jsonl", *(run_dir / "tensorboard").rglob("events.*")]
    return sorted(path for path in found if path.exists())


def _written(run_dir: Path) -> list[Path]:
    """Files that are only appended to, of which a kill may leave the end in pieces."""
    found = _outputs(run_dir)
    journal = [file.path for file in journal_files(run_dir / "journal") if file.name == "main"]
    found += [*(run_dir / "sinks").glob("*.passed"), *journal[-1:]]
    return [path for path in found if path.exists()]


def _is_idle(path: Path) -> bool:
    """Whether nobody is delivering any more: a delivery process of an earlier session may be."""
    import fcntl

    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _tear(path: Path) -> None:
    """Write half a line after the last one; a segment of a killed writer has zeros there."""
    with path.open("r+b") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1 if path.parent.name == "journal" else len(data)
        file.seek(end)
        file.write(TORN)

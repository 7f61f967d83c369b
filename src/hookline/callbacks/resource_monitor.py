"""Logs the machine's CPU, memory, device and disk usage as ``system/...``.

A background thread reads the sensors; the latest readings are logged with the next step, so training never waits for
them. Missing sensors are left out; psutil and pynvml are used if they are installed.

| metric | meaning |
|---|---|
| ``system/process_cpu_percent`` | CPU usage of the process, 100 per busy core |
| ``system/cpu_percent`` | CPU usage of the machine, at most 100 |
| ``system/memory_percent`` | share of the machine's memory in use |
| ``system/rss_mib``, ``system/cuda<N>/...`` | memory of the process and its devices, see `hookline.logging.metrics` |
| ``system/cuda<N>/utilization_percent`` | device utilization (with pynvml) |
| ``system/disk_free_gib`` | free space on the disk that the loop writes to |
"""

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookline._engine.background import Ticker
from hookline._engine.checks import require_number
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState

GIB = 1 << 30
Readings = dict[str, float]


@register("resource_monitor")
class ResourceMonitor(Callback):
    """Logs the latest readings at the end of a step, each reading once.

    Runs on rank zero unless configured with ``ranks="all"``.

    Args:
        every_seconds: The time between two readings.
    """

    ranks = "zero"

    def __init__(self, every_seconds: float = 10.0) -> None:
        self.every_seconds = require_number("every_seconds", every_seconds, above=0)
        self._sensors: _Sensors | None = None
        self._latest: Readings | None = None
        self._ticker: Ticker | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self.close()
        self._sensors = _Sensors(Path(loop.output_dir or Path.cwd()))
        self._ticker = Ticker(self.name, self.every_seconds, self.read)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        latest, self._latest = self._latest, None
        if latest is not None:
            loop.log({f"system/{name}": value for name, value in latest.items()})

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self.close()

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self.close()

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.close()
        self._ticker = self._sensors = self._latest = None

    def read(self) -> None:
        """Read the sensors for the row of the next step; the background thread calls this."""
        sensors = self._sensors
        if sensors is not None:
            self._latest = sensors.read()


class _Sensors:
    """Reads the sensors of this machine; CPU usage is measured since the previous reading."""

    def __init__(self, directory: Path) -> None:
        from hookline.logging.metrics import memory_metrics  # here, to keep importing the callbacks cheap

        self._directory = directory
        self._memory = memory_metrics
        self._psutil: Any = importlib.import_module("psutil") if importlib.util.find_spec("psutil") else None
        self._has_utilization = True
        self._clocks = (time.monotonic(), time.process_time())
        self._ticks = _machine_ticks()
        if self._psutil is not None:
            self._psutil.cpu_percent()  # the first result is meaningless

    def read(self) -> Readings:
        parts: list[Callable[[], Readings]] = [self._process, self._machine, self._memory, self._devices, self._disk]
        return {name: value for part in parts for name, value in part().items()}

    def _process(self) -> Readings:
        before, self._clocks = self._clocks, (time.monotonic(), time.process_time())
        wall, busy = self._clocks[0] - before[0], self._clocks[1] - before[1]
        return {"process_cpu_percent": 100 * busy / wall} if wall > 0 else {}

    def _machine(self) -> Readings:
        if self._psutil is not None:
            memory = self._psutil.virtual_memory().percent
            return {"cpu_percent": self._psutil.cpu_percent(), "memory_percent": memory}
        before, self._ticks = self._ticks, _machine_ticks()
        busy, total = (now - then for now, then in zip(self._ticks, before, strict=True))
        return ({"cpu_percent": 100 * busy / total} if total > 0 else {}) | _machine_memory()

    def _devices(self) -> Readings:
        """Utilization according to torch, if it already uses CUDA; not tried again after a failure."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if not self._has_utilization or cuda is None or not cuda.is_initialized():
            return {}
        try:
            devices = range(cuda.device_count())
            return {f"cuda{device}/utilization_percent": float(cuda.utilization(device)) for device in devices}
        except Exception:  # no pynvml, or a driver that does not support it
            self._has_utilization = False
            return {}

    def _disk(self) -> Readings:
        try:
            return {"disk_free_gib": shutil.disk_usage(self._directory).free / GIB}
        except OSError:
            return {}


def _machine_ticks() -> tuple[int, int]:
    """The busy and the total ticks of all cores since the machine started; zeros without ``/proc``."""
    try:
        ticks = [int(part) for part in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def _machine_memory() -> Readings:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return {"memory_percent": 100 * (1 - kib["MemAvailable"] / kib["MemTotal"])}
    except (OSError, ValueError, KeyError, IndexError):
        return {}

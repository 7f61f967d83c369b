"""How much memory the process and its devices use, in MiB.

The process's resident memory is read from ``/proc``, elsewhere by psutil where that is installed, and
else there is only its peak. Devices are asked only where torch is loaded and already uses them:
nothing here imports torch, starts CUDA, or waits for a device.

| metric | meaning |
|---|---|
| ``rss_mib`` | resident memory of the process |
| ``peak_rss_mib`` | its peak, where the present value is not known |
| ``cuda<N>/allocated_mib``, ``peak_mib`` | held by tensors, and the most that they held |
| ``cuda<N>/reserved_mib`` | held by the allocator |
| ``mps/allocated_mib``, ``driver_mib`` | held by tensors, and by the driver |
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
_STATM = Path("/proc/self/statm")


def memory_metrics() -> dict[str, float]:
    """The metrics that can be known here."""
    return _process() | _cuda(sys.modules.get("torch")) | _mps(sys.modules.get("torch"))


def _process() -> dict[str, float]:
    try:
        pages = int(_STATM.read_bytes().split()[1])
        return {"rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / MIB}
    except (OSError, ValueError, IndexError):
        return _process_elsewhere()


def _process_elsewhere() -> dict[str, float]:
    try:
        psutil: Any = importlib.import_module("psutil")
        return {"rss_mib": psutil.Process().memory_info().rss / MIB}
    except ImportError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak_rss_mib": peak / MIB if sys.platform == "darwin" else peak / 1024}


def _cuda(torch: Any) -> dict[str, float]:
    cuda = getattr(torch, "cuda", None)  # a torch that is still being imported has none
    if cuda is None or not cuda.is_initialized():
        return {}
    metrics = {}
    for device in range(cuda.device_count()):
        metrics[f"cuda{device}/allocated_mib"] = cuda.memory_allocated(device) / MIB
        metrics[f"cuda{device}/reserved_mib"] = cuda.memory_reserved(device) / MIB
        metrics[f"cuda{device}/peak_mib"] = cuda.max_memory_allocated(device) / MIB
    return metrics


def _mps(torch: Any) -> dict[str, float]:
    mps = getattr(torch, "mps", None)
    if mps is None or not hasattr(torch, "backends") or not torch.backends.mps.is_available():
        return {}
    return {
        "mps/allocated_mib": mps.current_allocated_memory() / MIB,
        "mps/driver_mib": mps.driver_allocated_memory() / MIB,
    }

"""Memory of the process and of devices that are in use."""

import importlib
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from hookline.logging import metrics
from hookline.logging.metrics import memory_metrics

GB = 1 << 30


class FakeCuda:
    """Two devices, in use or not."""

    def __init__(self, used):
        self.used = used

    def is_initialized(self):
        return self.used

    def device_count(self):
        return 2

    def memory_allocated(self, device):
        return (device + 1) * GB

    def memory_reserved(self, device):
        return (device + 1) * 2 * GB

    def max_memory_allocated(self, device):
        return (device + 1) * 3 * GB


def fake_torch(*, cuda=False, mps=False):
    here = types.SimpleNamespace(is_available=lambda: mps)
    used = types.SimpleNamespace(current_allocated_memory=lambda: GB, driver_allocated_memory=lambda: 2 * GB)
    return types.SimpleNamespace(cuda=FakeCuda(cuda), mps=used, backends=types.SimpleNamespace(mps=here))


def test_memory_of_the_process_agrees_with_psutil():
    assert memory_metrics()["rss_mib"] == pytest.approx(psutil.Process().memory_info().rss / (1 << 20), rel=0.05)


def test_memory_without_proc_is_asked_of_psutil(monkeypatch):
    monkeypatch.setattr(metrics, "_STATM", Path("/nowhere"))
    assert memory_metrics()["rss_mib"] > 1


def test_memory_without_proc_and_psutil_is_the_peak(monkeypatch):
    def without_psutil(name):
        raise ImportError(name)

    monkeypatch.setattr(metrics, "_STATM", Path("/nowhere"))
    monkeypatch.setattr(importlib, "import_module", without_psutil)
    assert memory_metrics()["peak_rss_mib"] > 1


def test_memory_of_cuda_devices_is_known_by_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(cuda=True))
    metrics = memory_metrics()
    assert [metrics[f"cuda1/{name}_mib"] for name in ("allocated", "reserved", "peak")] == [2048, 4096, 6144]
    assert "mps/allocated_mib" not in metrics


def test_memory_of_cuda_that_is_not_in_use_is_not_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(cuda=False))
    assert list(memory_metrics()) == ["rss_mib"]


def test_memory_of_mps_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(mps=True))
    metrics = memory_metrics()
    assert (metrics["mps/allocated_mib"], metrics["mps/driver_mib"]) == (1024, 2048)


def test_memory_with_a_torch_that_is_being_imported_is_that_of_the_process(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert list(memory_metrics()) == ["rss_mib"]


def test_memory_with_the_real_torch_starts_no_device(torch):
    assert "rss_mib" in memory_metrics()
    assert not torch.cuda.is_initialized()


def test_memory_usage_imports_no_torch():
    code = "import sys, hookline.logging as l; l.log_memory_usage(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""ResourceMonitor: what it reads, when it is logged, and that its thread ends."""

import sys
import threading
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline.callbacks import ResourceMonitor, resource_monitor

OF_THE_HOST = [
    "system/process_cpu_percent",
    "system/cpu_percent",
    "system/memory_percent",
    "system/rss_mib",
]


def rows_of(monitor, reads):
    """The metrics of three steps, with the sensors read so many times in those given."""
    with hl.run(root=None, callbacks=[monitor], strict=True, summary=False) as run:
        for i in run.steps(3):
            for _ in range(reads.get(i, 0)):
                monitor.read()
    return [row.metrics for row in run.history]


def test_resource_monitor_logs_each_reading_once_in_the_row_of_the_next_step(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    names = [list(row) for row in rows_of(ResourceMonitor(every_seconds=3600), {1: 2})]
    assert names == [[], [*OF_THE_HOST, "system/disk_free_gib"], []]


def test_resource_monitor_without_psutil_reads_proc(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    (row,) = [row for row in rows_of(ResourceMonitor(every_seconds=3600), {1: 1}) if row]
    row.pop("system/cpu_percent", None)  # its ticks are coarse: there may have been none
    assert 0 < row["system/memory_percent"] < 100
    assert row["system/rss_mib"] > 1
    assert row["system/disk_free_gib"] > 0


def test_resource_monitor_without_psutil_divides_the_ticks_since_the_last_reading(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    ticks = iter([(100, 1000), (125, 1050)])
    monkeypatch.setattr(resource_monitor, "_machine_ticks", lambda: next(ticks))
    (row,) = [row for row in rows_of(ResourceMonitor(every_seconds=3600), {1: 1}) if row]
    assert row["system/cpu_percent"] == 50.0


class Cuda(SimpleNamespace):
    """A torch.cuda with two devices."""

    def is_initialized(self):
        return True

    def device_count(self):
        return 2

    def memory_allocated(self, device):
        return 1 << 20

    memory_reserved = max_memory_allocated = memory_allocated

    def utilization(self, device):
        if self.broken:
            raise ModuleNotFoundError("pynvml")
        return 40 + device


@pytest.mark.parametrize(("broken", "utilization"), [(False, {"cuda0": 40.0, "cuda1": 41.0}), (True, {})])
def test_resource_monitor_tells_how_busy_devices_are_where_that_is_known(monkeypatch, broken, utilization):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(broken=broken)))
    _, row, _ = rows_of(ResourceMonitor(every_seconds=3600), {1: 2})
    found = {name.split("/")[1]: value for name, value in row.items() if "utilization" in name}
    assert (found, row["system/cuda1/allocated_mib"]) == (utilization, 1.0)


def test_resource_monitor_reads_on_a_thread_of_its_own_that_ends_with_the_run():
    monitor = ResourceMonitor(every_seconds=0.001)
    with hl.run(root=None, callbacks=[monitor], strict=True, summary=False) as run:
        for _ in run.steps(1000000):
            if run.get_metric("system/rss_mib") is not None:
                break
    assert run.get_metric("system/rss_mib") > 0
    assert "hookline-resource_monitor" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "10"])
def test_resource_monitor_refuses_a_pace_that_is_none(seconds):
    with pytest.raises(hl.OptionError, match="every_seconds="):
        ResourceMonitor(every_seconds=seconds)

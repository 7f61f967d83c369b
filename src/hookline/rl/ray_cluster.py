"""`RayCluster`: the Ray that actors run on, and what of it they get.

A Ray that is connected already is used and left alone; the one that ``RAY_ADDRESS`` names is connected to, and left
at the end. Otherwise one is started on this machine for as long as it is needed: without a dashboard and without usage
statistics, on loopback only (which takes that nobody imported Ray before; else a warning says so), and the signal
handlers that Ray puts in place are taken away with it.
"""

import importlib
import logging
import os
import signal
import sys
import threading
from types import TracebackType
from typing import Any, Self

from hookline.core.errors import MissingExtraError

logger = logging.getLogger("hookline")

CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0 when Ray is imported, it listens on loopback only, whatever the operating system."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def import_ray() -> Any:
    """The package; imported here first, it keeps to loopback, unless there is a cluster to connect to."""
    if "ray" not in sys.modules and "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault(CLUSTER_VARIABLE, "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError('executor="ray"', "ray") from error


class RayCluster:
    """Ray between ``with`` and its end.

    Args:
        actors: How many actors are to run, each on a CPU of its own.
        on_gpus: Give them GPUs, where there are some.
    """

    def __init__(self, actors: int, *, on_gpus: bool = True) -> None:
        self.ray = import_ray()
        self._actors, self._on_gpus = actors, on_gpus
        self._is_mine = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            self._is_mine = True
            if threading.current_thread() is threading.main_thread():
                self._handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_mine:
            self.ray.shutdown()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def resources(self) -> dict[str, float]:
        """What each actor asks Ray for: a CPU, and an equal part of the GPUs."""
        there = self.ray.cluster_resources()
        if there.get("CPU", 0) < self._actors:
            logger.warning(
                "Ray has %g CPUs and training takes %d, one for each rollout worker and one for the learner: it waits "
                "until there are so many.", there.get("CPU", 0), self._actors,
            )  # fmt: skip
        gpus = int(there.get("GPU", 0)) if self._on_gpus else 0
        sharing = -(-self._actors // gpus) if gpus else 0  # how many actors share a GPU, rounded up
        return {"num_cpus": 1, "num_gpus": int(10_000 / sharing) / 10_000 if sharing else 0}

    def _connect(self) -> None:
        if "RAY_ADDRESS" in os.environ:
            self.ray.init(logging_level="warning")
            return
        if os.environ.get(CLUSTER_VARIABLE) != "0":
            logger.warning(
                "Ray listens on all interfaces of this machine, because it was imported before hookline could say "
                "otherwise. Set %s=0 before `import ray` to keep it to loopback.",
                CLUSTER_VARIABLE,
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self.ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, self._actors),
            include_dashboard=False,
            logging_level="warning",
        )

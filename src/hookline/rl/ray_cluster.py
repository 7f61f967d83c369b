"""`RayCluster`: connects to Ray, or starts it on this machine, for as long as actors need it.

If Ray is already connected, it is used and left running. If ``RAY_ADDRESS`` is set, the cluster at that address is
used, and disconnected at the end. Otherwise Ray is started on this machine and shut down at the end: without a
dashboard, without usage statistics, and on loopback only (unless Ray was imported before; a warning says so). The
signal handlers that Ray installs are restored at the end.
"""

import importlib
import logging
import os
import signal
import sys
import threading
from types import TracebackType
from typing import Any, Self

from hookline._engine.errors import MissingExtraError

logger = logging.getLogger("hookline")

CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""If this is 0 when Ray is imported, Ray listens on loopback only, on every operating system."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def import_ray() -> Any:
    """Import Ray, restricted to loopback unless there is a cluster to connect to."""
    if "ray" not in sys.modules and "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault(CLUSTER_VARIABLE, "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError('executor="ray"', "ray") from error


class RayCluster:
    """A context manager that keeps Ray connected.

    Args:
        actors: The number of actors to run, each on a CPU of its own.
        on_gpus: Share the GPUs among the actors, if there are any.
    """

    def __init__(self, actors: int, *, on_gpus: bool = True) -> None:
        self.ray = import_ray()
        self._actors, self._on_gpus = actors, on_gpus
        self._owns_connection = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            self._owns_connection = True
            if threading.current_thread() is threading.main_thread():  # only this thread may set signal handlers
                self._handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owns_connection:
            self.ray.shutdown()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def resources(self) -> dict[str, float]:
        """Return the resources to request for each actor: one CPU, and an equal share of the GPUs."""
        available = self.ray.cluster_resources()
        if available.get("CPU", 0) < self._actors:
            logger.warning(
                "Ray has %g CPUs and training needs %d, one for each rollout worker and one for the learner: it waits "
                "until they are available.", available.get("CPU", 0), self._actors,
            )  # fmt: skip
        gpus = int(available.get("GPU", 0)) if self._on_gpus else 0
        actors_per_gpu = -(-self._actors // gpus) if gpus else 0  # rounded up
        # Rounded down to the precision of Ray, so that the shares of a GPU never add up to more than one.
        return {"num_cpus": 1, "num_gpus": int(10_000 / actors_per_gpu) / 10_000 if actors_per_gpu else 0}

    def _connect(self) -> None:
        if "RAY_ADDRESS" in os.environ:
            self.ray.init(logging_level="warning")
            return
        if os.environ.get(CLUSTER_VARIABLE) != "0":
            logger.warning(
                "Ray listens on all interfaces of this machine, because it was imported before hookline could "
                "restrict it. Set %s=0 before `import ray` to keep it to loopback.",
                CLUSTER_VARIABLE,
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self.ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, self._actors),
            include_dashboard=False,
            logging_level="warning",
        )

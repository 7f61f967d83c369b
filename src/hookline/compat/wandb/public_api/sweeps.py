"""Sweeps as ``wandb.Api`` returns them."""

from typing import Any

from hookline.compat.wandb.public_api.filters import ordered
from hookline.compat.wandb.sweeps import StoredSweep


class Sweep:
    """A sweep.

    Args:
        stored: The sweep on disk.
        api: Finds its runs.
        project: Its project.
        entity: The entity of the path that it was found by.
    """

    def __init__(self, stored: StoredSweep, api: Any, project: str, entity: str = "") -> None:
        self._stored, self._api, self.project, self.entity = stored, api, project, entity

    def __repr__(self) -> str:
        return f"<Sweep {'/'.join(self.path)} ({self.state})>"

    @property
    def id(self) -> str:
        """Its id."""
        return self._stored.id

    @property
    def name(self) -> str:
        """Its name; its id by default."""
        return str(self._stored.config.get("name") or self.id)

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration."""
        return self._stored.config

    @property
    def state(self) -> str:
        """``RUNNING``, ``FINISHED`` or ``STOPPED``."""
        return self._stored.state

    @property
    def path(self) -> list[str]:
        """The entity, if there is one, the project and the id."""
        return [part for part in (self.entity, self.project, self.id) if part]

    @property
    def url(self) -> str:
        """The address of its folder."""
        return self._stored.folder.as_uri()

    @property
    def order(self) -> str | None:
        """The order of its runs, the best first; None without a metric."""
        name = self._stored.metric
        if name is None:
            return None
        return f"{'-' if self._stored.is_maximized else '+'}summary_metrics.{name}"

    @property
    def expected_run_count(self) -> int | None:
        """How many runs it has at most; None if there is no end."""
        return self._stored.expected_run_count

    @property
    def runs(self) -> Any:
        """Its runs."""
        return self._api.runs(self.project, {"sweep": self.id}, order="-created_at")

    def best_run(self, order: str | None = None) -> Any:
        """Return the best of its runs; None if it has none.

        Args:
            order: The order to take the first of; by the metric of the sweep by default.
        """
        found = list(self.runs)
        chosen = order or self.order
        return next(iter(found if chosen is None else ordered(found, chosen)), None)

    def stop(self) -> None:
        """Let agents begin no more runs."""
        self._stored.set_state("STOPPED")

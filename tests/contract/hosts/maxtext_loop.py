"""MaxText's training loop, by a stand-in."""

from pathlib import Path
from typing import Any

from hookline.integrations.maxtext import observe
from hosts.base import Host
from hosts.stand_ins.maxtext import installed, settings, train_loop


class MaxText(Host):
    """`maxtext.trainers.pre_train`."""

    name = "maxtext"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        config = settings(checkpoint_dir=str(self.directory / "out"))
        with installed(), observe(callbacks, name=self.name, resume=resume, **self.options) as hooks:
            self.loop = hooks.loop
            train_loop(config)

"""``Trainer.fit`` of MosaicML Composer, by a stand-in."""

from pathlib import Path
from typing import Any

from hookline.integrations.composer import HooklineCallback
from hosts.base import EPOCHS, Host
from hosts.stand_ins.composer import Trainer, installed


class Composer(Host):
    """`composer.Trainer`."""

    name = "composer"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        with installed(), HooklineCallback(callbacks, name=self.name, **self.options) as hooks:
            self.loop = hooks.loop
            path = None if resume is None else str(resume / "composer.pt")
            Trainer(max_duration=f"{EPOCHS}ep", callbacks=[hooks], load_path=path).fit()

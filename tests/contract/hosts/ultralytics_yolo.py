"""``YOLO.train`` of ultralytics, by a stand-in."""

from pathlib import Path
from typing import Any

from hookline.integrations.ultralytics import attach
from hosts.base import EPOCHS, Host
from hosts.stand_ins.ultralytics import YOLO


class Ultralytics(Host):
    """`ultralytics.YOLO`."""

    name = "ultralytics"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        file = "" if resume is None else resume if resume.is_file() else resume / "last.pt"
        model = YOLO(file)
        self.loop = attach(model, callbacks, name=self.name, **self.options).loop
        settings = {"epochs": EPOCHS, "save": False, "save_dir": str(self.directory / "out")}
        model.train(resume=resume is not None, **settings)

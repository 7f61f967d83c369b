"""``fit`` of CatBoost's models."""

from pathlib import Path
from typing import Any

from catboost import CatBoostRegressor

from hookline.integrations.catboost import attach
from hosts.base import STEPS, Host
from hosts.tabular import HELD_OUT, TRAIN


class CatBoost(Host):
    """``catboost.CatBoostRegressor.fit``."""

    name = "catboost"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model = CatBoostRegressor(
            iterations=STEPS, depth=2, thread_count=1, verbose=False, train_dir=str(self.directory / "catboost")
        )
        hooks = attach(model, callbacks, resume=resume, snapshots=True, name=self.name, **self.options)
        self.loop = hooks.loop
        model.fit(*TRAIN, eval_set=HELD_OUT)

"""``lgb.train``."""

from pathlib import Path
from typing import Any

import lightgbm as lgb

from hookline.integrations.lightgbm import HooklineCallback
from hosts.base import STEPS, Host
from hosts.tabular import HELD_OUT, TRAIN

SETTINGS = {"objective": "regression", "num_leaves": 4, "min_data_in_leaf": 2, "num_threads": 1, "verbosity": -1}


class LightGBM(Host):
    """``lightgbm.train``."""

    name = "lightgbm"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model = None if resume is None else lgb.Booster(model_file=resume / "model.txt")
        rounds = STEPS - (0 if model is None else model.current_iteration())
        train = lgb.Dataset(*TRAIN)
        with HooklineCallback(callbacks, resume=resume, name=self.name, **self.options) as hooks:
            self.loop = hooks.loop
            held_out = lgb.Dataset(*HELD_OUT, reference=train)
            lgb.train(SETTINGS, train, rounds, [train, held_out], init_model=model, callbacks=[*hooks])

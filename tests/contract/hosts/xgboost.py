"""``xgb.train``."""

from pathlib import Path
from typing import Any

import xgboost as xgb

from hookline.integrations.xgboost import HooklineCallback
from hosts.base import STEPS, Host
from hosts.tabular import HELD_OUT, TRAIN


class XGBoost(Host):
    """``xgboost.train``."""

    name = "xgboost"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model = None if resume is None else str(resume / "model.ubj")
        rounds = STEPS - (0 if model is None else xgb.Booster(model_file=model).num_boosted_rounds())
        train, held_out = xgb.DMatrix(*TRAIN), xgb.DMatrix(*HELD_OUT)
        with HooklineCallback(callbacks, resume=resume, rounds=rounds, name=self.name, **self.options) as hooks:
            self.loop = hooks.loop
            xgb.train(
                {"max_depth": 2, "nthread": 1},
                train,
                rounds,
                evals=[(train, "train"), (held_out, "test")],
                verbose_eval=False,
                xgb_model=model,
                callbacks=[hooks],
            )

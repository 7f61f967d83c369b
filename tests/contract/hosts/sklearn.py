"""``fit`` of scikit-learn, with its L-BFGS."""

import warnings
from pathlib import Path
from typing import Any

import joblib
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from hookline.integrations.sklearn import HooklineCallback
from hosts.base import BATCHES, STEPS, Host
from hosts.tabular import HELD_OUT, TRAIN


class ScikitLearn(Host):
    """``sklearn.linear_model.LogisticRegression.fit``."""

    name = "sklearn"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model = LogisticRegression(max_iter=STEPS, tol=1e-12, C=100.0, warm_start=True)
        if resume is not None:
            model = joblib.load(resume / "estimator.joblib").set_params(max_iter=STEPS - BATCHES)
        hooks = HooklineCallback(
            callbacks,
            resume=resume,
            scoring="neg_log_loss",
            validation=(HELD_OUT[0], HELD_OUT[1] > 0),
            name=self.name,
            **self.options,
        )
        self.loop = hooks.loop
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # which it warns of in every fit that is this short
            model.set_callbacks(hooks).fit(TRAIN[0], TRAIN[1] > 0)

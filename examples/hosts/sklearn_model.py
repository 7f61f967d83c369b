"""`fit` of a scikit-learn model; the lines for hookline are marked with "hookline"."""

import warnings

import numpy as np
from one_callback import GoodEnough  # hookline
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from hookline.integrations.sklearn import HooklineCallback  # hookline


def main() -> None:
    """Fit a classifier until it is good enough."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(400, 4))
    labels = features.sum(axis=1) + generator.normal(size=400) > 0
    model = LogisticRegression(max_iter=100, C=100.0)
    model.set_callbacks(HooklineCallback([GoodEnough(loss=0.35)], name="logistic", scoring="neg_log_loss"))  # hookline
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is stopped before it converges
        model.fit(features, labels)


if __name__ == "__main__":
    main()

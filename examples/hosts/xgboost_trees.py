"""`xgb.train`; the lines for hookline are marked with "hookline"."""

import numpy as np
import xgboost as xgb
from one_callback import GoodEnough  # hookline

from hookline.integrations.xgboost import HooklineCallback  # hookline


def main() -> None:
    """Boost trees until they are good enough."""
    features = np.random.default_rng(0).normal(size=(400, 4))
    target = features.sum(axis=1)
    train, test = xgb.DMatrix(features[:300], target[:300]), xgb.DMatrix(features[300:], target[300:])
    xgb.train(
        {"max_depth": 3, "nthread": 1},
        train,
        num_boost_round=100,
        evals=[(train, "train"), (test, "test")],
        verbose_eval=False,
        callbacks=[HooklineCallback([GoodEnough(loss=0.5)], name="trees")],  # hookline
    )


if __name__ == "__main__":
    main()

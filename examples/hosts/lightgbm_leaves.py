"""`lgb.train`; the lines for hookline are marked with "hookline"."""

import lightgbm as lgb
import numpy as np
from one_callback import GoodEnough  # hookline

from hookline.integrations.lightgbm import HooklineCallback  # hookline


def main() -> None:
    """Boost trees until they are good enough."""
    features = np.random.default_rng(0).normal(size=(400, 4))
    target = features.sum(axis=1)
    train = lgb.Dataset(features[:300], target[:300])
    lgb.train(
        {"objective": "regression", "num_threads": 1, "verbosity": -1},
        train,
        num_boost_round=100,
        valid_sets=[train, lgb.Dataset(features[300:], target[300:], reference=train)],
        callbacks=[*HooklineCallback([GoodEnough(loss=0.5)], name="leaves")],  # hookline
    )


if __name__ == "__main__":
    main()

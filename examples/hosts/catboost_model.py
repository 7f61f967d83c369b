"""`fit` of a CatBoost model; the lines for hookline are marked with "hookline"."""

import numpy as np
from catboost import CatBoostRegressor
from one_callback import GoodEnough  # hookline

from hookline.integrations.catboost import attach  # hookline


def main() -> None:
    """Boost trees until they are good enough."""
    features = np.random.default_rng(0).normal(size=(400, 4))
    target = features.sum(axis=1)
    model = CatBoostRegressor(iterations=200, depth=3, thread_count=1, verbose=False, allow_writing_files=False)
    attach(model, [GoodEnough(loss=0.5)], name="cats")  # hookline
    model.fit(features[:300], target[:300], eval_set=(features[300:], target[300:]))


if __name__ == "__main__":
    main()

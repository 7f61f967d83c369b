"""The rows that boosters train on, and on which they are evaluated."""

import numpy as np

FEATURES = 3


def rows(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and a target that depends on them."""
    features = np.random.default_rng(seed).normal(size=(number, FEATURES))
    return features, features @ np.array([2.0, -1.0, 0.5])


TRAIN, HELD_OUT = rows(40, seed=0), rows(20, seed=1)

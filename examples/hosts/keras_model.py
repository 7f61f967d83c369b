"""A Keras model; the lines for hookline are marked with "hookline"."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from one_callback import GoodEnough  # hookline

from hookline.integrations.keras import HooklineCallback  # hookline


def main() -> None:
    """Fit a line until it is good enough."""
    keras.utils.set_random_seed(0)
    inputs = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(
        inputs,
        inputs.sum(axis=1, keepdims=True),
        batch_size=8,
        epochs=10,
        verbose=0,
        callbacks=[HooklineCallback([GoodEnough(loss=0.01)], name="line")],  # hookline
    )


if __name__ == "__main__":
    main()

"""``model.fit`` of Keras, on torch."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    import keras

from hookline.integrations.keras import HooklineCallback
from hosts.base import BATCHES, EPOCHS, Host
from hosts.regression import HELD_OUT, LEARNING_RATE, START, TRAIN


class Keras(Host):
    """``keras.Model.fit``."""

    name = "keras"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        with (
            warnings.catch_warnings(),
            HooklineCallback(callbacks, resume=resume, name=self.name, **self.options) as hooks,
        ):
            warnings.filterwarnings("ignore", message="__array__ implementation doesn't accept a copy keyword")
            self.loop = hooks.loop
            model = regression() if resume is None else keras.models.load_model(resume / "model.keras")
            model.fit(
                *(numbers.numpy() for numbers in TRAIN),
                validation_data=tuple(numbers.numpy() for numbers in HELD_OUT),
                batch_size=2,
                shuffle=False,
                epochs=EPOCHS,
                initial_epoch=0 if resume is None else int(model.optimizer.iterations) // BATCHES,
                verbose=0,
                callbacks=[hooks],
            )


def regression() -> Any:
    """The regression as a model of Keras."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.layers[0].set_weights([np.transpose(START), np.zeros(1)])
    model.compile(keras.optimizers.SGD(LEARNING_RATE), "mse")
    return model

"""A classifier in Keras: fit with validation data, then evaluate."""

import json

import keras
import numpy as np
import torch

keras.utils.set_random_seed(5)
torch.set_num_threads(1)
x = np.random.rand(64, 8).astype("float32")
y = (x.sum(1) > 4).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss=keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
history = model.fit(x, y, batch_size=16, epochs=2, validation_split=0.25, verbose=0)
scores = model.evaluate(x, y, verbose=0)
print("RESULT", json.dumps([*history.history["loss"], *history.history["val_loss"], *map(float, scores)]))

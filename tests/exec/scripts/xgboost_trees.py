"""Boosted trees, with early stopping, and then the scikit-learn estimator."""

import json

import numpy as np
import xgboost as xgb

rng = np.random.default_rng(0)
x = rng.normal(size=(80, 4))
y = x[:, 0] * 2 + rng.normal(size=80) * 0.1
train, valid = xgb.DMatrix(x[:60], y[:60]), xgb.DMatrix(x[60:], y[60:])
scores = {}
params = {"max_depth": 2, "subsample": 0.8, "seed": 1, "nthread": 1, "objective": "reg:squarederror"}
xgb.train(
    params,
    train,
    8,
    evals=[(train, "train"), (valid, "valid")],
    evals_result=scores,
    early_stopping_rounds=5,
    verbose_eval=False,
)
estimator = xgb.XGBRegressor(n_estimators=4, max_depth=2, n_jobs=1, random_state=1).fit(x[:60], y[:60])
print("RESULT", json.dumps([*scores["valid"]["rmse"], *map(float, estimator.predict(x[60:64]))]))

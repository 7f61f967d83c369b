"""scikit-learn, logged to MLflow."""

import json
import os

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

x, y = make_classification(80, random_state=0)
model = SGDClassifier(loss="log_loss", random_state=0)
mlflow.set_tracking_uri("file:mlruns")
losses = []
with mlflow.start_run():
    mlflow.log_params({"alpha": model.alpha})
    for epoch in range(4):
        model.partial_fit(x, y, classes=np.unique(y))
        losses.append(float(log_loss(y, model.predict_proba(x))))
        mlflow.log_metric("loss", losses[-1], step=epoch)
print("RESULT", json.dumps(losses))

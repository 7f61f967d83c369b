"""A scikit-learn training that logs to MLflow, in the shape of its quickstart; nothing of it is hookline's.

Start ``hookline serve runs`` and run it with ``MLFLOW_TRACKING_URI=http://127.0.0.1:8440`` and the printed token in
``MLFLOW_TRACKING_TOKEN``. Without them, MLflow logs to a file in the current directory.
"""

import mlflow
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split


def main() -> None:
    """Train a classifier with a few settings, each in a nested run, and log the best model."""
    features, targets = load_iris(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(features, targets, test_size=0.3, random_state=8888)

    mlflow.set_experiment("MLflow Quickstart")
    with mlflow.start_run(run_name="search", tags={"data": "iris"}) as search:
        best, best_accuracy = None, 0.0
        for strength in (0.001, 0.1, 10.0):
            params = {"solver": "lbfgs", "max_iter": 1000, "C": strength, "random_state": 8888}
            with mlflow.start_run(run_name=f"C={strength:g}", nested=True):
                mlflow.log_params(params)
                model = LogisticRegression(**params)
                for step, size in enumerate((15, 30, 60, len(x_train))):
                    model.fit(x_train[:size], y_train[:size])
                    accuracy = accuracy_score(y_test, model.predict(x_test))
                    loss = log_loss(y_test, model.predict_proba(x_test), labels=[0, 1, 2])
                    mlflow.log_metrics({"accuracy": float(accuracy), "log_loss": float(loss)}, step=step)
                if accuracy > best_accuracy:
                    best, best_accuracy = model, accuracy
        mlflow.log_metric("best_accuracy", best_accuracy)
        mlflow.log_dict({"classes": ["setosa", "versicolor", "virginica"]}, "classes.json")
        info = mlflow.sklearn.log_model(best, name="iris_model", pip_requirements=["scikit-learn"])

    loaded = mlflow.sklearn.load_model(info.model_uri)
    runs = mlflow.search_runs(
        filter_string=f"tags.mlflow.parentRunId = '{search.info.run_id}' and metrics.accuracy > 0.8",
        order_by=["metrics.accuracy DESC"],
    )
    score = accuracy_score(y_test, loaded.predict(x_test))
    print(f"{len(runs)} runs above 80%, the best with C={runs['params.C'][0]}: {score:.0%}")


if __name__ == "__main__":
    main()

"""MLflow's REST routes over hookline's runs: a client with ``MLFLOW_TRACKING_URI`` set to the server logs to it.

- An experiment is a project. An MLflow run is an ordinary run of it, whose journal this server writes, as it does for
  status messages: pages, queries and commands need no support for MLflow.
- The journal is authoritative: metrics are rows with the client's times and steps, and everything else that MLflow
  knows about a run is in events named ``mlflow``. ``run.json`` describes it for hookline: params are the configuration.
- A run's id locates it: it begins with the id of its experiment, which is derived from the experiment's name. So any
  server on the same directory or object store finds the run.
- Files are blobs. Those of a run are media as well; a logged model that is complete is an artifact.

Not offered: traces, the model registry, prompts, evaluation data sets, and MLflow's own page.
"""

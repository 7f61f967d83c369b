"""A directory for ``sys.path`` and ``PYTHONPATH``: ``import wandb`` finds the package in it."""

"""Prints the directory for ``PYTHONPATH``: ``PYTHONPATH="$(python -m hookline.compat.wandb)" python train.py``."""

from hookline.compat.wandb.install import import_directory

print(import_directory())  # noqa: T201 - its purpose

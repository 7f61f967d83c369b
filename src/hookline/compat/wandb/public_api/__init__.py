"""``wandb.Api``: finds recorded runs and their histories, files and artifacts, over hookline's store."""

from hookline.compat.wandb.public_api.api import Api, Project
from hookline.compat.wandb.public_api.files import File, Files
from hookline.compat.wandb.public_api.runs import Run, Runs
from hookline.compat.wandb.public_api.sweeps import Sweep

__all__ = ["Api", "File", "Files", "Project", "Run", "Runs", "Sweep"]

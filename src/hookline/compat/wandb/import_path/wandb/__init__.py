"""The module that ``import wandb`` finds: it replaces itself by hookline's drop-in or by an installed wandb."""

from hookline.compat.wandb.install import import_wandb

import_wandb()

"""`hookline.main` under the name that training scripts of Cosmos-RL import it by."""

from hookline.loops.worker import main

__all__ = ["main"]

"""The import path of a training script's entry in Cosmos-RL; see `hookline.launcher.worker_entry`."""

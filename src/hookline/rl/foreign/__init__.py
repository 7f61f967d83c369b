"""Environments of other projects, wrapped for our rollout worker; see `hookline.rl.wrap_environment`."""

"""The import path of status loggers and hooks in Cosmos-RL; see `hookline.tools.custom_hooks`."""

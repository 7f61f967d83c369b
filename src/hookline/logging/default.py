"""The configuration of `initialize()` without one: to the console, a file, and a table of model outputs."""

from typing import Any

DEFAULT: dict[str, Any] = {
    "version": 1,
    "root": {"level": "INFO", "handlers": ["console"]},
    "loggers": {
        "hookline.training": {"level": "INFO", "handlers": ["console", "file"], "propagate": False},
        "hookline.model": {"level": "INFO", "handlers": ["file", "csv"], "propagate": False},
        "hookline.reward": {"level": "INFO", "handlers": ["file"], "propagate": False},
        "hookline.metrics": {"level": "INFO", "handlers": ["file"], "propagate": False},
        "hookline.system": {"level": "INFO", "handlers": ["file"], "propagate": False},
    },
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "standard"},
        "file": {
            "class": "logging.handlers.RotatingFileHandler",
            "formatter": "standard",
            "filename": "logs/training.log",
            "maxBytes": 10 << 20,
            "backupCount": 5,
            "encoding": "utf-8",
        },
        "csv": {
            "class": "hookline.logging.CSVHandler",
            "filename": "logs/model_outputs.csv",
            "columns": ["timestamp", "step", "question", "answer", "llm_reasoning", "llm_answer"],
        },
    },
    "formatters": {
        "standard": {
            "format": "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
            "datefmt": "%Y-%m-%d %H:%M:%S",
        },
    },
}

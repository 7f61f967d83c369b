"""What the tests of the logging front share: every test leaves logging as it found it."""

import csv
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import hookline.logging as hookline_logging


@pytest.fixture(autouse=True)
def _as_it_was():
    """Whatever a test sets up is taken down again."""
    yield
    hookline_logging.shutdown()


@pytest.fixture
def plain_logger():
    """A logger of the test's own; its handlers are closed with the test."""
    logger = logging.getLogger("test-of-handlers")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


@pytest.fixture
def python():
    """Starts programs in the current directory, and waits for none of them to outlive the test."""
    started = []

    def start(code, *arguments, **environment):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def read_csv():
    """The rows of a CSV file, with the column extra as a dict."""

    def rows(path):
        with Path(path).open(newline="", encoding="utf-8") as file:
            return [{**row, "extra": json.loads(row["extra"] or "{}")} for row in csv.DictReader(file)]

    return rows

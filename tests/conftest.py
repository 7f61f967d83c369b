"""What all tests share: one thread for numerical libraries, Keras on torch, skips as failures where asked."""

import logging
import os
import signal
from pathlib import Path

# A shell that starts tests in the background has them ignore Ctrl-C, and so would the programs that tests send one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch or numpy is imported: more threads are slower in parallel tests, and change results.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("KERAS_BACKEND", "torch")
# Ray's processes would come behind everything else that the tests do, and those that wait for them would take minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

import pytest


@pytest.hookimpl(optionalhook=True)  # where tests run in one process, nobody asks
def pytest_xdist_auto_num_workers():
    """One more than there are cores: tests that wait for a process or a server leave theirs to another."""
    return len(os.sched_getaffinity(0)) + 1


NOT_MEASURED = (
    *("benchmarks", "contract", "docs", "e2e", "seeds", "soak"),
    *("core/test_order_properties.py", "loops/test_resume.py", "server/test_api_fuzz.py", "store/test_store_oracle.py"),
)
"""What runs code that other tests run as well: measuring its coverage takes time and shows nothing more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here) if item.path.is_relative_to(here) else item.path
        if place.parts[0] in NOT_MEASURED or place.as_posix() in NOT_MEASURED:
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def torch():
    """torch, on one thread."""
    import torch

    torch.set_num_threads(1)
    return torch


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    """Runs are recorded below the current directory: each test has one of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _no_log_files_of_wandb():
    """W&B's logger keeps a file of every run in the test's directory, which is gone when the next one logs."""
    yield
    logger = logging.getLogger("wandb")
    for handler in [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)]:
        logger.removeHandler(handler)
        handler.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under REQUIRE_ALL=1 a skipped test is a failure: nothing may be left out unseen."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped and os.environ.get("REQUIRE_ALL") == "1":
        reporter.write_line(f"REQUIRE_ALL=1: {len(skipped)} skipped tests count as failures", red=True)
        session.exitstatus = 1

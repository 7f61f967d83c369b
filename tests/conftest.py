"""What all tests share: one thread for numerical libraries, Keras on torch, skips as failures where asked."""

import atexit
import gc
import logging
import os
import shutil
import signal
import tempfile
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
# The key that the files of sinks are signed with is not to be the user's own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="hookline-tests-")

import pytest

atexit.register(gc.unfreeze)  # of what tests set aside; some libraries complain of what is not gone at the end


def _forget_key(owner: int = os.getpid()) -> None:
    if os.getpid() == owner:  # not a forked child, while others still use it
        shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


atexit.register(_forget_key)


@pytest.hookimpl(optionalhook=True)  # where tests run in one process, nobody asks
def pytest_xdist_auto_num_workers():
    """One more than there are cores: tests that wait for a process or a server leave theirs to another."""
    return len(os.sched_getaffinity(0)) + 1


HERE = Path(__file__).parent

NOT_MEASURED = (
    *("benchmarks", "contract", "docs", "e2e", "seeds", "soak"),
    *(
        "engine/test_order_properties.py",
        "loops/test_resume.py",
        "server/test_api_fuzz.py",
        "store/test_store_oracle.py",
    ),
)
"""What runs code that other tests run as well: measuring its coverage takes time and shows nothing more."""

LONGEST = (
    *("rl/test_ray.py", "test_examples.py", "docs/test_docs.py", "contract/test_sinks.py", "contract/test_hosts.py"),
    *("experiment/test_experiment_resume.py", "integrations/test_ray_integration.py", "sinks/test_mlflow_sink.py"),
    *("loops/test_processes.py", "server/test_page.py", "loops/test_resume.py", "experiment/test_ray_runs.py"),
    *("sinks/test_wandb_sink.py", "contract/test_steering.py", "experiment/test_executors.py"),
    *("benchmarks/test_integrations_benchmark.py", "record/test_journal.py", "integrations/test_transformers.py"),
    *("server/test_page_charts.py", "contract/test_builtins_in_hosts.py", "e2e/test_demo.py"),
)
"""Files of half a minute or more. A file is not divided among processes, so these come first, and short ones end it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _place(item).parts[0] in NOT_MEASURED or _place(item).as_posix() in NOT_MEASURED:
            item.add_marker("no_cover")
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(_place(item).as_posix(), len(ranks)))


def _place(item: pytest.Item) -> Path:
    return item.path.relative_to(HERE) if item.path.is_relative_to(HERE) else item.path


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    gc.disable()  # nothing of what tests import is garbage
    try:
        return (yield)
    finally:
        _set_aside_what_stays()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_of_other_files():
    yield
    _set_aside_what_stays()


def _set_aside_what_stays() -> None:
    """Spare the garbage collector a gigabyte of modules, at which it would look each time that a library calls it."""
    gc.collect()
    gc.freeze()


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

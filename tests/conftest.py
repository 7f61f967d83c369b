"""What all tests share: one thread for numerical libraries, Keras on torch, skips as failures where asked."""

import atexit
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# A shell that starts tests in the background has them ignore Ctrl-C, and so would the programs that tests send one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of programs: without compiled files, each would compile all of its modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Where memory serves as a disk, recording a run takes half of the CPU time, and synchronizing files takes none.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free >= 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
# Before torch or numpy is imported: more threads are slower in parallel tests, and change results.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("KERAS_BACKEND", "torch")
# Ray's processes would come after everything else that the tests do, and those that wait for them would take minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
# The key that the files of sinks are signed with is not to be the user's own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="hookline-tests-")

import pytest
from fork_server import ForkServer

atexit.register(gc.unfreeze)  # of what tests set aside; some libraries complain of what is not gone at the end


def _forget_key(owner: int = os.getpid()) -> None:
    if os.getpid() == owner:  # not a forked child, while others still use it
        shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


atexit.register(_forget_key)


@pytest.hookimpl(optionalhook=True)  # where tests run in one process, nobody asks
def pytest_xdist_auto_num_workers():
    """One more than there are cores: tests that wait for a process or a server leave theirs to another."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    return cores + 1


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
    *("exec/test_scripts.py", "test_examples.py", "rl/test_ray.py", "rl/test_ray_elastic.py", "docs/test_docs.py"),
    *("server/test_page_accessibility.py", "integrations/test_ray_integration.py", "contract/test_hosts.py"),
    *("exec/test_exec.py", "rl/test_learner_processes.py", "rl/test_server_weights.py", "server/test_api_fuzz.py"),
    *("sinks/test_mlflow_sink.py", "experiment/test_experiment_resume.py", "server/test_page_address.py"),
    *("server/test_page.py", "server/test_page_rollouts.py", "experiment/test_executors.py"),
    *("integrations/test_torch_bridge.py", "launchers/test_launchers.py", "server/test_page_chart_board.py"),
    *("experiment/test_search.py", "integrations/test_transformers_logging.py", "loops/test_processes.py"),
    *("benchmarks/test_integrations_benchmark.py", "rl/test_learner.py", "server/test_page_media.py"),
    *("server/test_storage.py", "benchmarks/test_grpo_benchmark.py", "experiment/test_ray_runs.py"),
    *("importers/test_import_media.py", "integrations/test_transformers_processes.py"),
    *("benchmarks/test_serve_benchmark.py", "compat/test_wandb_libraries.py", "server/test_storage_servers.py"),
    *("server/test_page_numbers.py", "e2e/test_demo.py", "integrations/test_keras.py", "test_options.py"),
    *("contract/test_sinks.py", "cli/test_cli_demo.py", "compat/test_wandb_patterns.py", "loops/test_resume.py"),
)
"""Files of twenty seconds or more. A file is not divided among processes, so these come first, and short ones last."""


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


@pytest.fixture(scope="session")
def torch_programs():
    """Starts programs that use torch, without the seconds that importing it takes."""
    packages = ("torch", "torch._dynamo", "torch.distributed.fsdp", "accelerate")
    with ForkServer(*packages, "transformers.models.llama.modeling_llama") as server:
        yield server


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    """Runs are recorded below the current directory: each test has one of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _log_stays_on():
    """A file that left hookline's log turned down would hide what the tests after it in this process wait for."""
    logger = logging.getLogger("hookline")
    before = (logger.level, logger.propagate, logger.disabled)
    yield
    assert (logger.level, logger.propagate, logger.disabled) == before


@pytest.fixture(autouse=True)
def _no_experiment_of_mlflow():
    """MLflow's client remembers its experiment, and tells child processes by variables: not those of other tests."""
    before = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    yield
    for name in [name for name in os.environ if name.startswith("MLFLOW_") and name not in before]:
        del os.environ[name]
    os.environ.update(before)
    if (fluent := sys.modules.get("mlflow.tracking.fluent")) is not None:
        fluent._active_experiment_id = None  # type: ignore[attr-defined]


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

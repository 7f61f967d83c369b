"""Monitored checkpoints in torch loops: which weights they hold, and how several processes agree on them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "scripts" / "ddp_checkpoints.py"


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What two processes found that train with DDP."""
    root = tmp_path_factory.mktemp("ddp")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SCRIPT), str(rank), str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [json.loads((root / f"found-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("the epoch ends at the validated step", {"steps": [4, 6], "state": "completed"}),
        ("it stops at the validated step", {"steps": [4], "state": "stopped"}),
        ("only the best is kept", {"steps": [4], "state": "completed"}),
        ("by steps, stopped at the validated step", {"steps": [4], "state": "stopped"}),
    ],
)
def test_ddp_checkpoints_monitored_on_rank_zero_only_are_saved_and_kept_alike_on_both(together, scenario, expected):
    best = ["step-00000004", 0.5]
    whole = expected | {"same": [True] * len(expected["steps"]), "best": best}
    assert [found[scenario] for found in together] == [whole, whole]
    assert [found["world_size"] for found in together] == [2, 2]


def test_ddp_validation_requested_on_one_rank_is_agreed_on_and_done_once(together):
    assert [found["asked"] for found in together] == [[False, False, True, False, False]] * 2

"""Every example runs as it stands and prints what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
EXPECTED = {
    "bare_loop.py": ["step 100: loss", "y = 3.0", "early stopping: val/loss has not improved"],
    "callbacks_and_hooks.py": [
        "stopped at step 48: the loss is flat at 0.509",
        "rows sent: [10, 20, 30, 40]",
        "best loss 0.5091",
    ],
}


def test_examples_are_all_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs_and_prints(name, tmp_path):
    done = subprocess.run([sys.executable, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [text for text in EXPECTED[name] if text not in done.stdout] == [], done.stdout

"""What tests/conftest.py sees to: skipped tests are failures where asked; the files that it names are there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_files_that_are_named_are_there(request):
    conftest = request.config.pluginmanager.get_plugin(str(HERE / "conftest.py"))
    assert [name for name in (*conftest.NOT_MEASURED, *conftest.LONGEST) if not (HERE / name).exists()] == []


@pytest.mark.parametrize(("value", "code"), [("1", 1), ("", 0)])
@pytest.mark.parametrize("parallel", ["0", "2"])
def test_skipped_test_counts_as_a_failure_where_asked(tmp_path, value, code, parallel):
    for name in ("conftest.py", "fork_server.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\ndef test_a(): pytest.skip('no such program')\n\ndef test_b(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "REQUIRE_ALL": value, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which take seconds
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-n", parallel, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, tmp_path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout
    assert ("skipped tests count as failures" in done.stdout) == bool(code)

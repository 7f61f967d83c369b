"""``hookline ui`` as users start it."""

import signal
import subprocess
import sysconfig
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hookline as hl
from hookline.cli import app

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"


def test_ui_prints_its_address_serves_the_page_and_ends_on_ctrl_c(tmp_path):
    with hl.run("shown", summary=False) as run:
        run.log(loss=1.0)
    command = [SCRIPT, "ui", "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        with urllib.request.urlopen(said.split()[-1], timeout=30) as answer:
            page = answer.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (said.startswith("1 run in"), b"<title>hookline</title>" in page) == (True, True)
    assert (errors, process.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--root", "nowhere"], "no such directory"), (["--host", "0.0.0.0"], "no password")]
)
def test_ui_that_cannot_be_served_says_why(tmp_path, arguments, words):
    (tmp_path / "runs").mkdir()
    done = CliRunner().invoke(app, ["ui", "--no-open", *arguments])
    assert (done.exit_code, words in done.output) == (1, True)

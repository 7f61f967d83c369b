"""A server over recorded runs, and a real browser that looks at it."""

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the web page needs the extra 'ui'")

import page_runs
from sending import WRITE

from hookline.server import WebServer

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


@pytest.fixture(autouse=True)
def _recorded_now(monkeypatch):
    """Runs are recorded in the time of their test: those of an older one would count as stalled."""
    monkeypatch.setattr(page_runs, "NOW", time.time())


@pytest.fixture
def serve(tmp_path):
    """Start a server over the runs of a directory."""
    started = []

    def start(root=None, **options):
        server = WebServer(root or tmp_path / "runs", **options)
        started.append(server.__enter__())
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, started once for a file of tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    if not Path(CHROMIUM).exists():
        pytest.skip("browser tests need chromium")
    with sync_api.sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        context = playwright.chromium.launch_persistent_context(
            home, executable_path=CHROMIUM, args=FLAGS, viewport={"width": 1280, "height": 800}, accept_downloads=True
        )
        yield context
        context.close()


@pytest.fixture
def page(browser):
    """A new tab; whatever the browser complains of in it fails the test."""
    tab, complaints = browser.new_page(), []
    tab.set_default_timeout(20_000)
    tab.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    yield tab
    tab.evaluate("localStorage.clear()")
    tab.close()
    assert complaints == []


@pytest.fixture
def root(tmp_path):
    """Where the runs of a test are recorded."""
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def show(root, serve, page):
    """Open a view of the page over the runs that were recorded."""

    def open_view(view, **options):
        server = serve(root, **options)
        page.goto(f"{server.url}#/{view}")
        return page

    return open_view


@pytest.fixture
def slow_write(monkeypatch):
    """Has whoever writes to a journal wait: the events say that somebody does, and let them go on."""
    waits, goes_on, write = threading.Event(), threading.Event(), os.pwrite

    def gated(descriptor, data, offset):
        waits.set()
        assert goes_on.wait(30)
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", gated)
    yield waits, goes_on
    goes_on.set()


@pytest.fixture
def start_process(tmp_path):
    """Starts servers in processes of their own, with few descriptors; none of them may say anything about it."""
    started = []

    def start(limit="ulimit -n 256"):
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'{limit}; exec "$0" serve runs --port 0 --json', SCRIPT],
            cwd=tmp_path,
            env=os.environ | {"HOOKLINE_WRITE_TOKEN": WRITE},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        process.url = json.loads(process.stdout.readline())["url"]
        return process

    yield start
    for process in started:
        process.terminate()
        assert process.communicate(timeout=30)[1] == ""


@pytest.fixture
def served(start_process):
    """A server in a process of its own, with few descriptors."""
    return start_process()

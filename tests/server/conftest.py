"""A server over recorded runs, and a real browser that looks at it."""

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import time
import urllib.request
import uuid
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the web page needs the extra 'ui'")

import page_runs
from sending import WRITE

from hookline.server import WebServer

SCRIPT = Path(sysconfig.get_path("scripts")) / "hookline"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "/usr/bin/chromium")
"""A Chromium that draws no windows, if there is one: it spends half as much on a page."""
PATIENCE_MS = 30_000
"""How long a test waits for the page: much longer than needed, also while other tests use all cores."""
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--renderer-process-limit=1"),
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
def s3():
    """moto's S3, over HTTP on this machine; the variables of the environment that obstore finds it by."""
    server = pytest.importorskip("moto.server", reason="tests of object stores need moto").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "AWS_ACCESS_KEY_ID": "key-of-a-test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-a-test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    server.stop()


@pytest.fixture
def bucket(s3, monkeypatch):
    """The URL of a new bucket."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{s3['AWS_ENDPOINT_URL']}/{name}", method="PUT")
    urllib.request.urlopen(request).close()
    return f"s3://{name}/some/prefix"


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, started once for a file of tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    if not Path(CHROMIUM).exists():
        pytest.skip("browser tests need chromium")
    sync_api.expect.set_options(timeout=PATIENCE_MS)
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
    tab.set_default_timeout(PATIENCE_MS)
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
    """Makes writers to a journal wait: the events say that one does, and let it continue."""
    waits, may_continue, write = threading.Event(), threading.Event(), os.pwrite

    def gated(descriptor, data, offset):
        waits.set()
        assert may_continue.wait(120)
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", gated)
    yield waits, may_continue
    may_continue.set()


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
        assert process.communicate(timeout=60)[1] == ""


@pytest.fixture
def served(start_process):
    """A server in a process of its own, with few descriptors."""
    return start_process()

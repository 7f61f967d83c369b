"""How often runs are listed for viewers, and that new runs are found."""

import threading

import pytest
from page_runs import finished_run, repeats, row
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from hookline._engine.errors import UnknownNameError
from hookline.server.application import Guard
from hookline.server.experiment_api import ENDPOINTS as OF_EXPERIMENTS
from hookline.server.listing import MAX_REST_SECONDS, Listing
from hookline.server.runs_api import RUN_ENDPOINTS as OF_RUNS
from hookline.store import Runs, runs
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store


class SlowRuns(Runs):
    """Runs of which each listing takes the seconds that a clock is advanced by."""

    now, takes, listings = 0.0, 0.0, 0

    def refresh(self, **options):
        self.now += self.takes
        self.listings += 1
        return super().refresh(**options)


@pytest.fixture
def slow(root):
    made = SlowRuns(open_store(root), Liveness())
    made.now, made.listings = 0.0, 0
    return made


@pytest.mark.parametrize("takes", [7.0, 90.0])
def test_listing_that_took_long_rests_no_longer_than_a_few_seconds(root, slow, takes):
    listing = Listing(slow, clock=lambda: slow.now)
    slow.now, slow.takes = 1.0, takes
    listing.now()
    finished_run(root)
    assert (listing.fresh() is None, dict(listing.now().rows)) == (False, {})
    slow.now += MAX_REST_SECONDS
    assert (listing.fresh(), list(listing.now().rows)) == (None, ["p/r0"])


def test_run_that_has_just_come_is_found_before_the_listing_is_old(root, slow):
    listing = Listing(slow, clock=lambda: slow.now)
    slow.now, slow.takes = 1.0, 1.0
    listing.now()
    finished_run(root)
    slow.now += 1.0
    assert listing.fresh() is not None
    assert [info.id for info in listing.some(["p/r0"])] == ["p/r0"]


def test_listing_while_another_thread_reads_a_long_run_is_the_last_one_for_some_seconds(root, slow):
    lock, is_held, release = open_store(root).index.lock, threading.Event(), threading.Event()

    def read():
        with lock:
            is_held.set()
            release.wait(30)

    listing = Listing(slow, clock=lambda: slow.now)
    finished_run(root)
    reader = threading.Thread(target=read)
    reader.start()
    assert is_held.wait(30)
    slow.now = 1.0
    assert dict(listing.now().rows) == {}
    slow.now += MAX_REST_SECONDS + 1
    threading.Timer(0.1, release.set).start()
    assert list(listing.now().rows) == ["p/r0"]  # an older one is not used: this one waited
    reader.join()


def test_runs_that_there_are_not_are_listed_for_only_now_and_then(slow):
    listing = Listing(slow, clock=lambda: slow.now)
    for moment in range(100):
        slow.now = moment / 10
        with pytest.raises(UnknownNameError, match="no run"):
            listing.some(["nonsense"])
    assert slow.listings <= 20


@pytest.mark.parametrize(
    "path", ["/api/run?id=sweep/low-r0", "/api/metrics?run=low-r0", "/api/experiment?project=sweep"]
)
def test_run_or_experiment_that_has_just_come_is_answered(root, path):
    moments = iter([0.0, 0.4])
    listing = Listing(runs(root), clock=lambda: next(moments, 0.6))
    repeats(root, number=1)
    routes = [each.route(listing) for each in (*OF_RUNS, *OF_EXPERIMENTS)]
    client = TestClient(Starlette(routes=routes, middleware=[Middleware(Guard)]), base_url="http://127.0.0.1")
    assert client.get(path).status_code == 200


def test_row_of_a_run_is_short_whatever_its_description_holds(root):
    long = {"name": "n" * 5000, "tags": ["t" * 5000] * 500, "group": "g" * 5000}
    finished_run(root, more=[row(4, **{"m" * 5000: 1.0})], **long)
    [shown] = Listing(runs(root)).now().rows.values()
    assert (len(shown.name), len(shown.group), len(shown.tags), len(shown.tags[0])) == (1000, 1000, 100, 1000)
    assert (shown.id, list(shown.metrics)) == ("p/r0", ["loss"])

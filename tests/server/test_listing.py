"""How often the runs are listed for those who look, and that what has just come is found."""

import pytest
from page_runs import finished_run, repeats
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hookline._engine.errors import UnknownNameError
from hookline.server.experiment_api import ENDPOINTS as OF_EXPERIMENTS
from hookline.server.listing import MAX_REST_SECONDS, Listing
from hookline.server.runs_api import RUN_ENDPOINTS as OF_RUNS
from hookline.store import Runs, runs
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store


class SlowRuns(Runs):
    """Runs of which each listing takes the seconds that a clock is told."""

    now, takes, listings = 0.0, 0.0, 0

    def refresh(self):
        self.now += self.takes
        self.listings += 1
        return super().refresh()


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
    client = TestClient(Starlette(routes=[each.route(listing) for each in (*OF_RUNS, *OF_EXPERIMENTS)]))
    assert client.get(path).status_code == 200

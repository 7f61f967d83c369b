"""The events of the live stream: encoded once, with what changed, and whole for those who fall behind."""

import asyncio
import itertools
import json

import pytest
from page_runs import append, live_run, rows

from hookline.server.listing import Listing
from hookline.server.live_stream import Broadcast, ListedStream
from hookline.server.tokens import ALL_PROJECTS
from hookline.store import runs


@pytest.fixture
def followed(root):
    """A run that changes with each call, and the rows of the listing after it."""
    directory, count = live_run(root), iter(range(1, 100))
    moments = itertools.count(step=100)  # every listing is outdated at once
    listing = Listing(runs(root), clock=lambda: next(moments))

    def change():
        append(directory, *rows([0.5], first=next(count)))
        return listing.now().rows

    return listing.now().rows, change


def decoded(data):
    """The data of events."""
    return [json.loads(event.partition(b"data: ")[2]) for event in data.split(b"\n\n")[:-1]]


def test_viewers_share_the_bytes_of_an_event_and_get_the_fields_that_changed(followed):
    before, change = followed

    async def view():
        broadcast = Broadcast()
        viewers = [broadcast.events(), broadcast.events()]
        broadcast.update(before, [])
        whole = [await anext(viewer) for viewer in viewers]
        assert broadcast.update(change(), [])
        return whole, [await anext(viewer) for viewer in viewers]

    whole, changed = asyncio.run(view())
    assert whole[0] is whole[1]
    [[first], [update]] = decoded(whole[0]), decoded(changed[0])
    assert (first["whole"], update["whole"], changed[0] == changed[1]) == (True, False, True)
    [known], [fields] = first["changed"], update["changed"]
    assert len(known) > 15
    assert (fields.pop("id"), fields.pop("step"), fields.pop("metrics")) == ("p/live", 1, {"loss": 0.5})
    assert set(fields) <= {"last_seen", "seconds_per_step", "eta_seconds"}


@pytest.mark.parametrize(("limits", "misses", "wholes"), [((4, 1 << 20), 4, [False] * 4), ((4, 1 << 20), 5, [True])])
def test_viewer_that_falls_behind_gets_all_runs_instead_of_a_backlog(followed, limits, misses, wholes):
    before, change = followed

    async def view():
        broadcast = Broadcast(*limits)
        broadcast.update(before, [])
        slow = broadcast.events()
        await anext(slow)
        for _ in range(misses):
            broadcast.update(change(), [])
        return decoded(await anext(slow))

    events = asyncio.run(view())
    assert [event["whole"] for event in events] == wholes
    assert events[-1]["changed"][0]["step"] == misses


def test_backlog_is_bounded_in_bytes(followed):
    before, change = followed

    async def view():
        broadcast = Broadcast(max_events=1000, max_bytes=1000)
        broadcast.update(before, [])
        slow = broadcast.events()
        await anext(slow)
        for _ in range(20):
            broadcast.update(change(), [])
        return decoded(await anext(slow))

    assert [event["whole"] for event in asyncio.run(view())] == [True]


def test_nothing_is_published_while_nothing_changes(followed):
    before, _ = followed

    async def view():
        broadcast = Broadcast()
        return [broadcast.update(dict(before), []) for _ in range(3)], broadcast.update(before, ["a note"])

    assert asyncio.run(view()) == ([True, False, False], True)


def test_broadcast_of_another_process_has_the_same_rows(followed):
    before, change = followed

    async def view():
        own, other = Broadcast(), Broadcast()
        events = own.events()
        own.update(before, [])
        for _ in range(3):
            event = await anext(events)
            other.apply(Broadcast.decode(event), event)
            own.update(change(), [])
        event = await anext(events)
        other.apply(Broadcast.decode(event), event)
        return decoded(own.whole()), decoded(other.whole())

    [own], [other] = asyncio.run(view())
    assert (own["changed"], own["changed"][0]["step"]) == (other["changed"], 3)


def test_runs_are_not_listed_while_nobody_watches(root):
    class CountedListing(Listing):
        listings = 0

        def now(self):
            self.listings += 1
            return super().now()

    live_run(root)
    listing = CountedListing(runs(root))
    asyncio.run(ListedStream(listing).follow(ALL_PROJECTS, Broadcast()))
    assert listing.listings == 0


def test_viewer_whose_token_is_revoked_gets_no_more_events(followed):
    before, change = followed
    allowed = [True]

    async def view():
        broadcast = Broadcast()
        broadcast.update(before, [])
        events = broadcast.events(lambda: allowed[0])
        await anext(events)
        allowed[0] = False
        broadcast.update(change(), [])
        return [event async for event in events]

    assert asyncio.run(view()) == []

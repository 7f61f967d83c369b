"""Answers that viewers share: computed once, kept while nothing changes, and never older than the request."""

import asyncio
import gzip
import itertools
import json
import threading

import pytest
from page_runs import append, finished_run, live_run, row, rows
from sending import WRITE, ask, claim, put, rows_of
from starlette.requests import Request
from waiting import wait_until

from hookline._record import run_directory
from hookline._record.recorder import Recorder
from hookline.server.answers import PACKED_BYTES, Answers, Question
from hookline.server.listing import Listing
from hookline.server.root_tokens import Tokens
from hookline.store import runs


def request(headers=()):
    async def receive():
        await asyncio.sleep(3600)

    return Request({"type": "http", "method": "GET", "headers": list(headers), "query_string": b""}, receive)


class Computed:
    """A question whose computation waits for a gate; it answers with what there was when it began."""

    def __init__(self, version=None):
        self.value, self.calls, self.version = 0, 0, version
        self.begun, self.gate = threading.Event(), threading.Event()

    def question(self, key="key"):
        return Question(key, self.version, self.compute, 60.0)

    def compute(self):
        value, self.calls = self.value, self.calls + 1
        self.begun.set()
        assert self.gate.wait(30)
        return b"%d" % value


async def several(answers, computed, number):
    """Ask while another request is computed, and after something changed; returns all bodies."""
    first = asyncio.create_task(answers.respond(request(), computed.question()))
    await asyncio.to_thread(computed.begun.wait, 30)
    computed.value = 1
    others = [asyncio.create_task(answers.respond(request(), computed.question())) for _ in range(number)]
    await asyncio.sleep(0)
    computed.gate.set()
    return [response.body for response in await asyncio.gather(first, *others)]


def test_equal_requests_during_a_computation_share_the_next_one():
    computed = Computed()
    bodies = asyncio.run(several(Answers(), computed, 9))
    assert (bodies, computed.calls) == ([b"0", *[b"1"] * 9], 2)


def test_equal_requests_with_an_unchanged_version_share_one_computation():
    computed = Computed(version=lambda: 7)
    bodies = asyncio.run(several(Answers(), computed, 9))
    assert (bodies, computed.calls) == ([b"0"] * 10, 1)


def test_answer_that_became_outdated_while_it_was_computed_is_not_given_again():
    computed = Computed()
    computed.version = lambda: computed.value
    bodies = asyncio.run(several(Answers(), computed, 3))
    assert (bodies, computed.calls) == ([b"0", *[b"1"] * 3], 2)


def test_failure_reaches_everyone_and_is_not_kept():
    outcomes = iter([ValueError("broken"), b"fine"])

    def compute():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def ask_thrice():
        answers, question = Answers(), Question("key", lambda: 1, compute, 60.0)
        together = [answers.respond(request(), question) for _ in range(2)]
        failed = await asyncio.gather(*together, return_exceptions=True)
        return [str(error) for error in failed], (await answers.respond(request(), question)).body

    assert asyncio.run(ask_thrice()) == (["broken", "broken"], b"fine")


def test_kept_answers_stay_within_their_memory_and_the_last_ones_are_kept():
    computed = []
    answers = Answers(max_bytes=100_000)

    async def ask_for(name, size):
        def compute():
            computed.append(name)
            return bytes(size)

        await answers.respond(request(), Question(name, lambda: 1, compute, 60.0))
        assert answers.kept_bytes <= 100_000

    async def ask_all():
        for name in range(100):
            await ask_for(name, 5_000)
        await ask_for("huge", 90_000)  # it would displace all others
        for again in (99, 98, 0, "huge"):
            await ask_for(again, 5_000)

    asyncio.run(ask_all())
    assert computed == [*range(100), "huge", 0, "huge"]


def test_question_that_all_have_given_up_is_cancelled_before_it_starts():
    computed = Computed()

    async def give_up():
        answers = Answers()
        first = asyncio.create_task(answers.respond(request(), computed.question()))
        await asyncio.to_thread(computed.begun.wait, 30)
        second = asyncio.create_task(answers.respond(request(), computed.question()))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        computed.gate.set()
        await first

    asyncio.run(give_up())
    assert computed.calls == 1


def series(server, run="p/r0", **headers):
    return ask(server, "GET", "/api/series", run=run, name="loss", headers=headers)


def test_client_that_has_the_answer_gets_304_until_something_is_recorded(root, serve):
    directory = finished_run(root)
    server = serve(root)
    first = series(server)
    tag = first.headers["ETag"]
    again = series(server, **{"If-None-Match": tag})
    append(directory, *rows([0.5], first=4))
    later = series(server, **{"If-None-Match": tag})
    assert (first.status, again.status, again.body) == (200, 304, b"")
    assert (later.status, later.json["lines"][0]["y"]) == (200, [3.0, 2.0, 1.0, 0.5])
    assert later.headers["ETag"] != tag


@pytest.mark.parametrize("accepted", ["gzip, deflate", "br;q=1.0, GZIP;q=0.5"])
def test_large_answer_is_packed_for_clients_that_accept_it(root, serve, accepted):
    finished_run(root, losses=[1 / step for step in range(1, 3000)])
    server = serve(root)
    plain, packed = series(server), series(server, **{"Accept-Encoding": accepted})
    refused = [series(server, **{"Accept-Encoding": each}).body for each in ("gzip;q=0", "gzip;q=0.000", "br")]
    assert (len(plain.body) > PACKED_BYTES, len(packed.body) < len(plain.body)) == (True, True)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert [gzip.decompress(packed.body), *refused] == [plain.body] * 4


def test_small_answer_is_not_packed(root, serve):
    finished_run(root)
    answered = series(serve(root), **{"Accept-Encoding": "gzip"})
    assert (answered.headers["Content-Encoding"], answered.json["lines"][0]["y"]) == (None, [3.0, 2.0, 1.0])


def test_value_that_was_recorded_before_the_request_is_in_the_answer(root, serve):
    facts = {"name": "mapped", "project": "p", "git": None}
    directory = run_directory.create(root, "p", facts, run_id="mapped")
    recorder = Recorder(directory, segment_bytes=64 << 10)
    server = serve(root)
    for step in range(1, 60):  # into a mapped file, whose size and time do not change
        recorder.log({"loss": float(step)}, step=step)
        assert series(server, "p/mapped").json["lines"][0]["y"][-1] == step
    recorder.close()


def test_value_that_was_received_before_the_request_is_in_the_answer(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    claim(server)
    wait_until(lambda: series(server).status == 200)  # the run is listed
    offset = 0
    for step in range(1, 30):
        offset = put(server, rows_of(1, first=step), offset).json["offset"]
        assert len(series(server).json["lines"][0]["y"]) == step


def test_answers_about_other_runs_or_parameters_are_kept_apart(root, serve):
    for run in ("r0", "r1"):
        finished_run(root, run, losses=[float(run[1]), 5.0])
    server = serve(root)
    asked = [{"run": "p/r0"}, {"run": "p/r1"}, {"run": "p/r0", "smoothing": 0.5}, {"run": "p/r0"}]
    found = [ask(server, "GET", "/api/series", name="loss", **each).json["lines"][0] for each in asked]
    assert [(line["run"], line["y"][0], bool(line["smoothed_y"])) for line in found] == [
        ("p/r0", 0.0, False), ("p/r1", 1.0, False), ("p/r0", 0.0, True), ("p/r0", 0.0, False)
    ]  # fmt: skip


def test_version_changes_with_the_records_and_the_description_only(root):
    directory, other = live_run(root, "live"), live_run(root, "other")
    moments = itertools.count(step=100)
    listing = Listing(runs(root), clock=lambda: next(moments))
    versions = [listing.version(["p/live"]), listing.version(["p/live"])]
    append(other, row(1, loss=1.0))
    versions.append(listing.version(["p/live"]))
    append(directory, row(1, loss=1.0))
    versions.append(listing.version(["p/live"]))
    facts = json.loads((directory / "run.json").read_text()) | {"experiment": {"name": "e", "arm": "low"}}
    (directory / "run.json").write_text(json.dumps(facts))
    versions.append(listing.version(["p/live"]))
    assert [versions.index(version) for version in versions] == [0, 0, 0, 3, 4]


def test_kept_answers_that_are_packed_later_are_counted_once():
    answers = Answers()
    content = b"x" * (4 * PACKED_BYTES)

    async def ask_all():
        for version in range(5):
            question = Question("key", lambda: version, lambda: content, 60.0)  # noqa: B023 - asked at once
            for accepted in ([], [(b"accept-encoding", b"gzip")]):
                await answers.respond(request(accepted), question)

    asyncio.run(ask_all())
    assert len(content) <= answers.kept_bytes <= 2 * len(content)

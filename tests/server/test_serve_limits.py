"""What a client can cost the server before it has shown a token: bytes, headers, connections, streams, time."""

import asyncio
import contextlib
import http.client
import itertools
import json
import socket
import tracemalloc
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from sending import TOKENS, WRITE, ask, claim, put, rows_of
from soak.flood import Flood
from waiting import wait_until

from hookline._record.records import Metrics, encode
from hookline.server.connections import DISCARDED_BYTES, ConnectionLimits
from hookline.server.limits import BodyError, BodyLimits, NamesError, UploadSlots, metric_names
from hookline.server.root_tokens import Tokens

HOST = b"Host: 127.0.0.1\r\n"


def connected(server, client="127.0.0.1"):
    address = urllib.parse.urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=30, source_address=(client, 0))


def answer_to(connection, request=b""):
    connection.sendall(request)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        (b"GET / HTTP/1.1\r\n", b"X: " + b"x" * 100_000 + b"\r\n"),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 101),
        (b"GET /?" + b"x" * 100_000 + b" HTTP/1.1\r\n", b""),
        (b"GET / HTTP/1.1\r\n", b"X" * 300_000),
    ],
    ids=["a long header", "many headers", "a long address", "no end"],
)
def test_head_beyond_its_limits_is_answered_with_431(root, serve, line, headers):
    with connected(serve(root, tokens=TOKENS)) as connection:
        answer = answer_to(connection, line + HOST + headers + b"\r\n\r\n")
        assert (answer.status, "65,536" in json.loads(answer.read())["error"]) == (431, True)
        assert connection.recv(1) == b""


def test_head_within_its_limits_is_answered(root, serve):
    with connected(serve(root)) as connection:
        headers = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 400) for number in range(99))
        assert answer_to(connection, b"GET / HTTP/1.1\r\n" + HOST + headers + b"\r\n").status == 200


def test_pipelined_requests_are_answered_one_after_the_other(root, serve):
    paths = [b"/api/runs", b"/nothing", b"/"] * 50
    with connected(serve(root)) as connection:
        connection.sendall(b"".join(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, HOST) for path in paths))
        with connection.makefile("rb") as file:
            assert [status_of_next(file) for _ in paths] == [200, 404, 200] * 50


def status_of_next(file):
    """Read one answer from a connection, no byte more."""
    status = int(file.readline().split()[1])
    fields = dict(line.lower().split(b": ", 1) for line in iter(file.readline, b"\r\n"))
    file.read(int(fields[b"content-length"]))
    return status


def test_streams_are_limited_in_all_and_for_each_client(root, serve):
    server = serve(root, limits=ConnectionLimits(connections=16))  # 8 streams, 2 for a client
    request = b"GET /api/stream HTTP/1.1\r\n" + HOST + b"\r\n"
    with contextlib.ExitStack() as opened:

        def status(client):
            connection = opened.enter_context(connected(server, client))
            return answer_to(connection, request).status, connection

        clients = [f"127.0.0.{number}" for number in (1, 1, 1, 2, 2, 3, 3, 4, 4, 5)]
        assert [status(client)[0] for client in clients] == [200, 200, 503, 200, 200, 200, 200, 200, 200, 503]
        assert ask(server, "GET", "/api/runs").status == 200
    wait_until(lambda: stream_status(server) == 200)  # those that ended count no longer


def stream_status(server):
    with connected(server) as connection:
        answer = answer_to(connection, b"GET /api/stream HTTP/1.1\r\n" + HOST + b"\r\n")
        assert answer.status == 200 or answer.headers["Retry-After"] == "10"
        return answer.status


def test_idle_connections_make_room_and_those_of_the_busiest_client_first(root, serve):
    server = serve(root, limits=ConnectionLimits(connections=8))
    with contextlib.ExitStack() as opened:
        other = opened.enter_context(connected(server, "127.0.0.2"))
        own = [opened.enter_context(connected(server)) for _ in range(40)]
        assert ask(server, "GET", "/api/runs").status == 200
        assert own[0].recv(1) == b""
        assert answer_to(other, b"GET /api/runs HTTP/1.1\r\n" + HOST + b"\r\n").status == 200


def test_connections_with_requests_under_way_are_kept_and_others_refused(root, serve, slow_write):
    waits, may_continue = slow_write
    server = serve(root, tokens=Tokens(WRITE), limits=ConnectionLimits(connections=8))
    runs = [f"r{number}" for number in range(8)]
    assert {claim(server, run).status for run in runs} == {200}
    with ThreadPoolExecutor(8) as senders:
        answers = []
        for run in runs:
            answers.append(senders.submit(put, server, rows_of(1), run=run))
            assert waits.wait(30)
            waits.clear()
        with connected(server) as connection:
            assert answer_to(connection).status == 503
        may_continue.set()
        assert [answer.result().status for answer in answers] == [200] * 8


def test_body_without_end_of_a_sender_without_a_token_is_not_taken(root, serve):
    head = b"PUT /api/journals/p/r0 HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with connected(serve(root, tokens=TOKENS)) as connection:
        connection.sendall(head)
        with pytest.raises(OSError, match=r"reset|pipe"):
            for _ in range(8 * DISCARDED_BYTES // len(chunk)):
                connection.sendall(chunk)


def test_body_that_nobody_waits_for_is_given_little_time(root, serve):
    head = b"PUT /api/journals/p/r0 HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n"
    with connected(serve(root, tokens=TOKENS, bodies=BodyLimits(chunk_seconds=1.0))) as connection:
        answer = answer_to(connection, head)
        assert (answer.status, answer.read() != b"", connection.recv(1)) == (401, True, b"")


def test_connection_of_a_refused_request_is_used_again_once_its_body_has_come(root, serve):
    head = b"PUT /api/journals/p/r0 HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n"
    with connected(serve(root, tokens=TOKENS)) as connection:
        for _ in range(3):
            answer = answer_to(connection, head)
            assert (answer.status, answer.read() != b"") == (401, True)
            connection.sendall(b"x" * 100)


def test_slow_body_makes_room_when_no_more_fits_into_the_memory(root, serve):
    bodies = BodyLimits(total_bytes=50_000, min_rate=1 << 30, grace_seconds=0.0)
    server = serve(root, tokens=TOKENS, bodies=bodies)
    head = b"PUT /api/journals/p/r?origin=" + b"0" * 32 + b" HTTP/1.1\r\n" + HOST
    head += b"Authorization: Bearer " + WRITE.encode() + b"\r\nContent-Length: 45000\r\n\r\n"
    with connected(server) as slow:
        slow.sendall(head + b" " * 40_000)
        wait_until(lambda: bodies.held == 40_000)
        facts = {"name": "x" * 20_000}
        assert ask(server, "PUT", "/api/journals/p/other", body=json.dumps(facts), origin="1" * 32).status == 503
        assert answer_to(slow).status == 408
        assert ask(server, "PUT", "/api/journals/p/other", body=json.dumps(facts), origin="1" * 32).status == 200
    assert bodies.held == 0


def test_body_in_tiny_chunks_is_refused(root, serve):
    head = b"POST /api/login HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    with connected(serve(root, tokens=TOKENS)) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2000)
        assert connection.recv(1) == b""


def test_client_that_reads_nothing_is_disconnected(root, serve):
    server = serve(root, limits=ConnectionLimits(stalled_seconds=0.1))
    with connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall((b"GET /static/js/chart.js HTTP/1.1\r\n" + HOST + b"\r\n") * 2000)
        own = connection.getsockname()[1]
        wait_until(lambda: own not in {each.raddr.port for each in psutil.Process().net_connections() if each.raddr})
    assert ask(server, "GET", "/api/runs").status == 200  # and serves others


def row_of(*names, step=1):
    return encode(Metrics(time=1.0, step=step, values=dict.fromkeys(names, 1.0))) + b"\n"


def test_row_with_too_many_metrics_is_refused_and_nothing_of_it_kept(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    claim(server)
    names = [f"metric {number}" for number in range(10_001)]
    refused = {"names_per_row": 10_000}
    assert put(server, rows_of(1) + row_of(*names)).facts == (422, refused)
    assert claim(server).json == {"files": {}}
    status = json.dumps({"run": "posted", "metrics": dict.fromkeys(names, 1.0)})
    assert ask(server, "POST", "/api/status", body=status).facts == (422, refused)
    assert put(server, row_of(*names[1:])).status == 200


def test_row_with_millions_of_metrics_is_refused_without_decoding_it():
    line = row_of(*map(str, range(2_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(NamesError, match="more than 10,000"):
            metric_names(line)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(line)
    finally:
        tracemalloc.stop()


def test_run_with_all_its_names_takes_rows_with_those_and_says_so_of_others(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    claim(server)
    offset = 0
    for begin in (0, 10_000):
        lines = row_of(*(f"metric {number}" for number in range(begin, begin + 9_999)))
        offset = put(server, lines, offset).json["offset"]
    answer = put(server, row_of("metric 1", "loss", "reward", "other"), offset)
    assert (answer.status, len(answer.json["names"]), answer.json["names"][-2:]) == (422, 20_000, ["loss", "reward"])
    assert put(server, row_of("metric 1", "loss", "reward"), offset).status == 200
    assert put(server, row_of("any"), run="other").status == 409  # another run counts by itself
    claim(server, "other")
    assert put(server, row_of("any"), run="other").status == 200


def test_serve_opens_as_many_files_as_the_system_allows(start_process):
    server = start_process("ulimit -Sn 300; ulimit -Hn 700")
    assert psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE) == (700, 700)


def answered(asks, *arguments, **options):
    """Ask as any client does: again, where a connection is broken off before its request was sent."""
    for _ in range(5):
        with contextlib.suppress(ConnectionError):
            return asks(*arguments, **options)
    raise AssertionError("it was not answered")


def test_flood_of_raw_bytes_leaves_memory_and_descriptors_flat_and_honest_clients_answered(served):
    process = psutil.Process(served.pid)
    flood = Flood(served.url, seed=5, megabytes=2, sockets=60)
    flood.once(0)
    assert claim(served).status == 200
    wait_until(lambda: process.num_fds() < 100)
    descriptors, resident = process.num_fds(), process.memory_info().rss
    offset, peak = 0, 0
    with flood:
        for step in itertools.count(1):
            lines = rows_of(1, first=step)
            assert answered(put, served, lines, offset).facts == (200, {"offset": offset + len(lines)})
            assert answered(ask, served, "GET", "/api/runs", token=None).status == 200
            offset, peak = offset + len(lines), max(peak, process.memory_info().rss)
            if len(flood.counts) == len(flood.attacks) and flood.counts.total() >= 3 * len(flood.attacks):
                break
    wait_until(lambda: process.num_fds() <= descriptors + 20)  # threads that answer keep some of the index
    assert (peak - resident) >> 20 < 48


async def upload(slots, client, chunks, begun, ends):
    """Receives an upload whose client sends no more after its chunks; its result, or the status of its refusal."""

    async def sent():
        for chunk in chunks:
            yield chunk
        begun.set()
        await ends.wait()

    try:
        with slots.hold(client) as slot:
            return b"".join([chunk async for chunk in slot.receive(sent(), chunk_seconds=60, seconds=60)])
    except BodyError as error:
        return error.status, str(error)


def test_new_upload_replaces_the_slowest_one_if_all_places_are_in_use():
    async def scenario():
        slots, ends = UploadSlots(3, per_client=2, grace_seconds=0.0), asyncio.Event()
        tasks = []
        for client, chunks in (("a", [b"x" * 100]), ("b", []), ("c", [b"x" * (100 << 20)])):
            begun = asyncio.Event()
            tasks.append(asyncio.create_task(upload(slots, client, chunks, begun, ends)))
            await begun.wait()
        begun = asyncio.Event()
        tasks.append(asyncio.create_task(upload(slots, "d", [b"new"], begun, ends)))
        await begun.wait()
        ends.set()
        return [each if isinstance(each, tuple) else len(each) for each in await asyncio.gather(*tasks)]

    replaced = 408, "The file made room for another one after 0 bytes. Send it again."
    assert asyncio.run(scenario()) == [100, replaced, 100 << 20, 3]


def test_upload_is_refused_if_all_places_are_in_use_by_fast_ones():
    async def scenario():
        slots, ends = UploadSlots(2, per_client=2), asyncio.Event()
        tasks = []
        for _ in range(2):
            begun = asyncio.Event()
            tasks.append(asyncio.create_task(upload(slots, "a", [b"x"], begun, ends)))
            await begun.wait()
        refused = [await upload(slots, client, [b"new"], asyncio.Event(), ends) for client in ("a", "b")]
        ends.set()
        return refused, await asyncio.gather(*tasks), await upload(slots, "b", [b"new"], asyncio.Event(), ends)

    refused, complete, later = asyncio.run(scenario())
    assert refused == [
        (503, "You are sending 2 files already. Try again when one is complete."),
        (503, "Too many files are being sent at once. Try again in a moment."),
    ]
    assert (complete, later) == ([b"x", b"x"], b"new")

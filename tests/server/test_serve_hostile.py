"""What a server that receives refuses: wrong names, links, bodies without end, senders without a token, other pages."""

import contextlib
import gzip
import http.client
import json
import os
import socket
import tracemalloc
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from page_runs import finished_run
from sending import FILE, ORIGIN, READ, TOKENS, WRITE, ask, claim, home, put, rows_of, status_of, tree

from hookline._engine.errors import ConfigError, OptionError
from hookline.server import WebServer
from hookline.server.application import ACTIONS
from hookline.server.limits import MAX_UNPACKED_BYTES, Body, BodyLimits
from hookline.server.received_runs import check_lines
from hookline.server.root_tokens import Tokens

NAMES = [
    *("..", ".", "...", ".hidden", ".hookline", "%2e%2e", "a%2fb", "..%2f..%2fetc", "%2fetc", "a%5cb", "a%00", "%00"),
    *("a%0a", "%e2%80%ae", "a%20", "%20a", "e%cc%81", "a" * 201, "%f0%9f%98%80" * 64, "%ff"),
]
FILES = [
    *("run.json", "received.json", "lock", "x.jsonl", "main-0-1-a-0.json", "main-0-1-a-0.jsonl.x", "-0-1-a-0.jsonl"),
    *("a.b-0-1-a-0.jsonl", "main-%c2%b2-1-a-0.jsonl", "main-0-1-%2e%2e%2f-0.jsonl", "..", "%2e%2e%2frun.json"),
]


@pytest.fixture(scope="module")
def home_root(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def hostile(home_root):
    """A server for requests that it must refuse."""
    finished_run(home_root)
    bodies = BodyLimits(chunk_seconds=1.0, body_seconds=5.0)
    with WebServer(home_root, tokens=TOKENS, bodies=bodies) as server:
        claim(server, "taken")
        yield server


@pytest.fixture
def unchanged(home_root):
    """Nothing below the root, nor beside it, may be another after the test."""
    before = tree(home_root), sorted(home_root.parent.iterdir())
    yield
    assert (tree(home_root), sorted(home_root.parent.iterdir())) == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_no_plain_component_are_refused(hostile, name):
    for path in (f"/api/journals/{name}/r0", f"/api/journals/p/{name}", f"/api/journals/p/{name}/{FILE}"):
        query = {"origin": ORIGIN} | ({"offset": 0} if FILE in path else {})
        answer = ask(hostile, "PUT", path, body="{}", **query)
        assert (answer.status in (400, 404, 405), answer.json["error"] != "") == (True, True)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_journals_are_refused(hostile, name):
    answer = put(hostile, b"{}\n", run="taken", file=name)
    assert (answer.status in (400, 404), answer.json["error"] != "") == (True, True)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (b"{}", "whole lines"),
        (b"{}\n\0\n", "zero byte"),
        (b"[" * 5000 + b"]" * 5000 + b"\n", "nested"),
        (b"\0", "whole"),
        (b'{"a":"\xff"}\n', "UTF-8"),
    ],
)
def test_what_are_no_lines_of_a_journal_is_refused(hostile, lines, words):
    answer = put(hostile, lines, run="taken")
    assert (answer.status, words in answer.json["error"]) == (400, True)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("facts", [b"", b"[]", b"{", b"\xff", b'{"a":' * 2000 + b"1" + b"}" * 2000, b"[" * 100_000])
def test_facts_that_are_no_object_are_refused(hostile, facts):
    assert ask(hostile, "PUT", home("new"), body=facts, origin=ORIGIN).status == 400


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("origin", ["", "0" * 31, "0" * 33, "G" * 32, "../" * 10 + "aa"])
def test_origin_that_is_none_is_refused(hostile, origin):
    assert claim(hostile, "new", origin=origin).status == 400


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("token", [None, "", "x", WRITE[:-1], WRITE + "x", WRITE.upper(), READ])
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_written_without_the_write_token(hostile, method, token):
    for path in (home("new"), f"{home('taken')}/{FILE}", f"{home('taken')}/beat", "/api/status", "/api/runs", "/"):
        answer = ask(hostile, method, path, body="{}", token=token, origin=ORIGIN)
        assert answer.status == (403 if token == READ else 401)


@pytest.mark.usefixtures("unchanged")
def test_other_kinds_of_authorization_are_none(hostile):
    for given in (f"Basic {WRITE}", f"Token {WRITE}", WRITE, "Bearer", f"Bearer {WRITE} {WRITE}"):
        answer = ask(hostile, "PUT", home("new"), body="{}", token=None, headers={"Authorization": given})
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="hookline"')


@pytest.mark.usefixtures("unchanged")
def test_refusals_never_repeat_a_token(hostile):
    asked = [
        *(("PUT", path, WRITE, READ) for path in (home(".."), f"/api/{WRITE}", "/api/status")),
        *(("PUT", path, WRITE, WRITE) for path in (home(f".{WRITE}"), f"/api/{WRITE}", f"{home('taken')}/{READ}")),
        *(("POST", "/api/status", body, WRITE) for body in (WRITE, json.dumps(WRITE), json.dumps([READ]))),
        ("POST", "/api/status", json.dumps({"status": "running", "run": f"/{WRITE}"}), WRITE),
        ("GET", f"/api/run?id={WRITE}", None, READ),
    ]
    for method, path, body, token in asked:
        answer = ask(hostile, method, path, body=body, token=token, origin=ORIGIN, offset=0)
        assert (400 <= answer.status < 500, answer.json["error"] != "") == (True, True)
        assert (WRITE in answer.body.decode() or READ in answer.body.decode()) is False


@pytest.mark.usefixtures("unchanged")
def test_page_elsewhere_can_neither_write_nor_log_in(hostile):
    cookie = logged_in(hostile)
    origin = {"Origin": "http://elsewhere.example", "Cookie": cookie}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = origin | {"Content-Type": kind}
        assert ask(hostile, "POST", "/api/status?run=x", body="{}", token=None, headers=headers).status == 401
        login = ask(hostile, "POST", "/api/login", body=json.dumps({"token": READ}), token=None, headers=headers)
        assert (login.status, login.headers["Set-Cookie"]) == (415, None)
    preflight = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}
    answer = ask(hostile, "OPTIONS", home(), token=None, headers=origin | preflight)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, None)


def logged_in(server, **headers):
    """The cookie that a browser gets for the read token and sends back."""
    given = {"Content-Type": "application/json"} | headers
    answer = ask(server, "POST", "/api/login", body=json.dumps({"token": READ}), token=None, headers=given)
    assert answer.status == 200
    return answer.headers["Set-Cookie"].partition(";")[0]


def test_cookie_of_a_login_reads_and_does_not_write(hostile):
    cookie = {"Cookie": f'theme={{"a": "b, c"}}; {logged_in(hostile)}; =; x'}
    assert ask(hostile, "GET", "/api/runs", token=None, headers=cookie).status == 200
    assert ask(hostile, "PUT", home("new"), body="{}", token=None, headers=cookie, origin=ORIGIN).status == 401


def test_cookie_is_hidden_from_scripts_and_other_pages_and_is_not_the_token(hostile):
    body, kind = json.dumps({"token": READ}), {"Content-Type": "application/json"}
    plain = ask(hostile, "POST", "/api/login", body=body, token=None, headers=kind).headers["Set-Cookie"]
    secure = kind | {"X-Forwarded-Proto": "https"}
    secured = ask(hostile, "POST", "/api/login", body=body, token=None, headers=secure).headers["Set-Cookie"]
    attributes = {part.strip().lower() for part in plain.split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert ("secure" in attributes, "; secure" in secured.lower(), READ in plain) == (False, True, False)


@pytest.mark.parametrize("change", ["until", "signature", "garbage"])
def test_cookie_that_was_changed_does_not_read(hostile, change):
    name, _, value = logged_in(hostile).partition("=")
    until, _, signature = value.partition(".")
    forged = {"until": f"{int(until) + 9}.{signature}", "signature": f"{until}.{'0' * 64}", "garbage": "\u00b2.x;;=,"}
    cookie = f"{name}={forged[change]}".encode("latin-1").decode("latin-1")
    assert ask(hostile, "GET", "/api/runs", token=None, headers={"Cookie": cookie}).status == 401


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"token": 5}', b'{"token": "x", "y": 1}', b"\xff", b"[" * 9000])
def test_login_that_is_none_is_refused(hostile, body):
    answer = ask(hostile, "POST", "/api/login", body=body, token=None, headers={"Content-Type": "application/json"})
    assert answer.status in (400, 413)


@pytest.mark.parametrize("token", ["", "x", WRITE, READ + "x"])
def test_login_with_another_token_gives_no_cookie(hostile, token):
    headers = {"Content-Type": "application/json"}
    answer = ask(hostile, "POST", "/api/login", body=json.dumps({"token": token}), token=None, headers=headers)
    assert (answer.status, answer.headers["Set-Cookie"]) == (401, None)


@pytest.mark.usefixtures("unchanged")
def test_bodies_beyond_the_limits_are_refused(hostile):
    large = b"x" * (8 << 20) + b"\n"
    assert put(hostile, large, run="taken").status == 413
    assert put(hostile, iter([large]), run="taken").status == 413
    assert claim(hostile, "new", facts={"x": "y" * (4 << 20)}).status == 413
    bomb = gzip.compress(b"\n" * (MAX_UNPACKED_BYTES + 1))
    assert len(bomb) < 100_000
    assert put(hostile, bomb, run="taken", headers={"Content-Encoding": "gzip"}).status == 413


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"no gzip\n", "gzip", 400),
        (gzip.compress(b"{}\n")[:-4], "gzip", 400),
        (gzip.compress(b"{}\n") * 2, "gzip", 400),
        (b"{}\n", "br", 415),
        (b"{}\n", "gzip, gzip", 415),
    ],
    ids=["no gzip", "cut off", "twice", "brotli", "packed twice"],
)
def test_bodies_that_are_packed_wrongly_are_refused(hostile, body, encoding, status):
    assert put(hostile, body, run="taken", headers={"Content-Encoding": encoding}).status == status


def test_body_packed_with_gzip_is_unpacked(hostile, home_root):
    claim(hostile, "packed")
    lines = rows_of(100)
    answer = put(hostile, gzip.compress(lines), run="packed", headers={"Content-Encoding": "gzip"})
    assert answer.facts == (200, {"offset": len(lines)})
    assert (home_root / "p" / "packed" / "journal" / FILE).read_bytes() == lines


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("number", ["1000000", "999999999", "1" * 30])
def test_numbers_of_files_that_no_journal_reaches_are_refused(hostile, number):
    assert put(hostile, rows_of(1), run="taken", file=f"main-0000-1-abc-{number}.jsonl").status == 400


def test_numbers_of_files_with_a_gap_are_reported_briefly(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    claim(server)
    put(server, rows_of(1) + status_of("finished"), file="main-0000-1-abc-999999.jsonl")
    answer = ask(server, "GET", "/api/runs", token=None)
    assert (answer.status, len(answer.body) < 5000) == (200, True)


def test_line_of_many_megabytes_is_taken_packed(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    claim(server)
    line = rows_of(1)[:-1] + b" " * (40 << 20) + b"\n"
    answer = put(server, gzip.compress(line, 1), headers={"Content-Encoding": "gzip"})
    assert answer.facts == (200, {"offset": len(line)})


def test_body_that_is_unpacked_and_checked_needs_little_more_memory_than_its_size():
    lines = b'{"text":"' + "\N{ROCKET}".encode() + b"x" * (8 << 20) + b'","rows":[' + b"[]," * 400_000 + b"0]}\n"
    body = Body(BodyLimits(), gzip.compress(lines, 1))
    tracemalloc.start()
    try:
        unpacked = body.unpack("gzip", MAX_UNPACKED_BYTES)
        check_lines(unpacked)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (unpacked == lines, body.held, peak < 3 * len(lines)) == (True, len(lines), True)


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        (b'{"a":[' * 50 + b"]}" * 50, False),
        (b'{"a":[' * 50 + b"{}" + b"]}" * 50, True),
        (b'{"a":"' + b"[{" * 500 + b'"}', False),
        (b'{"a":"\\"' + b"[" * 500 + b'\\\\"}', False),
        (b"[" + b"[]," * 500 + b"{}]", False),
        (b"[" * 500, True),
    ],
)
def test_depth_of_a_line_is_that_of_its_brackets_outside_texts(line, is_refused):
    with pytest.raises(OptionError, match="nested") if is_refused else contextlib.nullcontext():
        check_lines(line + b"\n")


def test_letters_of_several_bytes_are_checked_across_pieces():
    for first in range(3):
        lines = b"x" * first + "\N{ROCKET}".encode() * 100_000
        check_lines(lines + b"\n")
        with pytest.raises(OptionError, match=f"byte {len(lines):,}\\."):
            check_lines(lines + b"\xf0\n")


def half_a_request(server, announced=100):
    address = urllib.parse.urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    head = f"PUT {home('taken')}/{FILE}?origin={ORIGIN}&offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Authorization: Bearer {WRITE}\r\nContent-Length: {announced}\r\n\r\n"
    connection.sendall(head.encode() + b'{"kind":"metr')
    return connection


@pytest.mark.usefixtures("unchanged")
def test_sender_that_stops_in_the_middle_gets_a_timeout_and_nothing_is_stored(hostile):
    with half_a_request(hostile) as connection:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, "timed out" in json.loads(answer.read())["error"]) == (408, True)


@pytest.mark.usefixtures("unchanged")
def test_sender_that_hangs_up_in_the_middle_leaves_nothing(hostile):
    for _ in range(5):
        half_a_request(hostile).close()
    assert ask(hostile, "GET", "/api/openapi.json", token=READ).status == 200


def test_connection_that_asks_for_nothing_is_let_go(hostile):
    address = urllib.parse.urlsplit(hostile.url)
    for begun in (b"", b"GET /api/runs HTTP/1.1\r\nHost: 127"):
        with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
            connection.sendall(begun)
            assert connection.recv(1000) == b""


@pytest.mark.parametrize("begun", [b"", b"GET /api/runs HTTP/1.1\r\nHost: 127"])
def test_connection_that_asks_for_nothing_more_is_let_go(hostile, begun):
    assert let_go_after_an_answer(hostile, begun) == 401


def let_go_after_an_answer(server, begun=b"GET"):
    """Ask for something once, and begin to ask again; the status of the answer, once the connection was closed."""
    address = urllib.parse.urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=12) as connection:
        connection.sendall(b"GET /api/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        answer.read()
        connection.sendall(begun)
        assert connection.recv(1000) == b""
        return answer.status


def test_connection_that_waits_for_an_answer_is_kept(root, serve, slow_write):
    waits, may_continue = slow_write
    server = serve(root, tokens=Tokens(WRITE), bodies=BodyLimits(chunk_seconds=0.5))
    claim(server)
    with ThreadPoolExecutor(1) as sender:
        answer = sender.submit(put, server, rows_of(1))
        assert waits.wait(30)
        let_go_after_an_answer(server)  # by now the other one has been looked at as often
        may_continue.set()
        assert answer.result().status == 200


def test_bodies_count_until_they_are_written(root, serve, slow_write):
    waits, may_continue = slow_write
    bodies, lines = BodyLimits(total_bytes=1000), rows_of(8)
    assert 500 < len(lines) < 1000
    server = serve(root, tokens=Tokens(WRITE), bodies=bodies)
    assert [claim(server, run).status for run in ("r0", "r1")] == [200, 200]
    with ThreadPoolExecutor(1) as sender:
        answer = sender.submit(put, server, lines)
        assert waits.wait(30)
        refused = put(server, lines, run="r1").status
        may_continue.set()
        assert (refused, answer.result().status) == (503, 200)
    assert put(server, lines, run="r1").status == 200


def test_bodies_count_as_large_as_they_are_unpacked(root, serve):
    server = serve(root, tokens=Tokens(WRITE), bodies=BodyLimits(total_bytes=100_000))
    claim(server)
    packed = {"Content-Encoding": "gzip"}
    answer = put(server, gzip.compress(b"\n" * 100_000), headers=packed)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    for _ in range(2):  # what was held is given back
        assert put(server, gzip.compress(b"\n" * 90_000), headers=packed).status == 200


def test_too_much_at_a_time_is_put_off(root, serve):
    server = serve(root, tokens=Tokens(WRITE), bodies=BodyLimits(total_bytes=1000))
    claim(server)
    answer = put(server, b"x" * 2000 + b"\n")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert put(server, rows_of(1)).status == 200


@pytest.mark.parametrize("where", ["project", "run", "journal", "file", "run.json", "received.json", "git.diff"])
def test_links_are_refused_at_every_component(root, serve, tmp_path, where):
    server = serve(root, tokens=Tokens(WRITE))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    if where not in ("project", "run"):
        claim(server)
    link_to(outside, root / "p", where)
    before = tree(outside)
    answers = [claim(server), put(server, rows_of(1)), put(server, b"x", file="git.diff")]
    assert 409 in {answer.status for answer in answers}
    assert {answer.status for answer in answers} <= {200, 409}
    assert tree(outside) == before


def link_to(outside, project, where):
    """Put a link in the place of a component of a run's path."""
    places = {"project": project, "run": project / "r0", "journal": project / "r0" / "journal"}
    place = places.get(where, project / "r0" / (f"journal/{FILE}" if where == "file" else where))
    if where == "run":
        project.mkdir()
    if where == "journal":
        place.rmdir()
    place.unlink(missing_ok=True)
    place.symlink_to(outside if where in places else outside / "secret", target_is_directory=where in places)


def test_pipe_in_the_place_of_a_journal_is_refused_and_waits_for_nobody(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    claim(server)
    os.mkfifo(root / "p" / "r0" / "journal" / FILE)
    assert (put(server, rows_of(1)).status, claim(server).status) == (409, 409)


def test_tokens_and_index_are_never_served(hostile, home_root):
    (home_root / ".hookline-tokens.json").write_text(json.dumps({"write": WRITE}))
    for path in (".hookline-tokens.json", "static/../.hookline-tokens.json", "api/run?id=.hookline-tokens.json"):
        answer = ask(hostile, "GET", f"/{path}", token=READ)
        assert (answer.status, WRITE in answer.body.decode()) == (404, False)
    (home_root / ".hookline-tokens.json").unlink()


def test_only_own_names_and_allowed_ones_are_answered(root, serve):
    server = serve(root, tokens=TOKENS, allow_hosts=["runs.example"])
    hosts = ("runs.example", "RUNS.example:443", "localhost", "elsewhere.example", "", "runs.example.evil")
    answers = {host: ask(server, "GET", "/api/runs", token=READ, headers={"Host": host}).status for host in hosts}
    assert answers == {
        "runs.example": 200,
        "RUNS.example:443": 200,
        "localhost": 200,
        "elsewhere.example": 421,
        "": 421,
        "runs.example.evil": 421,
    }


def test_server_on_every_address_is_called_by_the_one_that_was_reached(root, serve):
    port = urllib.parse.urlsplit(serve(root, host="0.0.0.0", tokens=TOKENS).url).port
    for host, status in (("127.0.0.2", 200), ("127.0.0.3", 421), (socket.gethostname(), 200), ("0.0.0.0.evil", 421)):
        answer = ask(f"http://127.0.0.2:{port}/", "GET", "/api/runs", token=READ, headers={"Host": host})
        assert (host, answer.status) == (host, status)


def test_server_on_every_address_of_both_kinds_is_called_by_the_one_that_was_reached(root, serve):
    port = urllib.parse.urlsplit(serve(root, host="::", tokens=TOKENS).url).port
    for host, status in (("127.0.0.5", 200), ("[::ffff:127.0.0.5]", 200), ("127.0.0.6", 421), ("[::2]", 421)):
        answer = ask(f"http://127.0.0.5:{port}/", "GET", "/api/runs", token=READ, headers={"Host": host})
        assert (host, answer.status) == (host, status)


def test_what_a_proxy_passes_on_needs_a_read_token(root, serve):
    server = serve(root, tokens=Tokens(WRITE))
    answer = ask(server, "GET", "/api/runs", token=None, headers={"X-Forwarded-For": "203.0.113.9"})
    assert (answer.status, "--read-token" in answer.json["error"]) == (403, True)


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"allow_hosts": ["runs.example"]}])
def test_server_that_others_reach_needs_a_read_token(root, options):
    with pytest.raises(ConfigError, match="give a read token"):
        WebServer(root, tokens=Tokens(WRITE), **options)


def test_ui_has_no_address_to_write_to_but_for_actions(root, serve):
    finished_run(root)
    server = serve(root)
    before = tree(root)
    for method, path in (("PUT", home("new")), ("POST", "/api/status"), ("POST", "/api/login")):
        assert ask(server, method, path, body="{}", origin=ORIGIN).status == 405
    document = ask(server, "GET", "/api/openapi.json").json
    writes = {path for path, methods in document["paths"].items() if set(methods) != {"get"}}
    assert writes == {action.path for action in ACTIONS}
    for path in writes:
        headers = {"Content-Type": "application/json"}  # as another site can send it
        assert ask(server, "POST", path, body="{}", headers=headers).status == 403
    assert tree(root) == before

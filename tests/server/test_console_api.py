"""Console lines and failures through the API, on the page, and sent to another server."""

import json
import urllib.parse
import urllib.request

import pytest
from page_runs import HOSTILE, finished_run, live_run
from printing import run_directory, run_script
from sending import TOKENS, WRITE, claim, put

import hookline as hl
from hookline._record.console import HEAD_FILES, TAIL_FILES, ConsoleWriter
from hookline._record.console_reader import read_console
from hookline._record.records import ConsoleLine, encode


def get(server, path, **parameters):
    with urllib.request.urlopen(f"{server.url}api/{path}?{urllib.parse.urlencode(parameters)}") as answer:
        return json.load(answer)


@pytest.fixture
def printed(root):
    directory = finished_run(root)
    for rank in (0, 1):
        writer = ConsoleWriter(directory, rank=rank, step=lambda: 7)
        for number in range(5):
            writer.line(f"line {number} of {rank}", "stderr" if number == 4 else "stdout", 10.0 * number + rank)
        writer.log("INFO", "train", "logged", 60.0)
        writer.close()
    return directory


ASKED = {
    "all": ({}, [f"line {number} of {rank}" for number in range(5) for rank in (0, 1)], False),
    "the last": ({"limit": 2}, ["line 4 of 0", "line 4 of 1"], True),
    "the page before": ({"limit": 2, "offset": 2}, ["line 3 of 0", "line 3 of 1"], True),
    "the first page": ({"limit": 4, "offset": 8}, ["line 0 of 0", "line 0 of 1"], False),
    "search": ({"search": "LINE 2"}, ["line 2 of 0", "line 2 of 1"], False),
    "rank": ({"rank": 1, "limit": 1}, ["line 4 of 1"], True),
    "stderr": ({"stream": "stderr"}, ["line 4 of 0", "line 4 of 1"], False),
    "log": ({"stream": "log"}, ["logged", "logged"], False),
}


@pytest.mark.parametrize("name", ASKED)
def test_api_answers_console_lines_page_by_page(printed, serve, name):
    parameters, lines, has_earlier = ASKED[name]
    answer = get(serve(), "console", id="p/r0", **parameters)
    assert ([row["text"] for row in answer["lines"]], answer["has_earlier"]) == (lines, has_earlier)
    assert answer["ranks"] == [0, 1]
    assert {row["step"] for row in answer["lines"]} == {7}


def test_api_answers_why_a_run_failed(tmp_path, serve):
    run_script(tmp_path, 'with begin():\n    print("last words")\n    raise ValueError("out of luck")')
    [failure] = get(serve(), "failures", id=f"default/{run_directory(tmp_path).name}")["failures"]
    assert (failure["type"], failure["message"], failure["console"]) == ("ValueError", "out of luck", ["last words"])
    place = failure["place"]
    assert place["source"][place["line"] - place["first"]].strip() == 'raise ValueError("out of luck")'


def test_api_reads_no_links_in_a_shared_directory(root, tmp_path, serve):
    directory, secret = finished_run(root), tmp_path / "secret"
    secret.write_text(json.dumps({"channel": 0, "time": 1.0, "text": "a secret\n"}) + "\n")
    (directory / "console").mkdir()
    for name in ("console-1.rest", "console-1.faults", "console-0000-1-abc-000000.jsonl"):
        (directory / "console" / name).symlink_to(secret)
    assert get(serve(), "console", id="p/r0")["lines"] == []


def test_console_is_sent_to_a_server(tmp_path, serve, monkeypatch):
    (tmp_path / "received").mkdir()
    server = serve(tmp_path / "received", tokens=TOKENS)
    monkeypatch.setenv("HOOKLINE_TOKEN", WRITE)
    done = run_script(
        tmp_path,
        f"""
        sink = hl.sinks.HooklineSink({server.url.rstrip("/")!r})
        with begin(sinks=[sink]) as run:
            for step in run.steps(range(3)):
                run.log(loss=1.0)
                print("step", step)
            raise ValueError("broken")
        """,
    )
    [received] = (tmp_path / "received").glob("default/*")
    assert [row.text for row in read_console(received)] == ["step 0", "step 1", "step 2"], done.stderr
    assert list(read_console(received)) == list(read_console(run_directory(tmp_path)))


def test_received_console_lines_are_bounded(root, serve):
    server = serve(root, tokens=TOKENS)
    claim(server)
    line = encode(ConsoleLine(time=1.0, text="x")) + b"\n"
    for number in range(HEAD_FILES + TAIL_FILES + 3):
        assert put(server, line, file=f"console-0000-1-abc-{number:06d}.jsonl").status == 200
    kept = sorted(int(path.stem.rpartition("-")[2]) for path in root.glob("p/r0/console/*.jsonl"))
    assert kept == [*range(HEAD_FILES), *range(HEAD_FILES + 3, HEAD_FILES + TAIL_FILES + 3)]
    assert len(claim(server).json["files"]) == len(kept)


def test_page_shows_lines_with_colours_search_and_ranks(root, show):
    directory = finished_run(root)
    for rank in (0, 1):
        writer = ConsoleWriter(directory, rank=rank)
        writer.line(f"\x1b[31mred\x1b[0m {HOSTILE}", "stdout", 1.0)
        writer.line(f"plain of {rank}", "stderr", 2.0)
        writer.close()
    page = show("console?run=p/r0")
    lines = page.locator(".console .line > span")
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect(lines).to_have_text([f"red {HOSTILE}"] * 2 + ["plain of 0", "plain of 1"])
    sync_api.expect(page.locator(".ansi-red")).to_have_text(["red", "red"])
    assert page.evaluate("window.hacked") is None
    page.get_by_label("rank").select_option("1")
    sync_api.expect(lines).to_have_text([f"red {HOSTILE}", "plain of 1"])
    page.get_by_label("Find in lines").fill("PLAIN")
    sync_api.expect(lines).to_have_text(["plain of 1"])


def test_page_of_a_run_without_lines_says_whether_it_printed_any(root, show):
    writer = ConsoleWriter(finished_run(root, "printed"))
    writer.line("one", "stdout", 1.0)
    writer.close()
    finished_run(root, "silent")
    sync_api = pytest.importorskip("playwright.sync_api")
    page = show("console?run=p/silent")
    sync_api.expect(page.locator(".console")).to_have_text("This run printed nothing.")
    page = show("console?run=p/printed")
    sync_api.expect(page.locator(".console .line")).to_have_count(1)
    page.get_by_label("Find in lines").fill("two")
    sync_api.expect(page.locator(".console")).to_have_text("No line matches.")


def test_page_follows_a_live_run(root, show):
    writer = ConsoleWriter(live_run(root))
    writer.line("one", "stdout", 1.0)
    page = show("console?run=p/live")
    sync_api = pytest.importorskip("playwright.sync_api")
    lines = page.locator(".console .line > span")
    sync_api.expect(lines).to_have_text(["one"])
    writer.line("two", "stdout", 2.0)
    sync_api.expect(lines).to_have_text(["one", "two"])
    writer.close()


def test_page_shows_the_traceback_of_a_failed_run(root, show):
    with pytest.raises(ValueError), hl.run("broken", root=root, summary=False) as run:  # noqa: PT011
        raise ValueError(HOSTILE)
    page = show(f"console?run=default/{run.dir.name}")
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect(page.locator(".failure pre")).to_contain_text("Traceback (most recent call last):")
    sync_api.expect(page.locator(".failure pre")).to_contain_text(f"ValueError: {HOSTILE}")
    assert page.evaluate("window.hacked") is None

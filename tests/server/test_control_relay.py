"""Control of runs of other machines: commands go to them with the answers to their sender's requests."""

import json
import os
import threading
import time

import pytest
from sending import ORIGIN, OTHER, TOKENS, WRITE, ask, beat, claim, home, put, rows_of
from waiting import wait_until

import hookline as hl
from hookline._engine.errors import RefusedError
from hookline._record.commands import Mailbox, new_command
from hookline.server.audit import AuditLog
from hookline.server.received_control import ReceivedControl
from hookline.server.received_runs import ReceivedRuns
from hookline.server.root_tokens import Tokens
from hookline.server.tokens import TokenStore, default_tokens_file

OWN = {"Content-Type": "application/json", "X-Hookline-Action": "1"}


@pytest.fixture
def cluster(serve, tmp_path):
    """A server, and a training on "another machine", a directory that the server does not see."""
    made = []

    def start(*, server=None, is_slow=False, **options):
        (tmp_path / "received").mkdir(exist_ok=True)
        server = server or serve(tmp_path / "received", tokens=TOKENS)
        sink = {"hookline": {"url": server.url, "token": WRITE, **options}}
        ready, free, found, used = threading.Event(), threading.Event(), [], []

        def train():
            settings = {"summary": False, "console": False, "code": False}
            with hl.run("live", project="p", root=tmp_path / "cluster", sinks=[sink], **settings) as run:
                rate = run.tunable("rate", 0.5, min=0.0, max=1.0)
                found.append(run)
                for _ in run.steps(10**9):
                    ready.set()
                    used.append(rate.value)
                    if not is_slow:
                        run.log(rate=rate.value)
                    free.wait(0.005)

        thread = threading.Thread(target=train)
        thread.start()
        assert ready.wait(60)
        made.append((found[0], thread))
        wait_until(lambda: (tmp_path / "received" / "p" / found[0].dir.name / "received.json").is_file())
        return server, found[0], used

    yield start
    for run, thread in made:
        run.request_stop("the test is over")
        run.control.is_paused = False
        thread.join(60)


@pytest.fixture
def control(tmp_path):
    """A person's token for the server."""

    def create(**options):
        return (
            TokenStore(default_tokens_file(tmp_path / "received")).create("laptop", roles=["control"], **options).token
        )

    return create


def send(server, run, command, *, token, **arguments):
    body = json.dumps({"run": f"p/{run.dir.name}", "name": command, "arguments": arguments})
    return ask(server, "POST", "/api/control/send", body=body, token=token, headers=OWN)


def listed(server, run, token=TOKENS.read):
    return ask(server, "GET", f"/api/run_commands?id=p/{run.dir.name}", token=token).json


def listens(server, run):
    return lambda: listed(server, run).get("listens")


@pytest.mark.parametrize("is_slow", [False, True], ids=["it records", "it records nothing"])
def test_command_reaches_a_run_of_another_machine_and_its_answer_comes_back(cluster, control, is_slow, tmp_path):
    (tmp_path / "received").mkdir()
    token = control()
    server, run, used = cluster(is_slow=is_slow)
    wait_until(listens(server, run))
    sent = send(server, run, "set", token=token, name="rate", value=0.25)
    assert (sent.status, sent.json["state"]) == (200, "sent")
    wait_until(lambda: listed(server, run)["commands"][0]["state"] == "applied")
    wait_until(lambda: used[-1] == 0.25)
    (there,) = listed(server, run)["commands"]
    (here,) = hl.control(run).history()
    assert (there["id"], there["author"], there["step"]) == (here.id, "laptop", here.step)
    assert here.command.via == server.url.rstrip("/")
    wait_until(lambda: listed(server, run)["offer"]["tunables"]["rate"]["value"] == 0.25)
    assert ("control.set", run.dir.name) in [(e.action, e.target) for e in AuditLog(tmp_path / "received").read(10)]

    assert send(server, run, "stop", token=token, reason="seen enough").status == 200
    wait_until(lambda: not listed(server, run)["listens"])
    answer = listed(server, run)
    assert [(each["name"], each["state"]) for each in answer["commands"]] == [("stop", "applied"), ("set", "applied")]
    assert answer["reason"].endswith("does not listen to commands: it has ended.")
    assert run.stop_reason == "seen enough (laptop)"


def test_command_that_is_wrong_or_not_allowed_does_not_leave_the_server(cluster, control, tmp_path):
    (tmp_path / "received").mkdir()
    token, foreign = control(), control(projects=["other"])
    server, run, _ = cluster()
    wait_until(listens(server, run))
    wrong = send(server, run, "set", token=token, name="rate", value=7)
    assert (400 <= wrong.status < 500, "at most 1" in wrong.json["error"]) == (True, True)
    assert send(server, run, "stop", token=WRITE).status == 403
    assert 400 <= send(server, run, "stop", token=foreign).status < 500
    assert Mailbox(tmp_path / "received" / "p" / run.dir.name).waiting() == []
    assert hl.control(run).history() == []


def test_sink_without_control_passes_nothing_on(cluster, tmp_path):
    server, run, _ = cluster(control=False)
    name = tmp_path / "received" / "p" / run.dir.name
    wait_until(lambda: (name / "journal").is_dir() and any((name / "journal").iterdir()))
    wait_until(lambda: listens(server, run)() is False)  # it is listed by then
    with pytest.raises(RefusedError, match="does not listen"):
        hl.control(name).stop()


def test_server_on_an_object_store_passes_nothing_on_and_gets_the_records(cluster, serve, tmp_path):
    pytest.importorskip("obstore", reason="object stores need the extra 'storage'")
    (tmp_path / "received").mkdir()
    server = serve(tmp_path / "received", tokens=TOKENS, storage="memory://")
    _, run, _ = cluster(server=server)
    wait_until(lambda: "last_seen" in listed_run(server, run))
    assert listed(server, run)["listens"] is False
    refused = report(server, path=home(run.dir.name), origin=origin_of(run))
    assert (refused.status, "object store" in refused.json["error"]) == (400, True)


def listed_run(server, run):
    runs = ask(server, "GET", "/api/runs", token=TOKENS.read).json["runs"]
    return next((each for each in runs if each["id"] == f"p/{run.dir.name}"), {})


def origin_of(run):
    return json.loads((run.dir / "sinks" / "hookline.json").read_text())["state"]["origin"]


def test_person_steers_a_run_of_another_machine_in_the_page_of_the_server(cluster, control, serve, page, tmp_path):
    from playwright.sync_api import expect

    (tmp_path / "received").mkdir()
    token = control()
    server = serve(tmp_path / "received", tokens=Tokens(write=WRITE))
    _, run, used = cluster(server=server)
    wait_until(lambda: listed(server, run, token=None).get("listens"))  # the page selects runs that are listed
    page.goto(f"{server.url}#/control?run=p%2F{run.dir.name}")
    expect(page.locator(".control-status")).to_contain_text("The run listens")
    field = page.get_by_role("spinbutton", name="rate", exact=True)
    field.fill("0.125")
    field.press("Enter")
    page.get_by_label("Token with the role control").fill(token)
    page.get_by_role("button", name="Continue", exact=True).click()
    command = page.locator("table.commands tbody tr").first
    expect(command).to_contain_text("rate: 0.5 -> 0.125.")
    expect(command).to_contain_text("laptop")
    expect(page.locator("[data-value=rate]")).to_have_text("now 0.125")
    wait_until(lambda: used[-1] == 0.125)


def report(server, *, offset=0, offer=None, lines=b"", origin=ORIGIN, path=None):
    body = json.dumps({"offset": offset, "offer": offer}).encode() + b"\n" + lines
    return ask(server, "POST", f"{path or home()}/control", body=body, origin=origin)


@pytest.fixture
def received(serve, tmp_path):
    """A server with a run that a test sends by hand; and the copy of its mailbox."""
    (tmp_path / "received").mkdir()
    server = serve(tmp_path / "received", tokens=TOKENS)
    assert claim(server).status == 200
    return server, Mailbox(tmp_path / "received" / "p" / "r0")


def test_command_is_passed_on_until_the_log_has_it(received):
    server, mailbox = received
    offer = {"listens": True, "tunables": {}}
    assert report(server, offer=offer).json["commands"] == []
    hl.control(mailbox.run_dir).send("stop", id="12345678")
    for _ in range(2):  # the first answer may be lost
        (passed,) = report(server).json["commands"]
        assert (passed["id"], passed["name"], 3590 < passed["seconds"] <= 3600) == ("12345678", "stop", True)
    line = json.dumps({"id": "12345678", "state": "received"}).encode() + b"\n"
    assert report(server, lines=line).facts[1]["offset"] == len(line)
    assert report(server, offset=len(line)).json["commands"] == []
    assert mailbox.waiting_names() == []
    # A line that comes again, or from elsewhere than the end, is not added.
    assert report(server, offset=3, lines=line).json["offset"] == len(line)
    assert [each.state for each in mailbox.outcomes()] == ["received"]


def test_answers_to_batches_and_heartbeats_say_that_commands_wait(received):
    server, mailbox = received
    path = f"{home()}/main-0000-1-abc-000000.jsonl"
    report(server, offer={"listens": True})
    answers = [ask(server, "PUT", path, body=b"", origin=ORIGIN, offset=0).json]
    mailbox.post(new_command("stop"))
    answers.append(ask(server, "PUT", path, body=b"", origin=ORIGIN, offset=0).json)
    answers.append(beat(server).json)
    report(server)
    answers.append(ask(server, "PUT", path, body=b"", origin=ORIGIN, offset=0).json)
    waits = {"offset": 0, "control": True}, {"every_seconds": 5.0, "control": True}
    assert answers == [{"offset": 0}, *waits, {"offset": 0}]


def test_many_senders_ask_less_often_until_they_are_gone(tmp_path):
    now = [1000.0]
    control = ReceivedControl(ReceivedRuns(tmp_path), clock=lambda: now[0])
    for count in (1, 75, 200, 300):
        for number in range(count):
            seconds = control._seconds(f"p/{number}", now[0])
        assert seconds == {1: 1.0, 75: 1.5, 200: 4.0, 300: 60.0}[count]
    now[0] += 100
    assert control._seconds("p/0", now[0]) == 1.0


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"offset": -1}', b'{"offset": 0, "more": 1}', b'{"offset": 0}\nno end', b'{"offset": 0}\n\xff\n'],
)
def test_report_that_is_not_valid_is_refused(received, body):
    server, mailbox = received
    answer = ask(server, "POST", f"{home()}/control", body=body, origin=ORIGIN)
    assert (answer.status, bool(answer.json["error"]), mailbox.log.exists()) == (400, True, False)


def test_report_of_another_sender_is_refused(received):
    server, mailbox = received
    answer = report(server, offer={"listens": True}, origin=OTHER)
    assert (answer.status, answer.json["taken"], mailbox.directory.exists()) == (409, True, False)


def test_run_whose_sender_is_silent_takes_no_commands(received):
    server, mailbox = received
    assert put(server, rows_of(1)).status == 200  # listed, once it has rows
    report(server, offer={"listens": True})

    def answer():
        return ask(server, "GET", "/api/run_commands?id=p/r0", token=TOKENS.read).json

    wait_until(lambda: answer().get("listens"))
    past = time.time() - 100
    os.utime(mailbox.run_dir / "received.json", (past, past))
    found = answer()
    assert (found["listens"], "is silent" in found["reason"]) == (False, True)
    with pytest.raises(RefusedError, match="is silent: its machine has sent nothing for 10"):
        hl.control(mailbox.run_dir).stop()

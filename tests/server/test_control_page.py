"""Control of a live run through the server: what may be sent, by whom, and the panel of the page."""

import json
import os
import re
import threading
import time

import pytest
from sending import TOKENS, ask
from waiting import wait_until

import hookline as hl
from hookline.server.audit import AuditLog
from hookline.server.tokens import TokenStore, default_tokens_file

OWN = {"Content-Type": "application/json", "X-Hookline-Action": "1"}


def send(server, run, command, *, token=None, headers=None, **arguments):
    body = json.dumps({"run": run, "name": command, "arguments": arguments})
    return ask(server, "POST", "/api/control/send", body=body, token=token, headers=OWN | (headers or {}))


class Gate(hl.Callback):
    """Lets one step end each time it is opened; open for good after `release`."""

    def __init__(self):
        self.reached, self.free = threading.Event(), threading.Event()
        self.steps = threading.Semaphore(0)
        self.thread = threading.Thread()

    def on_step_end(self, loop, step_idx):
        self.reached.set()
        if not self.free.is_set():
            self.steps.acquire()

    def release(self):
        self.free.set()
        self.steps.release()


@pytest.fixture
def training(root):
    """A training on a separate thread, which runs until it is stopped."""
    gate, found, used = Gate(), [], []

    def train():
        with hl.run("live", project="p", root=root, callbacks=[gate], summary=False, console=False, code=False) as run:
            rate = run.tunable("rate", 0.5, min=0.0, max=1.0)
            found.append(run)
            for _ in run.steps(10**9):
                used.append(rate.value)
                run.log(rate=rate.value)
                threading.Event().wait(0.005)

    thread = gate.thread = threading.Thread(target=train)
    thread.start()
    assert gate.reached.wait(60)
    (run,) = found
    yield run, gate, used
    gate.release()
    if thread.is_alive():
        run.request_stop("the test is over")
        run.control.is_paused = False
    thread.join(60)


def test_command_is_sent_listed_and_applied_once(training, root, serve):
    run, gate, _ = training
    server, name = serve(root), f"p/{run.dir.name}"
    sent = send(server, name, "set", name="rate", value=0.25)
    assert (sent.status, sent.json["state"]) == (200, "sent")
    body = json.dumps({"run": name, "name": "set", "arguments": {"name": "rate", "value": 0.25}, "id": sent.json["id"]})
    assert ask(server, "POST", "/api/control/send", body=body, headers=OWN).json["id"] == sent.json["id"]
    listed = ask(server, "GET", f"/api/run_commands?id={name}").json
    assert [(each["name"], each["state"]) for each in listed["commands"]] == [("set", "sent")]
    assert (listed["listens"], listed["offer"]["tunables"]["rate"]["value"]) == (True, 0.5)
    assert send(server, name, "stop").status == 200
    gate.release()
    while run.control._mailbox is not None:  # until it has ended
        threading.Event().wait(0.01)
    states = {
        each["name"]: each["state"] for each in ask(server, "GET", f"/api/run_commands?id={name}").json["commands"]
    }
    assert states == {"set": "applied", "stop": "applied"}
    assert send(server, name, "stop").status in (400, 403, 422)


def test_run_that_does_not_end_its_step_says_so(training, root, serve):
    run, gate, _ = training
    server, mailbox = serve(root), hl.control(run).mailbox

    def answer():
        return ask(server, "GET", f"/api/run_commands?id=p/{run.dir.name}").json

    mailbox.wake()
    assert answer()["reason"] == ""
    past = time.time() - 7500
    os.utime(mailbox.flag_file, (past, past))
    found = answer()
    assert (found["listens"], "not come to the end of a step for 7,5" in found["reason"]) == (True, True)
    gate.release()
    wait_until(lambda: answer()["reason"] == "")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("set", {"name": "rate", "value": 7}, "rate=7: give at least 0 and at most 1."),
        ("set", {"name": "rate"}, "value is missing"),
        ("dance", {}, "There is no command 'dance'."),
        ("hooks.add", {"use": "os:system"}, "names code"),
    ],
)
def test_wrong_command_is_refused_by_the_server(training, root, serve, name, arguments, message):
    run, _, _ = training
    body = json.dumps({"run": f"p/{run.dir.name}", "name": name, "arguments": arguments})
    reply = ask(serve(root), "POST", "/api/control/send", body=body, headers=OWN)
    assert (400 <= reply.status < 500, message in reply.json["error"]) == (True, True)
    assert hl.control(run).history() == []


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_page_of_another_site_cannot_send_commands(training, root, serve, headers):
    run, _, _ = training
    assert send(serve(root), f"p/{run.dir.name}", "stop", headers=headers).status == 403
    assert hl.control(run).mailbox.waiting() == []


def test_person_steers_a_live_training_in_the_page(training, root, show):
    from playwright.sync_api import expect

    run, gate, used = training
    gate.release()
    page = show(f"control?run=p%2F{run.dir.name}")
    status = page.locator(".control-status")
    expect(status).to_contain_text("The run listens")
    field = page.get_by_role("spinbutton", name="rate", exact=True)
    field.fill("0.125")
    field.press("Enter")
    commands = page.locator("table.commands tbody tr")
    expect(commands.first).to_contain_text("rate: 0.5 -> 0.125.")
    expect(commands.first).to_contain_text("applied")
    expect(page.locator("[data-value=rate]")).to_have_text("now 0.125")
    page.get_by_role("switch", name="gate").click()
    expect(page.get_by_role("switch", name="gate")).to_have_text("off")
    page.get_by_role("button", name="Pause").click()
    expect(status).to_contain_text("It is paused.")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Stop …").click()
    page.get_by_role("textbox", name="Reason").fill("seen enough")
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(status).to_contain_text(re.compile("over|ended"))
    expect(commands.first).to_contain_text("The training stops at step")
    assert (used[0], used[-1], run.stop_reason.startswith("seen enough")) == (0.5, 0.125, True)


def test_person_adds_schedules_and_removes_a_callback_in_the_page(training, root, show):
    from playwright.sync_api import expect

    run, gate, _ = training
    gate.release()
    page = show(f"control?run=p%2F{run.dir.name}")
    commands = page.locator("table.commands tbody tr")
    page.get_by_role("button", name="Add …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Registered name").fill("alert")
    expect(dialog).to_contain_text("Fires when a metric is above or below a limit")
    dialog.get_by_label("metric").fill("rate")
    dialog.get_by_label("above").fill("0.9")
    dialog.get_by_label("Every N steps").fill("5")
    dialog.get_by_role("button", name="Add").click()
    expect(commands.first).to_contain_text("Added alert.")
    subscriber = page.locator("table.subscribers tr", has=page.get_by_role("switch", name="alert"))
    expect(subscriber).to_contain_text("every 5 steps")
    page.get_by_role("spinbutton", name="Run alert every N steps").fill("2")
    page.get_by_role("spinbutton", name="Run alert only after this many steps").fill("3000")
    page.get_by_role("button", name="Schedule alert").click()
    expect(subscriber).to_contain_text("every 2 steps after 3,000")
    page.get_by_role("button", name="Remove alert").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(commands.first).to_contain_text("Removed alert.")
    expect(subscriber).to_have_count(0)
    assert [each.name for each in run.callbacks.costs()] == ["gate"]


def test_run_that_is_over_shows_its_commands_and_nothing_to_change(root, show):
    from playwright.sync_api import expect

    with hl.run("over", project="p", root=root, summary=False, console=False, code=False) as run:
        for step in run.steps(3):
            if step == 0:
                hl.control(run).checkpoint()
    page = show(f"control?run=p%2F{run.dir.name}")
    expect(page.locator(".control-status")).to_contain_text("is over")
    expect(page.locator("table.commands")).to_contain_text("checkpoint")
    expect(page.get_by_role("heading", name="Parameters")).to_be_hidden()
    expect(page.get_by_role("button", name="Add …")).to_be_hidden()


def test_person_skips_an_arm_and_adds_repeats_in_the_view_of_an_experiment(root, show):
    from playwright.sync_api import expect

    go = threading.Event()

    def train(ctx, run):
        for _ in run.steps(2):
            run.log(loss=1.0)
        go.wait()

    arms = [hl.Arm("one", {}, train=train), hl.Arm("two", {}, train=train)]
    experiment = hl.Experiment("e", arms, output_dir=root / "e")
    thread = threading.Thread(target=experiment.run, kwargs={"report": False})
    thread.start()
    try:
        wait_until(lambda: (root / "e" / "one-r0" / "run.json").exists())
        page = show("experiment?experiment=e")
        states = page.locator("table.commands tr[data-state]")
        page.get_by_label("Arm", exact=True).select_option("two")
        page.get_by_role("button", name="Skip …").click()
        page.get_by_role("textbox", name="Reason").fill("no use")
        page.get_by_role("dialog").get_by_role("button", name="Skip").click()
        expect(states).to_have_count(1)
        page.get_by_label("Repeats of each arm").fill("2")
        page.get_by_role("button", name="Set").click()
        expect(states).to_have_count(2)
        expect(page.locator("table.commands tr[data-state=received]")).to_have_count(2)
    finally:
        go.set()
        thread.join(60)
    page.reload()
    expect(page.locator("table.commands")).to_contain_text("Skipped 1 waiting run of two.")
    expect(page.get_by_role("button", name="Skip …")).to_have_count(0)
    assert {path.name for path in (root / "e").glob("*-r*")} == {"one-r0", "one-r1"}


@pytest.mark.parametrize("name", ["", "..", "nothing", ".hidden", "link"])
def test_command_to_no_experiment_is_refused(root, serve, name):
    (root / ".hidden").mkdir()
    for directory in (root, root / ".hidden"):
        (directory / "experiment.lock").touch()
    (root / "link").symlink_to(root / ".hidden")
    server = serve(root)
    assert send(server, name, "skip", arm="one").status == 404
    if name:
        found = ask(server, "GET", "/api/run_commands", token=None, id=name).json
        assert (found["listens"], found["commands"], "There is no experiment" in found["reason"]) == (False, [], True)


def test_token_for_some_projects_does_not_control_the_experiment_of_others(root, serve):
    (root / "e").mkdir()
    (root / "e" / "experiment.lock").touch()
    store = TokenStore(default_tokens_file(root))
    token = store.create("lab", roles=["read", "control"], projects=["p"]).token
    server = serve(root, tokens=TOKENS)
    assert send(server, "e", "skip", token=token, arm="one").status == 403
    assert ask(server, "GET", "/api/run_commands", token=token, id="e").status == 403


def test_typed_values_stay_while_the_page_polls(training, root, show):
    from playwright.sync_api import expect

    run, gate, _ = training
    run.tunable("sampler", "greedy", choices=["greedy", "nucleus"])
    gate.release()
    page = show(f"control?run=p%2F{run.dir.name}")
    page.get_by_label("sampler", exact=True).select_option("nucleus")
    every = page.get_by_role("spinbutton", name="Run gate every N steps")
    every.fill("7")
    page.get_by_role("button", name="Checkpoint").focus()  # elsewhere: the next answers draw all fields again
    for _ in range(2):
        with page.expect_response("**/api/run_commands**"):
            pass
    expect(every).to_have_value("7")
    expect(page.get_by_label("sampler", exact=True).locator("option:checked")).to_have_text("nucleus")
    every.focus()
    with page.expect_response("**/api/run_commands**"):
        pass
    expect(every).to_be_focused()
    every.press("Enter")
    expect(page.locator("table.commands tbody tr").first).to_contain_text("every=7")
    expect(every).to_have_value("")
    page.get_by_role("link", name="live").click()
    page.get_by_role("link", name="Control").click()
    expect(page.locator(".control-status")).to_contain_text("The run listens")


def test_commands_need_a_control_token_and_are_audited(training, root, serve):
    from hookline.server.root_tokens import Tokens

    run, _, _ = training
    name = f"p/{run.dir.name}"
    store = TokenStore(default_tokens_file(root))
    made = {role: store.create(role, roles=[role], projects=["p"]) for role in ("write", "control")}
    server = serve(root, tokens=Tokens("w" * 40, "r" * 40))
    texts = {role: each.token for role, each in made.items()}
    assert send(server, name, "checkpoint").status == 401
    assert send(server, name, "checkpoint", token=texts["write"]).status == 403
    reply = send(server, name, "checkpoint", token=texts["control"])
    assert (reply.status, reply.json["author"]) == (200, "control")
    assert ("control.checkpoint", run.dir.name) in [(event.action, event.target) for event in AuditLog(root).read(10)]

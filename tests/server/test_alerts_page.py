"""Alerts in the page: they are listed, acknowledged and muted, by those who may."""

import json

import pytest
from sending import TOKENS, WRITE, ask

from hookline._record import run_directory
from hookline._record.recorder import Recorder
from hookline.server.audit import AuditLog
from hookline.server.tokens import TokenStore, default_tokens_file
from hookline.store.alert_book import AlertBook, RaisedAlert

OWN = {"Content-Type": "application/json", "X-Hookline-Action": "1"}
FIRST, SECOND = "a" * 16, "b" * 16


@pytest.fixture
def book(root):
    for project, name in (("p", "one"), ("q", "two")):
        directory = run_directory.create(root, project, {"name": name, "project": project}, run_id=name)
        recorder = Recorder(directory)
        recorder.log({"loss": 9.0}, step=1)
        recorder.close()
        run_directory.release(directory)
    book = AlertBook(root)
    raised = [
        RaisedAlert(FIRST, "p/one", "high", "loss is 9", 1000.0, "loss", 9.0, 3),
        RaisedAlert(SECOND, "q/two", "silence", "nothing was recorded for 99 s", 2000.0),
    ]
    book.add(raised, ["slack"])
    return book


def act(server, action, body, *, token=WRITE):
    return ask(server, "POST", f"/api/actions/{action}", body=json.dumps(body), token=token, headers=OWN)


def test_person_acknowledges_and_mutes_alerts_in_the_page(book, show):
    from playwright.sync_api import expect

    page = show("alerts")
    rows = page.locator("tr[data-alert]")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("nothing was recorded for 99 s")
    page.get_by_role("button", name="Mute high of p/one").click()
    expect(page.locator("ul.mutes li")).to_contain_text("rule high in run p/one until")
    expect(page.locator(f"tr[data-alert={FIRST}]")).to_have_attribute("data-state", "muted")
    page.get_by_role("button", name="Acknowledge high of p/one").press("Enter")
    expect(rows).to_have_count(1)
    page.get_by_label("show acknowledged alerts").check()
    expect(page.locator(f"tr[data-alert={FIRST}]")).to_contain_text("acknowledged by")
    page.get_by_role("button", name="Unmute rule high in run p/one").click()
    expect(page.locator(".empty", has_text="Nothing is muted")).to_be_visible()
    found = book.read()
    assert (found.alerts[FIRST].state, found.alerts[SECOND].state, found.mutes) == ("acknowledged", "pending", [])


def test_value_that_is_not_finite_is_shown(book, show):
    from playwright.sync_api import expect

    book.add([RaisedAlert("c" * 16, "p/one", "finite", "loss is nan", 3000.0, "loss", float("nan"), 4)], [])
    expect(show("alerts").locator(f"tr[data-alert={'c' * 16}]")).to_contain_text("NaN")


def test_token_for_some_projects_sees_and_changes_their_alerts_only(book, root, serve):
    store = TokenStore(default_tokens_file(root))
    both, reader = (
        store.create(name, roles=roles, projects=["p"]).token
        for name, roles in (("both", ["read", "write"]), ("reader", ["read"]))
    )
    server = serve(root, tokens=TOKENS)
    book.mute(rule="silence")
    seen = ask(server, "GET", "/api/alerts", token=both).json
    assert ([each["id"] for each in seen["alerts"]], seen["total"], seen["mutes"]) == ([FIRST], 1, [])
    assert act(server, "acknowledge_alerts", {"alerts": [FIRST]}, token=reader).status == 403
    assert act(server, "acknowledge_alerts", {"alerts": [FIRST, SECOND]}, token=both).status == 403
    assert [each.state for each in book.read().alerts.values()] == ["pending", "muted"]
    assert act(server, "mute_alerts", {"run": "q/two"}, token=both).status == 403
    assert act(server, "mute_alerts", {"rule": "high"}, token=both).status == 400
    assert act(server, "acknowledge_alerts", {"alerts": [FIRST]}, token=both).json == {"alerts": [FIRST]}
    assert act(server, "mute_alerts", {"run": "p/one", "seconds": 60.0}, token=both).json["mutes"][0]["run"] == "p/one"
    assert book.read().alerts[FIRST].acknowledged_by == "both"
    noted = [(event.action, event.target) for event in AuditLog(root).read(10)]
    assert {("alerts.acknowledged", "one"), ("alerts.muted", "one")} <= set(noted)


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("acknowledge_alerts", {"alerts": []}),
        ("acknowledge_alerts", {"alerts": ["a"]}),
        ("acknowledge_alerts", {"alerts": ["c" * 16]}),
        ("mute_alerts", {}),
        ("mute_alerts", {"rule": "high", "seconds": -1}),
        ("mute_alerts", {"rule": "high", "forever": True}),
    ],
)
def test_change_that_is_not_valid_is_refused(book, root, serve, action, body):
    answer = act(serve(root), action, body, token=None)
    assert (400 <= answer.status < 500, bool(answer.json["error"]), book.read().mutes) == (True, True, [])
    assert [each.state for each in book.read().alerts.values()] == ["pending", "pending"]

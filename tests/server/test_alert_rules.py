"""Alert rules added on the page: accepted content, visible runs, and raised alerts."""

import contextlib
import json

import pytest
from page_runs import append, finished_run, live_run, row
from sending import TOKENS, WRITE, ask

from hookline._record.records import Metrics
from hookline.server.alert_rules import entry_text
from hookline.server.alerts import AlertService, AlertSettings, load_alerts
from hookline.server.audit import AuditLog
from hookline.server.tokens import TokenStore, default_tokens_file
from hookline.store.alert_book import AlertBook, AlertRule

OWN = {"Content-Type": "application/json", "X-Hookline-Action": "1"}
HIGH = {"name": "high", "use": "alert", "arguments": {"metric": "loss", "above": 2.5}}


@pytest.fixture
def service(root):
    """A service without a file, which looks when the test says so."""
    with contextlib.closing(AlertService(root, AlertSettings(), clock=lambda: 1.0)) as made:
        yield made


def act(server, action, body, *, token=None):
    return ask(server, "POST", f"/api/actions/{action}", body=json.dumps(body), token=token, headers=OWN)


def raised(book):
    return sorted((each.run, each.rule, each.step) for each in book.read().alerts.values())


def test_rule_raises_alerts_of_its_project_until_it_is_removed(root, serve, service):
    server, live = serve(root), live_run(root, "live")
    finished_run(root, "other", losses=[9.0], project="q")
    service.evaluate()
    assert service.book.version() == ()  # without a rule, nothing is written
    book = AlertBook(root, clock=lambda: 1.0)
    for rule in (HIGH | {"project": "p"}, HIGH | {"name": "stuck", "use": "no_progress", "arguments": {"steps": 2}}):
        book.add_rule(AlertRule(**rule))
    append(live, *[row(step, loss=loss) for step, loss in enumerate([3.0, 4.0, 5.0], start=1)])
    service.evaluate()
    assert raised(book) == [("p/live", "high", 1), ("p/live", "stuck", 3)]
    assert [each["name"] for each in act(server, "remove_alert_rule", {"name": "stuck"}).json["rules"]] == ["high"]
    append(live, row(4, loss=1.0), *[row(step, loss=2.0) for step in (5, 6, 7)])
    service.evaluate()
    assert raised(book) == [("p/live", "high", 1), ("p/live", "stuck", 3)]


def test_rule_looks_at_records_since_it_was_added_only(root, service):
    run = finished_run(root, "before", losses=[9.0])
    book = AlertBook(root)
    book.add_rule(AlertRule(**HIGH))
    service.evaluate()
    assert raised(book) == []
    append(run, Metrics(time=book.read().rules[0].time + 1, step=5, values={"loss": 8.0}))
    service.evaluate()
    assert raised(book) == [("p/before", "high", 5)]


def test_rule_compares_a_run_with_others_that_have_the_metric(root, service):
    for number, loss in enumerate([1.0, 1.1, 1.2]):
        finished_run(root, f"r{number}", losses=[loss, loss])
    finished_run(root, "nothing", losses=[])
    book = AlertBook(root, clock=lambda: 1.0)
    arguments = {"metric": "loss", "reference": ["p/*"], "differs_by": 0.5}
    book.add_rule(AlertRule("far", "alert", arguments, project="p"))
    finished_run(root, "odd", losses=[1.3, 9.0])
    service.evaluate()
    assert raised(book) == [("p/odd", "far", 2)]


def test_rule_of_the_page_and_of_the_file_of_one_name_are_two(root, tmp_path):
    (tmp_path / "alerts.yaml").write_text("callbacks: [{alert: {metric: loss, below: 0.5}, name: high}]")
    finished_run(root, losses=[9.0, 0.1])
    book = AlertBook(root, clock=lambda: 1.0)
    book.add_rule(AlertRule(**HIGH))
    with contextlib.closing(AlertService(root, load_alerts(tmp_path / "alerts.yaml"), clock=lambda: 1.0)) as service:
        service.evaluate()
    assert raised(book) == [("p/r0", "high", 2), ("p/r0", "high (page)", 1)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use": "checkpoint"}, "alert, no_progress"),
        ({"use": "os:system"}, "os:system"),
        ({"arguments": {"above": 3, "stop": True}}, "'stop'"),
        ({"arguments": {"when": "builtins:print"}}, "'when'"),
        ({"arguments": {"above": "three"}}, "above"),
        ({"arguments": {"above": [3]}}, "give a number or a text"),
        ({"arguments": {"in_a_row": 0}}, "in_a_row"),
        ({"arguments": {"differs_by": 1, "reference": ["../../etc/passwd"]}}, "give ids of runs"),
        ({"arguments": {"differs_by": 1, "reference": ["p/../q"]}}, "give ids of runs"),
        ({"arguments": {"differs_by": 1, "reference": "p/*/x"}}, "give ids of runs"),
        ({"arguments": {"differs_by": 1}}, "belong together"),
        ({"arguments": {"metric": "m" * 5000}}, "longer than"),
        ({"name": " "}, "printable"),
        ({"name": "a/b"}, "printable"),
    ],
)
def test_rule_that_is_not_accepted_is_refused_and_not_evaluated(root, serve, service, changes, message):
    rule = HIGH | changes
    answer = act(serve(root), "add_alert_rule", rule)
    assert (answer.status, message in answer.json["error"], AlertBook(root).read().rules) == (400, True, [])
    # One that came with the directory is left out as well.
    finished_run(root, losses=[9.0])
    AlertBook(root, clock=lambda: 1.0).add_rule(AlertRule(**rule))
    AlertBook(root, clock=lambda: 1.0).add_rule(AlertRule(**HIGH | {"name": "good"}))
    service.evaluate()
    assert raised(service.book) == [("p/r0", "good", 1)]


def test_token_for_some_projects_adds_sees_and_removes_rules_for_them_only(root, serve):
    token = TokenStore(default_tokens_file(root)).create("lab", roles=["read", "write"], projects=["p"]).token
    server = serve(root, tokens=TOKENS)
    of_p, of_all, of_q = ({**HIGH, "name": name, "project": name.strip("*")} for name in ("p", "*", "q"))
    assert [act(server, "add_alert_rule", rule, token=token).status for rule in (of_p, of_all, of_q)] == [200, 403, 403]
    peek = {"name": "peek", "use": "alert", "project": "p", "arguments": {"differs_by": 1.0, "reference": ["q/*"]}}
    assert act(server, "add_alert_rule", peek, token=token).status == 403
    assert [act(server, "add_alert_rule", rule, token=WRITE).status for rule in (of_all, of_q, of_q)] == [200, 200, 400]
    seen = ask(server, "GET", "/api/alerts", token=token).json
    assert [(each["name"], each["author"]) for each in seen["rules"]] == [("p", "lab")]
    assert act(server, "remove_alert_rule", {"name": "q"}, token=token).status == 404
    assert act(server, "remove_alert_rule", {"name": "p"}, token=token).json == {"rules": []}
    assert [each.name for each in AlertBook(root).read().rules] == ["*", "q"]
    noted = [(event.action, event.project, event.target) for event in AuditLog(root).read(10)]
    assert {("alerts.rule_added", "p", "p"), ("alerts.rule_removed", "p", "p")} <= set(noted)


def test_person_adds_a_rule_and_acknowledges_what_it_raises(root, show, service):
    from playwright.sync_api import expect

    live = live_run(root)
    page = show("alerts")
    expect(page.get_by_text("No rules")).to_be_visible()
    page.get_by_label("Metric").fill("loss")
    page.get_by_label("Limit").fill("2.5")
    page.get_by_label("again after it recovered").check()
    page.get_by_label("Limit").press("Enter")
    rules = page.locator("ul.rules li")
    expect(rules).to_contain_text("loss is above 2.5")
    expect(rules).to_contain_text("alert: {metric: loss, above: 2.5, rearm: recovered}")
    later = AlertBook(root).read().since + 1
    for step, loss in enumerate([3.0, 1.0, 4.0], start=1):
        append(live, Metrics(time=later, step=step, values={"loss": loss}))
    service.evaluate()
    expect(page.locator("tr[data-alert]")).to_have_count(2)
    page.get_by_role("button", name="Acknowledge all").click()
    expect(page.locator("tr[data-alert]")).to_have_count(0)
    page.get_by_role("button", name="Remove loss is above 2.5").click()
    expect(page.get_by_text("No rules")).to_be_visible()


def test_header_links_to_alerts_that_are_open(root, show, service):
    from playwright.sync_api import expect

    finished_run(root)
    AlertBook(root, clock=lambda: 1.0).add_rule(AlertRule(**HIGH))
    service.evaluate()
    page = show("runs")
    page.get_by_role("link", name="1 alert").click()
    expect(page.locator("tr[data-alert]")).to_contain_text("above 2.5, at step 1")
    page.get_by_role("button", name="Acknowledge high of p/r0").click()
    expect(page.get_by_role("link", name="1 alert")).to_be_hidden()


def test_file_rules_are_listed_and_described_as_in_the_file(root, tmp_path, serve):
    text = "callbacks: [{alert: {metric: loss, above: 3}, name: high}, early_stopping]\nsilence_seconds: 60\n"
    (tmp_path / "alerts.yaml").write_text(text + "deliver: [desktop]")
    with AlertService(root, load_alerts(tmp_path / "alerts.yaml"), poll_seconds=60):
        found = ask(serve(root), "GET", "/api/alerts").json
    listed = [each["text"] for each in found["rules"]]
    assert listed == ["alert: {metric: loss, above: 3}, name: high", "early_stopping", "silence: {seconds: 60}"]
    assert found["destinations"] == ["desktop"]
    assert entry_text({"alert": {"reference": ["p/a", "p/b"]}}) == "alert: {reference: [p/a, p/b]}"
    with AlertService(root, AlertSettings(), poll_seconds=60) as service:
        assert service.book.read().file_rules == []

"""The comparison of runs in a real browser: what differs, the baseline, repeats, code, and an address to share."""

import json
import re

import pytest
from page_looks import has_sideways_scroll
from page_runs import HOSTILE, finished_run, make_run, repeats

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

DIFF = """diff --git a/model.py b/model.py
@@ -1,3 +1,3 @@
 import torch
-LAYERS = 1
+LAYERS = {layers}
 HEADS = 2
"""


def section(page, name):
    return page.locator(f'[data-section="{name}"]')


def cells(page, part, name):
    return section(page, part).locator(f'tr[data-name="{name}"] td')


def with_code(directory, layers, commit="c0ffee", packages=()):
    (directory / "git.diff").write_text(DIFF.format(layers=layers))
    facts = {"git": {"commit": commit, "changed": True}, "python": {"version": "3.11"}, "packages": list(packages)}
    (directory / "environment.json").write_text(json.dumps({"sessions": [facts]}))


@pytest.fixture
def compared(root, show):
    """Two runs that differ in everything, and the page that compares them."""
    for name, lr, layers, losses, started in (("a", 0.1, 2, (3.0, 2.0), 2000.0), ("b", 0.2, 3, (3.0, 1.5), 1000.0)):
        config = {"train": {"lr": lr, "steps": 2}, "name": name}
        directory = finished_run(root, name, losses, config=config, started=started)
        with_code(directory, layers, packages=["numpy==2.0", f"jax==0.{layers}"])
    return show("compare?run=p/a&run=p/b")


def test_comparison_shows_what_differs_and_on_request_all(compared):
    expect(cells(compared, "config", "train.lr")).to_have_text(["0.1", "0.2"])
    expect(section(compared, "config").locator("tr[data-name]")).to_have_count(2)
    expect(cells(compared, "packages", "jax")).to_have_text(["0.2", "0.3"])
    compared.get_by_label("show what is the same").check()
    expect(cells(compared, "config", "train.steps")).to_have_text(["2", "2"])
    expect(cells(compared, "environment", "python")).to_have_text(["3.11", "3.11"])
    compared.reload()
    expect(cells(compared, "config", "train.steps")).to_have_text(["2", "2"])
    compared.get_by_label("Find in names and values").fill("train.lr")
    expect(section(compared, "config").locator("tr[data-name]")).to_have_count(1)
    expect(section(compared, "metrics")).to_contain_text("No metric matches.")


def test_metrics_have_the_difference_from_a_baseline_that_can_be_changed(compared):
    last = section(compared, "metrics").locator('tr[data-metric="loss"][data-row="last"] td')
    expect(last).to_have_text(["2", "1.500 \u22120.500"])
    expect(last.locator(".delta")).to_have_attribute("data-good", "true")
    compared.get_by_label("baseline").select_option("p/b")
    expect(last).to_have_text(["2 +0.500", "1.500"])
    expect(last.locator(".delta")).to_have_attribute("data-good", "false")
    compared.go_back()
    expect(last).to_have_text(["2", "1.500 \u22120.500"])


def test_code_is_compared_side_by_side_or_unified(compared):
    code = section(compared, "code")
    row = code.locator("tr", has_text="LAYERS")
    expect(row.locator("td")).to_have_text(["2", "LAYERS = 2", "2", "LAYERS = 3"])
    expect(row.locator("mark")).to_have_text(["2", "3"])
    code.get_by_label("side by side").uncheck()
    expect(code.locator(".diff-text")).to_have_text(["import torch", "LAYERS = 2", "LAYERS = 3", "HEADS = 2"])
    expect(compared).to_have_url(re.compile("split=no"))


def test_runs_of_different_commits_are_said_to_be_so(root, show):
    for name, commit in (("a", "c0ffee"), ("b", "decade")):
        with_code(finished_run(root, name), 2, commit)
    finished_run(root, "c")
    page = show("compare?run=p/a&run=p/b&run=p/c")
    expect(section(page, "code")).to_contain_text("c0ffee → decade")
    expect(section(page, "code")).to_contain_text("changed in the same way in both")
    section(page, "code").get_by_label("run").select_option("p/c")
    expect(section(page, "code").locator("summary")).to_contain_text("only in the first, as changes against different")
    expect(section(page, "packages")).to_contain_text("No package differs.")
    expect(section(page, "environment")).to_contain_text("Without a recorded environment: c.")


def test_repeats_of_arms_have_their_mean_and_spread(root, show):
    repeats(root, steps=3)
    page = show("compare?where=loss+>+0")
    cell = section(page, "repeats").locator('tr[data-metric="loss"][data-row="last"] td')
    expect(cell).to_have_count(2)
    expect(cell.first).to_contain_text("± 0.10 n = 3")
    expect(cell.filter(has_text="[")).to_have_count(1)  # the difference, with its interval


def test_one_run_asks_for_another_and_selecting_it_compares(root, show):
    for name in "ab":
        finished_run(root, name, config={"who": name})
    page = show("compare?run=p/a")
    expect(page.get_by_text("Select two or more runs")).to_be_visible()
    page.get_by_label("b", exact=True).check()
    expect(cells(page, "config", "who")).to_have_count(2)
    page.get_by_role("button", name="Remove b").click()
    expect(page.get_by_text("Select two or more runs")).to_be_visible()


def test_selected_runs_lead_to_their_comparison(root, show):
    for name in "ab":
        finished_run(root, name, config={"who": name})
    page = show("runs")
    for name in "ab":
        page.get_by_label(f"Select p/{name}", exact=True).check()
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(cells(page, "config", "who")).to_have_count(2)


def test_hostile_texts_are_shown_as_text_on_a_phone(root, show, page):
    page.set_viewport_size({"width": 390, "height": 800})
    for name in "ab":
        directory = finished_run(root, name, config={HOSTILE: HOSTILE + name, "long": name * 3000}, tags=[HOSTILE])
        with_code(directory, f"{HOSTILE}{name}", packages=[f"{HOSTILE}=={name}"])
    make_run(root, "nothing")
    show("compare?run=p/a&run=p/b&run=p/nothing")
    expect(section(page, "config")).to_contain_text(f"{HOSTILE}b")
    expect(section(page, "code")).to_contain_text(f"LAYERS = {HOSTILE}")
    expect(page.locator('[data-section="packages"] tbody th')).to_have_text([HOSTILE])
    expect(page.locator("#view script, #view img")).to_have_count(0)
    assert page.evaluate("window.hacked") is None
    assert not has_sideways_scroll(page)

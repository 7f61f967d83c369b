"""Runs are edited, archived and deleted from the table, as a person does it, in a real browser."""

import re

import pytest
from page_runs import HOSTILE, finished_run, live_run
from sending import READ, TOKENS, WRITE

from hookline.server.tokens import TokenStore, default_tokens_file
from hookline.store import runs

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

SHOWN = "tr[data-run]"
NAMES = "tr[data-run] th a"


def add_runs(root, names="abc"):
    for place, name in enumerate(names):
        finished_run(root, name, started=1000.0 - place, tags=["old"])


def test_one_run_is_renamed_tagged_and_gets_notes(root, show):
    add_runs(root)
    page = show("runs?column=tag&column=notes")
    page.get_by_role("button", name="Edit b", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(HOSTILE)
    dialog.get_by_role("button", name="old").click()
    dialog.get_by_label("Add tags").fill("new, better")
    dialog.get_by_label("Notes").fill("two\nlines")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(NAMES)).to_have_text(["a", HOSTILE, "c"])
    expect(page.locator('tr[data-run="p/b"] .tag')).to_have_text(["new", "better"])
    expect(page.locator('tr[data-run="p/b"] td').last).to_contain_text("two")
    [edited] = [info for info in runs(root) if info.id == "p/b"]
    assert (edited.name, edited.tags, edited.notes) == (HOSTILE, ("new", "better"), "two\nlines")
    assert page.evaluate("window.hacked") is None


def test_selected_runs_are_tagged_archived_and_shown_again(root, show):
    add_runs(root)
    page = show("runs?run=p/a&run=p/c")
    page.get_by_role("button", name="Edit …").click()
    dialog = page.get_by_role("dialog", name=re.compile(""))
    expect(dialog.get_by_role("heading")).to_have_text("Edit 2 runs")
    expect(dialog.get_by_label("Name")).to_have_count(0)
    dialog.get_by_label("Add tags").fill("chosen")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator(SHOWN).get_by_role("button", name="chosen")).to_have_count(2)
    page.get_by_role("button", name="Archive").click()
    expect(page.locator(NAMES)).to_have_text(["b"])
    expect(page.locator(".count-line")).to_have_text("1 of 1 run · 2 archived")
    page.get_by_label("Filter runs").fill("archived = true")
    expect(page.locator(NAMES)).to_have_text(["a", "c"])
    page.get_by_role("button", name="Unarchive").click()
    expect(page.locator(".empty")).to_contain_text("No run matches")
    page.get_by_label("Filter runs").fill("")
    expect(page.locator(NAMES)).to_have_text(["a", "b", "c"])


def test_run_is_renamed_archived_and_deleted_from_its_page(root, show):
    add_runs(root, "ab")
    page = show("run?run=p/a")
    page.get_by_role("button", name="Edit …").click()
    page.get_by_role("dialog").get_by_label("Name").fill("renamed")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("renamed")
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.locator(".run-title")).to_contain_text("archived")
    page.get_by_role("button", name="Unarchive").click()
    expect(page.get_by_role("button", name="Archive", exact=True)).to_be_visible()
    page.get_by_role("button", name="Delete …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 1 run").click()
    expect(page.locator(NAMES)).to_have_text(["b"])
    assert {info.name for info in runs(root)} == {"b"}


def test_all_runs_of_a_filter_are_deleted_after_asking_and_running_ones_stay(root, show):
    add_runs(root)
    live_run(root, "live", started=2000.0)
    page = show("runs?where=not+name+%3D+b")
    page.get_by_label("Select all 3 runs", exact=True).check()
    page.get_by_role("button", name="Delete …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Delete 2 runs?")
    expect(dialog).to_contain_text("Still running, and therefore kept: 1.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.locator(NAMES)).to_have_text(["live", "a", "c"])
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete 2 runs").click()
    expect(page.locator(NAMES)).to_have_text(["live"])
    assert {info.name for info in runs(root)} == {"live", "b"}


def test_dialog_warns_of_selected_runs_that_the_filter_hides(root, show):
    add_runs(root)
    page = show("runs?where=name+%3D+a&run=p/a&run=p/b")
    expect(page.locator(NAMES)).to_have_text(["a"])
    page.get_by_role("button", name="Delete …").click()
    expect(page.get_by_role("dialog")).to_contain_text("Not shown in the table: 1 of them.")


def test_read_only_page_has_no_controls_and_says_why(root, show):
    add_runs(root)
    page = show("runs?run=p/a", read_only=True)
    expect(page.get_by_text("read-only")).to_have_attribute("title", "It was started read-only.")
    expect(page.get_by_role("button", name=re.compile("Edit|Delete|Archive"))).to_have_count(0)
    page.get_by_role("link", name="a", exact=True).click()
    expect(page.locator('[data-section="hooks"]')).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Edit|Delete|Archive"))).to_have_count(0)


def test_server_with_tokens_asks_for_one_that_may_write(root, serve, browser):
    add_runs(root, "ab")
    finished_run(root, "other", project="theirs", started=1.0)
    scoped = TokenStore(default_tokens_file(root)).create("t", roles=["write"], projects=["theirs"]).token
    server, page = serve(root, tokens=TOKENS), browser.new_page()  # a refused request is a complaint of the browser's
    page.goto(f"{server.url}#/runs?run=p/a")
    page.get_by_label("Read token").fill(READ)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Archive").click()
    field = page.get_by_label("Token with the role write")
    field.fill("w" * 20)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("alert").filter(has_text="not a write token")).to_be_visible()
    field.fill(scoped)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("alert").filter(has_text="not for the project 'p'")).to_be_visible()
    page.get_by_role("button", name="Archive").click()
    field.fill(WRITE)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(NAMES)).to_have_text(["b", "other"])
    assert WRITE not in page.evaluate("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")
    page.evaluate("localStorage.clear()")
    page.close()

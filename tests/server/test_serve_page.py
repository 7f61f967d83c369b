"""The page over runs that other machines send, in a real browser: live, and only for those who have the token."""

import re

import pytest
from sending import READ, TOKENS, WRITE, beat, claim, put, rows_of, status_of

from hookline.server.root_tokens import Tokens

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect


def send_beginning(server):
    begun = status_of("running", num_steps=5)
    claim(server, facts={"name": "far away", "project": "p"})
    put(server, begun + rows_of(2))
    beat(server, 10.0)
    return len(begun + rows_of(2))


def test_received_run_is_shown_live(root, serve, page):
    server = serve(root, tokens=Tokens(WRITE))
    page.goto(f"{server.url}#/runs")
    expect(page.locator(".empty")).to_contain_text("No runs yet")
    held = send_beginning(server)
    row = page.locator("tr[data-run]")
    expect(row).to_contain_text("far away")
    expect(row.locator(".status")).to_have_text("running")
    put(server, rows_of(3, first=3) + status_of("finished", time=2000.0), held)
    expect(row.locator(".status")).to_have_text("finished")
    expect(row).to_have_attribute("data-run", "p/r0")


def test_page_asks_for_the_token_and_then_shows_the_runs(root, serve, browser):
    server = serve(root, tokens=TOKENS)
    send_beginning(server)
    page = browser.new_page()
    page.goto(f"{server.url}#/runs")
    field = page.get_by_label("Read token")
    expect(field).to_be_focused()
    expect(page.locator("dialog.login")).to_contain_text("Enter a token that may read.")
    expect(page.locator("#live")).to_have_text("not logged in")
    expect(page.locator("tr[data-run]")).to_have_count(0)
    field.fill(WRITE)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text(re.compile("it is the write token"))
    field.fill(READ)
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-run]")).to_contain_text("far away")
    expect(field).to_have_count(0)
    expect(page.locator("#live")).to_have_text("live")
    page.reload()
    expect(page.locator("tr[data-run]")).to_contain_text("far away")
    assert READ not in page.evaluate("document.cookie + JSON.stringify(localStorage)")
    page.close()

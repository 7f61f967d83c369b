"""The Hooks view over runs that were really made: costs, errors, the order of subscribers, events and log lines."""

import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")

from page_looks import has_sideways_scroll, wait_until
from page_runs import HOSTILE, append, begun, event, live_run
from playwright.sync_api import expect

import hookline as hl
from hookline._engine.costs import Cost
from hookline._record.records import Metrics


class Timed(hl.Callback):
    def on_train_start(self, loop):
        pass

    def on_step_end(self, loop, step_idx, batch, metrics):
        sum(range(200))


class Broken(hl.Callback):
    def on_step_end(self, loop, step_idx, batch, metrics):
        raise ValueError(f"no room for {HOSTILE}")


def short_run(root, *callbacks, steps=5, name="short", **options):
    with hl.run(name, root=root, callbacks=callbacks, summary=False, **options) as run:
        for _ in run.steps(steps):
            run.log(loss=1.0)
    return run


def cells(page, hook):
    return page.locator(f'tr[data-hook="{hook}"] td.end').all_inner_texts()


def test_hooks_view_of_a_run_of_seconds_has_all_costs_and_the_order(root, show):
    short_run(root, Timed(), hl.on("step_end", lambda loop: None, name="first", priority=100))
    page = show("hooks")
    expect(page.locator("tr[data-hook]")).to_have_count(2)
    calls, *times, share, errors = cells(page, "timed")
    assert (calls, errors) == ("6", "0")
    assert [time.endswith("s") for time in times] == [True] * 4
    assert share.endswith("%")
    expect(page.locator('tr[data-moment="on_step_end"] li')).to_have_text(["first", "timed"])
    expect(page.locator("tr[data-moment]")).to_have_count(2)
    expect(page.locator('.panel[data-metric="hook costs"]')).to_be_hidden()


def test_hooks_view_shows_errors_their_last_message_and_who_is_disabled(root, show):
    short_run(root, Timed(), Broken())
    page = show("hooks")
    broken = page.locator('tr[data-hook="broken"]')
    expect(broken.locator(".bad")).to_have_text("3")
    expect(broken).to_contain_text("disabled")
    expect(page.locator('tr[data-error-of="broken"]')).to_contain_text(
        "on_step_end, step 3: ValueError: no room for <s"
    )
    expect(page.locator(".order-of")).to_contain_text("It changed while training")
    expect(page.locator('tr[data-moment="on_step_end"] li')).to_have_text(["timed"])
    assert page.evaluate("window.hacked") is None
    expect(page.locator('[data-grave="true"] th')).to_have_text(["hook_error"] * 3)
    assert page.locator("#view").inner_text().count("hooks_cost") == 0


def test_hooks_view_draws_costs_over_time_once_there_are_two_reports(root, show):
    directory = live_run(root)
    costs = [Cost("slow", step, step / 10, 0.1, 0.1, 0.1) for step in (10, 20)]
    append(directory, *[Metrics(time=begun().time + c.calls, step=c.calls, values=c.as_metrics()) for c in costs])
    append(directory, event("hook_error", 25, subscriber="other", error="lost", moment="on_log", disabled=False))
    page = show("hooks")
    expect(page.locator('.panel[data-metric="hook costs"] canvas').first).to_be_visible()
    expect(page.locator('tr[data-hook="slow"]')).to_be_visible()
    assert cells(page, "slow")[:2] == ["20", "2 s"]
    expect(page.locator('tr[data-hook="other"] .bad')).to_have_text("1")
    expect(page.locator('tr[data-error-of="other"]')).to_contain_text("on_log, step 25: lost")


def test_hooks_view_has_one_order_for_runs_that_share_it(root, show):
    for number in range(2):
        short_run(root, Timed(), name=f"same{number}")
    short_run(root, hl.on("eval", lambda loop: None, name="e"), name="other")
    page = show("hooks?" + "&".join(f"run={info.id}" for info in hl.runs(root)))
    expect(page.locator(".order-of")).to_have_count(2)
    shared = page.locator(".order-of", has=page.locator('tr[data-moment="on_step_end"]'))
    assert {"same0", "same1"} <= set(shared.locator("summary").inner_text().replace(",", " ").split())


def test_hooks_view_is_usable_narrow_dark_and_by_keyboard(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    many = [hl.on("step_end", lambda loop: None, name=f"observer_with_a_long_name_{number}") for number in range(9)]
    short_run(root, *many, Broken())
    show("hooks")
    expect(page.locator("tr[data-hook]")).to_have_count(10)
    expect(page.locator("tr[data-moment]").first).to_be_visible()
    assert not has_sideways_scroll(page)
    summary = page.locator(".order-of > summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-moment]").first).to_be_hidden()
    table = page.get_by_role("region", name="Cost of subscribers")
    table.focus()
    page.keyboard.press("ArrowRight")
    wait_until(page, "document.activeElement.scrollLeft > 0")

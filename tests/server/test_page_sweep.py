"""The sweep view in a real browser: brush, reorder, hover, click through, and an address that restores it all."""

import math
import re

import pytest
from page_looks import has_sideways_scroll
from page_runs import HOSTILE, finished_run

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

COUNT = 12
TOP, BOTTOM = 46, 366
"""Where axes without values apart begin and end, in pixels of the chart."""
INSIDE = "[data-inside]"
NAMES = "[data-axis-name]"
BEST = "tr[data-best] th"


def record(root, project="p", count=COUNT, **more):
    """Runs whose loss rises with the learning rate, so that their lines are level and far apart."""
    for place in range(count):
        config = {"lr": 1e-4 * 2.0**place, "opt": ("adam", "sgd")[place % 2], **more}
        finished_run(root, f"r{place:02}", (20.0, place + 1.0), project, config=config, started=1000.0 + place)


def height(page, place):
    """The position of a run's line on the screen."""
    return page.locator(".parallel-inner").bounding_box()["y"] + BOTTOM - (BOTTOM - TOP) * place / (COUNT - 1)


def drag_brush(page, field, first, last):
    """Brush an axis from below the line of one run to above that of another."""
    zone = page.locator(f'[data-zone="{field}"]')
    expect(zone).to_be_visible()
    zone.scroll_into_view_if_needed()
    x = zone.bounding_box()["x"] + 14
    page.mouse.move(x, height(page, first - 0.4))
    page.mouse.down()
    page.mouse.move(x, height(page, (first + last) / 2))
    page.mouse.move(x, height(page, last + 0.4))
    page.mouse.up()


def test_brush_narrows_the_runs_and_becomes_a_filter_of_the_table(root, show):
    record(root)
    page = show("sweep?axis=lr&axis=loss")
    drag_brush(page, "lr", 2, 4)
    expect(page.locator(INSIDE)).to_have_text("3 of 12 runs inside the brushes")
    drag_brush(page, "loss", 3, 8)
    expect(page.locator(INSIDE)).to_have_text("2 of 12 runs inside the brushes")
    expect(page.locator(BEST)).to_have_text(["r03", "r04"])
    expect(page.locator(".brush")).to_have_count(2)
    page.reload()
    expect(page.locator(BEST)).to_have_text(["r03", "r04"])
    page.go_back()
    expect(page.locator(BEST)).to_have_text(["r02", "r03", "r04"])
    page.get_by_role("link", name="Open in table").click()
    expect(page.locator("tr[data-run] th a")).to_have_text(["r04", "r03", "r02"])
    page.go_back()
    page.get_by_role("button", name="Clear brushes").click()
    expect(page.locator(BEST)).to_have_count(12)


def test_axes_are_moved_by_drag_and_by_key_and_the_address_keeps_their_order(root, show):
    record(root)
    page = show("sweep")
    expect(page.locator(NAMES)).to_have_text(["lr", "opt", "loss"])
    page.locator('[data-axis-name="lr"]').focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(NAMES)).to_have_text(["opt", "lr", "loss"])
    expect(page.locator('[data-axis-name="lr"]')).to_be_focused()
    page.locator('[data-axis-name="loss"]').drag_to(page.locator('[data-axis-name="opt"]'))
    expect(page.locator(NAMES)).to_have_text(["loss", "opt", "lr"])
    page.reload()
    expect(page.locator(NAMES)).to_have_text(["loss", "opt", "lr"])


def test_hover_shows_the_nearest_run_and_click_opens_its_page(root, show):
    record(root)
    page = show("sweep?axis=lr&axis=loss")
    expect(page.locator(".parallel-axis")).to_have_count(2)
    box = page.locator(".parallel-inner").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, height(page, 7) + 3)
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("r07")
    expect(tip.locator("dd")).to_have_text(["0.01280", "8"])
    page.mouse.move(box["x"] + box["width"] / 2, height(page, 8) + 3)
    expect(tip).to_contain_text("r08")
    page.mouse.click(box["x"] + box["width"] / 2, height(page, 8) + 3)
    expect(page).to_have_url(re.compile(r"#/run\?run=p/r08$"))


def test_failed_and_diverged_runs_are_apart_and_hostile_text_stays_text(root, show, page):
    page.set_viewport_size({"width": 390, "height": 800})
    record(root, who=HOSTILE)
    finished_run(root, "diverged", (3.0, math.nan), config={"lr": 0.9, "opt": HOSTILE}, name=HOSTILE, started=2000.0)
    show("sweep?axis=opt&axis=lr&axis=loss&color=opt")
    expect(page.locator(".apart-runs summary")).to_contain_text("1 run set apart")
    expect(page.locator(BEST)).to_have_count(12)
    page.locator(".apart-runs summary").click()
    expect(page.locator(".apart-runs li")).to_contain_text(HOSTILE)
    expect(page.locator("[data-importance-about]")).to_contain_text("13 completed runs")
    expect(page.locator(".levels, .key, .apart-runs a").filter(has_text=HOSTILE).first).to_be_attached()
    assert (page.evaluate("window.hacked"), page.locator("#view script, #view img").count()) == (None, 0)
    assert not has_sideways_scroll(page)
    page.get_by_label("runs without a result").uncheck()
    expect(page.locator(INSIDE)).to_have_attribute("data-inside", "12")


def test_category_is_brushed_from_the_options_of_its_axis(root, show):
    record(root)
    page = show("sweep")
    page.locator('[data-axis-name="opt"]').click()
    page.get_by_role("group", name="opt").get_by_label("sgd").check()
    expect(page.locator(INSIDE)).to_have_attribute("data-inside", "6")
    expect(page.locator("code.where")).to_have_text('project = "p" and opt = "sgd"')
    page.locator('[data-axis-name="lr"]').click()
    page.get_by_label("from", exact=True).fill("0.01")
    page.keyboard.press("Enter")
    expect(page.locator(BEST)).to_have_text(["r07", "r09", "r11"])
    page.get_by_role("button", name="Clear brush", exact=True).click()
    expect(page.locator(BEST)).to_have_count(6)


def test_importance_scatter_and_metric_are_restored_from_the_address(root, show):
    record(root)
    page = show("sweep")
    expect(page.locator("tr[data-setting] th")).to_have_text(["lr", "opt"])
    expect(page.locator("tr[data-setting=lr]")).to_contain_text("+1.00")
    expect(page.locator("[data-trend]")).to_contain_text("Rank correlation +1.00 over 12 runs: strong rise.")
    page.get_by_label("y", exact=True).select_option("opt")
    expect(page.locator("[data-trend]")).to_contain_text("over 12 runs")
    page.get_by_label("log x").uncheck()
    page.get_by_label("value", exact=True).select_option("max")
    page.get_by_label("better", exact=True).select_option("max")
    expect(page.locator(NAMES)).to_have_text(["lr", "opt", "max(loss)"])
    page.reload()
    expect(page.get_by_label("log x")).not_to_be_checked()
    expect(page.get_by_label("y", exact=True)).to_have_value("opt")
    expect(page.get_by_label("value", exact=True)).to_have_value("max")
    expect(page.get_by_label("better", exact=True)).to_have_value("max")


def test_filter_selects_the_runs_and_few_of_them_are_not_rated(root, show):
    record(root, "older", started_by="me")
    for place in range(3):
        finished_run(root, f"n{place}", (3.0, 2.0 + place), "newer", config={"lr": place}, started=5000.0 + place)
    page = show("sweep")
    expect(page.get_by_text("3 runs of the project newer, 1 setting differs")).to_be_visible()
    expect(page.locator("[data-importance-about]")).to_contain_text("at least 10 are needed")
    page.get_by_label("Filter runs").fill('project = "older" and lr < 0.01')
    expect(page.get_by_text("7 runs, 2 settings differ")).to_be_visible()
    page.goto(f"{page.url.split('#')[0]}#/sweep?project=older")
    expect(page.get_by_text(re.compile("12 runs of the project older, . settings differ"))).to_be_visible()
    page.go_back()
    expect(page.locator(BEST)).to_have_text([f"r0{place}" for place in range(7)])


@pytest.fixture
def axes(show, root):
    """Call a function of the module of axes, with an axis made of values in place of the first argument."""
    finished_run(root)
    page = show("runs")

    def call(name, *given, values=None):
        code = """async ([name, given, values]) => {
            const module = await import("/static/js/sweep_axes.js");
            const column = { field: "f", kind: "setting", values, is_exact: true };
            return module[name](...(values ? [module.axisOf(column)] : []), ...given);
        }"""
        return page.evaluate(code, [name, list(given), values])

    return call


def test_brushes_are_read_back_and_filters_name_what_they_keep(axes):
    numbers, words = [0.001, 0.1, 10, "NaN", None], ["a", 'say "b"', "~none", None, True]
    cases = [
        ("0.1..10:f", numbers, "f >= 0.1 and f <= 10"),
        ("1e-7..0.1|~nan:f", numbers, "(f >= 1e-7 and f <= 0.1 or f is nan)"),
        ("~none:f", numbers, "f is missing"),
        ("a|say%20%22b%22:f", words, 'f in ("a", "say \\"b\\"")'),
        ("%7Enone|~none:f", words, '(f = "~none" or f is missing)'),
        ("true:f", words, "f = true"),
    ]
    for text, values, wanted in cases:
        brush = axes("parseBrush", text)
        assert axes("brushText", brush) == text
        assert axes("filterOf", brush, values=values) == wanted


def test_ranks_and_best_so_far_are_those_of_the_definition(axes):
    assert axes("ranks", [3, 1, 3, 2]) == [3.5, 1, 3.5, 2]
    assert axes("bestSoFar", [None, 3, 5, None, 2], "min") == [None, 3, 3, 3, 2]
    assert axes("bestSoFar", [1, 3, 2], "max") == [1, 3, 3]

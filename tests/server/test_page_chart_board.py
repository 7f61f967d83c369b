"""A board of charts as a person uses it: one line among many, groups, events, settings, all in the address."""

import re
from pathlib import Path

import numpy as np
import pytest
from page_looks import panel
from page_runs import NOW, append, event, finished_run, row, rows

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

import hookline as hl
from hookline._record.records import Event


def sweep(root):
    """Four runs with two learning rates; each loss is a constant."""
    for number in range(4):
        config = {"lr": (0.1, 0.01)[number % 2]}
        more = [*rows([5.0] * 20, name="val/reward"), event("checkpoint", step=10)]
        finished_run(root, f"r{number}", losses=[float(number)] * 20, config=config, more=more, started=1e9 + number)
    return "charts?" + "&".join(f"run=p/r{number}" for number in range(4))


def settled(page):
    """Wait for the lines and for the controls above them, which move the charts when they come."""
    expect(panel(page, "loss")).to_have_attribute("data-lines", "4")
    expect(page.get_by_label("lines", exact=True).locator("option", has_text="by lr")).to_have_count(1)


def place_on_chart(page, metric, across, down):
    box = panel(page, metric).locator(".u-over").bounding_box()
    return box["x"] + across * box["width"], box["y"] + down * box["height"]


def test_nearest_line_is_highlighted_in_all_charts_and_named_with_its_value(root, show):
    page = show(sweep(root))
    settled(page)
    page.mouse.move(*place_on_chart(page, "loss", 0.5, 0.5))
    page.mouse.move(*place_on_chart(page, "loss", 0.5, 0.06))
    expect(panel(page, "loss").locator(".tooltip-row[data-nearest]")).to_have_text("r33")
    expect(panel(page, "loss").locator(".tooltip-row")).to_have_count(4)
    expect(page.locator("canvas.above")).to_have_count(2)
    page.mouse.move(2, 2)
    expect(page.locator("canvas.above")).to_have_count(0)
    expect(panel(page, "loss").locator(".tooltip")).to_be_hidden()


def test_values_at_the_pointer_stay_inside_of_the_window(root, show, page):
    page.set_viewport_size({"width": 390, "height": 800})
    names = [f"a-run-with-quite-a-long-name-{number}" for number in range(4)]
    for name in names:
        finished_run(root, name, losses=[1.0] * 20, config={"lr": name})
    show("charts?" + "&".join(f"run=p/{name}" for name in names))
    settled(page)
    tooltip = panel(page, "loss").locator(".tooltip")
    for across in (0.1, 0.45, 0.55, 0.9):
        panel(page, "loss").scroll_into_view_if_needed()
        page.mouse.move(*place_on_chart(page, "loss", across, 0.5))
        expect(tooltip).to_be_visible()
        expect(tooltip.locator(".tooltip-row")).to_have_count(4)
        box = tooltip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        page.mouse.move(2, 2)
        expect(tooltip).to_be_hidden()


def test_lines_of_a_chart_are_reached_with_the_keyboard(root, show):
    page = show(sweep(root))
    settled(page)
    expect(panel(page, "loss").locator(".flag")).to_have_count(1)  # what happened is loaded after the lines
    panel(page, "loss").locator(".chart").focus()
    page.keyboard.press("ArrowDown")
    said = panel(page, "loss").locator("[aria-live]")
    expect(said).to_have_text(re.compile(r"^r3, step 1[01]: 3; r0: checkpoint at step 10"))
    page.keyboard.press("ArrowDown")
    expect(said).to_have_text(re.compile(r"^r2, step 1[01]: 2; "))
    for _ in range(60):
        page.keyboard.press("ArrowRight")
    expect(said).to_have_text("r2, step 20: 2")
    page.keyboard.press("Escape")
    expect(page.locator("canvas.above")).to_have_count(0)


def test_runs_are_grouped_and_coloured_by_a_setting(root, show):
    page = show(sweep(root))
    page.get_by_label("lines", exact=True).select_option("by lr")
    expect(page.locator(".legend .chip")).to_have_text(["lr = 0.01", "lr = 0.1"])
    expect(panel(page, "loss")).to_have_attribute("data-kind", "bands")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")
    page.get_by_label("draw").select_option("all runs")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "4")
    colours = page.locator(".run-list .swatch").evaluate_all("all => all.map(e => e.style.getPropertyValue('--line'))")
    assert (len(set(colours)), colours[0] == colours[2], colours[1] == colours[3]) == (2, True, True)
    expect(page).to_have_url(re.compile("by=config.lr&as=lines"))


def test_board_is_restored_from_its_address_and_back_undoes_a_change(root, show):
    page = show(sweep(root))
    page.get_by_label("log y").check()
    page.get_by_label("x", exact=True).select_option("relative")
    panel(page, "val/reward").hover()
    panel(page, "val/reward").get_by_text("Pin").click()
    page.get_by_text("Layout").click()
    page.get_by_label("charts per row").select_option("2")
    page.keyboard.press("Tab")
    expect(page).to_have_url(re.compile(r"&x=relative&ly=1&pin=val/reward&cols=2$|&ly=1.*x=relative.*"))
    page.reload()
    expect(page.get_by_label("log y")).to_be_checked()
    expect(page.get_by_label("x", exact=True)).to_have_value("relative")
    expect(page.locator(".section summary")).to_contain_text(["pinned", "metrics"])
    expect(page.locator(".board")).to_have_attribute("data-columns", "")
    page.go_back()
    expect(page.locator(".board:not([data-columns])")).to_have_count(1)
    page.go_back()
    expect(page.locator(".section summary")).to_contain_text(["metrics", "val"])


def test_link_without_settings_shows_the_defaults_and_the_tab_the_last_ones(root, show):
    address = sweep(root)
    page = show(address)
    page.get_by_label("log y").check()
    expect(page).to_have_url(re.compile("ly=1"))
    page.goto(page.url.split("#")[0] + f"#/{address}")
    expect(page.get_by_label("log y")).not_to_be_checked()
    page.get_by_role("link", name="Media").click()
    page.get_by_role("link", name="Charts").click()
    expect(page.get_by_label("log y")).to_be_checked()


def test_chart_with_settings_of_its_own_keeps_them_in_the_address(root, show):
    page = show(sweep(root))
    panel(page, "loss").hover()
    panel(page, "loss").get_by_text("Settings").click()
    settings = page.get_by_role("dialog")
    settings.get_by_label("Title").fill("A loss * 100 %")
    settings.get_by_label("Highest y").fill("1.5")
    settings.get_by_label("y axis").select_option("linear")
    settings.get_by_text("Close").click()
    expect(panel(page, "loss").locator("h3")).to_have_text("A loss * 100 %")
    expect(panel(page, "loss").locator(".note")).to_have_text("40 off scale")
    page.reload()
    expect(panel(page, "loss").locator("h3")).to_have_text("A loss * 100 %")
    expect(panel(page, "loss").locator(".note")).to_have_text("40 off scale")
    expect(panel(page, "val/reward").locator(".note")).to_have_text("")
    panel(page, "loss").hover()
    panel(page, "loss").get_by_text("Settings").click()
    page.get_by_role("dialog").get_by_text("Reset").click()
    expect(panel(page, "loss").locator("h3")).to_have_text("loss")
    expect(page).not_to_have_url(re.compile("[?&]c="))


def test_metrics_are_found_by_a_regular_expression(root, show):
    page = show(sweep(root))
    expect(page.locator(".panel h3")).to_have_count(2)
    for text, found, problem in (
        ("^val/.*ward$|nothing", ["val/reward"], ""),
        ("val/(", [], "Unterminated group. Showing the metrics with this text"),
        ("LOSS", ["loss"], ""),
    ):
        page.get_by_label("Find metrics").fill(text)
        expect(page.locator(".panel h3")).to_have_text(found)
        expect(page.locator(".charts > p[role=status]")).to_contain_text(problem)


def test_events_are_flags_with_their_text_until_they_are_turned_off(root, show):
    alert = event("alert", step=15, message="loss is 9, above 8", metric="loss")
    finished_run(
        root, losses=[1.0] * 20, more=[event("checkpoint", step=5), alert, event("eval", step=15, evaluator="val")]
    )
    page = show("charts")
    flags = panel(page, "loss").locator(".flag")
    expect(flags).to_have_count(2)
    expect(flags.nth(0)).to_have_attribute("title", "r0: checkpoint at step 5")
    expect(flags.nth(1)).to_have_attribute(
        "title", "r0: alert at step 15: loss is 9, above 8\nr0: evaluation at step 15: val"
    )
    expect(flags.nth(1)).to_have_attribute("data-kind", "alert")
    page.get_by_label("events").uncheck()
    expect(flags).to_have_count(0)


def test_resumes_and_commands_are_flags_at_their_steps(root, show):
    resume = Event(time=NOW, name="resume", step=None, data={"steps": {"*": 4, "eval": 3}})
    command = event("command", step=8, command="set", result="learning_rate is 0.01")
    finished_run(root, losses=[1.0] * 20, more=[resume, command, event("not_finite", step=12, metric="loss")])
    flags = panel(show("charts"), "loss").locator(".flag")
    expect(flags).to_have_count(3)
    for place, kind in enumerate(("resume", "command", "not_finite")):
        expect(flags.nth(place)).to_have_attribute("data-kind", kind)
    expect(flags.nth(0)).to_have_attribute("title", "r0: resume at step 4")


def test_events_near_the_cursor_are_read_with_the_keyboard(root, show):
    finished_run(root, losses=[1.0] * 21, more=[event("alert", step=11, message="too hot")])
    page = show("charts")
    expect(panel(page, "loss").locator(".flag")).to_have_count(1)
    panel(page, "loss").locator(".chart").focus()
    page.keyboard.press("ArrowDown")
    expect(panel(page, "loss").locator("[aria-live]")).to_have_text("r0, step 11: 1; r0: alert at step 11: too hot")
    expect(panel(page, "loss").locator(".tooltip-event")).to_have_text("r0: alert at step 11: too hot")


def test_chart_is_saved_as_svg_with_a_path_for_each_line(root, show):
    page = show(sweep(root))
    expect(panel(page, "loss")).to_have_attribute("data-lines", "4")
    panel(page, "loss").hover()
    with page.expect_download() as picture:
        panel(page, "loss").get_by_text("SVG").click()
    text = Path(picture.value.path()).read_text("utf-8")
    assert re.findall("<title>(.*?)</title>", text) == ["loss", "r3", "r2", "r1", "r0"]
    assert len(re.findall(r'<path d="M[^"]+" stroke="#', text)) == 4


def test_chart_that_cannot_be_loaded_says_so_and_tries_again(root, show):
    page = show(sweep(root))
    expect(panel(page, "loss")).to_have_attribute("data-lines", "4")
    page.evaluate("() => { window.real = fetch; window.fetch = () => Promise.reject(new TypeError('offline')); }")
    page.get_by_label("Smoothing").fill("0.5")
    state = panel(page, "loss").locator(".panel-state")
    expect(state).to_contain_text("The server does not respond. The lines are older.")
    page.evaluate("() => { window.fetch = window.real; }")
    state.get_by_text("Try again").click()
    expect(state).to_be_hidden()


def test_smoothing_is_automatic_with_many_points_until_it_is_chosen(root, show):
    directory = finished_run(root, losses=[1.0])
    append(directory, *rows([float(step % 7) for step in range(600)], name="noisy"))
    page = show("charts")
    with page.expect_response(lambda answer: "name=loss" in answer.url and "api/series" in answer.url) as plain:
        page.reload()
    assert "smoothing" not in plain.value.url
    expect(page.get_by_label("Smoothing")).to_have_value("0.911")
    with page.expect_response(lambda answer: "name=noisy" in answer.url and "smoothing=0.5" in answer.url) as chosen:
        page.get_by_label("Smoothing").fill("0.5")
    [line] = chosen.value.json()["lines"]
    assert len(line["smoothed_x"]) > 0
    expect(page).to_have_url(re.compile("s=0.5"))
    page.get_by_label("Choose automatically").click()
    expect(page.get_by_label("Smoothing")).to_have_value("0.911")


def test_sections_that_are_folded_stay_folded_and_make_no_charts(root, show):
    finished_run(root, more=[row(1, **{"val/loss": 1.0, "system/rss": 2.0})])
    page = show("charts")
    expect(page.locator(".section summary")).to_contain_text(["metrics", "val", "system"])
    expect(page.locator(".panel h3")).to_have_text(["loss", "val/loss"])
    page.locator(".section summary", has_text="val").click()
    page.locator(".section summary", has_text="system").click()
    expect(page).to_have_url(re.compile("fold=val&fold=system"))
    page.reload()
    expect(page.locator(".panel h3")).to_have_text(["loss", "system/rss"])


def test_media_are_panels_of_the_board_that_lead_to_their_view(root, show):
    with hl.run("r0", root=root, project="p", summary=False) as run:
        for _ in run.steps(2):
            picture = hl.Image(np.full((8, 8, 3), 90, np.uint8))
            run.log(loss=1.0, weights=hl.Histogram(np.arange(9.0)), shot=picture)
    page = show("charts")
    page.locator(".section summary", has_text="media").click()
    expect(page.locator(".panel[data-media=histogram] canvas")).to_have_count(1)
    expect(page.locator(".panel[data-media=image] img")).to_have_count(1)
    page.locator(".panel[data-media=image]").get_by_role("link", name="Open").click()
    expect(page.get_by_label("Find media")).to_have_value("shot")


def test_run_pointed_at_in_the_list_is_highlighted_in_the_charts(root, show):
    page = show(sweep(root))
    settled(page)
    page.locator(".run-row", has_text="r1").hover()
    expect(page.locator("canvas.above")).to_have_count(2)
    page.locator(".toolbar").first.hover(position={"x": 2, "y": 2})
    expect(page.locator("canvas.above")).to_have_count(0)

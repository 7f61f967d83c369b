"""Charts in a real browser: they grow, group, zoom and refine, leave out outliers, are saved and remembered."""

import re
from pathlib import Path

import pytest
from page_looks import is_drawn, panel, wait_until
from page_runs import (
    append,
    finished_run,
    live_run,
    repeats,
    row,
    rows,
)

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect


def test_curve_of_a_live_run_grows_without_a_reload(root, show):
    directory = live_run(root)
    append(directory, *rows([3.0, 2.0, 1.5]))
    page = show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-points", "3")
    page.evaluate("window.kept = true")
    append(directory, *rows([1.0, 0.5], first=4))
    expect(panel(page, "loss")).to_have_attribute("data-points", "5")
    append(directory, row(6, accuracy=0.5))
    expect(panel(page, "accuracy")).to_have_attribute("data-points", "1")
    assert page.evaluate("window.kept")


def test_chart_requests_only_the_runs_that_changed_and_keeps_the_other_lines(root, show):
    directories = [live_run(root, run_id) for run_id in ("first", "second")]
    for directory in directories:
        append(directory, *rows([3.0, 2.0]))
    page = show("charts?run=p/first&run=p/second")
    expect(panel(page, "loss")).to_have_attribute("data-points", "4")
    requested = []
    page.on("request", lambda request: requested.append(request.url) if "/api/series" in request.url else None)
    append(directories[1], *rows([1.0], first=3))
    expect(panel(page, "loss")).to_have_attribute("data-points", "5")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")
    assert {run for url in requested for run in re.findall("run=([^&]+)", url)} == {"p%2Fsecond"}


def test_bands_are_drawn_by_arm_and_runs_one_by_one_when_asked(root, show):
    repeats(root)
    page = show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-kind", "bands")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")
    expect(page.locator(".legend .chip")).to_have_text(["high", "low"])
    assert is_drawn(page, "loss")
    page.get_by_label("lines").select_option("run")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "6")
    assert is_drawn(page, "loss")
    page.get_by_label("Smoothing").fill("0.5")
    page.get_by_label("log y").check()
    page.get_by_label("x", exact=True).select_option("relative")
    expect(panel(page, "loss")).to_have_attribute("data-kind", "lines")
    assert is_drawn(page, "loss")


def test_stages_of_an_arm_are_lines_of_their_own(root, show):
    repeats(root, arms=("low",), number=2, stage="sft")
    repeats(root, arms=("low",), number=2, stage="grpo")
    page = show("charts")
    expect(page.locator(".legend .chip")).to_have_text(["low · grpo", "low · sft"])
    colours = page.locator(".run-list .swatch").evaluate_all("all => all.map(e => e.style.getPropertyValue('--line'))")
    assert len(set(colours)) == 2


def test_outliers_are_left_out_of_the_scale_and_counted(root, show):
    finished_run(root, losses=[1.0 + step / 100 for step in range(50)] + [1e9])
    page = show("charts")
    expect(panel(page, "loss").locator(".note")).to_have_text("1 off scale")
    page.get_by_label("ignore outliers").uncheck()
    expect(panel(page, "loss").locator(".note")).to_have_text("")


def test_chart_is_saved_as_table_and_as_picture(root, show):
    finished_run(root)
    page = show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-points", "3")
    panel(page, "loss").hover()
    with page.expect_download() as table:
        panel(page, "loss").get_by_text("CSV").click()
    text = Path(table.value.path()).read_bytes().decode()
    assert text.split("\r\n") == ["run,axis,step,loss", "p/r0,train,1,3", "p/r0,train,2,2", "p/r0,train,3,1"]
    with page.expect_download() as picture:
        panel(page, "loss").get_by_text("PNG").click()
    assert Path(picture.value.path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_layout_of_charts_is_remembered(root, show):
    finished_run(root, more=[row(1, **{"val/loss": 1.0, "val/accuracy": 0.5})])
    page = show("charts")
    expect(page.locator(".section summary")).to_contain_text(["metrics", "val"])
    panel(page, "val/loss").hover()
    panel(page, "val/loss").get_by_text("Pin").click()
    page.reload()
    expect(page.locator(".section summary")).to_contain_text(["pinned", "metrics", "val"])
    expect(page.locator(".section").first.locator("h3")).to_have_text(["val/loss"])


def test_zoom_is_shared_by_all_charts_and_undone_by_a_double_click(root, show):
    finished_run(root, losses=[float(step) for step in range(60)], more=rows(range(60), name="other"))
    page = show("charts")
    expect(panel(page, "other")).to_have_attribute("data-in-sight", "60")
    box = panel(page, "loss").locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(panel(page, "other")).not_to_have_attribute("data-in-sight", "60")
    expect(page).to_have_url(re.compile("[?&]z="))
    panel(page, "loss").locator(".u-over").dblclick(position={"x": 100, "y": 50})
    expect(panel(page, "other")).to_have_attribute("data-in-sight", "60")
    expect(page).not_to_have_url(re.compile("[?&]z="))


def drag(page, metric, begin, end):
    """Zoom into a part of a chart, from one share of its width to another."""
    over = panel(page, metric).locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + begin * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    page.mouse.move(2, 2)


def in_sight(page, metric):
    return int(panel(page, metric).get_attribute("data-in-sight"))


def test_zoom_into_a_thinned_line_draws_the_finer_points_and_zooming_out_goes_back(root, show):
    losses = [1.0 + step % 7 / 10 for step in range(30_000)]
    losses[15_003] = 50.0
    finished_run(root, losses=losses)
    page = show("charts")
    page.get_by_label("ignore outliers").uncheck()
    expect(panel(page, "loss")).to_have_attribute("data-kind", "lines")
    whole = in_sight(page, "loss")
    assert whole < 2000
    with page.expect_response(lambda answer: "first_x" in answer.url) as asked:
        drag(page, "loss", 0.49, 0.51)
    [part] = asked.value.json()["lines"]
    assert (part["points"] < 2000, len(part["x"]) == part["points"], max(part["y"])) == (True, True, 50.0)
    wait_until(page, "document.querySelector('[data-metric=loss]').dataset.inSight > 400")
    panel(page, "loss").locator(".u-over").dblclick(position={"x": 100, "y": 50})
    expect(panel(page, "loss")).to_have_attribute("data-in-sight", str(whole))


def test_charts_are_zoomed_with_keys_and_buttons(root, show):
    finished_run(root, losses=[float(step) for step in range(101)])
    page = show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-in-sight", "101")
    page.keyboard.press("+")
    expect(panel(page, "loss")).to_have_attribute("data-in-sight", "51")
    page.get_by_label("Zoom in").click()
    expect(panel(page, "loss")).to_have_attribute("data-in-sight", re.compile("25|26"))
    page.keyboard.press("Escape")
    expect(panel(page, "loss")).to_have_attribute("data-in-sight", "101")
    assert is_drawn(page, "loss")


def test_bands_are_drawn_over_time_and_over_a_metric_that_grows(root, show):
    repeats(root, has_tokens=True)
    page = show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-kind", "bands")
    for x in ("relative", "time", "tokens"):
        page.get_by_label("x", exact=True).select_option(x)
        expect(panel(page, "loss")).to_have_attribute("data-kind", "bands")
        expect(panel(page, "loss")).to_have_attribute("data-lines", "2")
        assert is_drawn(page, "loss")
        expect(panel(page, "loss").locator(".why")).to_be_hidden()


def test_chart_without_a_band_says_why_and_draws_each_run_in_the_colour_of_its_group(root, show):
    repeats(root, has_tokens=True)
    page = show("charts")
    page.get_by_label("x", exact=True).select_option("loss")
    expect(panel(page, "tokens").locator(".why")).to_contain_text("No band: loss does not only grow in sweep/")
    expect(panel(page, "tokens")).to_have_attribute("data-lines", "6")
    expect(page.locator(".legend .chip")).to_have_text(["high", "low"])
    assert is_drawn(page, "tokens")


def test_metric_that_is_text_is_a_list_instead_of_an_empty_chart(root, show):
    finished_run(root, more=[row(step, lesson="sums") for step in range(1, 71)])
    page = show("charts")
    expect(panel(page, "lesson").locator("tbody tr")).to_have_count(50)
    expect(panel(page, "lesson").locator(".why")).to_have_text("The latest 50 texts")
    expect(panel(page, "lesson").locator(".chart")).to_be_hidden()
    axes = page.get_by_label("x", exact=True).locator("option")
    expect(axes).to_have_text(["step", "time since start", "time of day", "loss"])


def test_log_axis_draws_lone_points_and_says_where_there_is_nothing_above_zero(root, show):
    finished_run(root, losses=[0.0, 1.0] * 10, more=rows([-1.0, 0.0, -2.0], name="below"))
    page = show("charts")
    expect(panel(page, "below")).to_have_attribute("data-points", "3")
    page.get_by_label("log y").check()
    expect(panel(page, "loss").locator(".note")).to_have_text("10 not above 0")
    assert is_drawn(page, "loss")
    why = panel(page, "below").locator(".why")
    expect(why).to_have_text("A log axis shows only values above 0; there are none.")
    page.get_by_label("log y").uncheck()
    expect(why).to_be_hidden()
    assert is_drawn(page, "below")


def marks_at_the_left(page, metric):
    """How many lines of text stand left of a chart."""
    return (
        panel(page, metric)
        .locator("canvas")
        .evaluate(
            """canvas => {
            const scale = canvas.width / canvas.clientWidth;
            const data = canvas.getContext("2d").getImageData(0, 0, 48 * scale, canvas.height - 24 * scale);
            const isMarked = (y) => data.data.slice(y * data.width * 4, (y + 1) * data.width * 4)
                .some((value, at) => at % 4 === 3 && value > 60);
            let found = 0;
            for (let y = 1; y < data.height; y++) if (isMarked(y) && !isMarked(y - 1)) found++;
            return found;
        }"""
        )
    )


def test_values_of_any_size_have_marks_at_the_axis(root, show):
    sizes = {"loss": 1e300, "tiny": 1e-300}
    large, small = ([size, 2 * size, 3 * size] for size in sizes.values())
    finished_run(root, losses=large, more=rows(small, name="tiny"))
    page = show("charts")
    for metric in sizes:
        expect(panel(page, metric)).to_have_attribute("data-points", "3")
        assert is_drawn(page, metric)
        assert marks_at_the_left(page, metric) > 1


def test_arm_has_one_colour_in_tables_curves_and_on_every_axis(root, show):
    repeats(root)
    for directory in (root / "sweep").iterdir():
        append(directory, row(31, axis="eval", loss=0.5), row(32, axis="eval", loss=0.4))
    page = show("experiment")
    expect(page.locator(".toolbar .legend .chip")).to_have_count(4)
    expect(page.locator("tr[data-arm]")).to_have_count(2)
    colours = "all => Object.fromEntries(all.map(e => [e.textContent, e.querySelector('i').style.cssText]))"
    chips = page.locator(".toolbar .legend .chip").evaluate_all(colours)
    arms = page.locator("tr[data-arm] th").evaluate_all(colours)
    assert {label: colour == arms[label.split(" ")[0]] for label, colour in chips.items()} == dict.fromkeys(chips, True)
    expect(page.locator(".legend .dashed")).to_have_count(2)


def test_system_view_shows_what_the_machine_does_and_nothing_else(root, show):
    finished_run(root, more=[row(1, **{"system/rss_mib": 100.0, "throughput/tokens_per_second": 5.0})])
    page = show("system")
    expect(page.locator(".panel h3")).to_have_text(["system/rss_mib", "throughput/tokens_per_second"])

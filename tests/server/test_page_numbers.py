"""Numbers on the page are those of all points and all runs: smoothing, groups with NaN, counts, selections."""

import math

import numpy as np
import pytest
from page_looks import panel
from page_runs import append, ended, finished_run, make_run, repeats, rows

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect


def spiky(count=20_000):
    """A level of 1.2, of which every 50th point is far off: 2.0 is the mean of all, and no thinned line shows it."""
    noise = np.random.default_rng(5).normal(0.0, 0.001, count)
    noise[::50] += 40.0
    return (1.2 + noise).tolist()


def smoothed_at(values, weight):
    """TensorBoard's smoothing of values at the steps 1, 2, ..."""
    found, last = {}, 0.0
    for step, value in enumerate(values, start=1):
        last = last * weight + (1 - weight) * value
        found[step] = last / (1 - weight**step)
    return found


def shown_at(page, metric, share=0.5):
    """The step and the value that a chart shows under the pointer."""
    over = panel(page, metric).locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + share * box["width"] - 3, box["y"] + 40)
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
    step = panel(page, metric).locator(".tooltip-x").inner_text().removeprefix("step ").replace(",", "")
    value = panel(page, metric).locator(".tooltip-row b").inner_text()
    page.mouse.move(2, 2)
    return round(float(step)), float(value)


@pytest.mark.parametrize("width", [700, 1280, 2200])
def test_smoothed_value_is_that_of_all_points_at_every_width_and_zoom(root, show, page, width):
    page.set_viewport_size({"width": width, "height": 800})
    values = spiky()
    finished_run(root, losses=values)
    expected = smoothed_at(values, 0.999)
    show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-kind", "lines")
    with page.expect_response(lambda answer: "smoothing=0.999" in answer.url):
        page.get_by_label("Smoothing").fill("0.999")
    page.locator("h3").first.click()
    for keys in ("", "++++", "++"):
        for key in keys:
            page.keyboard.press(key)
        step, value = shown_at(page, "loss")
        assert value == pytest.approx(expected[step], abs=0.05)


def test_run_that_diverged_leaves_the_mean_of_its_group_and_is_counted(root, show):
    repeats(root, arms=("low",), number=3, steps=10)
    diverged = make_run(root, "low-r3", "sweep", experiment={"name": "sweep", "id": "x", "group": "low", "arm": "low"})
    append(diverged, *rows([math.nan] * 10), ended(10, "failed"))
    page = show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-kind", "bands")
    expect(panel(page, "loss").locator(".note")).to_have_text("10 not finite")
    step, value = shown_at(page, "loss", 0.99)
    assert (step, value) == (10, pytest.approx(0.2))
    expect(panel(page, "loss").locator(".tooltip-row em")).to_have_text("± 0.100, 3 runs")

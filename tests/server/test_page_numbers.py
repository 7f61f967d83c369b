"""Numbers on the page are those of all points and all runs: smoothing, groups with NaN, counts, selections."""

import math
import re

import numpy as np
import pytest
from page_looks import open_view, panel
from page_runs import append, ended, event, finished_run, live_run, make_run, repeats, row, rows, sample

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
    tooltip = panel(page, metric).locator(".tooltip")
    expect(tooltip).to_be_visible()
    # Both at once: the tooltip follows the pointer with the next picture.
    read = "tip => ['.tooltip-x', '.tooltip-row b'].map(name => tip.querySelector(name).textContent)"
    shown, value = tooltip.evaluate(read)
    step = shown.removeprefix("step ").replace(",", "")
    page.mouse.move(2, 2)
    expect(tooltip).to_be_hidden()
    return round(float(step)), float(value)


def test_smoothed_value_is_that_of_all_points_at_every_width_and_zoom(root, show, page):
    values = spiky()
    finished_run(root, losses=values)
    expected = smoothed_at(values, 0.999)
    show("help")
    for width in (700, 1280, 2200):
        page.set_viewport_size({"width": width, "height": 800})
        open_view(page, "charts?s=0.999")
        expect(panel(page, "loss")).to_have_attribute("data-kind", "lines")
        expect(page.get_by_label("Smoothing")).to_have_value("0.999")
        page.locator("h3").first.click()
        for keys in ("", "++++", "++"):
            for key in keys:
                page.keyboard.press(key)
            step, value = shown_at(page, "loss")
            assert value == pytest.approx(expected[step], abs=0.05)
        open_view(page, "help")


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


def many_runs(root, **projects):
    """So many finished runs of each project, the later projects later."""
    for place, (project, count) in enumerate(projects.items()):
        for number in range(count):
            finished_run(root, f"r{number:03}", [1.0], project, started=1000.0 * place + number)


def test_counts_and_selections_of_groups_cover_all_their_runs(root, show):
    many_runs(root, old=60, new=150)
    page = show("runs?group=project")
    expect(page.locator("tr.group .count")).to_have_text(["150 finished", "60 finished"])
    page.get_by_label("Select all 210 runs", exact=True).check()
    chosen = page.get_by_role("link", name=re.compile("Charts of"))
    expect(chosen).to_have_text("Charts of 210 selected")
    page.get_by_label("Select all 150 runs of new").uncheck()
    expect(chosen).to_have_text("Charts of 60 selected")
    page.get_by_role("button", name="Runs of old").click()
    page.get_by_label("Select old/r059").uncheck()
    expect(chosen).to_have_text("Charts of 59 selected")
    expect(page.get_by_label("Select all 60 runs of old")).to_have_js_property("indeterminate", value=True)
    chosen.click()
    expect(page.locator(".side summary .count")).to_have_text("59 of 210")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "59")
    expect(page.locator(".side .run-row")).to_have_count(150)  # none of the old ones
    page.locator(".side").get_by_label("old", exact=True).check()
    expect(page.locator(".side summary .count")).to_have_text("60 of 210")


def test_choosing_all_runs_means_those_that_are_found(root, show):
    many_runs(root, old=5, new=3)
    page = show("runs")
    page.get_by_label("Select all 8 runs").check()
    page.get_by_label("Select all 8 runs").uncheck()
    page.get_by_label("Filter runs").fill("old r00")
    page.get_by_label("Select all 5 runs", exact=True).check()
    expect(page.get_by_role("link", name="Charts of 5 selected")).to_be_visible()


def test_charts_of_more_runs_than_can_be_read_at_once_say_how_many_are_drawn(root, show):
    names = [f"{number:03}".ljust(240, "r") for number in range(170)]  # their ids fill the address of a request
    for name in names:
        finished_run(root, name, [1.0])
    page = show("runs")
    page.get_by_label("Select all 170 runs", exact=True).check()
    with page.expect_request(lambda request: "/api/metrics?" in request.url) as asked:
        page.get_by_role("link", name="Charts of 170 selected").click()
    assert asked.value.url.count("run=") == 160
    expect(page.locator(".side summary .count")).to_have_text("170 of 170")
    expect(page.locator(".notes .message")).to_have_text("170 runs are selected; only the first 160 are shown.")


def test_url_of_an_unknown_view_shows_a_message_and_the_page_still_works(root, show):
    finished_run(root)
    page = show("__proto__")
    for view in ("__proto__", "constructor", "toString", "%E0%A4%A"):
        open_view(page, view)
        expect(page.locator(".empty")).to_contain_text("There is no such view")
        page.get_by_role("link", name="Charts").click()
        expect(panel(page, "loss")).to_have_attribute("data-points", "3")
    open_view(page, "charts?run=%E0%A4%A")
    expect(page.locator(".notes .message")).to_contain_text("There is no run")
    expect(page.locator(".panel")).to_have_count(0)


NAMES = ("__proto__", "constructor", "toString")


def test_names_that_every_object_has_are_names_as_any_other(root, show):
    for name in NAMES:
        belongs = {"name": name, "id": "x", "group": name, "arm": name, "repeat": 0}
        more = [row(4, **{name: 1.0}), sample(1, name, 1.0, lesson=name, rewards={name: 1.0}), event(name)]
        finished_run(root, name, project=name, more=more, experiment=belongs, tags=[name])
    page = show("runs")
    for name in NAMES:
        for view, shown in [
            ("runs", f'tr[data-run="{name}/{name}"]'),
            (f"charts?run={name}/{name}", f'[data-metric="{name}"][data-points="1"]'),
            (f"rollouts?run={name}/{name}", f'.sample-row:has-text("{name}")'),
            (f"rollouts?run={name}/{name}", f'.reward-row:has-text("{name}")'),
            (f"experiment?experiment={name}", f'tr[data-arm="{name}"]'),
            (f"hooks?run={name}/{name}", f'.events tr:has-text("{name}")'),
        ]:
            open_view(page, view)
            expect(page.locator(shown).first).to_be_visible()
        open_view(page, f"charts?run=nope/{name}")
        expect(page.locator(".notes .message")).to_have_text(f"There is no run nope/{name}.")


def test_skip_link_keeps_the_view_and_the_selection(root, show):
    for name in ("one", "two", "three"):
        finished_run(root, name)
    page = show("charts?run=p/one&run=p/two")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")
    address = page.url
    page.get_by_role("link", name="Skip to content").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#view")).to_be_focused()
    expect(page).to_have_url(address)
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")


def test_tabs_lead_to_the_runs_that_are_chosen_now(root, show):
    for name in ("one", "two"):
        finished_run(root, name)
    page = show("charts?run=p/one&run=p/two")
    page.locator(".side").get_by_label("two").uncheck()
    page.get_by_role("link", name="Hooks").click()
    expect(page.locator(".side summary .count")).to_have_text("1 of 2")


def test_keys_work_after_a_checkbox_was_clicked_and_not_in_a_text_field(root, show):
    finished_run(root, losses=[float(step) for step in range(101)])
    page = show("charts")
    expect(panel(page, "loss")).to_have_attribute("data-in-sight", "101")
    page.get_by_label("log x").click()
    page.get_by_label("log x").click()
    page.keyboard.press("+")
    expect(panel(page, "loss")).to_have_attribute("data-in-sight", "51")
    page.get_by_label("Find metrics").press("1")
    expect(page.locator("#view")).to_have_attribute("data-view", "charts")
    page.get_by_label("log y").click()
    page.keyboard.press("1")
    expect(page.locator("#view")).to_have_attribute("data-view", "runs")


def test_sample_that_a_filter_leaves_out_is_not_shown_any_more(root, show):
    finished_run(root, more=[sample(1, "the good one", 1.0), sample(2, "the bad one", -1.0)])
    page = show("rollouts")
    expect(page.locator(".completion .message-body")).to_have_text("the bad one")
    page.get_by_label("reward from").fill("0")
    expect(page.locator(".sample-row")).to_have_count(1)
    expect(page.locator(".completion .message-body")).to_have_text("the good one")
    expect(page.locator(".sample-row[aria-selected=true]")).to_have_count(1)


def test_samples_asked_for_with_more_stay_when_new_ones_come(root, show):
    directory = live_run(root)
    append(directory, *(sample(step, f"sample {step}", 1.0) for step in range(1, 101)))
    page = show("rollouts")
    for count in (80, 100):
        page.get_by_role("button", name="more").click()
        expect(page.locator(".sample-row")).to_have_count(count)
    append(directory, sample(101, "a new one", 1.0))
    expect(page.locator(".sample-row").first).to_contain_text("a new one")
    expect(page.locator(".sample-row")).to_have_count(101)


def test_text_metric_is_shown_by_step_among_the_charts(root, show):
    texts = [row(step, phase="warmup" if step < 3 else "train <b>") for step in range(1, 5)]
    finished_run(root, more=[*texts, *rows([1.0] * 400, name="other", first=5)])
    page = show("charts")
    steps = [["4", "train <b>"], ["3", "train <b>"], ["2", "warmup"], ["1", "warmup"]]
    expect(panel(page, "phase").locator("tbody tr")).to_have_text(["r0".join(each) for each in steps])
    expect(panel(page, "phase").locator(".chart")).to_be_hidden()


def test_charts_of_an_experiment_are_those_of_all_its_runs(root, show):
    repeats(root, arms=("low",), number=101, steps=1)
    page = show("experiment")
    expect(page.get_by_role("link", name="All charts")).to_have_attribute(
        "href", re.compile("^(?:[^=]*run=){101}[^=]*$")
    )


def test_sample_without_a_prompt_that_can_be_asked_for_offers_no_others_of_it(root, show):
    prompts = {"none": "", "long": "p" * 5000}
    finished_run(root, more=[sample(1, text, 1.0, prompt=prompt) for text, prompt in prompts.items()])
    page = show("rollouts")
    for text in prompts:
        page.locator(".sample-row", has_text=text).click()
        expect(page.locator(".completion .message-body")).to_have_text(text)
        assert (page.get_by_role("tab").count(), page.locator(".sample-detail .empty").count()) == (0, 0)

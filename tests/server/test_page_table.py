"""The table of runs in a real browser: sort, filter, group, and an address that can be shared."""

import math

import pytest
from page_looks import has_sideways_scroll
from page_runs import HOSTILE, append, begun, ended, finished_run, make_run, repeats, row

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

NAMES = "tr[data-run] th a"


@pytest.fixture
def table(root, show):
    for place, (lr, loss) in enumerate([(0.1, 2.0), (0.2, 0.5), (0.1, math.nan)]):
        finished_run(root, f"r{place}", (3.0, loss), config={"lr": lr, "who": HOSTILE}, started=1000.0 - place)
    return show("runs")


def test_best_run_is_found_by_sorting_and_back_restores_the_order(table):
    expect(table.locator(NAMES)).to_have_text(["r0", "r1", "r2"])
    table.get_by_role("button", name="loss", exact=True).click()
    expect(table.locator(NAMES)).to_have_text(["r1", "r0", "r2"])
    expect(table.locator("td[data-odd]")).to_have_text("NaN")
    table.reload()
    expect(table.locator(NAMES)).to_have_text(["r1", "r0", "r2"])
    table.go_back()
    expect(table.locator(NAMES)).to_have_text(["r0", "r1", "r2"])


def test_filter_narrows_the_table_and_groups_lead_to_their_runs(table):
    table.get_by_label("Filter runs").fill("lr = 0.1")
    expect(table.get_by_role("status").filter(has_text="2 of 3 runs")).to_be_visible()
    table.get_by_label("Filter runs").fill("lr > 0")
    table.get_by_label("group by").select_option("lr")
    expect(table.locator("tr[data-group]")).to_have_count(2)
    table.get_by_role("link", name="0.2", exact=True).click()
    expect(table.locator(NAMES)).to_have_text(["r1"])


def test_hostile_text_is_shown_as_text_and_the_table_fits_a_phone(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    finished_run(root, name=HOSTILE, config={"who": HOSTILE})
    show("runs?column=who&column=loss")
    expect(page.locator(NAMES)).to_have_text(HOSTILE)
    expect(page.locator("tr[data-run] td").nth(2)).to_have_text(HOSTILE)
    assert (page.evaluate("window.hacked"), page.locator("#view script, #view img").count()) == (None, 0)
    assert not has_sideways_scroll(page)


def test_filter_with_an_error_is_marked_at_its_position_while_it_is_typed(root, show):
    finished_run(root, config={"lr": 1.0})
    page = show("runs?where=lr+%3D+1+and+lrr+%3D+1")
    expect(page.get_by_role("alert")).to_contain_text("Did you mean 'lr'?")
    expect(page.locator(".filter-mirror mark")).to_have_text("lrr")
    page.get_by_label("Filter runs").fill("lr = 1")
    expect(page.locator(NAMES)).to_have_count(1)
    page.get_by_label("Filter runs").press_sequentially(" and los < 2")
    expect(page.locator(".filter-mirror mark")).to_have_text("los")
    expect(page.locator(NAMES)).to_have_count(1)  # the last valid filter stays


def test_filter_is_completed_with_names_functions_operators_and_values(root, show):
    finished_run(root, "a", config={"optimizer": {"name": "adamw"}}, started=2.0)
    finished_run(root, "b", config={"optimizer": {"name": "sgd"}}, started=1.0)
    page = show("runs")
    field, options = page.get_by_role("combobox", name="Filter runs"), page.locator("#filter-options [role=option]")
    field.press_sequentially("opt")
    expect(options).to_have_text(["optimizer.nameconfig · 2 runs"])
    field.press("ArrowDown")
    field.press("Enter")
    expect(options.first).to_have_text("=equal")
    field.press_sequentially("= ")
    expect(options).to_have_text(["adamw1 run", "sgd1 run"])
    field.press("ArrowUp")
    field.press("Tab")
    expect(page.locator(NAMES)).to_have_text(["b"])
    expect(options).to_have_text(["and", "or"])
    field.press_sequentially("and mi")
    expect(options.first).to_have_text("min(of a metric")
    field.press("ArrowDown")
    field.press("Enter")
    expect(options).to_have_text(["lossmetric · 2 runs"])
    field.press("Escape")
    expect(options).to_have_count(0)
    expect(field).to_have_value("optimizer.name = sgd and min(")


def test_columns_are_found_chosen_ordered_and_reset(table):
    heads = table.get_by_role("columnheader")
    table.get_by_text("Columns", exact=True).first.click()
    table.get_by_label("Find columns").fill("los")
    table.get_by_label("min(loss)", exact=True).check()
    expect(heads.last).to_have_text("min(loss)")
    table.get_by_label("Move min(loss) up").click()
    expect(heads.last).to_have_text("tag")
    table.get_by_label("Remove loss", exact=True).click()
    table.keyboard.press("Escape")
    expect(table.get_by_label("Find columns")).to_be_hidden()
    expect(table.locator("tr[data-run]").nth(2).locator("td").nth(-2)).to_have_text("3")  # without the NaN
    table.reload()
    expect(heads.last).to_have_text("tag")
    expect(table.get_by_role("columnheader", name="min(loss)")).to_be_visible()
    table.get_by_text("Columns", exact=True).first.click()
    table.get_by_role("button", name="Reset").click()
    expect(table.get_by_role("columnheader", name="min(loss)")).to_have_count(0)


def test_view_is_saved_opened_renamed_and_deleted(table):
    table.get_by_role("button", name="loss", exact=True).click()
    expect(table.locator(NAMES)).to_have_text(["r1", "r0", "r2"])
    table.get_by_text("Views", exact=True).click()
    table.get_by_label("Name of the view").fill("best first")
    table.get_by_role("button", name="Save", exact=True).click()
    expect(table.get_by_role("link", name="best first")).to_be_visible()
    table.goto(table.url.split("#")[0] + "#/runs")
    table.reload()
    expect(table.locator(NAMES)).to_have_text(["r0", "r1", "r2"])
    table.get_by_text("Views", exact=True).click()
    table.get_by_role("link", name="best first").click()
    expect(table.locator(NAMES)).to_have_text(["r1", "r0", "r2"])
    table.get_by_text("Views", exact=True).click()
    table.get_by_role("button", name="Rename best first").click()
    table.get_by_label("New name of best first").fill("lowest loss")
    table.keyboard.press("Enter")
    expect(table.get_by_role("link", name="lowest loss")).to_have_attribute("href", "#/runs?sort=loss")
    table.get_by_role("button", name="Delete the view lowest loss").click()
    expect(table.locator(".views")).to_contain_text("No views are saved yet")


def test_heading_of_numbers_is_at_their_side_also_if_the_first_run_has_none(root, show):
    finished_run(root, "with", (1.0,), started=1000.0)
    finished_run(root, "without", (), started=2000.0)
    page = show("runs")
    expect(page.locator(NAMES)).to_have_text(["without", "with"])
    expect(page.get_by_role("columnheader", name="loss", exact=True)).to_have_css("text-align", "right")


def test_best_value_of_the_sorted_column_is_marked(table):
    expect(table.locator(NAMES)).to_have_text(["r0", "r1", "r2"])
    expect(table.locator("td[data-best]")).to_have_count(0)
    table.get_by_role("button", name="loss", exact=True).click()
    expect(table.locator("td[data-best]")).to_contain_text("0.5")
    table.get_by_role("button", name="loss ↑").click()
    expect(table.locator(NAMES)).to_have_text(["r0", "r1", "r2"])  # the worst comes first
    expect(table.locator("td[data-best]")).to_have_count(0)


def test_columns_that_no_matching_run_has_are_left_out_until_they_are_chosen(root, show):
    finished_run(root, "old", config={"alpha": 1.0})
    finished_run(root, "new", (), config={"beta": 2.0}, more=[row(1, other=1.0)])
    page = show("runs")
    heads = page.get_by_role("columnheader")
    for name in ("loss", "other", "alpha", "beta"):
        expect(heads.filter(has_text=name)).to_have_count(1)
    page.get_by_label("Filter runs").fill("name = new")
    for name, count in (("loss", 0), ("other", 1), ("alpha", 0), ("beta", 1)):
        expect(heads.filter(has_text=name)).to_have_count(count)
    page.get_by_label("Filter runs").fill("")
    expect(heads.filter(has_text="loss")).to_have_count(1)
    page.goto(f"{page.url.split('#')[0]}#/runs?where=name+%3D+new&column=loss")
    expect(heads.filter(has_text="loss")).to_have_count(1)


def test_sorted_table_fits_a_tablet(root, show, page):
    page.set_viewport_size({"width": 600, "height": 740})
    finished_run(root, more=[row(3, **{f"val/metric_number_{number}": float(number) for number in range(9)})])
    columns = "&".join(f"column=val/metric_number_{number}" for number in range(9))
    show(f"runs?{columns}&column=loss&sort=loss")
    expect(page.locator("td[data-best]")).to_have_count(1)
    assert not has_sideways_scroll(page)


def test_sorted_column_and_the_form_of_a_status_are_in_sight_on_a_phone(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    finished_run(root, "good", config={"alpha": 1.0}, more=[row(3, accuracy=0.5)])
    append(make_run(root, "bad"), begun(), row(1, loss=9.0), ended(1, "failed", "broken"))
    show("runs?sort=loss")
    expect(page.locator("td[data-best]")).to_be_in_viewport(ratio=0.9)
    for name, radius in (("finished", "50%"), ("failed", "1px")):
        badge = page.locator(f".runs-table .status[data-status={name}]")
        expect(badge).to_have_text(name)  # for those who hear it
        expect(badge.locator("i")).to_have_css("border-radius", radius)


def test_groups_have_their_aggregates_beside_their_names(root, show):
    for number in range(4):
        finished_run(root, f"r{number}", (1.0 + number,), config={"alpha": number % 2})
    page = show("runs?group=alpha")
    expect(page.get_by_role("columnheader")).to_have_text(["", "alpha", "status", "loss", "duration", "started", "tag"])
    expect(page.locator("tr.group").first).to_contain_text("2")


def test_runs_that_other_views_show_by_default_are_not_selected_in_the_table(root, show):
    repeats(root, arms=("low",), number=2)
    finished_run(root, "alone", started=1000.0)
    page = show("runs")
    expect(page.locator(NAMES)).to_have_count(3)
    expect(page.get_by_role("button", name="Edit low-r0")).to_be_visible()  # what may be changed is known
    expect(page.get_by_role("checkbox", checked=True)).to_have_count(0)
    expect(page.locator(".actions-bar button")).to_have_count(0)
    page.get_by_label("Select p/alone").check()
    expect(page.get_by_role("link", name="Charts of 1 selected")).to_be_visible()
    page.get_by_role("button", name="Clear selection").click()
    expect(page.get_by_role("checkbox", checked=True)).to_have_count(0)
    page.keyboard.press("2")  # and the charts show what they show by default
    expect(page.locator('.panel[data-metric="loss"]')).to_have_attribute("data-kind", "bands")


def test_long_table_has_only_rows_in_sight_and_says_where_they_are(root, show):
    for number in range(150):
        finished_run(root, f"r{number:03}", (1.0,), started=2000.0 - number)
    page = show("runs")
    table = page.get_by_role("table")
    expect(table).to_have_attribute("aria-rowcount", "151")
    expect(page.locator('tr[data-run="p/r000"]')).to_have_attribute("aria-rowindex", "2")
    expect(page.locator('tr[data-run="p/r149"]')).to_have_count(0)
    page.get_by_role("link", name="r000").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="r001")).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator('tr[data-run="p/r149"]')).to_have_attribute("aria-rowindex", "151")
    expect(page.get_by_role("link", name="r149")).to_be_in_viewport()
    expect(page.locator('tr[data-run="p/r070"]')).to_have_count(0)

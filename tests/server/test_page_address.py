"""The state of a view is in its address: reloaded or opened by someone else, the page shows the same."""

import re

import pytest
from page_looks import open_view
from page_runs import append, finished_run, line, live_run, repeats, sample

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

import hookline as hl
from hookline._record.console import ConsoleWriter


def lines_of(view):
    return view.locator(".log .line")


def test_log_filters_of_hooks_are_restored_from_the_address(root, show):
    directory = finished_run(root)
    append(directory, line("warm up"), line("too hot", "WARNING"), line("too cold", "WARNING"))
    page = show("hooks?run=p/r0")
    expect(lines_of(page)).to_have_count(3)
    page.get_by_label("Find in log lines").fill("hot")
    page.get_by_label("level").select_option("WARNING")
    for part in ("find=hot", "level=WARNING"):
        expect(page).to_have_url(re.compile(part))
    page.reload()
    expect(page.get_by_label("level")).to_have_value("WARNING")
    expect(lines_of(page)).to_have_text([re.compile("too hot")])


def test_console_filters_and_the_chosen_run_are_restored_from_the_address(root, show):
    first, second = ids = ["p/a", "p/b"]
    for each in ids:
        writer = ConsoleWriter(finished_run(root, each[2:]), rank=0, step=lambda: 1)
        writer.line("it starts", "stdout", 1.0)
        writer.line("it ends", "stdout", 2.0)
        writer.line("it ends badly", "stderr", 3.0)
        writer.close()
    page = show(f"console?run={first}&run={second}")
    page.get_by_label("run", exact=True).select_option(second)
    page.get_by_label("Find in lines").fill("ends")
    page.get_by_label("stream").select_option("stdout")
    for part in ("find=ends", "stream=stdout"):
        expect(page).to_have_url(re.compile(part))
    page.reload()
    expect(page.get_by_label("Find in lines")).to_have_value("ends")
    expect(page.get_by_label("run", exact=True)).to_have_value(second)
    expect(lines_of(page)).to_have_count(1)


def test_media_table_and_histograms_are_restored_from_the_address(root, show):
    with hl.run("r0", root=root, project="p", summary=False) as run:
        rows = hl.Table(["word", "score"])
        for step in run.steps(2):
            rows.extend([[f"w{number}", number + 100 * step] for number in range(30)])
            run.log(weights=hl.Histogram([1.0, 2.0, 3.0]))
        run.log(words=rows)
    page = show("media")
    table = page.locator(".media-panel[data-name=words]")
    table.get_by_role("button", name="score").click()
    table.get_by_role("button", name="score ↑").click()
    expect(table.locator("tbody tr").first).to_contain_text("129")
    table.get_by_role("button", name="Next").click()
    expect(table.locator("tbody tr").first).to_contain_text("109")
    page.get_by_role("button", name="heat map").click()
    expect(page).to_have_url(re.compile("histograms=heat"))
    page.reload()
    expect(table.locator("tbody tr").first).to_contain_text("109")
    expect(page.get_by_role("button", name="heat map")).to_have_attribute("aria-pressed", "true")


def test_metric_and_curve_of_an_experiment_are_restored_from_the_address(root, show):
    repeats(root, has_tokens=True)
    page = show("experiment")
    curve = page.locator("section .toolbar").get_by_label("metric").last
    curve.select_option("tokens")
    expect(page).to_have_url(re.compile("curve=tokens"))
    page.reload()
    expect(page.locator('.panel[data-metric="tokens"][data-points]')).to_be_visible()


def test_runs_that_match_the_filter_of_the_address_are_selected(root, show):
    for name, loss in (("low", 1.0), ("high", 9.0), ("middle", 5.0)):
        finished_run(root, name, [loss], config={"lr": loss / 10})
    page = show("charts?where=lr < 0.6")
    expect(page.locator('.panel[data-metric="loss"]')).to_have_attribute("data-lines", "2")
    page.get_by_role("link", name="Console").click()
    expect(page).to_have_url(re.compile(r"console\?where=lr"))
    expect(page.locator(".run-list input[data-key]:checked")).to_have_count(2)


def test_back_returns_to_the_sample_and_tab_that_were_open_before(root, show):
    samples = [sample(1, f"answer {number}", float(number), prompt="2+2?", group="g") for number in range(3)]
    finished_run(root, more=samples)
    page = show("rollouts")
    chosen = page.locator(".sample-row[aria-selected=true]")
    page.get_by_role("option", name="answer 0").click()
    expect(chosen).to_contain_text("answer 0")
    page.get_by_role("option", name="answer 1").click()
    expect(chosen).to_contain_text("answer 1")
    page.get_by_role("button", name="Raw").click()
    expect(page).to_have_url(re.compile("raw=1"))
    page.go_back()
    expect(page.get_by_role("button", name="Raw")).to_have_attribute("aria-pressed", "false")
    page.go_back()
    expect(chosen).to_contain_text("answer 0")


VIEWS = (
    "runs",
    "run?run=p/r0",
    "charts",
    "rollouts",
    "compare?run=p/r0&run=p/r1",
    "sweep",
    "hooks",
    "media",
    "artifacts",
    "console",
    "experiment",
)


OFFLINE = "() => { window.real = fetch; window.fetch = () => Promise.reject(new TypeError('offline')); }"
ONLINE = "() => { window.fetch = window.real; }"


@pytest.mark.parametrize("group", ["", "group=lr&"])
def test_table_that_was_sorted_without_a_server_is_shown_when_it_is_back(root, show, group):
    for name, loss in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        finished_run(root, name, [loss], config={"lr": loss})
    page = show(f"runs?{group}column=loss")
    shown = page.locator("tr.group .who > a" if group else "tr[data-run] th a")
    expect(shown).to_have_count(3)
    page.evaluate(OFFLINE)
    page.get_by_role("button", name="loss", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="The server does not respond.")).to_be_visible()
    expect(page.get_by_role("region", name="Table of runs")).to_be_hidden()
    page.evaluate(ONLINE)
    finished_run(root, "d", [2.5], config={"lr": 2.5})  # the server sends it
    expect(shown).to_have_text(["1", "2", "2.5", "3"] if group else ["a", "c", "d", "b"])
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_table_that_was_opened_without_a_server_is_shown_when_it_is_back(root, show):
    finished_run(root, "a")
    page = show("help")
    page.evaluate(OFFLINE)
    page.evaluate("() => { location.hash = '#/runs'; }")
    expect(page.get_by_role("alert").filter(has_text="The server does not respond.")).to_be_visible()
    page.evaluate(ONLINE)
    finished_run(root, "b")  # the server sends it
    expect(page.locator("tr[data-run] th a")).to_have_text(["b", "a"])
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_samples_that_were_sorted_without_a_server_are_shown_when_it_is_back(root, show):
    directory = live_run(root)
    append(directory, *(sample(step, f"answer {step}", float(step)) for step in (2, 1, 3)))
    page = show("rollouts")
    expect(page.locator(".sample-row")).to_have_count(3)
    page.evaluate(OFFLINE)
    page.get_by_label("order").select_option("reward")
    expect(page.get_by_role("alert").filter(has_text="The server does not respond.")).to_be_visible()
    page.evaluate(ONLINE)
    append(directory, sample(4, "answer 4", 0.5))
    expect(page.locator(".sample-row .sample-step")).to_have_text(["4", "1", "2", "3"])
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_view_without_an_answer_says_so_and_tries_again(root, show):
    for name in ("r0", "r1"):
        finished_run(root, name)
    page = show("help")
    problem = page.locator("#view").get_by_text("The server does not respond.")
    for view in VIEWS:
        open_view(page, "help")
        page.evaluate(OFFLINE)
        open_view(page, view)
        expect(problem.first).to_be_visible()
        page.evaluate(ONLINE)
        while retry := page.query_selector("#view button:visible:text('Try again')"):
            retry.click()
            retry.wait_for_element_state("hidden")
        expect(problem).to_have_count(0)


def test_addresses_that_mlflows_client_prints_lead_to_its_run_and_its_experiment(root, show):
    finished_run(root, "0" * 18 + "a" * 14, project="default")
    finished_run(root, "other")
    page = show("experiments/0/runs/000000000000000000aaaaaaaaaaaaaa")
    expect(page).to_have_url(re.compile(r"#/run\?run=default/0{18}a{14}"))
    page.evaluate("location.hash = '#/experiments/0'")
    expect(page).to_have_url(re.compile(r"#/runs\?project=default"))
    page.evaluate("location.hash = '#/experiments/123456789012345678/runs/abc'")
    expect(page).to_have_url(re.compile(r"#/runs$"))

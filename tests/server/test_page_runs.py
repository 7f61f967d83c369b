"""The table of runs in a real browser: tags, problems of records, notes; and stages of experiments."""

import json
import re

import pytest
from page_looks import has_sideways_scroll, open_view, panel, texts
from page_runs import HOSTILE, append, ended, event, finished_run, live_run, repeats, row, rows

from hookline._record.records import Metrics

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

SHOWN = "tr[data-run]"


def write_line(directory, line):
    with next((directory / "journal").glob("*.jsonl")).open("ab") as file:
        file.write(line)


def test_tags_are_chips_that_filter_and_stand_in_the_address(root, show):
    finished_run(root, "both", tags=["nightly", "long"])
    finished_run(root, "one", tags=["nightly"])
    finished_run(root, "none")
    page = show("runs")
    expect(page.locator(SHOWN)).to_have_count(3)
    page.locator('tr[data-run="p/one"]').get_by_role("button", name="nightly").click()
    expect(page.locator(SHOWN)).to_have_count(2)
    page.get_by_role("group", name="Tags").get_by_role("button", name=re.compile("long")).click()
    expect(page.locator(SHOWN)).to_have_count(1)
    page.reload()
    expect(page.locator(SHOWN)).to_have_attribute("data-run", "p/both")
    for tag in ("nightly", "long"):
        page.get_by_role("group", name="Tags").get_by_role("button", name=re.compile(tag)).click()
    expect(page.locator(SHOWN)).to_have_count(3)
    expect(page.get_by_label("Filter runs")).to_have_value("")


def test_problems_of_a_run_are_shown_beside_it_in_every_view(root, show):
    more = [event("records_lost", count=12), Metrics(time=1.0, step=10, values={"loss": 1.0})]
    directory = finished_run(root, more=more)
    write_line(directory, b"no record\n" + b'{"kind":"metr')
    page = show("runs")
    problems = page.get_by_role("button", name="problem")
    expect(problems).to_have_attribute("title", re.compile("is cut off in the middle of a line"))
    page.goto(page.url.replace("#/runs", "#/charts"))  # its journal is read
    expect(panel(page, "loss")).to_be_visible()
    page.goto(page.url.replace("#/charts", "#/runs"))
    expect(problems).to_have_text("4")
    problems.click()
    for words in ("is cut off", "1 line is not a record", "12 records could not be written", "the clock went back"):
        expect(page.get_by_role("dialog").locator(".message").filter(has_text=words)).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    expect(page.locator(".missing")).to_contain_text("r0: main-")
    expect(page.locator(".missing")).to_contain_text("12 records could not be written")


def test_page_says_that_the_index_was_deleted_and_rebuilt(root, show):
    finished_run(root)
    page = show("runs")
    expect(page.locator(SHOWN)).to_have_count(1)
    expect(page.locator(".notes .message")).to_have_count(0)
    (root / ".hookline" / "index.duckdb").unlink()
    expect(page.locator(".notes .message")).to_contain_text("The index was rebuilt from the journals: it was deleted")
    expect(page.locator(SHOWN)).to_have_count(1)


def test_hostile_tags_and_problems_are_only_text_and_fit_a_narrow_screen(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    directory = finished_run(root, tags=[HOSTILE, "x" * 64], more=rows([1.0], name=HOSTILE))
    append(directory, row(4, loss=2.0), ended(4))
    (directory / "run.json").write_text(HOSTILE)
    live_run(root, "tagged", tags=[HOSTILE, "x" * 64])
    show("runs")
    expect(page.locator(f"{SHOWN} .tag").first).to_have_text(HOSTILE)
    expect(page.locator(f"{SHOWN} .problem").first).to_have_attribute("title", re.compile("run.json cannot be read"))
    page.locator(".tag").first.click()
    expect(page.locator(SHOWN)).to_have_count(1)
    assert (page.evaluate("window.hacked"), page.locator("#view script, #view img").count()) == (None, 0)
    assert not has_sideways_scroll(page)
    page.goto(page.url.split("#")[0] + "#/charts?run=p/r0")
    expect(page.locator(".missing")).to_contain_text("run.json cannot be read")
    assert not has_sideways_scroll(page)


def test_address_of_a_run_that_is_not_there_says_so_and_shows_no_other(root, show):
    finished_run(root)
    page = show("help")
    for view in ("rollouts", "hooks", "system", "charts"):
        open_view(page, f"{view}?run=nope/{view}")
        expect(page.locator(".notes .message")).to_have_text(f"There is no run nope/{view}.")
        expect(page.locator(".side summary .count")).to_have_text("0 of 1")
        expect(page.locator(".panel canvas")).to_have_count(0)
    page.get_by_label("r0").check()
    expect(page.locator(".notes .message")).to_have_count(0)
    expect(panel(page, "loss")).to_have_attribute("data-points", "3")


def test_address_of_an_experiment_that_is_not_there_says_so_and_shows_no_other(root, show):
    repeats(root)
    page = show("experiment?experiment=nope")
    expect(page.locator(".empty")).to_have_text("There is no experiment nope.")
    expect(page.locator("tr[data-arm]")).to_have_count(0)
    page.get_by_label("experiment").select_option("sweep")
    expect(page.locator("tr[data-arm]")).to_have_count(2)
    assert sorted(texts(page, "tr[data-arm] th")) == ["high", "low"]


def test_runs_of_one_name_are_distinguished_beside_charts_and_in_warnings(root, show):
    for run_id in ("2026-01-02-calm-fox-1", "2026-01-02-shy-owl-2"):
        write_line(finished_run(root, run_id, name="twin"), b"no record\n")
    ids = "&".join(f"run=p/{path.name}" for path in (root / "p").iterdir())
    page = show(f"charts?{ids}")
    names = ["twin · calm-fox-1", "twin · shy-owl-2"]
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")
    assert sorted(page.locator(".run-row > span").all_text_contents()) == names
    expect(page.locator(".missing b")).to_have_count(2)
    assert sorted(page.locator(".missing b").all_text_contents()) == names
    panel(page, "loss").locator(".u-over").hover()
    expect(panel(page, "loss").locator(".tooltip-row span").first).to_have_text(re.compile("twin · "))


def write_result(root, key, stage, **metrics):
    result = {"run_key": key, "metrics": metrics, "artifacts": None, "evals": [], "stage": stage, "returned": ["score"]}
    (root / "sweep" / f"{key}-{stage}" / "result.json").write_text(json.dumps(result))


def test_stage_of_an_experiment_is_chosen(root, show):
    for place, stage in enumerate(("sft", "grpo")):
        repeats(root, number=2, stage=stage)
        for arm in ("low", "high"):
            for repeat in range(2):
                write_result(root, f"{arm}-r{repeat}", stage, score=1.0 + place)
    page = show("experiment")
    arm = page.locator('tr[data-arm="low"]')
    expect(arm).to_contain_text("2 ± 0")
    expect(page.get_by_role("heading", name="Arms")).to_contain_text("after the stage grpo")
    page.get_by_label("stage").select_option("sft")
    expect(arm).to_contain_text("1 ± 0")
    expect(page.get_by_role("heading", name="Arms")).to_contain_text("after the stage sft")
    expect(page.locator(".curves .legend, .toolbar .legend")).to_contain_text("low · sft")
    expect(page.locator(".toolbar .legend .chip")).to_have_text(["high · sft", "low · sft"])
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")


def test_message_of_a_stopped_run_is_no_warning_and_leaves_a_narrow_table_to_the_names(root, show, page):
    for status in ("stopped", "failed"):
        directory = finished_run(root, status)
        append(directory, ended(3, status, f"It has {status}."))
    show("runs")
    messages = page.locator(".who > .under")
    expect(messages).to_have_count(2)
    colors = {each.inner_text(): each.evaluate("e => getComputedStyle(e).color") for each in messages.all()}
    status = page.locator('tr[data-run="p/stopped"] .how-far .under')
    assert colors["It has stopped."] == status.evaluate("e => getComputedStyle(e).color") != colors["It has failed."]
    page.set_viewport_size({"width": 400, "height": 740})
    expect(messages.first).to_be_hidden()

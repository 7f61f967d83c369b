"""The page in a real browser: each view shows the records live, and hostile text stays text."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from page_looks import has_sideways_scroll, is_drawn, open_view, panel
from page_runs import (
    HOSTILE,
    NOW,
    append,
    begun,
    ended,
    event,
    finished_run,
    line,
    live_run,
    make_run,
    repeats,
    row,
    rows,
    sample,
)

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

from hookline._record.console import ConsoleWriter
from hookline._record.records import Media
from hookline.server.root_tokens import Tokens

TRAINER = """
import sys, hookline as hl
with hl.run("victim", project="p", summary=False) as run:
    for step in run.steps(1000):
        run.log(loss=1.0)
        if step == 5:
            print("ready", flush=True)
            sys.stdin.read()
"""


def test_runs_view_lists_runs_and_filters_them(root, show):
    finished_run(root, "good", tags=["nightly"])
    append(make_run(root, "bad"), begun(), *rows([1.0]), ended(1, "failed", "RuntimeError: no memory"))
    page = show("runs")
    expect(page.locator("tr[data-run]")).to_have_count(2)
    page.get_by_role("button", name=re.compile("failed")).click()
    expect(page.locator("tr[data-run]")).to_have_count(1)
    expect(page.get_by_label("Filter runs")).to_have_value("status = failed")
    expect(page.locator("tr[data-run] th")).to_contain_text("RuntimeError: no memory")
    expect(page.get_by_role("link", name="bad")).to_have_attribute("href", "#/run?run=p/bad")
    page.get_by_role("button", name=re.compile("^all")).click()
    expect(page.locator("tr[data-run]")).to_have_count(2)
    page.get_by_label("Filter runs").fill("nightly")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    expect(page.locator("tr[data-run]")).to_have_attribute("data-run", "p/good")


def test_runs_view_of_an_empty_store_says_what_to_do_and_shows_the_first_run(root, show):
    page = show("runs")
    expect(page.locator(".empty")).to_contain_text("No runs yet")
    finished_run(root)
    expect(page.locator("tr[data-run]")).to_have_count(1)
    expect(page.locator("#view")).not_to_contain_text("No runs yet")


def test_killed_run_turns_red_without_a_reload(root, show, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        page = show("runs")
        badge = page.locator("tr[data-run] .status")
        expect(badge).to_have_text("running")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        expect(badge).to_have_text("killed")
        expect(badge).to_have_css("color", "rgb(200, 48, 58)")
    finally:
        process.kill()
        process.communicate()


def test_stalled_run_is_shown_as_stalled(root, show):
    live_run(root)
    page = show("runs", stall_seconds=0.2)
    expect(page.locator("tr[data-run] .status")).to_have_text("stalled")


def samples_of_two_lessons():
    shared = {"prompt": "2+2?", "reasoning": "two and two", "answer": "4", "lesson": "easy", "group": "g1"}
    right = sample(1, "two and two make 4", 1.0, rewards={"correct": 1.0, "format": 0.5}, advantage=0.7, **shared)
    wrong = sample(
        1, "it is 5", 0.0, rewards={"correct": 0.0}, advantage=-0.7, prompt="2+2?", group="g1", lesson="easy"
    )
    later = sample(9, "four, of course", 0.9, prompt="2+2?", group="g9", lesson="easy")
    return [right, wrong, later, sample(5, "a hard one", -1.0, prompt="why?", lesson="hard")]


def test_rollouts_are_filtered_by_lesson_reward_and_text(root, show):
    finished_run(root, more=samples_of_two_lessons())
    page = show("rollouts")
    expect(page.locator(".sample-row")).to_have_count(4)
    page.get_by_label("lesson").select_option("easy")
    expect(page.locator(".sample-row")).to_have_count(3)
    page.get_by_label("reward from").fill("0.5")
    expect(page.locator(".sample-row")).to_have_count(2)
    page.get_by_label("Find in prompts and completions").fill("COURSE")
    expect(page.locator(".sample-row")).to_have_count(1)
    expect(page.locator(".count-line")).to_have_text("1 sample")
    expect(page.locator(".sample-row")).to_contain_text("four, of course")


def test_sample_shows_its_answer_its_group_and_its_prompt_over_training(root, show):
    finished_run(root, more=samples_of_two_lessons())
    page = show("rollouts")
    page.get_by_label("order").select_option("-reward")
    expect(page.locator(".sample-row .reward").first).to_have_text("1")
    page.locator(".sample-row").first.click()
    expect(page.locator(".completion mark.answer")).to_have_text("4")
    expect(page.locator(".completion mark.reasoning")).to_have_text("two and two")
    expect(page.locator(".card .advantage")).to_have_text(["+0.700", "\u22120.700"])
    page.get_by_role("tab", name="Prompt over training").click()
    expect(page.locator(".card")).to_have_count(3)
    page.keyboard.press("j")
    expect(page.locator(".sample-row[aria-selected=true] .sample-step")).to_have_text("9")
    expect(page.locator(".sample-row .reward")).to_have_text(["1", "0.900", "0", "\u22121"])


def test_new_samples_of_a_live_run_appear_without_a_reload(root, show):
    directory = live_run(root)
    page = show("rollouts")
    expect(page.locator(".empty")).to_contain_text("No samples yet")
    expect(page.locator(".empty")).to_contain_text("loop.log_samples, run.log_samples")
    append(directory, *samples_of_two_lessons())
    expect(page.locator(".sample-row")).to_have_count(4)
    expect(page.locator(".count-line")).to_have_text("4 samples")


def test_experiment_view_compares_arms(root, show):
    repeats(root)
    score = {"name": "quiz", "metrics": {"accuracy": 0.5}, "breakdowns": {"long": {"accuracy": 0.25, "n": 4}}}
    for place, arm in enumerate(("low", "high")):
        for repeat in range(3):
            result = {"run_key": f"{arm}-r{repeat}", "metrics": {"loss": 1.0 + place + 0.1 * repeat}, "artifacts": None}
            evals = [score | {"tags": [], "intervals": {"accuracy": [0.25, 0.75]}}]
            text = json.dumps(result | {"evals": evals})
            (root / "sweep" / f"{arm}-r{repeat}" / "result.json").write_text(text)
    page = show("experiment")
    page.locator(".experiment > .toolbar").get_by_label("metric").select_option("loss")
    expect(page.locator('tr[data-arm="low"]')).to_contain_text("1.100 ± 0.100")
    expect(page.locator("tr[data-separated]")).to_contain_text("separated")
    expect(panel(page, "loss")).to_have_attribute("data-lines", "2")
    assert is_drawn(page, "loss")
    expect(page.get_by_role("heading", name="quiz")).to_be_visible()
    expect(page.locator("tr.part").first).to_contain_text("long")


def test_hooks_view_shows_costs_events_and_log_lines(root, show):
    costs = {
        "hooks/slow/calls": 3,
        "hooks/slow/total_seconds": 0.5,
        "hooks/slow/mean_seconds": 0.1,
        "hooks/slow/errors": 2,
    }
    more = [row(3, **costs), event("hook_error", 2, error="it broke"), line("all well"), line("oh no", "ERROR", 2)]
    finished_run(root, more=more)
    page = show("hooks")
    expect(page.locator('tr[data-hook="slow"]')).to_contain_text("500 ms")
    expect(page.locator('tr[data-hook="slow"] .bad')).to_have_text("2")
    expect(page.locator('tr[data-grave="true"]')).to_contain_text("it broke")
    expect(page.locator(".line")).to_have_count(2)
    page.get_by_label("level").select_option("ERROR")
    expect(page.locator(".line")).to_have_count(1)
    expect(page.locator(".line")).to_contain_text("oh no")


def test_hostile_text_is_shown_and_not_run(root, show):
    belongs = {"name": HOSTILE, "id": "x", "group": HOSTILE, "arm": HOSTILE, "repeat": 0}
    more = [
        sample(1, HOSTILE, 1.0, prompt=HOSTILE, answer=HOSTILE, lesson=HOSTILE, group=HOSTILE, rewards={HOSTILE: 1.0}),
        line(HOSTILE, "ERROR"),
        event(HOSTILE, error=HOSTILE),
        row(1, **{HOSTILE: 1.0, f"system/{HOSTILE}": 2.0, f"hooks/{HOSTILE}/calls": 1}),
    ]
    finished_run(root, name=HOSTILE, tags=[HOSTILE], config={HOSTILE: HOSTILE}, experiment=belongs, more=more)
    page = show("runs")
    for view in ("runs", "charts", "rollouts", "experiment", "hooks", "system"):
        open_view(page, view)
        expect(page.locator("#view")).to_have_attribute("data-view", view)
        expect(page.locator("#view")).to_contain_text("<script>")
        assert page.evaluate("window.hacked") is None
        expect(page.locator("#view script, #view img")).to_have_count(0)


def test_views_are_usable_on_a_narrow_screen(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    repeats(root)
    finished_run(
        root,
        more=[
            *samples_of_two_lessons(),
            row(1, **{"system/rss_mib": 1.0}),
            line("x " * 200),
            event("stop", reason="y" * 300),
        ],
    )
    marks = {
        "runs": "tr[data-run]",
        "charts": ".panel canvas",
        "rollouts": ".toolbar",
        "experiment": "table",
        "hooks": "h2",
        "system": ".side",
    }
    show("runs")
    for view, mark in marks.items():
        open_view(page, view)
        expect(page.locator("#view")).to_have_attribute("data-view", view)
        expect(page.locator(mark).first).to_be_visible()
        assert not has_sideways_scroll(page), view
        expect(page.locator("#tabs [aria-current]")).to_be_in_viewport()


def test_all_tabs_are_in_sight_on_a_tablet(root, show, page):
    page.set_viewport_size({"width": 820, "height": 700})
    finished_run(root)
    show("runs")
    expect(page.locator("tr[data-run]")).to_be_visible()
    for tab in ("Runs", "Console"):
        expect(page.locator("#tabs").get_by_role("link", name=tab)).to_be_in_viewport(ratio=0.9)


def test_tabs_of_a_sample_fit_a_narrow_screen(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    finished_run(root, more=samples_of_two_lessons())
    show("rollouts")
    expect(page.get_by_role("tab")).to_have_count(2)
    assert not has_sideways_scroll(page)


def is_cut_off(page, part):
    """Whether a part of the page has to be scrolled sideways."""
    return page.locator(part).evaluate("element => element.scrollWidth > element.clientWidth")


def test_texts_of_events_and_intervals_of_differences_are_wrapped_on_a_narrow_screen(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    repeats(root)
    append(root / "sweep" / "low-r0", event("a_rather_long_name_of_an_event", reason="why " * 30))
    for place, arm in enumerate(("low", "high")):
        for repeat in range(3):
            result = {"run_key": f"{arm}-r{repeat}", "metrics": {"loss": place + 0.1 * repeat}, "artifacts": None}
            (root / "sweep" / f"{arm}-r{repeat}" / "result.json").write_text(json.dumps(result | {"evals": []}))
    show("experiment")
    page.locator(".experiment > .toolbar").get_by_label("metric").select_option("loss")
    expect(page.locator(".differences tbody tr")).to_have_count(1)
    assert not is_cut_off(page, ".differences")
    open_view(page, "hooks?run=sweep/low-r0")
    expect(page.locator(".events")).to_contain_text("why why")
    assert not is_cut_off(page, ".events")


def test_keys_and_theme_work_and_are_remembered(root, show):
    finished_run(root)
    page = show("runs")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.keyboard.press("2")
    expect(page.locator("#tabs [aria-current]")).to_have_text("Charts")
    expect(panel(page, "loss")).to_have_attribute("data-points", "3")
    page.keyboard.press("/")
    expect(page.get_by_label("Find metrics")).to_be_focused()
    page.get_by_label("Find metrics").blur()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    expect(page.locator("body")).not_to_have_css("background-color", light)
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_parts_of_a_filter_in_the_address_are_one_filter_and_no_match_says_what_to_change(root, show):
    finished_run(root)
    page = show("help")
    for given, where in (
        ("find=no+run", '"no" and "run"'),
        ("status=failed", "status = failed"),
        ("tag=a&tag=b", 'tag = "a" and tag = "b"'),
    ):
        open_view(page, f"runs?{given}")
        expect(page.get_by_label("Filter runs")).to_have_value(where)
        expect(page.locator(".more .empty")).to_have_text("No run matchesChange the filter.")


def test_page_says_when_the_server_is_gone(root, serve, browser):
    finished_run(root)
    server, page = serve(root), browser.new_page()  # a connection that is refused is a complaint of the browser's
    page.goto(f"{server.url}#/runs")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    server.stop()
    expect(page.locator("#live")).to_have_text("reconnecting")
    expect(page.locator("tr[data-run]")).to_have_count(1)  # what was shown stays
    page.close()


MARKS = {
    "runs": "tr[data-run]",
    "runs?group=project": "tr.group",
    "run?run=p/live": ".spark",
    "charts?run=p/live": ".panel[data-points] canvas",
    "hooks?run=p/live": "tr[data-hook]",
    "console?run=p/live": ".line",
    "experiment": "tr[data-arm]",
    "rollouts?run=p/live": ".sample-row",
    "media?run=p/live": ".media-panel[data-loaded]",
}


def test_what_a_view_shows_stays_while_the_server_does_not_answer(root, serve, browser):
    repeats(root)
    live = live_run(root)
    costs = row(2, **{"hooks/slow/calls": 3, "hooks/slow/total_seconds": 0.5})
    histogram = Media(time=NOW, step=2, name="h", type="histogram", data={"counts": [1, 2], "low": 0, "high": 1})
    append(live, *rows([2.0, 1.0]), costs, *samples_of_two_lessons(), histogram)
    console = ConsoleWriter(live)
    console.line("all well", "stdout", NOW)
    console.close()
    page = browser.new_page()  # a request that is refused is a complaint of the browser's
    page.goto(f"{serve(root).url}#/help")
    for number, (view, mark) in enumerate(MARKS.items()):
        open_view(page, view)
        expect(page.locator(mark).first).to_be_visible()
        expect(page.get_by_text(re.compile("^Loading"))).to_have_count(0)  # also of parts that are not in sight
        before = page.locator(mark).count()
        page.route(re.compile("/api/(?!stream)"), lambda route: route.abort())
        with page.expect_event("requestfailed"):  # for the news, the view asks again
            append(live, *rows([0.5], first=3 + number), event("late", 3 + number))
            append(root / "sweep" / "low-r0", *rows([0.5], first=40 + number))
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        expect(page.locator(mark)).to_have_count(before)
        expect(page.get_by_text("Loading failed")).to_have_count(0)
        page.unroute_all()
    page.close()


def test_page_continues_after_a_proxy_answered_for_the_server(root, serve, browser):
    finished_run(root)
    server, page, refused = serve(root), browser.new_page(), []

    def answer(route):
        refused.append(route.request.url)
        route.fulfill(status=502) if len(refused) == 1 else route.continue_()

    page.route("**/api/stream", answer)
    page.goto(f"{server.url}#/runs")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    assert len(refused) == 2
    page.close()


def test_page_says_why_reading_is_refused(root, serve, browser):
    server, page = serve(root, tokens=Tokens("w" * 32)), browser.new_page()
    page.set_extra_http_headers({"X-Forwarded-For": "10.0.0.1"})
    page.goto(f"{server.url}#/runs")
    expect(page.get_by_role("alert")).to_contain_text("--read-token")
    expect(page.locator("tr[data-run]")).to_have_count(0)
    page.close()

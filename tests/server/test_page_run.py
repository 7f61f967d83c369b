"""The page of a run in a real browser: each of its sections, runs that fail, live ones, hostile ones, empty ones."""

import contextlib
import json
import re
import subprocess

import pytest
from page_looks import has_sideways_scroll, wait_until
from page_runs import HOSTILE, append, ended, event, finished_run, live_run, make_run, row

import hookline as hl
from hookline._record.console import ConsoleWriter
from hookline.server import WebServer

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

CONFIG = {"optimizer": {"name": "adamw", "lr": 0.003, "betas": [0.9, 0.95]}, "data": {"path": "/data"}, "seed": 7}


def git(folder, *arguments):
    options = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-C", folder]
    subprocess.run(["git", *options, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server over a run that recorded everything, one that used its artifact, and one that failed."""
    folder = tmp_path_factory.mktemp("run")
    root = folder / "runs"
    git(folder, "init", "-q", "-b", "work")
    (folder / "model.py").write_text("layers = 1\nheads = 2\n")
    git(folder, "add", "model.py")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "model.py").write_text("layers = 24\nheads = 2\n")
    options = {"root": root, "project": "p", "summary": False}
    rule = {"checkpoint": {"monitor": "val/loss", "every_n_steps": 2}}
    with contextlib.chdir(folder):
        more = {
            "config": CONFIG,
            "tags": ["nightly"],
            "notes": "A longer warmup.",
            "callbacks": [rule],
            "sinks": ["csv"],
        }
        with hl.run("trained", **options, **more) as run:
            for step in run.steps(6):
                run.log({"val/loss": 6.0 - step}, summary=f"text {step}", page=hl.Markdown(f"# Step {step}"))
            run.recorder.event("alert", step=6, title="loss", message="The loss rises.", severity="warning")
            run.save_artifact("model", folder / "model.py", kind="model")
        writer = ConsoleWriter(run.dir, rank=0, step=lambda: 5)
        writer.line("printed at 5", "stdout", 1.0)
        writer.close()
        with hl.run("user", **options) as user:
            user.use_artifact("model:v0")
        with contextlib.suppress(RuntimeError), hl.run("broken", **options) as run:
            run.log(loss=1.0)
            raise RuntimeError(f"no room for {HOSTILE}")
    with WebServer(root) as server:
        ids = {info.name: info.id for info in hl.runs(root)}
        yield lambda name, more="": f"{server.url}#/run?run={ids[name]}{more}"


def section(page, name):
    return page.locator(f'[data-section="{name}"]')


def test_run_page_has_everything_that_was_recorded(address, page):
    page.goto(address("trained"))
    expect(page.get_by_role("heading", name="trained", level=1)).to_be_visible()
    expect(page.locator(".run-head")).to_contain_text("step 6 of 6 (100 %)")
    expect(page.locator(".run-head").get_by_role("link", name="nightly")).to_be_visible()
    for name, words in (
        ("notes", "A longer warmup."),
        ("texts", "text 5"),
        ("code", "uncommitted changes"),
        ("environment", "Packages"),
        ("console", "printed at 5"),
        ("sinks", "csv"),
        ("hooks", "checkpoint"),
        ("media", "Step 5"),
    ):
        expect(section(page, name)).to_contain_text(words)
    values = section(page, "values").locator('tr[data-metric="val/loss"]')
    expect(values.locator("td.end").first).to_have_text("1")
    expect(values.locator("polyline")).to_be_visible()
    expect(section(page, "events").locator(".alert")).to_contain_text("The loss rises.")
    expect(section(page, "checkpoints").locator("tr[data-state]")).to_have_count(3)
    expect(section(page, "checkpoints").locator('tr[data-state="kept"]')).to_contain_text("checkpoints/step-00000006")
    artifact = section(page, "artifacts").locator("li[data-artifact]")
    expect(artifact).to_contain_text("this run→p/model:v0→user")
    expect(section(page, "failure")).to_be_hidden()
    artifact.get_by_role("link", name="user").click()
    expect(section(page, "artifacts")).to_contain_text("trained→p/model:v0→this run")


def test_changes_are_loaded_when_opened_and_coloured_and_can_be_saved(address, page):
    page.goto(address("trained"))
    code = section(page, "code")
    code.get_by_text("Changes against the commit").click()
    expect(code.locator('.diff-line[data-kind="removed"]')).to_have_text("-layers = 1")
    expect(code.locator('.diff-line[data-kind="added"]')).to_have_text("+layers = 24")
    with page.expect_download() as download:
        code.get_by_role("button", name="Download the diff").click()
    assert "+layers = 24" in download.value.path().read_text()


def test_section_of_the_address_is_scrolled_to_and_back_returns(address, page):
    page.goto(address("trained", "&section=hooks"))
    expect(section(page, "hooks").get_by_role("heading", name="Hooks")).to_be_in_viewport()
    page.get_by_role("navigation", name="Sections").get_by_role("link", name="Configuration").click()
    expect(section(page, "configuration").get_by_role("heading")).to_be_in_viewport()
    expect(page).to_have_url(re.compile("section=configuration"))
    page.go_back()
    expect(section(page, "hooks").get_by_role("heading", name="Hooks")).to_be_in_viewport()


def test_configuration_folds_and_is_searched_and_copied(address, page, browser):
    browser.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(address("trained"))
    tree = section(page, "configuration")
    expect(tree.locator(".tree-leaf")).to_have_count(5)
    tree.get_by_role("button", name="Fold all", exact=True).click()
    expect(tree.locator(".tree-leaf")).to_have_count(1)
    tree.locator("summary", has_text="optimizer").click()
    expect(tree.locator('[data-path="optimizer.lr"]')).to_be_visible()
    tree.get_by_label("Find a setting").fill("0.003")
    expect(tree.locator(".tree-leaf")).to_have_count(1)
    expect(tree.get_by_role("status")).to_have_text("1 of 5 settings")
    copy = tree.get_by_role("button", name="Copy the path optimizer.lr")
    copy.evaluate(  # it says so for a moment only
        "copy => new MutationObserver(() => (window.said ??= copy.textContent)).observe(copy, { childList: true })"
    )
    copy.click()
    wait_until(page, "window.said === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == "optimizer.lr"
    expect(page).to_have_url(re.compile("find=0.003"))


def test_failed_run_shows_its_traceback(address, page):
    page.goto(address("broken"))
    expect(section(page, "failure").locator("pre")).to_contain_text("RuntimeError: no room for <script>")
    expect(section(page, "failure").get_by_role("heading")).to_have_text(["Failure"])  # once: its part has none
    expect(page.locator(".run-head .message")).to_contain_text("RuntimeError: no room for <script>")
    assert page.evaluate("window.hacked") is None


def test_runs_lead_to_their_page_and_to_their_comparison(address, page):
    page.goto(address("trained").replace("#/run?", "#/charts?"))
    page.get_by_role("link", name="Open broken").click()
    expect(page.get_by_role("heading", name="broken", level=1)).to_be_visible()
    page.get_by_label("compare with").select_option(label="user")
    expect(page).to_have_url(re.compile("#/compare"))
    expect(page.locator(".compare-grid").first).to_contain_text("broken")


def test_live_run_is_updated_until_it_ends(root, show):
    directory = live_run(root, name="live", config={"lr": 1})
    append(directory, row(1, loss=5.0))
    page = show("run?run=p/live")
    last = section(page, "values").locator('tr[data-metric="loss"] td.end b')
    expect(last).to_have_text("5")
    append(directory, row(2, loss=4.0), event("alert", 2, message="too slow"))
    expect(last).to_have_text("4")
    expect(section(page, "events")).to_contain_text("too slow")
    append(directory, ended(2))
    expect(page.locator(".run-head .status")).to_have_text("finished")


def test_run_that_recorded_nothing_says_so_in_each_section(root, show):
    make_run(root, "nothing")
    page = show("run?run=p/nothing")
    for name, words in (
        ("values", "No metrics were recorded."),
        ("configuration", "No configuration was recorded."),
        ("environment", "No environment was recorded."),
        ("console", "This run printed nothing."),
        ("events", "No events were recorded."),
        ("checkpoints", "No checkpoints were saved."),
        ("artifacts", "No artifacts were saved or used."),
        ("hooks", "No costs are recorded."),
    ):
        expect(section(page, name)).to_contain_text(words)
    expect(page.get_by_text("Loading")).to_have_count(0)


def test_address_of_an_unknown_run_says_so(root, show):
    finished_run(root)
    page = show("run?run=p/deleted")
    expect(page.get_by_text("There is no run p/deleted.")).to_be_visible()


def test_hostile_names_and_texts_are_shown_as_text_on_a_phone(root, show, page):
    page.set_viewport_size({"width": 390, "height": 800})
    deep = json.loads("[" * 70 + "]" * 70)
    more = [
        row(1, **{HOSTILE: 1.0, "word": HOSTILE}),
        event("alert", 1, message=HOSTILE),
        event(HOSTILE, 1, **{HOSTILE: HOSTILE}),
        event("checkpoint", 1, path=f"/{HOSTILE}", values={HOSTILE: 1}),
        event("artifact_saved", 1, artifact=HOSTILE, version=HOSTILE, kind=HOSTILE),
    ]
    config = {HOSTILE: HOSTILE, "deep": deep, "long": "y" * 3000, "empty": {}, "": None}
    facts = {"name": HOSTILE, "tags": [HOSTILE], "notes": HOSTILE, "config": config}
    directory = finished_run(root, more=more, **facts)
    (directory / "git.diff").write_text(f"diff --git a/{HOSTILE} b/{HOSTILE}\n@@ -1 +1 @@\n-{HOSTILE}\n+{'z' * 5000}\n")
    git_facts = {"commit": HOSTILE, "branch": [HOSTILE], "changed": True, "problem": {"a": HOSTILE}}
    session = {"command": [HOSTILE, "it's"], "packages": [HOSTILE], "variables": {HOSTILE: HOSTILE}, "git": git_facts}
    (directory / "environment.json").write_text(json.dumps({"sessions": [session]}))
    show("run?run=p/r0")
    section(page, "code").get_by_text("Changes against the commit").click()
    expect(section(page, "code").locator('[data-kind="removed"]').last).to_contain_text(HOSTILE)
    for name in ("notes", "values", "texts", "configuration", "environment", "events", "checkpoints", "artifacts"):
        expect(section(page, name)).to_contain_text(HOSTILE)
    expect(page.locator("#view script, #view img")).to_have_count(0)
    assert page.evaluate("window.hacked") is None
    assert not has_sideways_scroll(page)

"""Every view meets WCAG 2.2 AA as far as axe can tell, in both themes, over the runs of the docs' pictures."""

import sys
from pathlib import Path

import pytest

import hookline as hl
from hookline.server import WebServer
from hookline.store.alert_book import AlertBook, RaisedAlert

axe_playwright = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

SCRIPTS = Path(__file__).parents[2] / "scripts"
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
    "resultTypes": ["violations"],
    "iframes": False,  # recorded pages are in frames that run no scripts, not even axe
}
ONE = "run=sorting-grpo/wide-clip-r0"
TWO = f"{ONE}&run=sorting-grpo/baseline-r0"

# Each view, and what is in it as soon as it is shown in full.
VIEWS = {
    "runs": ("runs", "tr[data-run]"),
    "run": (f"run?{ONE}", "[data-section=hooks] tr[data-hook]"),
    "compare": (f"compare?{TWO}", "[data-section=metrics] tr[data-metric]"),
    "groups": ("runs?group=status&sort=-step", "tr.group"),
    "charts": (f"charts?{TWO}", ".panel[data-points]"),
    "media": ("media?run={media}", ".medium img"),
    "tables": ("media?run={media}&kind=table", "table.cells img"),
    "rollouts": (f"rollouts?{ONE}", ".cards .card"),
    "experiment": ("experiment", ".panel[data-points]"),
    "sweep": ("sweep?where=project+%3D+%22sorting-grpo%22", "[data-axis-name]"),
    "hooks": (f"hooks?{ONE}", "tr[data-hook]"),
    "system": (f"system?{TWO}", ".panel[data-points]"),
    "artifacts": ("artifacts?artifact=sorting/model:best", "tr[data-file]"),
    "alerts": ("alerts", "tr[data-alert]"),
    "console": (f"console?{ONE}", "main .page, main .console, main .empty"),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The address of a server over the runs of the docs' pictures, and the id of one with media."""
    root = tmp_path_factory.mktemp("shown") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        import example_media
        import example_runs

        patch.setattr(example_media, "STEPS", 10)  # two evaluations, each of which draws figures
        example_runs.make(root)
        example_runs.save_artifacts(root)
        example_media.make(root)
    AlertBook(root).add([RaisedAlert("a" * 16, ONE.partition("=")[2], "too high", "loss is 9", 1e9)], ["slack"])
    for name in ("example_runs", "example_media"):
        sys.modules.pop(name, None)
    media = next(info.id for info in hl.runs(root) if info.project == "segmentation")
    with WebServer(root) as server:
        yield server.url, media


SCHEMES = ("light", "dark")


def violations(page):
    """What axe finds in both themes."""
    found = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        report = axe_playwright.Axe().run(page, options=RULES).response["violations"]
        found += [(scheme, each["id"], [node["target"] for node in each["nodes"]][:5]) for each in report]
    return found


@pytest.mark.parametrize("view", VIEWS)
def test_view_has_no_accessibility_violations(shown, page, view):
    (url, media), (address, mark) = shown, VIEWS[view]
    page.goto(f"{url}#/{address.format(media=media)}")
    page.locator(mark).first.wait_for()
    assert violations(page) == []


def test_menus_and_dialogs_of_the_table_have_no_accessibility_violations(shown, page):
    page.goto(f"{shown[0]}#/runs?sort=step")
    page.locator("tr[data-run]").first.wait_for()
    page.get_by_label("Filter runs").press_sequentially("status = nothing and s")
    page.locator("#filter-options li").first.wait_for()
    page.locator("#filter-problem").wait_for()
    assert violations(page) == []
    page.get_by_text("Columns", exact=True).first.click()
    page.get_by_label("Find columns").wait_for()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.locator("tr[data-run] input").first.check()
    page.get_by_role("button", name="Edit …").click()
    page.get_by_role("dialog").wait_for()
    assert violations(page) == []

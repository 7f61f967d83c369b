"""Writes the pictures of the page in docs/images: python scripts/screenshots.py [FOLDER].

Makes runs in a temporary directory, serves them, and has Debian's Chromium look at each view while one of them goes on.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import example_runs
from playwright.sync_api import sync_playwright

import hookline as hl
from hookline.server import WebServer

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDE, NARROW = {"width": 1360, "height": 860}, {"width": 360, "height": 740}
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
EXPERIMENT = "&".join(
    f"run=sorting-grpo/{arm}-r{repeat}" for arm in ("baseline", "wide-clip", "no-std") for repeat in range(3)
)
PICTURES: list[tuple[str, str, str, Any, Any]] = [
    ("runs", "runs", "tr[data-run]", "light", WIDE),
    ("charts", f"charts?{EXPERIMENT}", '.panel[data-metric="reward"][data-points]', "light", WIDE),
    ("charts-dark", f"charts?{EXPERIMENT}", '.panel[data-metric="reward"][data-points]', "dark", WIDE),
    ("rollouts", "rollouts?run=sorting-grpo/wide-clip-r0", ".cards .card", "light", WIDE),
    ("experiment", "experiment", ".panel[data-points]", "light", WIDE),
    ("hooks", "hooks?{some}", "tr[data-hook]", "light", WIDE),
    ("system", f"system?{EXPERIMENT}", ".panel[data-points]", "dark", WIDE),
    ("runs-narrow", "runs", "tr[data-run]", "light", NARROW),
    ("charts-narrow", f"charts?{EXPERIMENT}", ".panel[data-points]", "dark", NARROW),
    ("rollouts-narrow", "rollouts?run=sorting-grpo/wide-clip-r0", ".cards .card", "light", NARROW),
    ("hooks-narrow", "hooks?run=sorting-grpo/wide-clip-r0", "tr[data-hook]", "light", NARROW),
]


def main(folder: Path = IMAGES) -> None:
    """Make the runs, and take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "runs"
        example_runs.make(root)
        with hl.run(
            "grpo-small", project="live", root=root, summary=False, callbacks=[example_runs.SlowObserver()]
        ) as run:
            example_runs.train_rollouts(run, {"skill": 0.9}, steps=400, seed=11, until=150)
            with WebServer(root) as server, sync_playwright() as playwright:
                chromium = shutil.which("chromium") or "/usr/bin/chromium"
                browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                shown = [info.id for info in hl.runs(root) if info.name == "sft-warmup" or info.project == "live"]
                hooks = "&".join(f"run={each}" for each in (*shown, "sorting-grpo/wide-clip-r0"))
                for name, given, mark, scheme, size in PICTURES:
                    view = given.replace("{some}", hooks)
                    page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
                    _take(page, f"{server.url}#/{view}", mark, folder / f"{name}.png")
                    page.close()
                browser.close()


def _take(page: Any, address: str, mark: str, path: Path) -> None:
    page.goto(address)
    page.wait_for_selector(mark)
    page.wait_for_load_state("load")
    page.wait_for_timeout(700)  # charts fade in, and the rest of what is in sight is read
    page.screenshot(path=path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

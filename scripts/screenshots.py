"""Writes the pictures of the page in docs/images: python scripts/screenshots.py [FOLDER [PREFIX]].

Makes runs in a temporary directory, serves them, and opens each view in Debian's Chromium while one of them is running.
"""

import contextlib
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import example_media
import example_runs
from PIL import Image
from playwright.sync_api import sync_playwright

import hookline as hl
from hookline.server import WebServer
from hookline.server.alerts import AlertService, AlertSettings
from hookline.store.alert_book import AlertBook, AlertRule

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDE, NARROW = {"width": 1360, "height": 860}, {"width": 360, "height": 740}
TABLET, PHONE = {"width": 820, "height": 900}, {"width": 390, "height": 780}
MAX_BYTES = 200_000
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
EXPERIMENT = "&".join(
    f"run=sorting-grpo/{arm}-r{repeat}" for arm in ("baseline", "wide-clip", "no-std") for repeat in range(3)
)
BEST = urlencode({"where": 'project = "digits"', "sort": "val/loss"})
DIGITS = "project=digits"
PICTURES: list[tuple[str, str, str, Any, Any]] = [
    ("runs", f"runs?{BEST}", "tr[data-run]", "light", WIDE),
    ("runs-dark", f"runs?{BEST}", "tr[data-run]", "dark", TABLET),
    ("run", "run?{best}", ".spark", "light", {"width": 1360, "height": 690}),
    ("run-narrow", "run?{failed}", ".failure", "dark", PHONE),
    ("compare", "compare?{three}", ".compare-grid", "light", WIDE),
    ("compare-dark", "compare?{three}", ".compare-grid", "dark", TABLET),
    ("sweep", f"sweep?{DIGITS}", ".parallel .axis-name", "light", WIDE),
    ("sweep-dark", f"sweep?{DIGITS}", ".parallel .axis-name", "dark", TABLET),
    ("sweep-charts", f"charts?{DIGITS}", '.panel[data-metric="train/loss"][data-points]', "light", WIDE),
    ("chat", "rollouts?{chat}", ".chat .message", "light", WIDE),
    ("chat-narrow", "rollouts?{chat}", ".chat .message", "dark", PHONE),
    ("control", "control?{live}", "table.commands", "light", WIDE),
    ("control-narrow", "control?{live}", "table.commands", "dark", PHONE),
    ("charts", f"charts?{EXPERIMENT}", '.panel[data-metric="reward"][data-points]', "light", WIDE),
    ("charts-dark", f"charts?{EXPERIMENT}", '.panel[data-metric="reward"][data-points]', "dark", WIDE),
    ("rollouts", "rollouts?run=sorting-grpo/wide-clip-r0", ".cards .card", "light", WIDE),
    ("experiment", "experiment", ".panel[data-points]", "light", WIDE),
    ("hooks", "hooks?{some}", "tr[data-hook]", "light", WIDE),
    ("system", f"system?{EXPERIMENT}", ".panel[data-points]", "dark", WIDE),
    ("artifacts", "artifacts?artifact=sorting/model:best", "tr[data-file]", "light", WIDE),
    ("runs-narrow", "runs", "tr[data-run]", "light", NARROW),
    ("charts-narrow", f"charts?{EXPERIMENT}", ".panel[data-points]", "dark", NARROW),
    ("rollouts-narrow", "rollouts?run=sorting-grpo/wide-clip-r0", ".cards .card", "light", NARROW),
    ("hooks-narrow", "hooks?run=sorting-grpo/wide-clip-r0", "tr[data-hook]", "light", NARROW),
    ("media", "media?{media}&step=45", ".medium img", "light", WIDE),
    ("media-dark", "media?{media}&kind=image", ".medium img", "dark", {"width": 1360, "height": 620}),
    ("media-narrow", "media?{one}", ".medium img", "dark", NARROW),
    ("media-audio", "media?{media}&kind=audio", "audio", "light", {"width": 1360, "height": 320}),
    ("media-video", "media?{media}&kind=video", ".medium img", "light", {"width": 1360, "height": 380}),
    ("media-histograms", "media?{media}&kind=histogram", "canvas", "light", {"width": 1360, "height": 860}),
    ("media-plots", "media?{media}&kind=plot", "svg", "light", WIDE),
    ("media-figures", "media?{one}&kind=figure", "svg", "light", {"width": 1360, "height": 600}),
    ("media-table", "media?{media}&kind=table", "table.cells img", "light", {"width": 1360, "height": 700}),
    ("media-report", "media?{media}&kind=markdown", ".markdown", "light", {"width": 1360, "height": 560}),
    ("media-text", "media?{media}&kind=text", ".media-text", "light", {"width": 1360, "height": 320}),
    ("media-file", "media?{media}&kind=file", ".medium a", "light", {"width": 1360, "height": 400}),
    ("media-html", "media?{one}&kind=html", "iframe", "light", {"width": 1360, "height": 600}),
    ("alerts", "alerts", "tr[data-alert]", "light", {"width": 1360, "height": 640}),
]
RULES = [
    AlertRule("loss too high", "alert", {"metric": "loss", "above": 3, "rearm": "recovered"}, "live", "ada"),
    AlertRule("loss not finite", "alert", {"metric": "train/loss"}, author="ada"),
    AlertRule("reward stuck", "no_progress", {"metric": "reward", "steps": 100}, "sorting-grpo", "ada"),
]


class Tuner(hl.Callback):
    """Sends commands to its run, as a person would."""

    name = "tuner"

    def on_step_end(self, loop: Any, step_idx: int) -> None:
        if loop.step == 40:
            hl.control(loop).set("temperature", 0.7)
        if loop.step == 90:
            hl.control(loop).schedule("gradient_norms", every=20)


def main(folder: Path = IMAGES, prefix: str = "") -> None:
    """Make the runs, and take all pictures whose names begin with a prefix."""
    logging.getLogger("hookline").setLevel(logging.CRITICAL)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "runs"
        example_runs.make_sweep(root)
        example_runs.make_chats(root)
        example_runs.make(root)
        example_runs.save_artifacts(root)
        example_media.make(root)
        callbacks = [example_runs.SlowObserver(), Tuner()]
        with hl.run("grpo-small", project="live", root=root, summary=False, callbacks=callbacks) as run:
            run.tunable("temperature", 1.0, min=0, max=2)
            run.tunable("sampler", "nucleus", choices=["nucleus", "greedy"])
            example_runs.train_rollouts(run, {"skill": 0.9}, steps=400, seed=11, until=150)
            with WebServer(root) as server, sync_playwright() as playwright:
                chromium = shutil.which("chromium") or "/usr/bin/chromium"
                browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                runs = {info.name: f"run={info.id}" for info in hl.runs(root)}
                shown = [info.id for info in hl.runs(root) if info.name == "sft-warmup" or info.project == "live"]
                hooks = "&".join(f"run={each}" for each in (*shown, "sorting-grpo/wide-clip-r0"))
                media = [f"run={info.id}" for info in hl.runs(root) if info.project == "segmentation"]
                for name, given, mark, scheme, size in PICTURES:
                    if not name.startswith(prefix):
                        continue
                    if name == "alerts":  # the last: every view counts them
                        _raise_alerts(root)
                    view = given.format(
                        some=hooks,
                        media="&".join(media),
                        one=media[0],
                        best=runs["digits-56"],
                        failed=runs["digits-33"],
                        three="&".join(runs[f"digits-{number}"] for number in (51, 54, 56)),
                        chat=runs["tool-use"],
                        live=runs["grpo-small"],
                    )
                    page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
                    _take(page, f"{server.url}#/{view}", mark, folder / f"{name}.png")
                    page.close()
                browser.close()


def _raise_alerts(root: Path) -> None:
    book = AlertBook(root, clock=lambda: 1.0)  # long ago, so that what is recorded counts
    for rule in RULES:
        book.add_rule(rule)
    with contextlib.closing(AlertService(root, AlertSettings())) as service:
        service.evaluate()


def _take(page: Any, address: str, mark: str, path: Path) -> None:
    page.goto(address)
    page.wait_for_selector(mark)
    page.wait_for_load_state("load")
    page.wait_for_timeout(700)  # charts fade in, and the rest of what is in sight is read
    if path.stem.startswith("chat"):
        page.locator(mark).last.scroll_into_view_if_needed()
    page.screenshot(path=path)
    if path.stat().st_size > MAX_BYTES:  # with a palette, a third of it
        Image.open(path).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
            path, optimize=True
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else IMAGES, *sys.argv[2:3])

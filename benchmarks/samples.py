"""How long it takes to open one sample of a run with a million samples, each with its tokens and two uses.

The run is written in the format of a recorder, 64 samples to a step. Its samples share some hundred files of tokens, of
200 tokens with eight columns. The store reads it once (the time is reported). Then samples are opened that are drawn
from the whole run, while the server builds its search index in the background:

- over HTTP: the sample, the steps that used it, and its tokens with the columns of both, one request after the other;
- in headless Chromium, as a link is followed in an open page and in a new tab: until its tokens are coloured by ratio
  and its facts name the steps that learnt from it.

Nothing is asserted: the bar is marked as met or not met. No other system that we know of has such a view.
"""

import argparse
import json
import os
import random
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from journals import used_sample_journal, write_run
from measure import at_least, met
from page import CHROMIUM, FLAGS
from page_systems import HOOKLINE, served
from rich.console import Console
from rich.table import Table

import hookline as hl

BAR = 0.3
"""Seconds, at most: the 95th percentile."""
SAMPLES, OPENED, FILES, TOKENS = 1_000_000, 60, 128, 200
SAMPLED = ("logprobs", "sampled_logprobs", "mask")
LEARNT = ("old_logprobs", "ref_logprobs", "entropy", "ratio", "advantage")
WAIT_SECONDS = 60.0
"""The most that opening a sample may take."""
READ_SECONDS = 1800.0
_SHOWN = """([id, limit]) => new Promise((done) => {
    const start = performance.now();
    const look = () => {
        const isShown = document.querySelectorAll('.token[data-sign="plus"], .token[data-sign="minus"]').length > 0
            && document.querySelector(".uses")?.textContent.startsWith("learnt from")
            && document.querySelector(`.sample-detail a[href*="sample=${id}"]`);
        if (isShown) done(true);
        else if (performance.now() - start > limit) done(false);
        else requestAnimationFrame(look);
    };
    look();
})"""


@dataclass(frozen=True, slots=True)
class Row:
    """What opening a sample takes in one way, in seconds."""

    label: str
    median: float
    p95: float
    slowest: float
    bar: float | None

    @property
    def is_met(self) -> bool | None:
        """Whether the 95th percentile is at most the bar; None without one."""
        return None if self.bar is None else self.p95 <= self.bar


def write(root: Path, count: int) -> None:
    """The run, and a small one that has the files of its tokens."""
    noise = random.Random(0)

    def tokens(names: Sequence[str], **more: Any) -> hl.Tokens:
        columns: dict[str, Any] = {name: [noise.uniform(-2, 2) for _ in range(TOKENS)] for name in names}
        return hl.Tokens(**columns | more)

    with hl.run("files of tokens", root=root, project="p", summary=False, console=False) as run:
        assert run.recorder is not None
        for number in range(FILES):
            ids = [noise.randrange(50_000) for _ in range(TOKENS)]
            texts = [f"t{each} " for each in ids]
            sampled = tokens(SAMPLED, texts=texts, ids=ids)
            run.log_samples([{"completion": "".join(texts), "tokens": sampled, "rollout": str(number)}])
            run.recorder.sample_use([str(number)], 1, tokens={str(number): tokens(LEARNT)})
    assert run.dir is not None
    records = list(hl.read(run.dir))
    facts = [json.dumps(each.tokens) for each in records if isinstance(each, hl.sinks.Sample)]
    uses = [json.dumps(own) for each in records if isinstance(each, hl.sinks.SampleUse) for own in each.tokens.values()]
    write_run(root, "p", 0, used_sample_journal(count, facts, uses))


def ask(url: str, path: str, **parameters: str) -> Any:
    """The answer of the server's API."""
    address = f"{url}api/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=READ_SECONDS) as answer:  # noqa: S310 - our own server
        return json.load(answer)


def row(label: str, times: Sequence[float], bar: float | None = BAR) -> Row:
    """The statistics of some times."""
    return Row(label, median(times), quantiles(times, n=20)[-1], max(times), bar)


def timed(work: Callable[[str], object], chosen: Sequence[str]) -> list[float]:
    """How long something takes for each sample."""
    times = []
    for sample in chosen:
        began = time.perf_counter()
        work(sample)
        times.append(time.perf_counter() - began)
    return times


def measured(count: int, opened: int) -> dict[str, Any]:
    """The time to read the run, and that of each way to open a sample."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hookline-samples-") as folder:
        root = Path(folder) / "runs"
        write(root, count)
        report = opened_in(root, opened, count)
    return report | {"load": {"before": load, "after": os.getloadavg()[0]}}


def opened_in(root: Path, opened: int, count: int) -> dict[str, Any]:
    """The same of a run that is there already."""
    from playwright.sync_api import sync_playwright

    runs = hl.runs(root)
    (run,) = (each.id for each in runs if each.name == "run-00000")
    began = time.perf_counter()
    (found,) = runs.sql("SELECT count(*) AS n FROM samples WHERE run = ?", [run]).rows()
    reading = time.perf_counter() - began
    if found["n"] != count:
        raise SystemExit(f"{found['n']:,} of {count:,} samples were read.")
    drawn = runs.sql("SELECT id FROM samples WHERE run = ? ORDER BY random() LIMIT ?", [run, opened])
    chosen = [each["id"] for each in drawn]
    runs.close()
    with served(HOOKLINE, root) as (url, _):

        def over_http(sample: str) -> None:
            found = ask(url, "samples/sample", run=run, sample=sample)["sample"]
            ask(url, "samples/uses", run=run, rollout=found["rollout"])
            ask(url, "samples/tokens", run=run, sample=sample)

        rows = [row("sample, uses and tokens over HTTP", timed(over_http, chosen))]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page()

            def link(sample: str) -> str:
                return f"#/rollouts?run={run}&sample={sample}&tokens=ratio"

            def shown(page: Any, sample: str) -> None:
                if not page.evaluate(_SHOWN, [sample, WAIT_SECONDS * 1000]):
                    raise SystemExit(f"The page does not show the sample {sample}.")

            def follow(sample: str) -> None:
                page.evaluate("address => { location.hash = address; }", link(sample))
                shown(page, sample)

            def open_tab(sample: str) -> None:
                tab = browser.new_page()
                tab.goto(url + link(sample), wait_until="commit")
                shown(tab, sample)
                tab.close()

            page.goto(url + link(chosen[0]))
            shown(page, chosen[0])
            rows.append(row("a link followed in the page", timed(follow, chosen[1:])))
            rows.append(row("a link opened in a new tab", timed(open_tab, chosen[: max(20, opened // 3)]), None))
            browser.close()
    shown_rows = [asdict(each) | {"met": each.is_met} for each in rows]
    return {"samples": count, "opened": opened, "reading_seconds": reading, "rows": shown_rows}


def table(report: dict[str, Any]) -> Table:
    """The rows, as people read them."""
    load = report["load"]
    caption = (
        f"{report['opened']} samples drawn from all; the run was read in {report['reading_seconds']:.1f} s; load "
        f"{load['before']:.1f} before and {load['after']:.1f} after"
    )
    shown = Table("", title=f"Opening one of {report['samples']:,} samples", caption=caption)
    for heading in ("median", "p95", "slowest", "bar (p95)", ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    for each in report["rows"]:
        times = [f"{1000 * each[name]:,.0f} ms" for name in ("median", "p95", "slowest")]
        bar = ("", "") if each["bar"] is None else (f"{1000 * each['bar']:g} ms", met(each["met"]))
        shown.add_row(each["label"], *times, *bar)
    return shown


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=at_least(1000), default=SAMPLES, help="how many samples the run has")
    parser.add_argument("--opened", type=at_least(20), default=OPENED, help="how many of them are opened")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    report = measured(options.samples, options.opened)
    if options.json:
        print(json.dumps(report))
    else:
        Console().print(table(report))


if __name__ == "__main__":
    main()

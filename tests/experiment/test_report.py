"""Reports: what stands in them, that nothing in them is markup of a name's, and that they are the same each time."""

import base64
import re
import sys
from html.parser import HTMLParser

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline._engine.state import ArmResult, EvalResult, RunResult
from hookline.experiment.results.report import write_report
from hookline.experiment.results.result import ExperimentResult

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: ``` <script>x</script>'


class Page(HTMLParser):
    """The tags of a page, all of which must be closed, and its text."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.text, self.links = [], [], "", []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def run_of(arm, repeat, accuracy, *, status="completed", **options):
    metrics = {} if accuracy is None else {"sorting/accuracy": accuracy}
    evals = [] if accuracy is None else [scored(accuracy)]
    return RunResult(f"{arm}-r{repeat}", status, metrics, evals, repeat=repeat, seed=repeat, seconds=60.0, **options)


def scored(accuracy):
    breakdowns = {"digits=2": {"accuracy": accuracy - 0.1, "n": 20}, "digits=1": {"accuracy": 1.0, "n": 1}}
    return EvalResult("sorting", {"accuracy": accuracy}, breakdowns, [], {"accuracy": (accuracy - 0.2, accuracy + 0.2)})


def experiment(directory):
    low = [
        run_of("low", i, 0.5 + 0.01 * i, failed_evals={"adding": "BenchmarkError: bad"} if i else {}) for i in (0, 1)
    ]
    high = [run_of("high", i, 0.7 + 0.01 * i) for i in (0, 1)]
    odd = [run_of("<b>", 0, 0.6), run_of("<b>", 1, None, status="failed", error=TRACEBACK)]
    arms = [
        ArmResult("low", {"lr": 0.1, "model": {"depth": 2}}, low),
        ArmResult("high", {"lr": 0.2, "model": {"depth": 2}}, high),
        ArmResult("<b>", {"lr": 0.2, "model": {"depth": 3}, "extra": "|"}, odd),
    ]
    return ExperimentResult("rates & depths", arms, directory)


def test_report_holds_everything_that_is_to_be_known(tmp_path):
    write_report(experiment(tmp_path))

    assert (tmp_path / "report.md").read_text() == (
        "# rates &amp; depths\n\n"
        "3 arms, 6 runs (5 completed, 1 failed); 6 min 0 s of run time in all.\n\n"
        "## Result\n\n"
        "high is best by sorting/accuracy (larger is better): 0.7050 ± 0.0071 over 2 repeats.\n\n"
        "| arm | sorting/accuracy | n | best run | difference to the best arm | failed |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| low | 0.5050 ± 0.0071 | 2 | 0.51 | -0.2 (-0.23 to -0.17) |  |\n"
        "| **high** | **0.7050 ± 0.0071** | **2** | **0.71** | **best** |  |\n"
        "| \\<b\\> | 0.6 | 1 of 2 | 0.6 | -0.105 | 1 |\n\n"
        "Mean ± standard deviation over the repeats that completed; n is their number. Differences have the 95% "
        "interval (Welch's t) in brackets, if both arms have at least two repeats.\n\n"
        "## Differences between the arms\n\n"
        "- high beats low by 0.2 (95% interval 0.17 to 0.23).\n"
        "- \\<b\\> came out 0.095 better than low, with 2 and 1 repeats: at least 2 of each are needed to tell whether "
        "that is more than chance.\n"
        "- high came out 0.105 better than \\<b\\>, with 2 and 1 repeats: at least 2 of each are needed to tell "
        "whether that is more than chance.\n\n"
        "Each interval stands alone: of twenty pairs of arms that do not differ, about one looks as if it did.\n\n"
        "## Curves\n\n"
        "No completed run recorded a metric at more than one step.\n\n"
        "## Settings that differ between the arms\n\n"
        "- **low**: lr = 0.1, model.depth = 2\n"
        "- **high**: lr = 0.2, model.depth = 2\n"
        '- **\\<b\\>**: lr = 0.2, model.depth = 3, extra = "\\|"\n\n'
        "## Benchmarks\n\n"
        "Mean ± standard deviation over repeats. In brackets is the benchmark's 95% interval for one run, which shows "
        "how much the choice of tasks matters; for several repeats, the mean of its ends.\n\n"
        "### sorting\n\n"
        "| arm | tasks | accuracy |\n| --- | --- | ---: |\n"
        "| low | all | 0.5050 ± 0.0071 (0.305 to 0.705) |\n"
        "| low | digits=2 (20 tasks) | 0.4050 ± 0.0071 |\n"
        "| low | digits=1 (1 task) | 1 ± 0 |\n"
        "| high | all | 0.7050 ± 0.0071 (0.505 to 0.905) |\n"
        "| high | digits=2 (20 tasks) | 0.6050 ± 0.0071 |\n"
        "| high | digits=1 (1 task) | 1 ± 0 |\n"
        "| \\<b\\> | all | 0.6 (0.4 to 0.8) |\n"
        "| \\<b\\> | digits=2 (20 tasks) | 0.5 |\n"
        "| \\<b\\> | digits=1 (1 task) | 1 |\n\n"
        "## Runs that did not complete\n\n"
        "\\<b\\>-r1: failed, ValueError: \\`\\`\\` \\<script\\>x\\</script\\>\n\n"
        f"````text\n{TRACEBACK}\n````\n\n"
        "## Benchmarks that failed\n\n"
        "- **low-r1, adding**: BenchmarkError: bad\n\n"
        "## Runs\n\n"
        "| run | status | seed | time | directory |\n| --- | --- | ---: | ---: | --- |\n"
        "| low-r0 | completed | 0 | 1 min 0 s | — |\n"
        "| low-r1 | completed | 1 | 1 min 0 s | — |\n"
        "| high-r0 | completed | 0 | 1 min 0 s | — |\n"
        "| high-r1 | completed | 1 | 1 min 0 s | — |\n"
        "| \\<b\\>-r0 | completed | 0 | 1 min 0 s | — |\n"
        "| \\<b\\>-r1 | failed | 1 | 1 min 0 s | — |\n\n"
        "Run the experiment again with the same output directory to continue it: completed runs are kept. "
        "Read the record of a run with hookline.read(directory).\n"
    )


def test_report_in_html_is_whole_escaped_and_fetches_nothing(tmp_path):
    write_report(experiment(tmp_path))

    source = (tmp_path / "report.html").read_text()
    page = Page(source)

    assert page.links == []
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert "rates & depths" in page.text
    assert TRACEBACK in page.text
    assert page.tags.count("details") == 1
    assert "prefers-color-scheme: dark" in source
    assert not re.search(r"https?:|url\(|@import", source)


def test_report_is_the_same_each_time_and_leaves_nothing_else_behind(tmp_path):
    files = write_report(experiment(tmp_path))
    first = [file.read_bytes() for file in files]

    assert write_report(experiment(tmp_path)) == files
    assert [file.read_bytes() for file in files] == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md"]


def with_journals(directory):
    runs = []
    for repeat in (0, 1):
        with hl.run(f"a-r{repeat}", root=directory, project="runs", summary=False) as run:
            for step in run.steps(range(3)):
                run.log(loss=1.0 / (1 + step + repeat))
        runs.append(RunResult(f"a-r{repeat}", metrics={"loss": run.metrics["loss"]}, output_dir=run.dir, repeat=repeat))
    return ExperimentResult("with journals", [ArmResult("a", {}, runs)], directory)


def test_report_of_recorded_runs_shows_their_curves_and_when_they_began(tmp_path):
    pytest.importorskip("matplotlib")
    files = write_report(with_journals(tmp_path))

    markdown, html, png = (tmp_path / name for name in ("report.md", "report.html", "curves.png"))
    assert files == [markdown, html, png]
    assert "](curves.png)" in markdown.read_text()
    assert re.search(r"; begun \d{4}-\d\d-\d\d \d\d:\d\d UTC; ", markdown.read_text())
    assert re.search(r"\| a-r0 \| completed \| — \| .* \| runs/", markdown.read_text())
    (source,) = Page(html.read_text()).links
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == png.read_bytes()


def test_report_says_when_the_first_run_began(tmp_path):
    runs = []
    for repeat, facts in enumerate(['{"started": 86400}', '{"started": 3600.5}', '{"started": ', "[]"]):
        home = tmp_path / f"a-r{repeat}"
        home.mkdir()
        (home / "run.json").write_text(facts)
        runs.append(RunResult(home.name, output_dir=home, repeat=repeat))

    write_report(ExperimentResult("test", [ArmResult("a", {}, runs)], tmp_path))

    assert "begun 1970-01-01 01:00 UTC" in (tmp_path / "report.md").read_text()


def test_report_without_matplotlib_says_how_to_get_the_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    files = write_report(with_journals(tmp_path))

    assert [file.name for file in files] == ["report.md", "report.html"]
    assert "pip install 'hookline[experiment]'" in files[1].read_text().replace("&#x27;", "'")


def test_report_whose_picture_cannot_be_drawn_is_written_all_the_same(tmp_path, monkeypatch, caplog):
    def fail(*_args, **_options):
        raise RuntimeError("no fonts")

    monkeypatch.setattr("hookline.experiment.results.result.draw_curves", fail)

    files = write_report(with_journals(tmp_path))

    assert "could not be drawn: RuntimeError: no fonts" in files[0].read_text()
    assert "could not be drawn: no fonts" in caplog.text


def test_report_with_stages_has_a_row_for_each(tmp_path):
    runs = [
        RunResult("a-r0-ssft", metrics={"loss": 2.0}, stage="sft"),
        RunResult("a-r0-sgrpo", metrics={"loss": 1.0}, stage="grpo"),
    ]

    write_report(ExperimentResult("test", [ArmResult("a", {}, runs)], tmp_path))

    text = (tmp_path / "report.md").read_text()
    assert "a is best by loss (smaller is better) after stage grpo: 1 over 1 repeat." in text
    assert "| a | sft | 2 | 1 | 2 |  |\n| a | grpo | 1 | 1 | 1 |  |" in text


def test_report_tells_true_from_one_and_takes_equal_numbers_for_equal(tmp_path):
    nan = float("nan")
    configs = {"a": {"flag": True, "lr": 1, "x": nan, "y": 1}, "b": {"flag": 1, "lr": 1.0, "x": float("nan"), "y": 2}}
    arms = [ArmResult(name, config, [run_of(name, 0, 0.5)]) for name, config in configs.items()]

    write_report(ExperimentResult("test", arms, tmp_path))

    assert "- **a**: flag = true, y = 1\n- **b**: flag = 1, y = 2\n" in (tmp_path / "report.md").read_text()


def test_report_of_an_experiment_where_all_failed_shows_why(tmp_path):
    runs = [RunResult("a-r0", "failed", error=TRACEBACK), RunResult("a-r1", "skipped", repeat=1)]

    write_report(ExperimentResult("test", [ArmResult("a", {}, runs)], tmp_path))

    text = (tmp_path / "report.md").read_text()
    assert "No run completed with a result to compare." in text
    assert TRACEBACK in text
    assert "a-r1: skipped" in text
    Page((tmp_path / "report.html").read_text())


def test_report_of_texts_that_no_file_can_hold_is_written_without_them(tmp_path):
    runs = [RunResult("a-r0", "failed", error="Traceback\nOSError: caf\udce9.txt")]

    write_report(ExperimentResult("test", [ArmResult("a", {}, runs)], tmp_path))

    assert "OSError: caf?.txt" in (tmp_path / "report.md").read_text()


def test_report_of_an_empty_experiment_is_written(tmp_path):
    assert len(write_report(ExperimentResult("empty", [], tmp_path))) == 2


def test_report_of_a_thousand_arms_is_short(tmp_path):
    arms = [
        ArmResult(f"arm{i:04}", {"lr": i}, [run_of(f"arm{i:04}", r, i + 0.1 * r, error="x\n" * 500) for r in range(3)])
        for i in range(1000)
    ]
    failed = ArmResult("broken", {}, [run_of("broken", r, None, status="failed", error=TRACEBACK) for r in range(50)])

    write_report(ExperimentResult("big", [*arms, failed], tmp_path))

    text = (tmp_path / "report.md").read_text()
    assert len(text) < 60_000
    assert "The best 20 are shown; 981 more are not." in text
    assert text.count(" beats ") == 45
    assert "30 more are not shown." in text


def test_report_of_an_experiment_without_a_directory_is_refused():
    with pytest.raises(OptionError, match="output_dir=None: 'test' has no directory"):
        write_report(ExperimentResult("test"))


def test_report_that_cannot_be_put_in_place_leaves_no_pieces(tmp_path):
    (tmp_path / "report.md").mkdir()

    with pytest.raises(OSError, match="report.md"):
        write_report(experiment(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]

"""The page's computations: numbers as text, ranges of axes, files; run in the page's browser."""

import json
from pathlib import Path

import pytest
from page_runs import finished_run

from hookline.cli.runs.text import bytes_text
from hookline.server import WebServer


@pytest.fixture(scope="module")
def call(browser, tmp_path_factory):
    """Call a function of one of the page's modules."""
    root = tmp_path_factory.mktemp("modules")
    finished_run(root)
    with WebServer(root) as server:
        page = browser.new_page()
        page.goto(server.url)

        def run(module, function, *arguments):
            code = "async ([module, name, given]) => (await import(`/static/js/${module}.js`))[name](...given)"
            return page.evaluate(code, [module, function, list(arguments)])

        yield run
        page.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.88888, "0.8889"),
        (12.3456, "12.35"),
        (240, "240"),
        (12345678.9, "1.23e+7"),
        (0.000233, "2.33e\u22124"),
        (-1.5, "\u22121.500"),
        (0, "0"),
        ("NaN", "NaN"),
        ("-Infinity", "\u2212\u221e"),
        (None, "\u2013"),
    ],
)
def test_number_is_shown_with_four_digits_and_a_real_minus(call, value, text):
    assert call("format", "number", value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (5e15, "5000.0 TB")]
)
def test_size_is_shown_in_powers_of_1000_as_on_the_command_line(call, count, text):
    assert (call("format", "bytes", count), bytes_text(int(count))) == (text, text)


@pytest.mark.parametrize(("count", "text"), [(0, "0 runs"), (1, "1 run"), (1200, "1,200 runs")])
def test_noun_is_singular_for_one(call, count, text):
    assert call("format", "plural", count, "run") == text


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.03, 0.96, ["0.2", "0.4", "0.6", "0.8"]),
        (-1, 1, ["\u22121", "\u22120.5", "0", "0.5", "1"]),
        (0.00011, 0.00029, ["1.5e\u22124", "2e\u22124", "2.5e\u22124"]),
        (3, 3, []),
    ],
)
def test_ticks_are_round_values_within_the_range(call, low, high, texts):
    assert [tick["text"] for tick in call("chart_scales", "roundTicks", low, high)] == texts


@pytest.mark.parametrize(
    ("count", "most", "places"), [(4, 6, [0, 1, 2, 3]), (30, 6, [0, 6, 12, 17, 23, 29]), (1, 6, [0]), (9, 1, [8])]
)
def test_labelled_places_are_the_ends_and_evenly_spaced_ones(call, count, most, places):
    assert call("histogram_canvas", "evenly", count, most) == places


@pytest.mark.parametrize(("seconds", "text"), [(3.21, "3.2 s"), (75, "75 s"), (600, "10 min"), (9000, "2 h 30 min")])
def test_duration_is_shown_in_the_largest_unit_that_says_enough(call, seconds, text):
    assert call("format", "duration", seconds) == text


@pytest.mark.parametrize(
    ("values", "is_log", "texts"),
    [
        ([0.9999, 1, 1.0001], False, ["0.9999", "1", "1.0001"]),
        ([1, 1.0000005, 1.000001], False, ["1", "1.0000005", "1.000001"]),
        ([2.9e-5, 3e-5, 3.1e-5], False, ["2.9e\u22125", "3e\u22125", "3.1e\u22125"]),
        ([-0.2, 2.7e-17, 0.2, 0.30000000000000004], False, ["\u22120.2", "0", "0.2", "0.3"]),
        ([8000, 10000, 12000], False, ["8K", "10K", "12K"]),
        ([1000000, 1000001], False, ["1M", "1.000001M"]),
        ([1e300, 1.5e300], False, ["1e+300", "1.5e+300"]),
        ([1e-300, 1.5e-300], False, ["1e\u2212300", "1.5e\u2212300"]),
        ([0.0001, None, 1, 1e5], True, ["1e\u22124", "", "1", "100K"]),
        ([5], False, ["5"]),
        ([], False, []),
    ],
)
def test_marks_of_an_axis_have_the_digits_that_tell_them_apart(call, values, is_log, texts):
    assert call("chart_scales", "numberMarks", values, is_log) == texts


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        ([0, 60, 120], ["0", "1 min", "2 min"]),
        ([100, 200, 300], ["1 min 40 s", "3 min 20 s", "5 min"]),
        ([0, 0.2, 0.4], ["0", "0.2 s", "0.4 s"]),
        ([3600, 5400, 90000], ["1 h", "1 h 30 min", "1 d 1 h"]),
        ([1234.5, None, 1235], ["20 min 34.5 s", "", "20 min 35 s"]),
    ],
)
def test_marks_of_durations_are_exact(call, seconds, texts):
    assert call("chart_scales", "durationMarks", seconds) == texts


def named(run_id, name, experiment=None):
    return {"id": run_id, "project": run_id.split("/")[0], "name": name, "experiment": experiment}


def test_runs_of_one_name_are_distinguished_by_a_part_of_the_id(call):
    runs = [
        named("p/2026-01-02-calm-fox-1", "twin"),
        named("p/2026-01-02-shy-owl-2", "twin"),
        named("p/x", "alone"),
        named("a/same", "once"),
        named("b/same", "once"),
        named("e/low-r0", "n", "e"),
        named("f/low-r0", "n", "f"),
    ]
    assert [name for _, name in call("run_store", "distinctNames", runs)] == [
        *("twin · calm-fox-1", "twin · shy-owl-2", "alone"),
        *("once · a/same", "once · b/same", "e/low-r0", "f/low-r0"),
    ]


def test_range_leaves_out_a_few_values_far_away_and_no_others(call):
    values = [1.0 + step / 100 for step in range(100)]
    how = {"isLog": False, "leavesOut": True}
    near = call("chart_scales", "valueRange", values, how)
    far = call("chart_scales", "valueRange", [*values, 1e6], how)
    assert (near["outside"], far["outside"]) == (0, 1)
    assert (far["low"], far["high"]) == pytest.approx((near["low"], near["high"]))


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [-5.0, -5.0]])
def test_range_of_few_values_is_one(call, values):
    for is_log in (False, True):
        found = call("chart_scales", "valueRange", values, {"isLog": is_log, "leavesOut": True})
        assert found["low"] < found["high"]


def test_range_of_a_logarithmic_axis_begins_at_a_round_value(call):
    found = call("chart_scales", "valueRange", [0.0134, 1.0], {"isLog": True, "leavesOut": True})
    assert found["low"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("zoom", "how", "found"),
    [
        (None, "in", [25, 75]),
        ([25, 75], "in", [37.5, 62.5]),
        ([25, 75], "out", None),
        ([40, 60], "out", [30, 70]),
        ([40, 60], "left", [35, 55]),
        ([0, 20], "left", [0, 20]),
        ([85, 95], "right", [87.5, 97.5]),
        (None, "right", None),
    ],
)
def test_zoom_is_moved_and_scaled_within_what_there_is(call, zoom, how, found):
    assert call("chart_scales", "moved", zoom, [0, 100], how) == found


def test_zoom_on_a_logarithmic_axis_is_moved_by_factors(call):
    assert call("chart_scales", "moved", None, [1, 10_000], "in", True) == pytest.approx([10, 1000])


def test_group_of_runs_is_named_by_what_sets_it_apart(call):
    assert call("metric_lines", "groupLabel", ["sweep", "low", None]) == "low"
    assert call("metric_lines", "groupLabel", ["sweep", "low", "sft"]) == "low \u00b7 sft"
    assert call("metric_lines", "groupLabel", [None, None, None]) == "ungrouped"


@pytest.mark.parametrize(("length", "count"), [(10, 500), (75, 500), (95, 400)])
def test_request_names_as_many_runs_as_the_server_takes(call, length, count):
    assert len(call("api", "firstRuns", ["r" * length] * 600)) == count
    assert len(call("api", "firstRuns", ["r" * length] * 100)) == 100


@pytest.mark.parametrize(
    ("ids", "newer", "runs"),
    [
        (["b"], [("b", 9)], [("a", 1), ("b", 9), ("c", 3)]),
        (["b"], [], [("a", 1), ("c", 3)]),
        (["d"], [("d", 4)], [("a", 1), ("b", 2), ("c", 3), ("d", 4)]),
        (["a", "c"], [("c", 7), ("a", 8)], [("a", 8), ("b", 2), ("c", 7)]),
    ],
)
def test_lines_of_some_runs_are_replaced_in_their_places(call, ids, newer, runs):
    def found(lines):
        rows = [{"run": run, "name": "loss", "axis": "train", "points": points} for run, points in lines]
        return {"kind": "lines", "by": "run", "rows": rows, "problem": ""}

    merged = call("metric_lines", "withRuns", found([("a", 1), ("b", 2), ("c", 3)]), ids, found(newer))
    assert [(line["run"], line["points"]) for line in merged["rows"]] == runs


def test_vendored_libraries_have_the_versions_of_package_json_and_a_licence():
    root = Path(__file__).parents[2]
    vendor = root / "src/hookline/server/static/vendor"
    versions = json.loads((root / "package.json").read_text())["dependencies"]
    named = set()
    for path in [*vendor.rglob("*.js"), *vendor.rglob("*.css")]:
        first = path.read_text().partition("\n")[0]
        package, version = first.removesuffix(" */").split()[-2:]
        assert versions[package] == version, f"{path.name}: run make vendor"
        named.add(package)
    licences = {path.name.partition("-")[2] for path in vendor.glob("LICENSE-*")}
    assert named == set(versions)
    assert {package.removeprefix("@").replace("/", "-") for package in named} <= licences


def test_colours_of_runs_in_a_row_differ_and_do_not_depend_on_later_runs(call):
    runs = [{"id": f"p/r{number}", "project": "p", "started": 1e9 + number} for number in range(40)]
    call("theme", "assignRunColours", runs)
    all_of_them = [call("theme", "colourOf", run["id"]) for run in runs]
    call("theme", "assignRunColours", runs[12::-1])
    assert [call("theme", "colourOf", run["id"]) for run in runs[:13]] == all_of_them[:13]
    assert all(len(set(all_of_them[first : first + 6])) == 6 for first in range(35))


def test_range_of_a_smoothed_constant_is_that_of_the_constant(call):
    values = [0.7, 0.7000000000000001, 0.7]
    found = call("chart_scales", "valueRange", values, {"isLog": False, "leavesOut": True})
    assert (found["low"], found["high"]) == (pytest.approx(0.63), pytest.approx(0.77))

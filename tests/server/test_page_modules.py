"""What the page computes: numbers as text, smoothing, ranges of axes, files; run in the browser that runs the page."""

import pytest
from page_runs import finished_run

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


@pytest.mark.parametrize(("seconds", "text"), [(3.21, "3.2 s"), (75, "75 s"), (600, "10 min"), (9000, "2 h 30 min")])
def test_duration_is_shown_in_the_largest_unit_that_says_enough(call, seconds, text):
    assert call("format", "duration", seconds) == text


def test_smoothed_line_does_not_lag_and_keeps_a_constant(call):
    xs = list(range(101))
    rising = call("smoothing", "smoothed", xs, [float(x) for x in xs], 0.8)
    assert rising[50] == pytest.approx(50.0)
    assert call("smoothing", "smoothed", xs, [2.0] * 101, 0.8) == pytest.approx([2.0] * 101)


def test_smoothed_line_passes_over_gaps_and_gives_short_lines_back(call):
    assert call("smoothing", "smoothed", [0, 1, 2, 3], [1.0, None, 1.0, 1.0], 0.9) == [1.0, None, 1.0, 1.0]
    assert call("smoothing", "smoothed", [0, 1], [1.0, 5.0], 0.9) == [1.0, 5.0]
    assert call("smoothing", "smoothed", [3, 3, 3], [1.0, 5.0, 2.0], 0.9) == [1.0, 5.0, 2.0]


def test_range_leaves_out_a_few_values_far_away_and_no_others(call):
    values = [1.0 + step / 100 for step in range(100)]
    how = {"isLog": False, "leavesOut": True}
    near = call("value_range", "valueRange", values, how)
    far = call("value_range", "valueRange", [*values, 1e6], how)
    assert (near["outside"], far["outside"]) == (0, 1)
    assert (far["low"], far["high"]) == pytest.approx((near["low"], near["high"]))


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [-5.0, -5.0]])
def test_range_of_few_values_is_one(call, values):
    for is_log in (False, True):
        found = call("value_range", "valueRange", values, {"isLog": is_log, "leavesOut": True})
        assert found["low"] < found["high"]


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
    assert call("zoom", "moved", zoom, [0, 100], how) == found


def test_zoom_on_a_logarithmic_axis_is_moved_by_factors(call):
    assert call("zoom", "moved", None, [1, 10_000], "in", True) == pytest.approx([10, 1000])


def test_group_of_runs_is_named_by_what_sets_it_apart(call):
    assert call("metric_lines", "groupLabel", ["sweep", "low", None]) == "low"
    assert call("metric_lines", "groupLabel", ["sweep", "low", "sft"]) == "low \u00b7 sft"
    assert call("metric_lines", "groupLabel", [None, None, None]) == "ungrouped"

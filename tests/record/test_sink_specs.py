"""How sinks are named, built, written down and built again."""

from dataclasses import dataclass
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.sink import SINKS, Sink, import_path, make_sink, make_sinks, register_sink
from hookline.sinks import CsvSink, JsonlSink


@dataclass(eq=False)
class KeptSink(Sink):
    """A sink of somebody else's, which is not registered."""

    path: Path | None = None
    size: int = 3
    ratio: float = 0.5
    name: str | None = None

    def write(self, entries):
        return None


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("csv", CsvSink),
        ({"jsonl": {"kinds": ["event"]}}, JsonlSink),
        ({"jsonl": None}, JsonlSink),
        ({"use": "csv", "with": {"kind": "sample"}}, CsvSink),
        ({"use": "csv"}, CsvSink),
        (f"{__name__}:KeptSink", KeptSink),
        (KeptSink(size=4), KeptSink),
    ],
)
def test_make_sink_takes_names_mappings_places_and_sinks(given, kind):
    assert type(make_sink(given)) is kind


def test_make_sink_gives_an_instance_back_as_it_is():
    sink = KeptSink()
    assert make_sink(sink) is sink


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("csvv", hl.ConfigError, "Did you mean 'csv'"),
        ({"csv": {"pth": "x"}}, hl.ConfigError, "Did you mean 'path'"),
        ({"csv": {"kind": 3}}, hl.ConfigError, "sinks.csv.kind"),
        ({"csv": 3}, hl.OptionError, "is not a sink"),
        ({"csv": {}, "jsonl": {}}, hl.OptionError, "is not a sink"),
        (3, hl.OptionError, "is not a sink"),
        (CsvSink, hl.OptionError, "is not a sink"),
        ("os:getcwd", hl.ConfigError, "not a subclass of Sink"),
        ("no_such_module:X", hl.ConfigError, "cannot be imported"),
    ],
)
def test_make_sink_of_something_else_is_an_error(given, error, message):
    with pytest.raises(error, match=message):
        make_sink(given)


@pytest.mark.parametrize("given", ["csv", {"csv": {}}, KeptSink(), 3, None])
def test_make_sinks_of_no_list_is_an_error(given):
    with pytest.raises(hl.OptionError, match="give a list"):
        make_sinks(given)


def test_make_sinks_numbers_a_second_one_of_a_name():
    others = [CsvSink(kind=kind, name=name) for kind, name in (("sample", None), ("event", "csv_2"), ("log", "mine"))]
    assert list(make_sinks(["csv", *others, KeptSink()])) == ["csv", "csv_2", "csv_2_2", "mine", "KeptSink"]


def test_make_sinks_takes_two_functions_of_one_kind():
    made = make_sinks([lambda report_data, step: None, lambda report_data, step: None])
    assert list(made) == ["function", "function_2"]


def test_make_sinks_of_one_sink_twice_is_an_error():
    with pytest.raises(hl.OptionError, match="are the same sink"):
        make_sinks(["csv", CsvSink(name="mine")])


@pytest.mark.parametrize("name", ["a/b", "a b", "1st"])
def test_make_sinks_name_that_is_no_file_name_is_an_error(name):
    with pytest.raises(hl.OptionError, match="cannot be a sink's name"):
        make_sinks([CsvSink(name=name)])


def test_spec_holds_what_differs_from_the_defaults(tmp_path):
    assert KeptSink().spec() == {"use": f"{__name__}:KeptSink", "with": {}}
    sink = CsvSink(tmp_path / "x.csv", columns=["a"])
    assert sink.spec() == {"use": "csv", "with": {"path": str(tmp_path / "x.csv"), "columns": ("a",)}}


@pytest.mark.parametrize("sink", [KeptSink(Path("a"), 4, 1e-5, "b"), CsvSink("x.csv", columns=("a", "b"))])
def test_spec_builds_the_same_sink_again(sink):
    again = make_sink(sink.spec())
    assert (type(again), vars(again)) == (type(sink), vars(sink))


def test_relative_path_is_kept_where_it_was_meant(tmp_path, monkeypatch):
    sink = CsvSink("x.csv")
    monkeypatch.chdir("/")
    assert make_sink(sink.spec()).path == tmp_path / "x.csv"  # type: ignore[attr-defined]


def test_import_path_is_none_for_what_cannot_be_imported():
    assert import_path(make_sink) == "hookline._record.sink:make_sink"
    assert import_path(lambda: None) is None
    assert import_path(KeptSink().write) is None


def test_register_sink_of_a_taken_name_is_an_error():
    with pytest.raises(hl.DuplicateError, match="'csv' is taken"):
        register_sink("csv")(KeptSink)
    assert SINKS.find("csv") is CsvSink


def test_registered_sink_is_found_and_written_down_by_its_name():
    @register_sink("kept_for_a_test")
    @dataclass(eq=False)
    class Other(KeptSink):
        pass

    try:
        assert Other().spec()["use"] == "kept_for_a_test"
        assert type(make_sink("kept_for_a_test")) is Other
    finally:
        del SINKS._registered["kept_for_a_test"]


def test_sinks_are_found_without_loading_any_vendor():
    import subprocess
    import sys

    code = "import sys; from hookline._record.sink import SINKS; SINKS.names(); print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"wandb", "mlflow", "tensorboard", "trackio", "httpx", "torch", "tensorflow"}

"""Configuration files and overrides: what fits becomes structs, what does not is refused with its place."""

import copy
import functools
import json
import operator
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._engine.errors import ConfigError
from hookline._engine.factories import Source
from hookline.config.loading import load_config, to_struct
from hookline.config.sources import overridden, parse_overrides, read_config


class Precision(Enum):
    HALF = "bf16"
    FULL = "fp32"


class Optimizer(msgspec.Struct):
    name: Literal["adam", "sgd"] = "adam"
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


class Train(msgspec.Struct):
    epochs: Annotated[int, msgspec.Meta(ge=1)] = 1
    optimizer: Optimizer = msgspec.field(default_factory=Optimizer)
    warmup: Optimizer | None = None
    precision: Precision = Precision.FULL


class Constant(msgspec.Struct, tag="constant", tag_field="type"):
    value: float = 1.0


class Cosine(msgspec.Struct, tag="cosine", tag_field="type"):
    period: int


class Window(msgspec.Struct):
    low: int
    high: int = 10

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError(f"`low`={self.low} is above `high`={self.high}: give less.")


class Config(msgspec.Struct):
    name: str = ""
    train: Train = msgspec.field(default_factory=Train)
    arms: dict[str, Optimizer] = {}
    layers: list[Optimizer] = []
    schedule: Constant | Cosine = msgspec.field(default_factory=Constant)
    window: Window | None = None
    output_dir: Path | None = None
    began: date | None = None
    extra: dict[str, Any] = {}
    anything: Any = None


def write(directory, text, name="train.yaml"):
    file = directory / name
    file.write_text(text)
    return file


def loaded(tmp_path, text, *arguments):
    return load_config(write(tmp_path, text), Config, arguments)


def refusal(function, *arguments, **options):
    with pytest.raises(ConfigError) as caught:
        function(*arguments, **options)
    return str(caught.value)


def refused(tmp_path, text, *arguments):
    """The message of a refusal, without the directory."""
    return refusal(loaded, tmp_path, text, *arguments).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "train: {epochs: 3}\nlayers: [{lr: 0.5}]"),
        ("a.yml", "train:\n  epochs: 3\nlayers:\n  - lr: 0.5"),
        ("a.toml", "[train]\nepochs = 3\n[[layers]]\nlr = 0.5"),
        ("a.json", '{"train": {"epochs": 3}, "layers": [{"lr": 0.5}]}'),
    ],
)
def test_read_every_kind_of_file_gives_the_same(tmp_path, name, text):
    file = write(tmp_path, text, name)
    assert read_config(str(file)) == read_config(file) == {"train": {"epochs": 3}, "layers": [{"lr": 0.5}]}


@pytest.mark.parametrize("name", ["a.yaml", "a.toml"])
def test_read_file_with_nothing_in_it_is_an_empty_mapping(tmp_path, name):
    assert read_config(write(tmp_path, "# nothing yet\n", name)) == {}


def test_read_yaml_exponents_are_numbers_and_quoted_ones_are_text(tmp_path):
    text = "[1e-4, 1E5, -2e3, 1.5e5, .5e1, 1.0e-4, '1e-4', \"1E5\", 1e, e5, 2024-01-05, 12, 1.5]"
    read = read_config(write(tmp_path, f"values: {text}"))["values"]
    assert read == [1e-4, 1e5, -2e3, 1.5e5, 5.0, 1e-4, "1e-4", "1E5", "1e", "e5", "2024-01-05", 12, 1.5]


def test_read_missing_file_suggests_a_close_name_in_its_directory(tmp_path):
    write(tmp_path, "", "training.yaml")
    write(tmp_path, "", "notes.txt")
    assert "no such configuration file. Did you mean 'training.yaml'?" in refusal(read_config, tmp_path / "trainig.yml")
    missing = refusal(read_config, tmp_path / "no" / "train.yaml")
    assert f"no such configuration file. {tmp_path / 'no'} has none." in missing


def test_read_unknown_suffix_says_which_are_accepted(tmp_path):
    message = refusal(read_config, write(tmp_path, "a=1", "train.ini"))
    assert message.endswith("train.ini: the suffix '.ini' was given, .json, .toml, .yaml, .yml are accepted.")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: 1\nb: [1, 2\n", "a.yaml:3: not valid YAML: "),
        ("a.yaml", "a: 1\na: 2\n", "a.yaml:2: a is given twice."),
        ("a.toml", "a = 1\nb = \n", "a.toml:2: not valid TOML: Invalid value"),
        ("a.toml", "a = [1,", "a.toml: not valid TOML: "),
        ("a.json", '{"a": 1,\n b}', "a.json:2: not valid JSON: "),
        ("a.yaml", "- 1\n- 2\n", "a.yaml:1: [1, 2] was given, a mapping is needed at the top."),
        ("a.json", "3", "a.json: 3 was given, a mapping is needed at the top."),
    ],
)
def test_read_file_that_is_wrong_is_refused_with_its_line(tmp_path, name, text, message):
    assert refusal(read_config, write(tmp_path, text, name)).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize("name", ["a.toml", "a.yaml", "a.json"])
def test_read_what_is_no_text_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"a = \xff\xfe")
    (tmp_path / "directory").mkdir()
    assert "UTF-8" in refusal(read_config, tmp_path / name)
    (tmp_path / "directory" / name).mkdir()
    assert "cannot be read" in refusal(read_config, tmp_path / "directory" / name)


def test_overrides_every_form_is_read():
    arguments = ["train.epochs=3", "--train.lr=1e-4", "--name", "first", "layers[0].lr=-1", "--shift", "-2"]
    read = parse_overrides(arguments)
    assert read == [("train.epochs", 3), ("train.lr", 1e-4), ("name", "first"), ("layers.0.lr", -1), ("shift", -2)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("null", None),
        ("", None),
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("0x10", 16),
        ("[1, two, 1e-4]", [1, "two", 1e-4]),
        ("{a: 1}", {"a": 1}),
        ('"1"', "1"),
        ("'true'", "true"),
        ("*.txt", "*.txt"),
        ("#fff", "#fff"),
        ("Question: why = what?", "Question: why = what?"),
        ("2024-01-05", "2024-01-05"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_override_value_is_a_scalar_or_a_collection(text, value):
    assert parse_overrides([f"a={text}"]) == parse_overrides(["--a", text]) == [("a", value)]


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.lists(st.integers())))
def test_override_value_written_as_json_comes_back(value):
    text = json.dumps(value).replace("Infinity", ".inf")
    assert parse_overrides([f"a={text}"]) == [("a", value)]


@pytest.mark.parametrize("argument", ["epochs", "-epochs=3", "=3", "--", "--=3", "a..b=3", ".a=3", "---a=3"])
def test_override_that_is_none_is_refused_with_the_forms(argument):
    message = f"command line: {argument!r} is not an override: give train.epochs=3 or --train.epochs 3."
    assert refusal(parse_overrides, [argument]) == message


@pytest.mark.parametrize("arguments", [["--train.verbose"], ["--train.verbose", "--name=a"]])
def test_override_without_a_value_is_refused(arguments):
    message = "command line: train.verbose: a value is needed: give --train.verbose=VALUE."
    assert refusal(parse_overrides, arguments) == message


def test_override_that_is_not_yaml_is_refused_with_its_text():
    assert refusal(parse_overrides, ["a.b=[1,"]).startswith("command line: a.b: [1, was given, which is not valid YAML")


def test_overridden_sets_makes_mappings_and_leaves_the_input():
    values = {"train": {"epochs": 1}, "callbacks": [{"early_stopping": {"patience": 1}}, "timer"], "empty": None}
    before = copy.deepcopy(values)
    overrides = ["train.lr=0.5", "callbacks.0.early_stopping.patience=3", "a.b.c=[1,2]", "empty.x=1", "callbacks.1=x"]
    assert overridden(values, overrides) == {
        "train": {"epochs": 1, "lr": 0.5},
        "callbacks": [{"early_stopping": {"patience": 3}}, "x"],
        "empty": {"x": 1},
        "a": {"b": {"c": [1, 2]}},
    }
    assert values == before


def test_overridden_last_one_wins_and_keys_that_are_numbers_are_found():
    assert overridden({"layers": {1: "a"}}, ["layers.1=b", "--layers.1", "c"]) == {"layers": {1: "c"}}


NAMES = st.text("abc_", min_size=1, max_size=3)
TREES = st.dictionaries(NAMES, st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner), max_leaves=5))


@given(TREES, st.lists(NAMES, min_size=1, max_size=3), st.integers())
def test_overridden_value_is_where_it_was_put_and_the_rest_is_untouched(values, path, value):
    before = copy.deepcopy(values)
    beside = {name: inner for name, inner in values.items() if name != path[0]}
    changed = overridden(values, [f"{path[0]}={{}}", f"{'.'.join(path)}={value}"])
    assert {name: changed[name] for name in beside} == beside
    assert functools.reduce(operator.getitem, path, changed) == value
    assert values == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs.x=1", "train.epochs.x: train.epochs is 3, which is neither a mapping nor a list."),
        ("layers.2.lr=1", "layers.2.lr: layers is a list of 2: '2' was given, an index below that is accepted."),
        ("layers.first=1", "layers.first: layers is a list of 2: 'first' was given, an index below that is accepted."),
    ],
)
def test_overridden_path_through_something_else_says_what_is_there(override, message):
    values = {"train": {"epochs": 3}, "layers": [{}, {}]}
    assert refusal(overridden, values, [override]) == f"command line: {message}"


def test_struct_of_a_file_and_overrides_has_both(tmp_path):
    text = "train: {optimizer: {lr: 1e-4, betas: [0, 1e-1]}}\nextra: {any: {thing: 1}}"
    text += "\noutput_dir: runs\nbegan: 2024-01-05"
    config = loaded(tmp_path, text, "--train.epochs", "3", "train.warmup.lr=1", "schedule={type: cosine, period: 5}")
    train = Train(3, Optimizer(lr=1e-4, betas=(0.0, 0.1)), Optimizer(lr=1.0))
    expected = Config(train=train, schedule=Cosine(5), extra={"any": {"thing": 1}})
    assert config == msgspec.structs.replace(expected, output_dir=Path("runs"), began=date(2024, 1, 5))
    assert type(config.train.warmup.lr) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam: a", "train.yaml:1: nam: unknown key. Did you mean 'name'?"),
        ("train:\n  epoch: 3", "train.yaml:2: train.epoch: unknown key. Did you mean 'epochs'?"),
        ("train:\n  warmup:\n    lrr: 3", "train.yaml:3: train.warmup.lrr: unknown key. Did you mean 'lr'?"),
        ("arms:\n  a: {}\n  b: {lrr: 1}", "train.yaml:3: arms.b.lrr: unknown key. Did you mean 'lr'?"),
        ("layers:\n  - {}\n  - lrr: 1", "train.yaml:3: layers[1].lrr: unknown key. Did you mean 'lr'?"),
        ("schedule: {type: cosine, perod: 1}", "train.yaml:1: schedule.perod: unknown key. Did you mean 'period'?"),
    ],
)
def test_struct_unknown_key_at_any_depth_suggests_the_closest(tmp_path, text, message):
    assert refused(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {epochs: many}", "train.epochs: 'many' was given, int is accepted."),
        ("train: {epochs: 0}", "train.epochs: 0 was given, int >= 1 is accepted."),
        ("train: 3", "train: 3 was given, mapping is accepted."),
        ("train: {warmup: 3}", "train.warmup: 3 was given, mapping | null is accepted."),
        ("name: 12", "name: 12 was given, str is accepted. Put it in quotes to give text (in a shell: '\"...\"')."),
        ("arms: {a: {}, b: {lr: '1e-4'}}", "arms.b.lr: '1e-4' was given, float is accepted."),
        ("layers: [{}, {betas: [0, x]}]", "layers[1].betas[1]: 'x' was given, float is accepted."),
        ("layers: [{betas: [0]}]", "layers[0].betas: [0] was given, list of length 2 is accepted."),
        ("layers: [{name: adamm}]", "layers[0].name: 'adamm' was given, one of 'adam', 'sgd' is accepted."),
        ("train: {precision: half}", "train.precision: 'half' was given, one of 'bf16', 'fp32' is accepted."),
        ("schedule: {type: cosine}", "schedule: period is missing and has no default: give it."),
        ("schedule: {period: 3}", "schedule: type is missing and has no default: give it."),
        ("schedule: {type: linear}", "schedule: type 'linear' was given, one of 'constant', 'cosine' is accepted."),
        ("arms: {1: {}, b: {}}", "arms: keys [1, 'b'] were given, str is accepted for each."),
        ("layers: {}", "layers: {} was given, list is accepted."),
        ("window: {low: 11}", "window: `low`=11 is above `high`=10: give less."),
        ("output_dir: 3", "output_dir: 3 was given, Path | null is accepted."),
    ],
)
def test_struct_value_that_does_not_fit_says_what_is_accepted(tmp_path, text, message):
    assert refused(tmp_path, text) == f"train.yaml:1: {message}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs=many", "command line: train.epochs: 'many' was given, int is accepted."),
        ("train={epochs: many}", "command line: train.epochs: 'many' was given, int is accepted."),
        ("layers.0.lr=x", "command line: layers[0].lr: 'x' was given, float is accepted."),
        ("--trian.epochs=3", "command line: trian: unknown key. Did you mean 'train'?"),
        ("window={}", "command line: window: low is missing and has no default: give it."),
    ],
)
def test_struct_error_about_an_override_names_the_command_line(tmp_path, override, message):
    assert refused(tmp_path, "name: a\ntrain: {epochs: 2}\nlayers: [{}]", override) == message


def test_struct_error_about_the_file_beside_an_override_names_the_file(tmp_path):
    message = refused(tmp_path, "name: a\nwindow: {high: 30}", "window.high=20")
    assert message == "train.yaml:2: window: low is missing and has no default: give it."


def test_struct_unknown_key_comes_before_what_is_missing_or_wrong(tmp_path):
    assert "train.yaml:1: window.lov: unknown key." in refused(tmp_path, "window: {high: x, lov: 3}")


def test_struct_from_values_names_the_source_that_is_given():
    assert to_struct({"name": "a"}, Config, source="train.toml").name == "a"
    message = refusal(to_struct, {"name": 1.5}, Config, source=Path("train.toml"))
    assert (
        message
        == "train.toml: name: 1.5 was given, str is accepted. Put it in quotes to give text (in a shell: '\"...\"')."
    )
    source = Source({}, "train.toml", overridden=["name"])
    message = refusal(to_struct, {"name": True}, Config, source=source)
    assert message.startswith("command line: name: True was given")


def test_struct_what_is_typed_as_dict_or_any_takes_every_key(tmp_path):
    config = loaded(tmp_path, "extra: {a: [{b: 1e-4}]}\nanything: {c: {d: '1e-4'}}")
    assert (config.extra, config.anything) == ({"a": [{"b": 1e-4}]}, {"c": {"d": "1e-4"}})

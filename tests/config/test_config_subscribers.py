"""Callbacks from YAML, JSON and dicts: what fits is built, what does not is refused with file, line and path."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

import hookline as hl

if TYPE_CHECKING:
    from no_such_package import Model  # type: ignore[import-not-found]

HERE = __name__


class Configured(hl.Callback):
    """Takes one argument of each kind that a configuration can give."""

    def __init__(
        self,
        monitor: str = "loss",
        threshold: float = 0.5,
        patience: int = 3,
        mode: Literal["min", "max"] = "min",
        way: Literal["min", "max"] | None = None,
        limit: float | None = None,
        names: list[str] | None = None,
        verbose: bool = False,
        window: tuple[int, int] = (0, 1),
        tags: Sequence[str] = (),
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}

    def on_train_start(self, loop):
        pass


class Needy(hl.Callback):
    def __init__(self, needed: int) -> None:
        self.needed = needed


class Counted(hl.Callback):
    built = 0

    def __init__(self) -> None:
        type(self).built += 1


class Refusing(hl.Callback):
    def __init__(self, patience: int = 1) -> None:
        if patience < 1:
            raise ValueError("patience must be at least 1")


class Unreadable(hl.Callback):
    def __init__(self) -> None:
        raise OSError("the disk is gone")


class Loose(hl.Callback):
    def __init__(
        self, function: Callable[[Any], float], anything: Any = None, untyped=None, either: str | Path = ""
    ) -> None:
        self.given = [function, anything, untyped, either]


class PathTaking(hl.Callback):
    def __init__(self, file: Path, directory: Path | None = None) -> None:
        self.given = [Path(file), directory]


class HalfTyped(hl.Callback):
    def __init__(self, threshold: float = 0.5, model: "Model | None" = None) -> None:
        self.threshold = threshold


class KeywordTaking(hl.Callback):
    def __init__(self, threshold: float = 0.5, **others: int) -> None:
        self.others = others


@dataclass(eq=False)
class DataCallback(hl.Callback):
    threshold: float = 0.5


class NotASubscriber:
    made = 0

    def __init__(self, threshold: float = 0.5) -> None:
        type(self).made += 1


def make_configured(threshold: float = 0.5) -> Configured:
    return Configured(threshold=threshold)


NOT_CALLABLE = 3


def write(tmp_path, text, name="callbacks.yaml"):
    file = tmp_path / name
    file.write_text(text)
    return file


def refusal(source):
    with pytest.raises(hl.ConfigError) as caught:
        hl.load_callbacks(source)
    return str(caught.value)


def built(entry):
    """The one subscriber that an entry describes."""
    return hl.load_callbacks([entry], strict=True)[0]


def test_load_yaml_names_short_form_and_long_form(tmp_path):
    file = write(
        tmp_path,
        f"""
callbacks:
  - early_stopping: {{monitor: val/loss, patience: 7}}
  - use: {HERE}:Configured
    with:
      threshold: 0.9
      names: [a, b]
    every: 25
    name: alarm
    before: [early_stopping]
  - progress_bar
""",
    )
    callbacks = hl.load_callbacks(file, strict=True)
    assert callbacks.names() == ["alarm", "early_stopping", "progress_bar"]
    assert callbacks["early_stopping"].patience == 7
    assert (callbacks["alarm"].arguments["threshold"], callbacks["alarm"].arguments["names"]) == (0.9, ["a", "b"])


def test_load_options_of_an_entry_govern_the_subscriber(tmp_path):
    file = write(tmp_path, f"- {{use: '{HERE}:Configured', name: low, priority: -5}}\n- {{use: '{HERE}:Configured'}}")
    assert hl.load_callbacks(file, strict=True).plan() == {"on_train_start": ["configured", "low"]}


def test_load_json_dict_and_list_say_the_same(tmp_path):
    entries = [{"use": f"{HERE}:Configured", "with": {"threshold": 2}, "name": "a"}]
    file = write(tmp_path, json.dumps({"callbacks": entries}), "callbacks.json")
    loaded = [hl.load_callbacks(source, strict=True) for source in (file, str(file), {"callbacks": entries}, entries)]
    assert [callbacks.names() for callbacks in loaded] == [["a"]] * 4
    assert [callbacks[0].arguments["threshold"] for callbacks in loaded] == [2.0] * 4


@pytest.mark.parametrize("text", ["", "callbacks:", "callbacks: []", "[]", "# only a comment"])
def test_load_yaml_with_nothing_in_it_is_an_empty_collection(tmp_path, text):
    assert hl.load_callbacks(write(tmp_path, text)).names() == []


def test_load_function_that_makes_a_subscriber():
    assert built({"use": f"{HERE}:make_configured", "with": {"threshold": 4}}).arguments["threshold"] == 4.0


def test_load_hook_is_added_like_a_callback():
    assert type(built({"logging_hook": {"frequency": 5}})).__name__ == "LoggingHook"


def test_load_dataclass_is_checked_like_a_constructor():
    assert built({"use": f"{HERE}:DataCallback", "with": {"threshold": 1}}).threshold == 1.0
    assert "callbacks[0].with.threshold" in refusal([{"use": f"{HERE}:DataCallback", "with": {"threshold": "high"}}])


@pytest.mark.parametrize(
    ("argument", "given", "received"),
    [
        ("threshold", 1, 1.0),
        ("patience", 5, 5),
        ("mode", "max", "max"),
        ("limit", None, None),
        ("limit", 2, 2.0),
        ("names", ["a"], ["a"]),
        ("names", None, None),
        ("verbose", True, True),
        ("window", [1, 2], (1, 2)),
        ("tags", ["x", "y"], ["x", "y"]),
    ],
)
def test_argument_that_fits_its_type_is_given(argument, given, received):
    value = built({"use": f"{HERE}:Configured", "with": {argument: given}}).arguments[argument]
    assert (value, type(value)) == (received, type(received))


@pytest.mark.parametrize(
    ("argument", "given", "accepted"),
    [
        ("monitor", 5, "str"),
        ("threshold", "0.9", "float"),
        ("threshold", True, "float"),
        ("threshold", None, "float"),
        ("patience", 2.5, "int"),
        ("patience", True, "int"),
        ("mode", "minimum", "minimum' was given, one of 'min', 'max' is accepted."),
        ("way", "up", "'up' was given, one of 'min', 'max', null is accepted."),
        ("limit", "none", "float | null"),
        ("names", "a", "list | null"),
        ("verbose", "yes", "bool"),
        ("window", [1], "list of length 2"),
    ],
)
def test_argument_of_a_wrong_type_is_refused_with_what_is_accepted(argument, given, accepted):
    message = refusal(["progress_bar", {"use": f"{HERE}:Configured", "with": {argument: given}}])
    assert message.startswith(f"callbacks[1].with.{argument}: {given!r} was given")
    assert accepted in message


def test_argument_with_a_wrong_item_is_refused_with_the_path_of_the_item():
    message = refusal([{"use": f"{HERE}:Configured", "with": {"names": ["a", 1]}}])
    assert message.startswith("callbacks[0].with.names[1]: 1 was given, str is accepted.")


def test_argument_of_a_wrong_type_is_refused_with_file_line_and_path(tmp_path):
    text = f"callbacks:\n  - progress_bar\n  - use: {HERE}:Configured\n    with:\n      threshold: high\n"
    file = write(tmp_path, text)
    assert refusal(file).startswith(f"{file}:5: callbacks[1].with.threshold: 'high' was given, float is accepted.")


def test_argument_of_the_short_form_has_its_path_too(tmp_path):
    file = write(tmp_path, "callbacks:\n  - early_stopping:\n      mode: min\n      patience: many\n")
    assert refusal(file).startswith(f"{file}:4: callbacks[0].early_stopping.patience: 'many' was given, int is")


def test_argument_in_a_list_at_the_top_of_a_file_has_its_line_too(tmp_path):
    file = write(tmp_path, "- progress_bar\n- early_stopping: {patience: many}\n")
    assert refusal(file).startswith(f"{file}:2: callbacks[1].early_stopping.patience: ")


def test_argument_that_cannot_be_checked_is_passed_through():
    marker = object()
    given = {"function": len, "anything": marker, "untyped": marker, "either": "text"}
    assert built({"use": f"{HERE}:Loose", "with": given}).given == [len, marker, marker, "text"]


def test_argument_for_a_path_may_be_a_string():
    subscriber = built({"use": f"{HERE}:PathTaking", "with": {"file": "a.csv", "directory": "runs"}})
    assert subscriber.given == [Path("a.csv"), Path("runs")]


def test_argument_beside_one_whose_type_is_unknown_here_is_still_checked():
    assert built({"use": f"{HERE}:HalfTyped", "with": {"threshold": 1, "model": "any"}}).threshold == 1.0
    message = refusal([{"use": f"{HERE}:HalfTyped", "with": {"threshold": "high"}}])
    assert message.startswith("callbacks[0].with.threshold: 'high' was given")


def test_argument_unknown_is_refused_with_the_closest(tmp_path):
    file = write(tmp_path, f"- use: {HERE}:Configured\n  with: {{treshold: 0.5}}\n")
    says = "callbacks[0].with.treshold: unknown argument. Did you mean 'threshold'? It is called as (monitor: str = "
    assert says in refusal(file)


def test_argument_of_any_name_goes_where_all_are_taken():
    assert built({"use": f"{HERE}:KeywordTaking", "with": {"other": 3}}).others == {"other": 3}


def test_argument_missing_is_refused_with_the_signature():
    message = refusal([{"use": f"{HERE}:Needy"}])
    assert message.startswith("callbacks[0].with: missing a required argument: 'needed'. It is called as (needed: int)")


def test_argument_missing_for_a_bare_name_points_at_the_entry():
    hl.register("test_config_pause_alarm")(Needy)
    message = refusal(["test_config_pause_alarm"])
    assert message.startswith("callbacks[0]: missing a required argument: 'needed'.")


@pytest.mark.parametrize("given", [[1, 2], {1: 2}])
def test_arguments_that_are_no_mapping_are_refused_where_they_stand(given):
    message = refusal([{"use": f"{HERE}:Configured", "with": given}])
    assert message == f"callbacks[0].with: {given!r} is not a mapping of arguments."


def test_arguments_left_empty_are_none():
    assert built({"use": f"{HERE}:Configured", "with": None}).arguments["patience"] == 3
    assert built({"early_stopping": None}).patience == 5


def test_constructor_that_refuses_its_arguments_is_named_with_the_place():
    message = refusal([{"use": f"{HERE}:Refusing", "with": {"patience": 0}}])
    assert message == f"callbacks[0].use: {HERE}:Refusing cannot be built: ValueError: patience must be at least 1"


def test_constructor_that_fails_otherwise_is_named_with_the_place():
    message = refusal([{"use": f"{HERE}:Unreadable"}])
    assert message == f"callbacks[0].use: {HERE}:Unreadable cannot be built: OSError: the disk is gone"


@pytest.mark.parametrize(
    "bad",
    [
        "no_such_callback",
        {"use": f"{HERE}:Configured", "with": {"threshold": "high"}},
        {"use": f"{HERE}:Needy"},
        {"use": f"{HERE}:NotASubscriber"},
        {"use": f"{HERE}:Configured", "every": 0},
        3,
    ],
)
def test_load_checks_every_entry_before_anything_is_built(bad):
    Counted.built = 0
    refusal([{"use": f"{HERE}:Counted"}, bad])
    assert Counted.built == 0


def test_name_unknown_is_refused_with_the_closest_and_the_line(tmp_path):
    file = write(tmp_path, "callbacks:\n  - progress_bar\n  - early_stoping: {patience: 3}\n")
    assert refusal(file) == (
        f"{file}:3: callbacks[1].early_stoping: Nothing is registered as 'early_stoping'. "
        "Did you mean 'early_stopping'?"
    )


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("no_such_package.module:Alarm", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        (f"{HERE}:Configurd", "Did you mean 'Configured'?"),
        (f"{HERE}:Configured.Inner", "has no 'Configured.Inner'."),
        (f"{HERE}:", "has no ''."),
        (":Alarm", "cannot be imported: ValueError"),
        (f"{HERE}:NOT_CALLABLE", "is 3, which is neither a Callback nor a Hook"),
    ],
)
def test_use_that_cannot_be_imported_is_refused(use, says):
    message = refusal([{"use": use}])
    assert message.startswith("callbacks[0].use: ")
    assert says in message


def test_use_of_a_module_that_fails_at_import_is_refused(tmp_path, monkeypatch):
    (tmp_path / "test_config_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    assert "cannot be imported: ZeroDivisionError: division by zero" in refusal([{"use": "test_config_broken:Alarm"}])


@pytest.mark.parametrize("use", [f"{HERE}:NotASubscriber", "pathlib:Path"])
def test_use_that_is_not_a_subscriber_is_refused(use):
    message = refusal([{"use": use}])
    assert message.startswith(f"callbacks[0].use: {use!r} is ")
    assert "neither a Callback nor a Hook" in message


@pytest.mark.parametrize("use", ["builtins:dict", "builtins:int"])
def test_use_of_a_builtin_without_a_signature_is_refused(use):
    message = refusal([{"use": use}])
    assert message.startswith("callbacks[0].")
    assert "neither a Callback nor a Hook" in message


def test_use_of_a_class_that_is_no_subscriber_is_refused_without_making_one():
    NotASubscriber.made = 0
    refusal([{"use": f"{HERE}:NotASubscriber"}])
    assert NotASubscriber.made == 0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "callbacks[0]: 3 is not a callback: give a name, or a mapping with one."),
        (None, "callbacks[0]: None is not a callback: give a name, or a mapping with one."),
        ({"use": 5}, "callbacks[0].use: 5 is not a name: give a registered name or 'package.module:Class'."),
        ({"use": f"{HERE}:Configured", "evry": 5}, "callbacks[0].evry: unknown key. Did you mean 'every'?"),
    ],
)
def test_entry_of_a_wrong_shape_is_refused(entry, message):
    assert refusal([entry]) == message


def test_entry_without_one_name_is_refused_with_what_was_given():
    assert refusal([{"every": 5}]).startswith(
        "callbacks[0]: one name is needed, nothing was given. Options are: after,"
    )
    message = refusal([{"early_stopping": {}, "progress_bar": {}}])
    assert message.startswith("callbacks[0]: one name is needed, early_stopping, progress_bar was given.")


def test_entry_when_is_not_accepted_from_a_file():
    assert refusal([{"use": f"{HERE}:Configured", "when": "loss < 1"}]).startswith("callbacks[0].when: unknown key.")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("every", 0, "every=0: give a whole number of at least 1."),
        ("every", 2.5, "every=2.5: give a whole number of at least 1."),
        ("every", True, "every=True: give a whole number of at least 1."),
        ("every", -1, "every=-1: give a whole number of at least 1."),
        ("priority", "high", "priority='high'; give a number, higher runs earlier."),
        ("after", [1], "after=[1]; give names or classes of subscribers, one or several."),
        ("name", "a/b", "name='a/b'; give a non-empty string without '/' or surrounding spaces."),
    ],
)
def test_option_with_a_bad_value_is_refused(option, value, says):
    message = refusal([{"use": f"{HERE}:Configured", option: value}])
    assert message.startswith("callbacks[0]")
    assert says in message


def test_option_with_a_bad_value_is_refused_at_its_path_and_line(tmp_path):
    file = write(tmp_path, f"- use: {HERE}:Configured\n  with: {{}}\n  every: 0\n")
    assert refusal(file).startswith(f"{file}:3: callbacks[0].every: ")


def test_order_that_cannot_be_is_refused():
    ring = [{"use": f"{HERE}:Configured", "name": name, "after": other} for name, other in ("ab", "ba")]
    with pytest.raises(hl.OrderError, match="'a' after 'b' after 'a'"):
        hl.load_callbacks(ring)
    with pytest.raises(hl.OrderError, match="Did you mean 'progress_bar'"):
        hl.load_callbacks([{"early_stopping": {}, "after": "progres_bar"}, "progress_bar"])


def test_order_that_cannot_be_is_refused_with_the_file(tmp_path):
    file = write(tmp_path, "- progress_bar\n- {early_stopping: {}, after: progres_bar}\n")
    message = refusal(file)
    assert message.startswith(f"{file}: 'early_stopping' is to run after 'progres_bar'")
    assert "Did you mean 'progress_bar'?" in message


def test_name_given_twice_in_a_file_is_an_error():
    entry = {"use": f"{HERE}:Configured", "name": "alarm"}
    with pytest.raises(hl.DuplicateError, match="The name 'alarm' is taken"):
        hl.load_callbacks([entry, entry])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("callbacks:\n  - progress_bar\n  - [unclosed\n", 4),
        ("callbacks:\n  - a: b: c\n", 2),
        ("callbacks:\n\t- progress_bar\n", 2),
        ("callbacks: *unknown\n", 1),
        ("callbacks: []\n---\ncallbacks: []\n", 2),
    ],
)
def test_yaml_malformed_is_refused_with_file_and_line(tmp_path, text, line):
    file = write(tmp_path, text)
    assert refusal(file).startswith(f"{file}:{line}: not valid YAML: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("callbacks: []\ncallbacks: []\n", "2: callbacks is given twice."),
        (
            "callbacks:\n- early_stopping:\n    patience: 1\n    patience: 2\n",
            "4: callbacks[0].early_stopping.patience is",
        ),
        ("callbacks:\n- use: a:B\n  every: 1\n  every: 2\n", "4: callbacks[0].every is given twice."),
    ],
)
def test_yaml_key_given_twice_is_refused_with_its_line(tmp_path, text, message):
    file = write(tmp_path, text)
    assert refusal(file).startswith(f"{file}:{message}")


@pytest.mark.parametrize(
    "tag", ["!!python/object:pathlib.Path {}", "!!python/object/apply:os.getpid []", "!!python/name:os.system"]
)
def test_yaml_tags_that_make_python_objects_are_refused(tmp_path, tag):
    file = write(tmp_path, f"callbacks:\n  - early_stopping:\n      monitor: {tag}\n")
    message = refusal(file)
    assert message.startswith(f"{file}:3: not valid YAML: could not determine a constructor for the tag")


@pytest.mark.parametrize("text", ["callbacks: &a\n  - *a\n", "callbacks:\n  - early_stopping: &a {monitor: *a}\n"])
def test_yaml_that_contains_itself_is_refused(tmp_path, text):
    file = write(tmp_path, text)
    assert refusal(file).startswith(f"{file}:")


def test_yaml_anchors_and_merges_are_understood(tmp_path):
    text = "callbacks:\n- early_stopping: &common {patience: 7}\n- early_stopping: {<<: *common, mode: max}\n"
    loaded = hl.load_callbacks(write(tmp_path, text), strict=True)
    assert [(each.patience, each.mode) for each in loaded] == [(7, "min"), (7, "max")]


@pytest.mark.parametrize(("text", "line"), [('{"callbacks": [}', 1), ('{\n"callbacks": [\n1,\n}', 4), ("", 1)])
def test_json_malformed_is_refused_with_file_and_line(tmp_path, text, line):
    file = write(tmp_path, text, "callbacks.json")
    assert refusal(file).startswith(f"{file}:{line}: not valid JSON: ")


def test_json_error_has_the_file_and_the_path(tmp_path):
    file = write(tmp_path, json.dumps([{"early_stopping": {"patience": "many"}}]), "callbacks.json")
    assert refusal(file).startswith(f"{file}: callbacks[0].early_stopping.patience: 'many' was given")


def test_file_missing_is_refused(tmp_path):
    file = tmp_path / "missing.yaml"
    assert refusal(file) == f"{file}: cannot be read: No such file or directory."
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory."


@pytest.mark.parametrize("name", ["callbacks.yaml", "callbacks.json"])
def test_file_that_is_not_text_is_refused(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(b"\xff\xfe\x00\x80")
    assert refusal(file).startswith(f"{file}: ")


def test_file_with_control_characters_is_refused(tmp_path):
    file = write(tmp_path, "callbacks: [\x00]")
    assert refusal(file).startswith(f"{file}: not valid YAML: ")


@pytest.mark.parametrize("source", [5, None, Configured(), b"callbacks: []"])
def test_source_of_another_kind_is_refused(source):
    assert refusal(source) == f"{source!r} is not a configuration: give a path, a dict or a list."


@pytest.mark.parametrize("entries", [{"early_stopping": {}}, "early_stopping", 5])
def test_callbacks_that_are_no_list_are_refused(entries):
    message = refusal({"callbacks": entries})
    assert message.startswith(f"callbacks: {entries!r} is not a list")


def test_top_level_key_unknown_is_refused_with_the_closest(tmp_path):
    file = write(tmp_path, "# callbacks\ncalbacks: []\n")
    assert refusal(file) == f"{file}:2: calbacks: unknown key. Did you mean 'callbacks'?"


def test_add_entry_of_a_configuration_to_a_collection():
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add({"use": f"{HERE}:Configured", "with": {"threshold": 1}, "priority": 1, "name": "a"}, priority=-1)
    callbacks.add({"early_stopping": {"patience": 2}})
    assert callbacks.names() == ["early_stopping", "a"]


def test_add_entry_that_does_not_fit_is_refused_and_changes_nothing():
    callbacks = hl.CallbackCollection(["progress_bar"], strict=True)
    with pytest.raises(hl.ConfigError, match=r"early_stopping\.patience: 'many' was given, int is accepted"):
        callbacks.extend([Configured(), {"early_stopping": {"patience": "many"}}])
    assert callbacks.names() == ["progress_bar"]


def test_argument_in_scientific_notation_without_a_point_is_a_number(tmp_path):
    file = tmp_path / "callbacks.yaml"
    file.write_text("callbacks:\n  - early_stopping: {min_delta: 1e-4}\n")
    assert hl.load_callbacks(file)["early_stopping"].min_delta == 1e-4


def test_collection_of_entries_names_the_index_of_the_wrong_one():
    with pytest.raises(hl.ConfigError) as caught:
        hl.CallbackCollection(["logger", "progress_bar", {"early_stopping": {"patience": "x"}}])
    assert str(caught.value).startswith("callbacks[2].early_stopping.patience: 'x' was given")


def test_collection_add_of_a_wrong_entry_names_no_index():
    with pytest.raises(hl.ConfigError) as caught:
        hl.CallbackCollection(["logger"]).add({"early_stopping": {"patience": "x"}})
    assert str(caught.value).startswith("callbacks.early_stopping.patience: 'x' was given")


def test_collection_of_a_class_by_its_module_builds_it():
    assert hl.CallbackCollection([f"{HERE}:Configured"]).names() == hl.load_callbacks([f"{HERE}:Configured"]).names()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("logger", "'logger' is the name of one callback, not a file: give a list of them, ['logger']."),
        ({"logger": {}}, "logger: this is one callback: give a list of them, also of one."),
        ({"use": "a.b:C", "with": {}}, "use: this is one callback: give a list of them, also of one."),
    ],
)
def test_load_of_one_callback_without_a_list_says_to_give_one(given, message):
    assert refusal(given) == message


def test_load_of_a_file_with_the_name_of_a_callback_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logger").write_text("[timer]")
    assert hl.load_callbacks("logger").names() == ["timer"]


def test_config_of_a_class_with_a_dot_before_it_names_the_form_with_a_colon():
    message = refusal([{"use": "my.package.Mine"}])
    form = "A class of your own is given as module:Class, here 'my.package:Mine'."
    assert message.startswith(f"callbacks[0].use: Nothing is registered as 'my.package.Mine'. {form} Known: ")


def test_argument_text_for_a_list_is_refused_with_list():
    given = {"use": f"{HERE}:Configured", "with": {"names": "a"}}
    assert "'a' was given, list | null is accepted." in refusal([given])

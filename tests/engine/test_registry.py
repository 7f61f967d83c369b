"""The registry: names for classes, built in, registered, or offered by installed packages."""

import functools
import sys

import pytest

import hookline as hl
from hookline._engine.registry import ENTRY_POINTS, REGISTRY, Registry


class Alarm(hl.Callback):
    pass


class Siren(hl.Callback):
    pass


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with entry points on the path: a module and the metadata an installer would write."""

    def install(package, module, source, entry_points):
        (tmp_path / f"{module}.py").write_text(source)
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINTS}]", *lines, ""]))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


PLUGIN = """
import hookline as hl

class LossAlarm(hl.Callback):
    def on_train_start(self, loop):
        pass

def alarms(threshold: float = 0.5):
    return LossAlarm()

SETTING = 3
"""


def test_register_gives_the_class_a_name():
    registry = Registry()
    assert registry.register("alarm")(Alarm) is Alarm
    assert registry.find("alarm") is Alarm
    assert "alarm" in registry.names()


def test_register_name_becomes_the_default_name_of_its_instances():
    @Registry().register("gradient_alarm")
    class RegisteredAlarm(hl.Callback):
        pass

    assert hl.CallbackCollection([RegisteredAlarm(), RegisteredAlarm()]).names() == [
        "gradient_alarm",
        "gradient_alarm_2",
    ]


def test_register_leaves_a_name_that_the_class_gives_itself():
    @Registry().register("gradient_alarm")
    class NamedAlarm(hl.Callback):
        name = "my_alarm"

    assert NamedAlarm().name == "my_alarm"


def test_register_name_is_not_inherited_by_subclasses():
    @Registry().register("gradient_alarm")
    class Parent(hl.Callback):
        pass

    class QuietAlarm(Parent):
        pass

    assert QuietAlarm().name == "quiet_alarm"


def test_register_function_that_makes_a_subscriber_is_found():
    registry = Registry()

    @registry.register("made")
    def make_alarm():
        return Alarm()

    assert registry.find("made") is make_alarm


def test_register_same_class_again_is_allowed():
    registry = Registry()
    registry.register("alarm")(Alarm)
    registry.register("alarm")(Alarm)
    assert registry.find("alarm") is Alarm


def test_register_taken_name_is_refused_and_changes_nothing():
    registry = Registry()
    registry.register("alarm")(Alarm)
    with pytest.raises(hl.DuplicateError) as caught:
        registry.register("alarm")(Siren)
    assert str(caught.value) == (f"'alarm' is taken by {__name__}:Alarm. Register {__name__}:Siren under another.")
    assert registry.find("alarm") is Alarm
    assert Siren().name == "siren"


@pytest.mark.parametrize("name", ["", "a/b", 3, None, Alarm])
def test_register_bad_name_is_refused(name):
    with pytest.raises(hl.OptionError) as caught:
        Registry().register(name)
    assert str(caught.value) == f"register({name!r}): give a non-empty string without '/'."


@pytest.mark.parametrize("thing", [3, Alarm()])
def test_register_something_that_makes_nothing_is_refused(thing):
    registry = Registry()
    with pytest.raises(hl.HooklineError):
        registry.register("thing")(thing)
    assert "thing" not in registry.names()


def test_register_partial_twice_is_handled():
    registry = Registry()
    registry.register("partial")(functools.partial(Alarm))
    with pytest.raises(hl.DuplicateError, match="'partial' is taken"):
        registry.register("partial")(functools.partial(Siren))


def test_find_unknown_name_is_refused_with_the_closest():
    registry = Registry()
    registry.register("gradient_alarm")(Alarm)
    with pytest.raises(hl.UnknownNameError) as caught:
        registry.find("gradient_alrm")
    assert str(caught.value) == "Nothing is registered as 'gradient_alrm'. Did you mean 'gradient_alarm'?"


def test_add_unknown_name_to_a_collection_is_refused_with_the_closest():
    callbacks = hl.CallbackCollection(strict=True)
    with pytest.raises(hl.HooklineError, match=r"Nothing is registered as 'early_stoping'. Did you mean 'early_stop"):
        callbacks.add("early_stoping")
    assert callbacks.names() == []


def test_add_registered_name_builds_a_fresh_instance_each_time():
    @hl.register("test_registry_fresh")
    class Fresh(hl.Callback):
        pass

    callbacks = hl.CallbackCollection(["test_registry_fresh", "test_registry_fresh"], strict=True)
    assert [type(each) for each in callbacks] == [Fresh, Fresh]
    assert callbacks.names() == ["test_registry_fresh", "test_registry_fresh_2"]
    assert callbacks[0] is not callbacks[1]


def test_names_of_the_program_hold_what_is_built_in():
    assert {"early_stopping", "progress_bar"} <= set(REGISTRY.names())
    assert REGISTRY.names() == sorted(set(REGISTRY.names()))


def test_builtin_modules_are_imported_at_the_first_look_up_only(tmp_path, monkeypatch):
    (tmp_path / "test_registry_builtin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry(builtin_modules=("test_registry_builtin",))
    registry.register("alarm")(Alarm)
    assert "test_registry_builtin" not in sys.modules
    registry.find("alarm")
    assert sys.modules.pop("test_registry_builtin").__name__ == "test_registry_builtin"
    registry.names()
    assert "test_registry_builtin" not in sys.modules


def test_entry_point_is_found_by_its_name(install):
    install("loss-plugin", "loss_plugin_found", PLUGIN, {"loss_alarm_found": "loss_plugin_found:LossAlarm"})
    registry = Registry()
    assert "loss_alarm_found" in registry.names()
    assert registry.installed()["loss_alarm_found"] == "loss-plugin"
    assert "loss_plugin_found" not in sys.modules
    factory = registry.find("loss_alarm_found")
    assert (factory.__module__, factory().name) == ("loss_plugin_found", "loss_alarm_found")


def test_entry_point_can_be_added_to_a_collection_by_name(install):
    install("loss-plugin", "loss_plugin_added", PLUGIN, {"loss_alarm_added": "loss_plugin_added:alarms"})
    callbacks = hl.CallbackCollection(strict=True)
    callbacks.add({"loss_alarm_added": {"threshold": 1}}, priority=3)
    assert callbacks.plan() == {"on_train_start": ["loss_alarm"]}


def test_entry_point_does_not_hide_a_registered_name(install):
    install("loss-plugin", "loss_plugin_hidden", PLUGIN, {"alarm": "loss_plugin_hidden:LossAlarm"})
    registry = Registry()
    registry.register("alarm")(Alarm)
    assert registry.find("alarm") is Alarm


def test_entry_point_that_cannot_be_imported_is_refused_with_its_package(install):
    install("broken-plugin", "broken_plugin", "import no_such_module", {"broken": "broken_plugin:Alarm"})
    with pytest.raises(hl.UnknownNameError) as caught:
        Registry().find("broken")
    assert str(caught.value) == (
        "'broken' is registered by broken-plugin (broken_plugin:Alarm) and cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_entry_point_without_its_attribute_is_refused(install):
    install("old-plugin", "old_plugin", PLUGIN, {"renamed": "old_plugin:Renamed"})
    with pytest.raises(hl.UnknownNameError, match=r"registered by old-plugin \(old_plugin:Renamed\) and cannot be"):
        Registry().find("renamed")


def test_entry_point_that_is_broken_does_not_keep_others_from_being_found(install):
    source = "import no_such_module"
    install("broken-plugin", "broken_plugin_too", source, {"broken_too": "broken_plugin_too:Alarm"})
    registry = Registry()
    registry.register("alarm")(Alarm)
    with pytest.raises(hl.UnknownNameError, match="Did you mean 'alarm'"):
        registry.find("alrm")


def test_entry_point_that_is_not_callable_is_refused(install):
    install("odd-plugin", "odd_plugin", PLUGIN, {"test_registry_odd": "odd_plugin:SETTING"})
    with pytest.raises(hl.HooklineError):
        hl.CallbackCollection(["test_registry_odd"])


def test_entry_point_of_a_module_that_registers_itself_is_found(install):
    source = PLUGIN.replace("class LossAlarm", "@hl.register('self_registered')\nclass LossAlarm")
    install("self-plugin", "self_plugin", source, {"self_registered": "self_plugin:LossAlarm"})
    assert REGISTRY.find("self_registered").__module__ == "self_plugin"

"""``hookline hooks list``, ``show``, ``check`` and ``plan``."""

import json

import pytest

from hookline._engine.registry import REGISTRY
from hookline._engine.subscriber import OPTION_NAMES
from hookline.cli.hooks import meanings, plain

MODULE = """
import hookline as hl
from hookline.hooks import Hook, PeriodicHook

print("a module that prints")

class Alarm(PeriodicHook):
    '''Rings above a threshold. Then rests.'''

    def __init__(self, threshold: float, frequency: int = 25) -> None:
        super().__init__(frequency)
        self.threshold = threshold

    def run(self, context): ...

    def close(self):
        print("closed")

class Picky(Hook):
    def should_run(self, context): return False
    def run(self, context): ...

def loud_alarm(frequency: int = 5) -> Alarm:
    '''An alarm for the deaf.'''
    return Alarm(0.1, frequency)

def undescribed(**options):
    return Alarm(**options)
"""


@pytest.fixture
def here(tmp_path):
    """Write files into the directory in which the program runs."""
    (tmp_path / "my_module.py").write_text(MODULE)

    def write(name, text):
        (tmp_path / name).write_text(text)
        return name

    return write


def install(site, name, entry_point, module=""):
    """What an installer leaves behind of a distribution with one module and one entry point."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hookline.callbacks]\n{name} = {entry_point}\n")
    if module:
        (site / f"{name}_module.py").write_text(module)


def test_list_json_has_every_registered_name_once(cli):
    listed = json.loads(cli("hooks", "list", "--json").stdout)
    assert [offer["name"] for offer in listed] == REGISTRY.names()
    assert {
        "name": "timer",
        "kind": "callback",
        "source": "hookline",
        "summary": "Requests a stop when the budget less the margin is used up.",
        "error": None,
    } in listed


def test_list_text_has_a_row_for_each_name(cli):
    lines = cli("hooks", "list").stdout.splitlines()
    row = next(line for line in lines if "early_stopping" in line)
    assert row.split()[:4] == ["early_stopping", "callback", "hookline", "Requests"]


def test_list_in_a_pipe_has_one_line_for_each_name(cli, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    lines = [line for line in cli("hooks", "list").stdout.splitlines() if not line.isspace()]
    assert [line.split()[0] for line in lines[2:]] == REGISTRY.names()


def test_list_packages_that_cannot_be_imported_are_listed_with_their_errors(program, tmp_path):
    install(tmp_path / "site", "gone", "nowhere_to_be_found:Hook")
    install(tmp_path / "site", "quitter", "quitter_module:Hook", "raise SystemExit(3)")
    install(tmp_path / "site", "number", "number_module:Hook", "class Hook(int): ...")
    result = program("hooks", "list", "--json", imports=[tmp_path / "site"])
    errors = {offer["source"]: offer["error"] for offer in json.loads(result.stdout) if offer["error"]}
    assert result.returncode == 0
    assert sorted(errors) == ["gone", "number", "quitter"]
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in errors["gone"]
    assert "SystemExit(3)" in errors["quitter"]
    assert "neither a Callback nor a Hook" in errors["number"]


def test_list_text_package_that_cannot_be_imported_breaks_nothing(program, tmp_path):
    install(tmp_path / "site", "gone", "nowhere_to_be_found:Hook")
    result = program("hooks", "list", imports=[tmp_path / "site"])
    assert (result.returncode, result.stderr) == (0, "For details: hookline hooks show NAME\n")
    assert "ERROR: 'gone' is registered by gone" in result.stdout
    assert "progress_bar" in result.stdout


def test_list_json_module_that_prints_leaves_the_document_alone(program, tmp_path):
    install(tmp_path / "site", "chatty", "chatty_module:Alarm", MODULE)
    result = program("hooks", "list", "--json", imports=[tmp_path / "site"])
    (offer,) = [offer for offer in json.loads(result.stdout) if offer["name"] == "chatty"]
    assert result.stderr == "a module that prints\n"
    assert offer == {
        "name": "chatty",
        "kind": "hook",
        "source": "chatty",
        "summary": "Rings above a threshold.",
        "error": None,
    }


def test_show_callback_json_has_arguments_moments_and_options(cli):
    shown = json.loads(cli("hooks", "show", "early_stopping", "--json").stdout)
    assert shown["path"] == "hookline.callbacks.early_stopping:EarlyStoppingCallback"
    assert shown["moments"] == ["on_train_start", "on_log", "on_eval", "on_train_end", "on_exception"]
    assert shown["arguments"][:2] == [
        {
            "name": "monitor",
            "type": "str",
            "required": False,
            "default": "'val/loss'",
            "meaning": "The metric; val_loss and val/loss are the same.",
        },
        {
            "name": "mode",
            "type": "Optional[Literal['min', 'max']]",
            "required": False,
            "default": "None",
            "meaning": 'Whether smaller ("min") or larger ("max") is better; '
            "by default guessed from the metric's name.",
        },
    ]
    assert set(shown["options"]) == OPTION_NAMES
    assert shown["options"]["name"] == "'early_stopping'"


def test_show_callback_text_has_docstring_and_moments(cli):
    shown = cli("hooks", "show", "early_stopping").stdout
    assert "callback from hookline: hookline.callbacks.early_stopping:EarlyStoppingCallback" in shown
    (row,) = [line.split() for line in shown.splitlines() if line.startswith(" monitor ")]
    assert row[:3] == ["monitor", "str", "'val/loss'"]
    assert " ".join(row[3:]) == "The metric; val_loss and val/loss are the same."
    assert ("`" in shown, "Args:" in shown) == (False, False)
    assert "\nRequests a stop after patience " in shown
    assert "on_log(loop, step, metrics)\n      After a row of metrics was written" in shown
    assert "Optional[Literal['min', 'max']]   None" in shown
    assert "priority=0" in shown


def test_show_hook_class_path_in_the_current_directory_is_found(program, here):
    result = program("hooks", "show", "my_module:Alarm")
    assert (result.returncode, result.stderr) == (0, "a module that prints\n")
    assert "hook from my_module: my_module:Alarm" in result.stdout
    assert "after each step (on_step_end), if should_run() returns True" in result.stdout
    assert ["threshold", "float", "required"] in [line.split() for line in result.stdout.splitlines()]


def test_show_function_that_says_what_it_returns_is_shown_as_that(program, here):
    shown = json.loads(program("hooks", "show", "my_module:loud_alarm", "--json").stdout)
    assert (shown["kind"], shown["docstring"]) == ("hook", "An alarm for the deaf.")
    assert shown["arguments"] == [
        {"name": "frequency", "type": "int", "required": False, "default": "5", "meaning": ""}
    ]


def test_show_every_registered_name_has_each_meaning_in_the_table_and_no_markup(cli):
    for name in REGISTRY.names():
        shown, document = cli("hooks", "show", name), json.loads(cli("hooks", "show", name, "--json").stdout)
        said = "\n    " in document["docstring"].partition("Args:")[2]
        assert any(argument["meaning"] for argument in document["arguments"]) == said, name
        assert ("``" in shown.stdout, "Args:" in shown.stdout) == (False, False), name


def test_docstring_with_parts_behind_the_arguments_keeps_them_and_its_example():
    text = """Counts.

    So that one
    knows.

    Args:
        n: How far
            it counts: to ``n``.
        **more (int): Others.

    Raises:
        ValueError: Never.

    >>> Counter(3)
    3
    """
    assert meanings(text) == {"n": "How far it counts: to n.", "**more": "Others."}
    assert plain(text) == ("Counts.\n\nSo that one knows.\n\nRaises:\n    ValueError: Never.\n\n>>> Counter(3)\n3")


def test_show_function_that_says_nothing_is_an_error(program, here):
    result = program("hooks", "show", "my_module:undescribed", "--json")
    assert (result.returncode, result.stdout) == (2, "")
    assert "a function whose return annotation is one" in result.stderr


def test_show_class_of_another_kind_is_an_error(cli):
    result = cli("hooks", "show", "collections:OrderedDict")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is neither a Callback nor a Hook" in result.stderr


def test_check_file_with_everything_in_order_says_ok_with_names(program, here):
    file = here(
        "callbacks.yaml",
        "callbacks:\n  - progress_bar\n  - use: my_module:Alarm\n    with: {threshold: 0.9}\n  - early_stopping\n",
    )
    result = program("hooks", "check", file)
    assert result.returncode == 0
    assert result.stdout == "callbacks.yaml: ok\n  alarm\n  early_stopping\n  progress_bar\n"
    assert result.stderr == "a module that prints\nclosed\n"


def test_check_json_file_is_accepted(cli, here):
    here("callbacks.json", '{"callbacks": [{"early_stopping": {"patience": 2}}]}')
    document = json.loads(cli("hooks", "check", "callbacks.json", "--json").stdout)
    assert document == {"ok": True, "file": "callbacks.json", "names": ["early_stopping"], "error": None}


def test_check_argument_of_wrong_type_names_file_line_and_path(program, here):
    file = here(
        "wrong.yaml", "callbacks:\n  - progress_bar\n  - use: my_module:Alarm\n    with:\n      threshold: high\n"
    )
    result = program("hooks", "check", file)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Error: wrong.yaml:5: callbacks[1].with.threshold: 'high' was given, float is accepted" in result.stderr


def test_check_malformed_yaml_names_file_and_line(cli, here):
    here("broken.yaml", "callbacks:\n  - progress_bar\n  - early_stopping: ]\n  - progress_bar\n")
    result = cli("hooks", "check", "broken.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: broken.yaml:3: not valid YAML: ")


@pytest.mark.parametrize("command", ["check", "plan"])
def test_check_and_plan_of_a_python_file_say_what_is_wanted_and_how_a_class_is_tested(command, cli, here):
    result = cli("hooks", command, "my_module.py")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "my_module.py: this is Python; give a YAML or JSON file" in result.stderr
    assert "hookline.testing.check_callback" in result.stderr


def test_check_misspelt_name_suggests_the_right_one(cli, here):
    here("typo.yaml", "callbacks: [progres_bar]\n")
    result = cli("hooks", "check", "typo.yaml")
    assert result.exit_code == 2
    assert "typo.yaml:1: callbacks[0]: " in result.stderr
    assert "Did you mean 'progress_bar'?" in result.stderr


def test_check_json_option_with_a_fault_gives_the_error_in_the_document(cli, here):
    here("typo.yaml", "callbacks: [progres_bar]\n")
    result = cli("hooks", "check", "typo.yaml", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["ok"], document["names"]) == (2, False, [])
    assert result.stderr == f"Error: {document['error']}\n"


def test_check_missing_file_says_that_it_cannot_be_read(cli):
    result = cli("hooks", "check", "nowhere.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: nowhere.yaml: cannot be read: No such file or directory.\n"


PLANNED = """
callbacks:
  - print_progress
  - early_stopping
  - use: my_module:Alarm
    with: {threshold: 1.0}
    every: 50
  - use: my_module:loud_alarm
    start: 10
    name: loud
    before: alarm
  - use: my_module:Picky
    priority: 5
    critical: true
"""


def test_plan_json_has_the_order_of_each_moment(program, here):
    result = program("hooks", "plan", here("callbacks.yaml", PLANNED), "--json")
    assert json.loads(result.stdout)["moments"] == {
        "on_train_start": ["early_stopping", "print_progress"],
        "on_step_end": ["picky", "loud", "alarm", "print_progress"],
        "on_log": ["early_stopping"],
        "on_eval": ["early_stopping"],
        "on_train_end": ["early_stopping", "print_progress"],
        "on_exception": ["early_stopping"],
    }


def test_plan_json_has_cadence_and_priority_of_each_subscriber(program, here):
    result = program("hooks", "plan", here("callbacks.yaml", PLANNED), "--json")
    subscribers = json.loads(result.stdout)["subscribers"]
    assert {place["name"]: (place["cadence"], place["priority"]) for place in subscribers} == {
        "picky": ("should_run()", 5),
        "early_stopping": ("always", 0),
        "loud": ("after 10 and every 5", 0),
        "alarm": ("every 50 and every 25", 0),
        "print_progress": ("every 10", -100),
    }


def test_plan_text_has_a_row_for_each_moment_and_subscriber(program, here):
    result = program("hooks", "plan", here("callbacks.yaml", PLANNED))
    rows = [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]
    assert rows[0] == "moment # subscriber cadence priority"
    assert rows[2:] == [
        "on_train_start 1 early_stopping always 0",
        "2 print_progress always -100 rank zero",
        "on_step_end 1 picky should_run() 5 critical",
        "2 loud after 10 and every 5 0 before alarm",
        "3 alarm every 50 and every 25 0",
        "4 print_progress every 10 -100 rank zero",
        "on_log 1 early_stopping always 0",
        "on_eval 1 early_stopping always 0",
        "on_train_end 1 early_stopping always 0",
        "2 print_progress always -100 rank zero",
        "on_exception 1 early_stopping always 0",
    ]


def test_plan_file_without_callbacks_says_that_nobody_listens(cli, here):
    here("empty.yaml", "callbacks: []\n")
    assert cli("hooks", "plan", "empty.yaml").stdout == "empty.yaml: there are no subscribers.\n"

"""No option is documented and never tried: each parameter of what users build or call is given somewhere in the tests.

Looked at are the functions and classes that public modules offer, the settings that files hold, and the options of
commands. A parameter counts as tried where a call gives it to its owner, by name or by place; and where a file of
tests that mentions the owner, or the name it is registered by, gives something under that name: tests build things
through functions of their own, in YAML and by command lines. That it does what it says is for those tests to show.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer.main
from source_code import ROOT, Class, Function, Package, without_collections

from hookline.cli import app

UNTRIED: dict[str, str] = {}
"""Options that no test gives, and why not."""

TYPER_S_OWN = ("--help", "--install-completion", "--show-completion")

MADE = (
    *(
        "Band",
        "Bands",
        "CodeComparison",
        "Command",
        "Comparison",
        "Cost",
        "DetectedRun",
        "Failure",
        "ImportedRun",
        "ManifestRow",
        "PlannedRun",
        "Result",
        "SearchResult",
        "Trial",
    ),
    *(
        "CompressedRun",
        "Episode",
        "EpisodeEnd",
        "EpisodePolicy",
        "MediaItem",
        "Rollout",
        "Row",
        "RunInfo",
        "RunResult",
        "Series",
        "Ingested",
    ),
    *("JournalEntry", "Event", "LogLine", "Media", "Metrics", "Rewards", "Sample", "SampleUse", "Status", "TableRows"),
)
"""Data that hookline makes and users only read."""

MADE_BY = {
    "AccelerateRun": "hookline.integrations.accelerate.run",
    "AttachedEngine": "hookline.integrations.ignite.attach",
    "AttachedModel": "hookline.integrations.catboost.attach and that of ultralytics",
    "AttachedTrainer": "hookline.integrations.levanter.attach, and those of tunix and verl",
    "BatchableMedia": "the data types of wandb's API that are logged in lists",
    "CustomChart": "wandb.plot_table and the other charts of wandb's API",
    "DeepSpeedRun": "hookline.integrations.deepspeed.run",
    "ExperimentStore": "hookline.experiment.Experiment",
    "FabricRun": "hookline.integrations.fabric.run",
    "FunctionCallback": "hookline.on",
    "HostLoop": "the integrations, which pass its options on",
    "JaxRun": "hookline.integrations.jax.run",
    "LogContext": "the loops, or FakeLoop in a test",
    "LoggedReward": "hookline.rewards.logged and wrap",
    "ObservedTraining": "hookline.integrations.maxtext.observe",
    "Run": "hookline.run",
    "Runs": "hookline.runs",
    "TorchRun": "hookline.integrations.torch.run",
    "Validation": "Run.validate",
    "hookline.compat.wandb.public_api.files.File": "the files of a run in wandb's API",
    "hookline.compat.wandb.public_api.files.Files": "the files of a run in wandb's API",
    "hookline.compat.wandb.public_api.sweeps.Sweep": "wandb.sweep",
}
"""Classes that users have without building them: what they give is given to something else, which is looked at.

One whose name is not the only one of its kind is named with its place.
"""

BEHIND = {"WorkerConfig": {"SFTPolicyWorker", "main"}, "Reward": {"library"}, "TextReward": {"library"}}
"""What tests use instead of the name of a class that only files name, or only subclasses are built of."""

Annotated = list[tuple[str, set[str]]]
"""The names of all fields, with the words of their annotations."""


@dataclass
class Options:
    """What users may give to a class or function: the names, in order, and those that can be given by place."""

    place: str
    words: set[str]
    names: list[str]
    by_place: list[str] = field(default_factory=list)

    @property
    def bridge(self) -> set[str]:
        """The framework that it is for, which a file that means it mentions; several call theirs the same."""
        return set(re.findall(r"^hookline\.integrations\.(\w+)", self.place))


def public_options(package: Package) -> list[Options]:
    """The options of everything that a public module offers, and of settings that files hold."""
    offered = {package.home(name, each) for name, module in package.modules.items() for each in module.offered()}
    files = {place for place, owner in package.classes.items() if _is_settings(owner, package)}
    annotated = _annotated(package)
    found = (
        options_of(place, package, annotated)
        for place in sorted(offered | files)
        if not place.startswith("hookline.server")
    )
    return [options for options in found if options is not None and options.names]


def options_of(place: str, package: Package, annotated: Annotated) -> Options | None:
    if place in package.functions:
        return _of_function(place, package, package.functions[place], skip=0)
    owner = package.classes.get(place)
    if owner is None or owner.node.name.endswith("Error") or {owner.node.name, place} & {*MADE, *MADE_BY}:
        return None
    for each in package.lineage(owner):
        if "__init__" in each.methods():
            found = _of_function(place, package, each.methods()["__init__"], skip=1)
            break
        if _has_fields(each):
            found = Options(place, set(), names := _fields(owner, package), names)
            break
    else:
        return None
    found.words |= {
        owner.node.name,
        *_registered(owner),
        *_sections(owner, annotated),
        *BEHIND.get(owner.node.name, ()),
    }
    return found


def _of_function(place: str, package: Package, function: Function, *, skip: int) -> Options:
    placed = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][skip:]
    by_name = [each.arg for each in function.args.kwonlyargs] + _passed_on(package, function)
    only_placed = {each.arg for each in function.args.posonlyargs}
    names = [name for name in (*placed, *by_name) if name not in only_placed and not name.startswith("_")]
    return Options(place, {place.rpartition(".")[2]}, names, placed)


def _passed_on(package: Package, function: Function) -> list[str]:
    """The keys of the set of options that ``**options: Unpack[...]`` names."""
    annotation = function.args.kwarg.annotation if function.args.kwarg else None
    named = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(annotation)) if annotation else None
    places = [place for place in package.classes if named and place.endswith(f".loops.options.{named[1]}")]
    return [name for place in places for name in _fields(package.classes[place], package)]


def _has_fields(owner: Class) -> bool:
    """Whether its fields are what its constructor takes."""
    decorated = any(ast.unparse(each).startswith("dataclass") for each in owner.node.decorator_list)
    struct = any(base.endswith("Struct") for base in owner.bases)
    return decorated or struct


def _fields(owner: Class, package: Package) -> list[str]:
    lines = [node for each in reversed([*package.lineage(owner)]) for node in each.node.body]
    fields = [node for node in lines if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    own = [node for node in fields if "ClassVar" not in ast.unparse(node.annotation)]
    given = [node for node in own if node.value is None or "init=False" not in ast.unparse(node.value)]
    return list(dict.fromkeys(node.target.id for node in given if not node.target.id.startswith("_")))


def _is_settings(owner: Class, package: Package) -> bool:
    return any(base.endswith(".CheckedStruct") for each in package.lineage(owner) for base in each.bases)


def _registered(owner: Class) -> Iterator[str]:
    """The names that it is registered by."""
    for each in owner.node.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func).startswith("register"):
            yield ast.literal_eval(each.args[0])


def _sections(owner: Class, annotated: Annotated) -> Iterator[str]:
    """The keys in files under which it stands: ``data`` for ``data: DataOptions``."""
    for section, words in annotated:
        if owner.node.name in words:
            yield section


def _annotated(package: Package) -> Annotated:
    lines = [node for each in package.classes.values() if _has_fields(each) for node in each.node.body]
    fields = [node for node in lines if isinstance(node, ast.AnnAssign)]
    return [(ast.unparse(node.target), set(re.findall(r"\w+", ast.unparse(node.annotation)))) for node in fields]


class TestFile:
    """What a file of tests says: the names and texts in it, the keywords and places of its calls."""

    __test__ = False

    def __init__(self, text: str) -> None:
        nodes = list(ast.walk(ast.parse(text)))
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        self.words = {word for name in (*_names(nodes), *texts) for word in re.findall(r"\w+", name)}
        """Every name, and every word of a text."""
        self.texts = {word for text in texts for word in re.split(r"[\s=]", text)}
        """The words of texts, as a shell tells them apart."""
        self.given = {*_keys(nodes), *(name for text in texts for name in re.findall(r"\b(\w+)(?::|=)", text))}
        """Names that something is given under: keywords, keys of dicts, ``name:`` and ``name=`` in texts."""
        self.places = _places(nodes)
        """How many arguments a call gives by place, at most, by the last word of what is called."""

    def tries(self, options: Options) -> set[str]:
        """The options of an owner that this file gives."""
        by_place = max((self.places.get(word, 0) for word in options.words), default=0)
        if not options.bridge <= self.words:
            return set()
        by_name = self.given if options.words & self.words else set()
        return {*options.by_place[:by_place], *by_name} & set(options.names)


def _names(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


def _keys(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value


def _places(nodes: list[ast.AST]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            word = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            found[word] = max(found.get(word, 0), len(node.args))
    return found


def untried(options: list[Options], files: list[TestFile]) -> list[str]:
    found = []
    for each in options:
        tried = set().union(*(file.tries(each) for file in files))
        found += [f"{each.place}({name})" for name in each.names if name not in tried]
    return found


def command_options(command: Any, path: str = "hookline") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every command with each of its options, in the ways that people type it: ``-o, --output``, ``--a, --no-a``."""
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            yield path, (*parameter.opts, *parameter.secondary_opts)
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_options(inner, f"{path} {name}")


@pytest.fixture(scope="module")
def options() -> list[Options]:
    return public_options(Package())


@pytest.fixture(scope="module")
def files() -> list[TestFile]:
    tests = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
    with without_collections():
        return [TestFile(path.read_text(encoding="utf-8")) for path in tests]


def test_every_public_option_is_tried_by_a_test(options, files):
    assert sorted({*untried(options, files)} - set(UNTRIED)) == []


def test_every_option_of_a_command_is_tried_by_a_test(files):
    missing, known = [], list(command_options(typer.main.get_command(app)))
    assert {("hookline", ("--version",)), ("hookline runs list", ("--json",))} <= set(known)
    for command, spelt in known:
        words = set(command.split()[1:])
        tried = any(words <= file.words and file.texts.intersection(spelt) for file in files)
        if not tried and spelt[0] not in TYPER_S_OWN:
            missing.append(f"{command} {spelt[0]}")
    assert missing == []


def test_option_that_no_test_gives_is_noticed(tmp_path):
    (tmp_path / "made.py").write_text(
        "__all__ = ['Timer', 'train']\n"
        "@register('timer')\nclass Timer:\n    def __init__(self, budget, *, margin=0, clock=None): ...\n"
        "def train(model, steps=1): ...\n"
    )
    files = [
        TestFile("Timer('8h')\ntrain(model)\n"),
        TestFile("load({'timer': {'margin': 3}})\nother(clock=2)\n"),
        TestFile("unrelated(clock=3, steps=2)\n"),
    ]
    options = public_options(Package(tmp_path))
    assert untried(options, files) == ["made.train(steps)"]
    assert untried(options, files[:1]) == ["made.Timer(margin)", "made.Timer(clock)", "made.train(steps)"]


def test_options_that_are_passed_on_count_as_options(options):
    names = {each.place: each.names for each in options}
    hosts = [f"hookline.integrations.{name}.HooklineCallback" for name in ("keras", "lightning", "transformers")]
    for place in hosts:
        found = next(names[each] for each in names if each.startswith(place.rpartition(".")[0]) and "Callback" in each)
        assert {"project", "tags", "notes", "delivery"} <= set(found)

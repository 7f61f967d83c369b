"""Writes ``configuration.md`` from the code: ``python docs/configuration_reference.py``.

Every setting that a file or a constructor takes: its type, its default, and what the docstring says of it.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Unpack, get_args, get_origin, get_type_hints

import hookline.rl.hooks  # noqa: F401 - they register themselves
from hookline._engine.registry import REGISTRY
from hookline._engine.subscriber import OPTION_NAMES
from hookline._record.sink import SINKS

PAGE = Path(__file__).with_name("configuration.md")
INTRO = """\
# All settings

Made from the code by `docs/configuration_reference.py`. In a file, a setting that does not exist is an error that names
the closest one; so it is for classes of settings such as `TrainerConfig` in Python. `${NAME}` in an address, a header
or a token of a sink is taken from the environment.

Every subscriber takes these options besides its own: """
SECTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "A bare loop": ("`hl.run(...)`; see the [guide](guide.md).", {"hl.run": "hookline.loops.run:run"}),
    "Training": (
        "The block `train:` of a file for `hl.main`, or `hl.TrainerConfig(...)`; see [training](training.md).",
        {
            "train": "hookline.loops.trainer_config:TrainerConfig",
            "train.checkpoint": "hookline.callbacks.checkpoint:CheckpointCallback",
        },
    ),
    "Reinforcement learning": (
        "The blocks of a file for `rl.train`, or the classes in `hl.rl`; see [reinforcement learning](rl.md).",
        {
            "the file": "hookline.rl.learner.config:RLConfig",
            "grpo": "hookline.rl.learner.config:GRPOConfig",
            "rollout": "hookline.rl.rollouts.config:RolloutConfig",
            "a rollout worker": "hookline.rl.rollouts.config:RolloutWorkerConfig",
            "curriculum": "hookline.rl.rollouts.config:CurriculumConfig",
            "sampling": "hookline.rl.types:Sampling",
            "rewards": "hookline.rl.rewards.config:RewardConfig",
        },
    ),
    "Experiments": (
        "`hl.Experiment(...)`. The file for `hookline run`: [experiments](experiments.md#from-a-file).",
        {
            "hl.Experiment": "hookline.experiment.experiment:Experiment",
            "an arm": "hookline.experiment.arms:Arm",
            "a stage": "hookline.experiment.arms:Stage",
            "the file": "hookline.experiment.file_arms:ExperimentFile",
        },
    ),
    "Logging": (
        "The block `metrics:` of the file for `hookline.logging.initialize`; see [logging](logging.md).",
        {
            "metrics": "hookline.logging.config:MetricSettings",
            "metrics.enable": "hookline.logging.config:Categories",
        },
    ),
}


def page() -> str:
    """The whole page."""
    options = ", ".join(f"`{name}`" for name in sorted(OPTION_NAMES))
    lines = [INTRO + options + ". The [guide](guide.md#options) says what they mean.", ""]
    for title, (words, kinds) in SECTIONS.items():
        lines += [f"## {title}", "", words, ""]
        for name, place in kinds.items():
            lines += _kind(name, _imported(place))
    lines += _registered("Callbacks and hooks", "`callbacks:` takes them by these names.", REGISTRY)
    lines += _registered("Sinks", "`sinks:` takes them by these names; see [sinks](sinks.md).", SINKS)
    return "\n".join(lines).rstrip() + "\n"


def settings(kind: Callable[..., Any]) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each setting."""
    meanings = _meanings(kind)
    for name, parameter in _parameters(kind).items():
        is_setting = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if is_setting and name != "clock":  # which tests hand in
            yield name, _type(parameter.annotation), _default(parameter), meanings.get(name, "")


def _parameters(kind: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a call takes; options that are passed on stand where they are documented, in a class above."""
    own = dict(inspect.signature(kind).parameters)
    passed_on = {
        name
        for parameter in own.values()
        if parameter.kind is parameter.VAR_KEYWORD and get_origin(parameter.annotation) is Unpack
        for name in get_type_hints(get_args(parameter.annotation)[0])
    }
    for above in getattr(kind, "__mro__", ())[1:]:
        found = inspect.signature(above.__init__).parameters
        own |= {name: found[name] for name in found if name in passed_on and name not in own}
    return own


def documented() -> dict[str, Callable[..., Any]]:
    """Everything that the page describes, by name."""
    of_files = {name: _imported(place) for _, kinds in SECTIONS.values() for name, place in kinds.items()}
    return of_files | {name: found.find(name) for found in (REGISTRY, SINKS) for name in _own_names(found)}


def _registered(title: str, words: str, registry: Any) -> list[str]:
    lines = [f"## {title}", "", words, ""]
    for name in _own_names(registry):
        lines += _kind(name, registry.find(name))
    return lines


def _own_names(registry: Any) -> list[str]:
    return [name for name in registry.names() if registry.find(name).__module__.startswith("hookline.")]


def _imported(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _kind(name: str, kind: Callable[..., Any]) -> list[str]:
    first = " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")
    rows = [f"| `{n}` | {_cell(t)} | {_cell(d)} | {m} |" for n, t, d, m in settings(kind)]
    table = ["| setting | type | default | |", "|---|---|---|---|", *rows, ""] if rows else ["It has no settings.", ""]
    return [f"### {name}", "", first, "", *table]


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _meanings(kind: Callable[..., Any]) -> dict[str, str]:
    """What the sections Args and Attributes of the docstrings say, also those of the classes above."""
    found: dict[str, str] = {}
    for above in reversed(getattr(kind, "__mro__", (kind,))):
        text = inspect.cleandoc(above.__doc__ or "")
        for section in re.findall(r"^(?:Args|Attributes):\n((?:(?: {4}.*)?\n?)+)", text, re.MULTILINE):
            for name, words in re.findall(r"^ {4}(\w+): ((?:.|\n {8})*)", section, re.MULTILINE):
                found[name] = " ".join(words.split()).replace("``", "`").replace("|", "\\|")
    return found


def _type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    text = plain if isinstance(plain, str) else inspect.formatannotation(plain)
    text = re.sub(r"Optional\[(.*)\]", r"\1 | None", text)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    return repr(parameter.default) if not re.search(r"0x[0-9a-f]+", repr(parameter.default)) else "..."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""``hookline hooks new``: creates a small package with a hook, installable and tested.

Nothing is overwritten. A name that could not be imported or registered is refused before anything is written.
"""

import importlib.util
import keyword
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from hookline._engine.errors import DuplicateError, OptionError
from hookline._engine.registry import REGISTRY
from hookline._engine.subscriber import snake_case
from hookline.cli.output import AsJson, console, print_json, wrong_input

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$distribution"
version = "0.1.0"
description = "A hook for hookline"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["hookline"]

[project.optional-dependencies]
test = ["pytest"]

# This is how hookline finds the hook by its name.
[project.entry-points."hookline.callbacks"]
$package = "$package:$class_name"

[tool.hatch.build.targets.wheel]
packages = ["src/$package"]
"""

MODULE = '''\
"""A hook that watches a metric and warns when it is too high."""

import logging
from collections.abc import Mapping

import hookline as hl
from hookline import hooks

__all__ = ["$class_name"]

logger = logging.getLogger(__name__)


class $class_name(hooks.PeriodicHook):
    """Warns when a metric is above a threshold, and counts how often it was.

    Args:
        threshold: Warn when the metric is above this, or not a number.
        monitor: The metric's name.
        frequency: Check every N steps.
    """

    name = "$package"

    def __init__(self, threshold: float = 10.0, monitor: str = "loss", frequency: int = 10) -> None:
        super().__init__(frequency)
        if not threshold > 0:
            raise hl.OptionError(f"threshold={threshold!r}: give a number above 0.")
        self.threshold = threshold
        self.monitor = monitor
        self.alarms = 0

    def run(self, context: hooks.HookContext) -> dict[str, int] | None:
        """Check the metric; the returned values are recorded under this hook's name."""
        value = context.metadata.get(self.monitor)
        if not isinstance(value, int | float):
            return None
        if not value <= self.threshold:  # written so that NaN is an alarm too
            self.alarms += 1
            logger.warning("step %d: %s is %g, above %g", context.step, self.monitor, value, self.threshold)
        return {"alarms": self.alarms}

    def state_dict(self) -> dict[str, int]:
        """The state for a checkpoint, so that counting continues after a resume."""
        return {"alarms": self.alarms}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore the state of a checkpoint."""
        self.alarms = state["alarms"]
'''

TESTS = """\
import hookline as hl
import pytest
from hookline.hooks import HookContext
from hookline.testing import check_callback

import $package


def test_hook_behaves_as_any_subscriber_must():
    check_callback(lambda: $package.$class_name(threshold=0.5, frequency=1))


def test_run_metric_above_threshold_is_counted():
    hook = $package.$class_name(threshold=1.0)
    calm = HookContext(worker=None, step=10, metadata={"loss": 0.5})
    high = HookContext(worker=None, step=20, metadata={"loss": 2.0})
    assert [hook.run(calm), hook.run(high)] == [{"alarms": 0}, {"alarms": 1}]


def test_run_metric_not_a_number_is_counted():
    hook = $package.$class_name()
    assert hook.run(HookContext(worker=None, step=10, metadata={"loss": float("nan")})) == {"alarms": 1}


def test_threshold_not_above_zero_is_refused():
    with pytest.raises(hl.OptionError, match="threshold=0"):
        $package.$class_name(threshold=0)


def test_hook_in_a_loop_records_its_alarms():
    with hl.run(callbacks=[$package.$class_name(threshold=1.0, frequency=2)], summary=False) as run:
        for _ in run.steps(4):
            run.log(loss=3.0)
    assert run.metrics["$package/alarms"] == 2
"""

README = """\
# $distribution

A hook for hookline that warns when a metric is too high.

```
pip install -e ".[test]"
pytest
hookline hooks show $package
```

Once installed, every loop finds it by its name:

```python
import hookline as hl

with hl.run(callbacks=["$package"]) as run:
    for batch in run.steps(loader):
        run.log(loss=train_step(batch))
```

and in a configuration file:

```yaml
callbacks:
  - $package: {threshold: 5.0, monitor: loss, frequency: 25}
```
"""


@dataclass(frozen=True, slots=True)
class Names:
    """A name as spelled by distributions, packages and classes."""

    distribution: str
    package: str
    class_name: str

    @classmethod
    def of(cls, name: str) -> "Names":
        """The spellings of a name such as ``gradient-alarm``, ``gradient_alarm`` or ``GradientAlarm``.

        Raises:
            OptionError: The name has other characters, or is a Python keyword.
            DuplicateError: A module or a registered callback has the name.
        """
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise OptionError(f"{name!r} is not a name: give letters, digits, '-' and '_', beginning with a letter.")
        words = re.split(r"[-_]+", snake_case(name.strip("-_").replace("-", "_")))
        names = cls("-".join(words), "_".join(words), "".join(map(str.capitalize, words)))
        names._refuse_taken()
        return names

    def _refuse_taken(self) -> None:
        if keyword.iskeyword(self.package) or keyword.iskeyword(self.class_name):
            raise OptionError(
                f"{self.package!r} is a Python keyword: give another name, e.g. 'my-{self.distribution}'."
            )
        if self.package in REGISTRY.names():
            raise DuplicateError(f"{self.package!r} is registered already: see 'hookline hooks show {self.package}'.")
        spec = importlib.util.find_spec(self.package)
        if spec is not None and spec.origin is not None:
            raise DuplicateError(f"A module {self.package!r} exists already ({spec.origin}): give another name.")

    def files(self) -> dict[str, str]:
        """The package's files: contents by path."""
        templates = {
            "pyproject.toml": PYPROJECT,
            "README.md": README,
            f"src/{self.package}/__init__.py": MODULE,
            f"src/{self.package}/py.typed": "",
            f"tests/test_{self.package}.py": TESTS,
        }
        spellings = {"distribution": self.distribution, "package": self.package, "class_name": self.class_name}
        return {path: Template(text).substitute(spellings) for path, text in templates.items()}


def new(
    name: Annotated[str, typer.Argument(help="The package's name, e.g. gradient-alarm.", show_default=False)],
    directory: Annotated[Path, typer.Option(help="Where to create the package's directory.")] = Path(),
    *,
    as_json: AsJson = False,
) -> None:
    """Create a small package with a hook of your own: installable, typed and tested."""
    with wrong_input(as_json=as_json):
        names, root = Names.of(name), directory / name
        files = names.files()
        _write(root, files)
    if as_json:
        print_json({"directory": str(root), "package": names.package, "files": list(files)})
        return
    out = console()
    out.print(f"Created {root}:", style="green", soft_wrap=True)
    for path in files:
        out.print(f"  {path}")
    out.print("\nNext:")
    for command in (
        f"cd {shlex.quote(str(root))}",
        'pip install -e ".[test]"',
        "pytest",
        f"hookline hooks show {names.package}",
    ):
        out.print(f"  {command}", style="bold", soft_wrap=True)


def _write(root: Path, files: dict[str, str]) -> None:
    try:
        root.mkdir(parents=True)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise DuplicateError(f"{root} exists already and was not changed: give another name.") from None
    except OSError as error:
        raise OptionError(f"{root} cannot be written: {error.strerror}. Choose another --directory.") from error

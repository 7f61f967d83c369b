"""What is registered, and what can be said of a class of subscribers without building one.

A package's callback that cannot be imported is part of the list, with its error; it breaks nothing.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hookline.core.callback import MOMENTS, Callback
from hookline.core.config import import_name, returned_type
from hookline.core.errors import HooklineError, UnknownNameError
from hookline.core.hook import Hook
from hookline.core.registry import REGISTRY
from hookline.core.subscriber import OPTION_NAMES, Subscriber

Factory = Callable[..., Any]

_ARGS = re.compile(r"^Args:\n((?:(?:[ \t]+.*)?(?:\n|\Z))+)", re.MULTILINE)
"""The part of a docstring that is about arguments, up to the next line that is not indented."""
_ENTRY = re.compile(r"^(\**\w+)(?: *\([^)\n]*\))?:[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)
"""One argument in it: its name, and its text with the lines below it that are indented."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One registered name: what it stands for, and the package that it comes from."""

    name: str
    kind: str
    source: str
    summary: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a constructor; type and default are source text, the meaning is what its docstring says."""

    name: str
    type: str
    required: bool
    default: str | None
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """What a class says of itself; the options with their defaults as source text."""

    name: str
    kind: str
    source: str
    path: str
    docstring: str
    arguments: list[Argument]
    moments: list[str]
    options: dict[str, str]


def offers() -> list[Offer]:
    """Everything that goes by a name, sorted; what cannot be imported with its error."""
    installed = REGISTRY.installed()
    return [_offer(name, installed.get(name, "hookline")) for name in REGISTRY.names()]


def plain(docstring: str) -> str:
    r"""A docstring for people: without backticks, each paragraph on one line, and without what is said of arguments.

    >>> plain("Counts to\n``n``.\n\nArgs:\n    n: How far.")
    'Counts to n.'
    """
    prose = _ARGS.sub("", inspect.cleandoc(docstring)).replace("`", "")
    paragraphs = [text.strip("\n") for text in prose.split("\n\n") if text.strip()]
    return "\n\n".join(text if "\n " in text or text[0] in " >" else " ".join(text.split()) for text in paragraphs)


def meanings(docstring: str) -> dict[str, str]:
    r"""What a docstring says of each argument, in its part ``Args``.

    >>> meanings("Counts.\n\nArgs:\n    n: How far ``n``\n        goes.\n    *more: Others.")
    {'n': 'How far n goes.', '*more': 'Others.'}
    """
    part = _ARGS.search(inspect.cleandoc(docstring))
    if part is None:
        return {}
    entries = _ENTRY.findall(inspect.cleandoc(part[1]))
    return {name: " ".join(text.split()).replace("`", "") for name, text in entries}


def describe(name: str) -> Description:
    """Describe what goes by a registered name or stands at ``package.module:Class``.

    Raises:
        UnknownNameError: Nothing goes by that name, or what does is no callback or hook.
    """
    factory = import_name(name) if ":" in name else REGISTRY.find(name)
    product = _product(factory)
    return Description(
        name=product.name if product is not None and ":" in name else name,
        kind=_kind(product),
        source=_source(factory, REGISTRY.installed().get(name)),
        path=f"{factory.__module__}:{factory.__qualname__}",
        docstring=inspect.cleandoc(factory.__doc__ or ""),
        arguments=_arguments(factory),
        moments=_moments(product),
        options={option: repr(getattr(product or Subscriber, option)) for option in sorted(OPTION_NAMES)},
    )


def first_sentence(docstring: str | None) -> str:
    """The first sentence of a docstring, on one line and with single backticks.

    >>> first_sentence("Counts to ``n`` = 3.5 and stops. Then rests.")
    'Counts to `n` = 3.5 and stops.'
    """
    paragraph = " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)[0]


def _offer(name: str, package: str) -> Offer:
    try:
        factory = REGISTRY.find(name)
        product = _product(factory)
    except HooklineError as error:
        return Offer(name, "unknown", package, "", str(error))
    except SystemExit as error:  # not an Exception, so the registry lets it through
        return Offer(name, "unknown", package, "", f"It exits when it is imported: {error!r}")
    return Offer(name, _kind(product), _source(factory, package), first_sentence(factory.__doc__))


def _product(factory: Factory) -> type[Callback] | type[Hook] | None:
    """The class of what a factory makes, if it is one or a function that says what it returns."""
    made: Any = factory if isinstance(factory, type) else returned_type(factory)
    if isinstance(made, type) and issubclass(made, Callback | Hook):
        return made
    if isinstance(factory, type) or not callable(factory):
        raise UnknownNameError(
            f"{factory!r} is neither a Callback nor a Hook: give a subclass of one, or a function that returns one."
        )
    return None


def _kind(product: type[Subscriber] | None) -> str:
    if product is None:
        return "factory"
    return "hook" if issubclass(product, Hook) else "callback"


def _source(factory: Factory, package: str | None) -> str:
    """The package that offers it, or the one it is defined in; hookline's own names win over other packages'."""
    module = factory.__module__.partition(".")[0]
    return module if package is None or module == "hookline" else package


def _arguments(factory: Factory) -> list[Argument]:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-ins have no signature
        return []
    said = meanings(factory.__doc__ or "") or meanings(inspect.getdoc(factory.__init__) or "")
    return [_argument(parameter, said) for parameter in parameters.values()]


def _argument(parameter: inspect.Parameter, said: Mapping[str, str]) -> Argument:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" * (parameter.kind is parameter.VAR_KEYWORD)
    has_default = parameter.default is not parameter.empty
    return Argument(
        name=f"{stars}{parameter.name}",
        type=_annotation(parameter.annotation),
        required=not has_default and not stars,
        default=repr(parameter.default) if has_default else None,
        meaning=said.get(f"{stars}{parameter.name}") or said.get(parameter.name, ""),
    )


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _moments(product: type[Subscriber] | None) -> list[str]:
    """The moments that a callback overrides; a hook is asked after each step."""
    if product is None:
        return []
    if issubclass(product, Hook):
        return ["on_step_end"]
    return [name for name in MOMENTS if getattr(product, name) is not getattr(Callback, name)]

"""``hookline hooks``: lists, explains, checks and creates callbacks and hooks.

Only `new` writes anything. The others import and build subscribers, and run none of them. A package's callback that
cannot be imported is listed with its error.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import ConfigError, HooklineError, UnknownNameError
from hookline._engine.factories import import_subscriber, returned_type
from hookline._engine.hooks import Hook
from hookline._engine.moments import MOMENTS, Callback
from hookline._engine.registry import REGISTRY
from hookline._engine.subscriber import OPTION_NAMES, Subscriber
from hookline.cli.new import new
from hookline.cli.output import AsJson, CommandGroup, console, foreign_code, indented, print_footer, print_json, table
from hookline.cli.plan import plan_entries, plan_table
from hookline.config.loading import load_callbacks

Factory = Callable[..., Any]

_ARGS = re.compile(r"^Args:\n((?:(?:[ \t]+.*)?(?:\n|\Z))+)", re.MULTILINE)
"""The ``Args`` section of a docstring, up to the next line that is not indented."""
_ENTRY = re.compile(r"^(\**\w+)(?: *\([^)\n]*\))?:[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)
"""One argument: its name and its text, with indented continuation lines."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A registered name."""

    name: str
    kind: str
    source: str
    summary: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a constructor; type and default are source text, the meaning is from the docstring."""

    name: str
    type: str
    required: bool
    default: str | None
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a subscriber class; option defaults are source text."""

    name: str
    kind: str
    source: str
    path: str
    docstring: str
    arguments: list[Argument]
    moments: list[str]
    options: dict[str, str]


def offers() -> list[Offer]:
    """All registered names, sorted."""
    installed = REGISTRY.installed()
    return [_offer(name, installed.get(name, "hookline")) for name in REGISTRY.names()]


def plain(docstring: str) -> str:
    r"""A docstring without backticks and ``Args``, each paragraph on one line.

    >>> plain("Counts to\n``n``.\n\nArgs:\n    n: How far.")
    'Counts to n.'
    """
    prose = _ARGS.sub("", inspect.cleandoc(docstring)).replace("`", "")
    paragraphs = [text.strip("\n") for text in prose.split("\n\n") if text.strip()]
    return "\n\n".join(text if "\n " in text or text[0] in " >" else " ".join(text.split()) for text in paragraphs)


def meanings(docstring: str) -> dict[str, str]:
    r"""The descriptions of arguments in a docstring.

    >>> meanings("Counts.\n\nArgs:\n    n: How far ``n``\n        goes.\n    *more: Others.")
    {'n': 'How far n goes.', '*more': 'Others.'}
    """
    part = _ARGS.search(inspect.cleandoc(docstring))
    if part is None:
        return {}
    entries = _ENTRY.findall(inspect.cleandoc(part[1]))
    return {name: " ".join(text.split()).replace("`", "") for name, text in entries}


def describe(name: str) -> Description:
    """Describe a registered name or a ``package.module:Class``.

    Raises:
        UnknownNameError: There is no such name, or it is not a callback or hook.
    """
    factory = import_subscriber(name) if ":" in name else REGISTRY.find(name)
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
    """The class that a factory makes; None for a function without a return annotation."""
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
    """The package that registers it, or the one that defines it."""
    module = factory.__module__.partition(".")[0]
    return module if package is None or module == "hookline" else package


def _arguments(factory: Factory) -> list[Argument]:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-ins have no signature
        return []
    texts = meanings(factory.__doc__ or "") or meanings(inspect.getdoc(factory.__init__) or "")
    return [_argument(parameter, texts) for parameter in parameters.values()]


def _argument(parameter: inspect.Parameter, texts: Mapping[str, str]) -> Argument:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" * (parameter.kind is parameter.VAR_KEYWORD)
    has_default = parameter.default is not parameter.empty
    return Argument(
        name=f"{stars}{parameter.name}",
        type=_annotation(parameter.annotation),
        required=not has_default and not stars,
        default=repr(parameter.default) if has_default else None,
        meaning=texts.get(f"{stars}{parameter.name}") or texts.get(parameter.name, ""),
    )


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _moments(product: type[Subscriber] | None) -> list[str]:
    """The moments that a callback overrides; hooks run after steps."""
    if product is None:
        return []
    if issubclass(product, Hook):
        return ["on_step_end"]
    return [name for name in MOMENTS if getattr(product, name) is not getattr(Callback, name)]


File = Annotated[Path, typer.Argument(help="A YAML or JSON file with a list of callbacks.", show_default=False)]

app = CommandGroup(help="List, explain, check and create callbacks and hooks.")


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List all registered callbacks and hooks: built in, or installed by other packages."""
    with foreign_code():
        found = offers()
    if as_json:
        print_json(found)
        return
    listing = table("name", "kind", "from", "what it does", whole=("name", "kind", "from"))
    for offer in found:
        remark = f"ERROR: {offer.error}" if offer.error else offer.summary
        listing.add_row(offer.name, offer.kind, offer.source, remark, style="red" if offer.error else "")
    console().print(listing)
    print_footer("For details: hookline hooks show NAME")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A registered name, or package.module:Class.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Explain a callback or hook: its arguments, moments and options."""
    make_current_directory_importable()
    with foreign_code():
        description = describe(name)
    if as_json:
        print_json(description)
    else:
        _print_description(console(), description)


@app.command()
def check(file: File, *, as_json: AsJson = False) -> None:
    """Check a configuration file: all names, arguments, options and orders."""
    try:
        with _loaded(file) as collection:
            names = collection.names()
    except HooklineError as error:
        if as_json:
            print_json({"ok": False, "file": str(file), "names": [], "error": str(error)})
        raise
    if as_json:
        print_json({"ok": True, "file": str(file), "names": names, "error": None})
        return
    console().print(f"{file}: ok", style="green", soft_wrap=True)
    for name in names:
        console().print(f"  {name}")


@app.command()
def plan(file: File, *, as_json: AsJson = False) -> None:
    """Show the subscribers of each moment with their order, cadence and priority."""
    with _loaded(file) as collection:
        moments, entries = collection.plan(), plan_entries(collection)
    if as_json:
        print_json({"file": str(file), "moments": moments, "subscribers": list(entries.values())})
        return
    if not moments:
        console().print(f"{file}: there are no subscribers.", soft_wrap=True)
        return
    console().print(plan_table(moments, entries))


app.command("new")(new)


@contextmanager
def _loaded(file: Path) -> Iterator[CallbackCollection]:
    """Load a file's collection, and close it afterwards."""
    if file.suffix == ".py":
        raise ConfigError(
            f"{file}: this is Python; give a YAML or JSON file with a list of callbacks. "
            "To test a class, use hookline.testing.check_callback."
        )
    make_current_directory_importable()
    with foreign_code():
        collection = load_callbacks(file)
        try:
            yield collection
        finally:
            collection.close()


def make_current_directory_importable() -> None:
    """Find modules in the current directory, as ``python -m`` does, for ``use: my_module:MyHook``."""
    here = str(Path.cwd())
    if sys.path[0] != here:
        sys.path.insert(0, here)


def _print_description(out: Console, description: Description) -> None:
    out.print(description.name, style="bold")
    out.print(f"{description.kind} from {description.source}: {description.path}", soft_wrap=True)
    if text := plain(description.docstring):
        out.print(f"\n{text}")
    _print_arguments(out, description)
    out.print("Moments", style="bold")
    if description.kind == "hook":
        out.print("  after each step (on_step_end), if should_run() returns True")
    elif not description.moments:
        out.print("  unknown until it is built")
    for name in description.moments if description.kind == "callback" else ():
        out.print(f"  {MOMENTS[name].signature()}", style="cyan")
        out.print(indented(first_sentence(MOMENTS[name].doc).replace("`", ""), 6))
    options = ", ".join(f"{name}={default}" for name, default in description.options.items())
    out.print("\nOptions and their defaults", style="bold")
    out.print(indented(options))


def _print_arguments(out: Console, description: Description) -> None:
    if not description.arguments:
        out.print("\nNo arguments\n", style="bold")
        return
    out.print("\nArguments", style="bold")
    meaning = ("meaning",) if any(argument.meaning for argument in description.arguments) else ()
    listing = table("name", "type", "default", *meaning, whole=("name",))
    for argument in description.arguments:
        default = "required" if argument.required else argument.default or ""
        listing.add_row(argument.name, argument.type, default, *([argument.meaning] if meaning else []))
    out.print(listing)

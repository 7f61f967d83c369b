"""``hookline hooks``: what is registered, what a class offers, and what a configuration file amounts to.

Only `new` writes anything. The others import and build what they are asked about, and run none of it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hookline.cli.catalogue import Description, Offer, describe, first_sentence, offers, plain
from hookline.cli.new import new
from hookline.cli.output import AsJson, console, foreign_code, indented, print_footer, print_json, table
from hookline.cli.plain_help import CommandGroup
from hookline.cli.plan import places, plan_table
from hookline.core.callback import MOMENTS
from hookline.core.collection import CallbackCollection, load_callbacks
from hookline.core.errors import ConfigError, HooklineError

File = Annotated[Path, typer.Argument(help="A YAML or JSON file with a list of callbacks.", show_default=False)]

app = CommandGroup(help="List, explain, check and create callbacks and hooks.")


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List all callbacks and hooks that go by a name: built in, or installed by other packages."""
    with foreign_code():
        found = offers()
    if as_json:
        print_json(found)
        return
    listing = table("name", "kind", "from", "what it does", whole=("name", "kind", "from"))
    for offer in found:
        listing.add_row(offer.name, offer.kind, offer.source, _remark(offer), style="red" if offer.error else "")
    console().print(listing)
    print_footer("More about one: hookline hooks show NAME")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A registered name, or package.module:Class.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Explain one callback or hook: arguments, moments, and the options it can be added with."""
    _make_current_directory_importable()
    with foreign_code():
        description = describe(name)
    if as_json:
        print_json(description)
    else:
        _print_description(console(), description)


@app.command()
def check(file: File, *, as_json: AsJson = False) -> None:
    """Check a configuration file: every name, argument, option and order in it."""
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
    """Show who runs at each moment, in which order, how often and with which priority."""
    with _loaded(file) as collection:
        moments, placed = collection.plan(), {place.name: place for place in places(collection)}
    if as_json:
        print_json({"file": str(file), "moments": moments, "subscribers": list(placed.values())})
        return
    if not moments:
        console().print(f"{file}: nobody listens to any moment.", soft_wrap=True)
        return
    console().print(plan_table(moments, placed))


app.command("new")(new)


@contextmanager
def _loaded(file: Path) -> Iterator[CallbackCollection]:
    """The collection that a file describes, built from modules beside us too, and closed afterwards."""
    if file.suffix == ".py":
        raise ConfigError(
            f"{file}: this is Python, and a YAML or JSON file with a list of callbacks is wanted. "
            "A class is tested with hookline.testing.check_callback."
        )
    _make_current_directory_importable()
    with foreign_code():
        collection = load_callbacks(file)
        try:
            yield collection
        finally:
            collection.close()


def _make_current_directory_importable() -> None:
    """As ``python -m`` does, so that ``use: my_module:MyHook`` finds a module in the current directory."""
    here = str(Path.cwd())
    if sys.path[0] != here:
        sys.path.insert(0, here)


def _remark(offer: Offer) -> str:
    return f"ERROR: {offer.error}" if offer.error else offer.summary


def _print_description(out: Console, description: Description) -> None:
    out.print(description.name, style="bold")
    out.print(f"{description.kind} from {description.source}: {description.path}", soft_wrap=True)
    if said := plain(description.docstring):
        out.print(f"\n{said}")
    _print_arguments(out, description)
    _print_moments(out, description)
    options = ", ".join(f"{name}={default}" for name, default in description.options.items())
    out.print("\nOptions it can be added with, and their defaults", style="bold")
    out.print(indented(options))


def _print_arguments(out: Console, description: Description) -> None:
    if not description.arguments:
        out.print("\nNo arguments\n", style="bold")
        return
    out.print("\nArguments", style="bold")
    said = ("meaning",) if any(argument.meaning for argument in description.arguments) else ()
    listing = table("name", "type", "default", *said, whole=("name",))
    for argument in description.arguments:
        default = "required" if argument.required else argument.default or ""
        listing.add_row(argument.name, argument.type, default, *([argument.meaning] if said else []))
    out.print(listing)


def _print_moments(out: Console, description: Description) -> None:
    out.print("Moments", style="bold")
    if description.kind == "hook":
        out.print("  asked after each step (on_step_end)")
    elif not description.moments:
        out.print("  known once it is built")
    for name in description.moments if description.kind == "callback" else ():
        out.print(f"  {MOMENTS[name].signature()}", style="cyan")
        out.print(indented(first_sentence(MOMENTS[name].doc).replace("`", ""), 6))

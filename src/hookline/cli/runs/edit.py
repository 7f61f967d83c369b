"""``hookline runs edit``: changes the name, tags and notes of runs, and archives them."""

from pathlib import Path
from typing import Annotated

import typer

from hookline._record.terminal import one_line, plural
from hookline.cli.output import AsJson, console, print_json, wrong_input
from hookline.cli.runs.reference import Root, complete, locate
from hookline.store.edits import Change, edit_runs

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Ids, unique names or parts of an id, directories, or 'latest'.",
        show_default=False,
        autocompletion=complete,
    ),
]
Tags = Annotated[list[str] | None, typer.Option(metavar="TAG", help="Add a tag. May be repeated.", show_default=False)]
Untag = Annotated[
    list[str] | None, typer.Option(metavar="TAG", help="Remove a tag. May be repeated.", show_default=False)
]


def edit_command(
    given: Runs,
    *,
    root: Root = Path("runs"),
    name: Annotated[str | None, typer.Option(help="A new name; '' restores the recorded one.")] = None,
    notes: Annotated[str | None, typer.Option(help="New notes.")] = None,
    tag: Tags = None,
    untag: Untag = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--unarchive", help="Hide the runs in listings, or show them again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the name, tags or notes of runs, or archive them. Running ones can be edited as well.

    The changes are kept in edits.json beside the run's own files, which stay as they are. Archived runs are listed with
    --archived.
    """
    with wrong_input(as_json=as_json):
        change = Change(name, notes, tag or (), untag or (), archive)
        chosen = list(dict.fromkeys(locate(root, reference) for reference in given))
        after = edit_runs([place.directory for place in chosen], change)
        edited = {place.id: edits for place, edits in zip(chosen, after, strict=True)}
    if as_json:
        print_json({"runs": [{"id": run, "edits": edits} for run, edits in edited.items()]})
    else:
        console().print(f"Edited {plural(len(edited), 'run')}: {', '.join(map(one_line, edited))}", soft_wrap=True)

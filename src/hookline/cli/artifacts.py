"""``hookline artifacts``: lists, shows, copies and checks artifacts, names their versions, and frees unused space."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hookline._engine.errors import ArtifactError, ConfigError, HooklineError, OptionError
from hookline._record.artifact_versions import (
    ArtifactFolder,
    artifact_folders,
    parse_reference,
    remove_partial_manifests,
)
from hookline._record.artifacts import Artifact, artifact
from hookline._record.blobs import remove_unused_blobs
from hookline._record.terminal import one_line, plural
from hookline.cli.output import (
    AsJson,
    CommandGroup,
    console,
    print_facts,
    print_footer,
    print_json,
    relative_path,
    table,
    wrong_input,
)
from hookline.cli.runs.reference import Root
from hookline.cli.runs.text import bytes_text, clock_text, how_long
from hookline.server.storage.mirror import copied_store
from hookline.store.store import missing_root_error

app = CommandGroup(help="Inspect and manage artifacts: versioned sets of files.")


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """The artifacts and versions that begin with a prefix."""
    folders = artifact_folders(Path(ctx.params.get("root") or "runs"))
    versions = [
        f"{folder.id}:{version}"
        for folder in folders
        for version in (*folder.aliases(), *(f"v{number}" for number in folder.versions()))
    ]
    return [name for name in (*(folder.id for folder in folders), *versions) if name.startswith(incomplete)]


_HELP = "PROJECT/NAME, or NAME in the project 'default'; with :ALIAS or :v3 for a version, otherwise the latest."
Name = Annotated[str, typer.Argument(metavar="ARTIFACT", help=_HELP, show_default=False, autocompletion=complete)]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="[ARTIFACT]", help=_HELP, show_default=False, autocompletion=complete)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed without removing it.")]


@app.command("list")
def list_command(
    *,
    root: Root = Path("runs"),
    project: Annotated[str | None, typer.Option(help="Only artifacts of this project.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only artifacts of this kind.")] = None,
    as_json: AsJson = False,
) -> None:
    """List artifacts: their kind, versions, aliases, and the size and age of the latest version."""
    with wrong_input(as_json=as_json):
        found = [(folder, _latest(folder)) for folder in artifact_folders(_checked(root), project)]
    shown = [(folder, latest) for folder, latest in found if kind is None or (latest and latest.kind == kind)]
    if as_json:
        listed = [_summary(folder) | {"latest": latest and _document(latest)} for folder, latest in shown]
        print_json({"root": str(root.resolve()), "artifacts": listed})
        return
    if not shown:
        print_footer(f"There are no {'such ' if project or kind else ''}artifacts in {root.resolve()}.")
        return
    listing = table("artifact", "kind", "versions", "aliases", "files", "size", "saved", whole=("artifact",))
    for folder, latest in shown:
        facts = ("(damaged)", "", "", "")
        if latest is not None:
            size = f"{len(latest.files):,}", bytes_text(latest.size)
            facts = (one_line(latest.kind), *size, f"{how_long(time.time() - latest.time)} ago")
        aliases = ", ".join(f"{alias}=v{number}" for alias, number in folder.aliases().items())
        count = len(folder.versions())
        listing.add_row(one_line(folder.id), facts[0], f"{count:,}", one_line(aliases), *facts[1:])
    console().print(listing)


@app.command("show")
def show_command(name: Name, *, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Show a version: its files, metadata and aliases, and the runs that saved and used it."""
    with wrong_input(as_json=as_json):
        found = artifact(name, root=_checked(root))
    if as_json:
        print_json(_document(found) | _details(found))
        return
    out = console()
    out.print(one_line(found.id), style="bold", soft_wrap=True)
    facts: list[tuple[str, object]] = [
        ("kind", found.kind),
        ("aliases", ", ".join(found.aliases)),
        ("saved", clock_text(found.time)),
        ("files", f"{len(found.files):,}, {bytes_text(found.size)}"),
        ("digest", f"sha256:{found.digest}"),
        ("versions", ", ".join(f"v{number}" for number in found.folder.versions())),
    ]
    facts += [(f"{each.role} by", each.run) for each in found.runs]
    facts += [(f"metadata.{key}", str(value)) for key, value in found.metadata.items()]
    print_facts(out, facts)
    files = table("file", "size", "digest", whole=("digest",), numbers=("size",))
    for file in found.files:
        size = "-" if file.size is None else bytes_text(file.size)
        where = file.digest[:12] if not file.uri else f"{file.uri} {file.etag or file.sha256[:12]}".strip()
        files.add_row(one_line(file.path), size, one_line(where))
    out.print(files)


@app.command("get")
def get_command(
    name: Name,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIRECTORY]", help="A new or empty directory; by default artifacts/NAME-VERSION."),
    ] = None,
    *,
    root: Root = Path("runs"),
    references: Annotated[
        bool, typer.Option("--references", help="Also copy referenced files, which are skipped otherwise.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the files of a version into a directory, all or none. The digest of every file is checked."""
    with wrong_input(as_json=as_json):
        found = artifact(name, root=_checked(root))
        place = found.get(directory, references=references)
    left = [] if references else [file for file in found.files if file.uri]
    if as_json:
        print_json(_document(found) | {"directory": str(place), "left": [file.uri for file in left]})
        return
    count = len(found.files) - len(left)
    console().print(f"{one_line(found.id)}: {plural(count, 'file')} in {relative_path(place)}", soft_wrap=True)
    if left:
        were = "was" if len(left) == 1 else "were"
        print_footer(f"{plural(len(left), 'referenced file')} {were} not copied. To copy them: --references")


@app.command("verify")
def verify_command(name: OptionalName = None, *, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Read all files of a version, or of all versions of all artifacts. The exit status is 1 if any is damaged."""
    with wrong_input(as_json=as_json):
        chosen: list[tuple[ArtifactFolder, int]] = []
        if name is None:
            chosen = [(folder, number) for folder in artifact_folders(_checked(root)) for number in folder.versions()]
        else:
            found = parse_reference(name)
            folder = ArtifactFolder(_checked(root), found.project, found.name)
            chosen = [(folder, folder.resolve(found.version))]
    problems = {f"{folder.id}:v{number}": _problems(folder, number) for folder, number in chosen}
    if as_json:
        print_json([{"artifact": each, "ok": not found, "problems": found} for each, found in problems.items()])
    else:
        for each, found_problems in problems.items():
            state = "damaged" if found_problems else "ok"
            console().print(f"{one_line(each)}  {state}", style="red" if found_problems else "", soft_wrap=True)
            for problem in found_problems:
                console().print(f"  {one_line(problem)}", soft_wrap=True)
        if not problems:
            print_footer(f"There are no artifacts in {root.resolve()}.")
    if any(problems.values()):
        raise typer.Exit(1)


@app.command("tag")
def tag_command(
    name: Name,
    aliases: Annotated[list[str], typer.Argument(metavar="ALIAS...", help="E.g. best or production.")],
    *,
    root: Root = Path("runs"),
    remove: Annotated[bool, typer.Option("--remove", help="Remove the aliases instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Point aliases at a version. An alias of another version moves to this one."""
    with wrong_input(as_json=as_json):
        found = parse_reference(name)
        folder = ArtifactFolder(_changeable(root), found.project, found.name)
        number = folder.resolve(found.version)
        for alias in aliases:
            if remove:
                folder.remove_alias(alias)
            else:
                folder.set_alias(alias, number)
    if as_json:
        print_json(_summary(folder))
        return
    named = ", ".join(f"{alias}=v{number}" for alias, number in folder.aliases().items())
    console().print(f"{one_line(folder.id)}: {one_line(named)}", soft_wrap=True)


@app.command("delete")
def delete_command(
    name: Name,
    *,
    root: Root = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a version, its aliases, and those of its files that nothing else refers to."""
    with wrong_input(as_json=as_json):
        found = artifact(name, root=_changeable(root))
        if as_json and not yes:
            raise OptionError("--json cannot ask: give --yes with it.")
    if not yes and not typer.confirm(f"Delete {one_line(found.id)} ({bytes_text(found.size)}) permanently?"):
        raise typer.Exit(1)
    found.folder.delete(found.number)
    freed = remove_unused_blobs(found.root, {file.blob for file in found.files if file.blob})
    if as_json:
        print_json(_summary(found.folder) | {"deleted": found.version, "files": freed.blobs, "bytes": freed.bytes})
    else:
        console().print(f"Deleted {one_line(found.id)}: {bytes_text(freed.bytes)} freed.", soft_wrap=True)


@app.command("gc")
def gc_command(*, root: Root = Path("runs"), dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove stored files that no run and no artifact refers to. Safe while runs are being recorded."""
    with wrong_input(as_json=as_json):
        if not dry_run:
            remove_partial_manifests(_checked(root))
        removed = remove_unused_blobs(_checked(root), dry_run=dry_run)
    if as_json:
        print_json({"removed": not dry_run, "files": removed.blobs, "bytes": removed.bytes})
        return
    done = "would be removed" if dry_run else "removed"
    console().print(f"{plural(removed.blobs, 'file')} {done}, {bytes_text(removed.bytes)}.")


def _checked(root: Path) -> Path:
    if not root.is_dir():
        raise missing_root_error(root.resolve())
    return root.resolve()


def _changeable(root: Path) -> Path:
    checked = _checked(root)
    if copied_store(checked) is not None:
        raise ConfigError(
            f"--root {root} is a server's local copy of an object store, where artifacts cannot be changed yet. "
            "To set an alias, use `tag()` in the run that saved the version."
        )
    return checked


def _latest(folder: ArtifactFolder) -> Artifact | None:
    number = folder.latest()
    try:
        return None if number is None else Artifact(folder, number)
    except HooklineError:  # damaged; `verify` says how
        return None


def _problems(folder: ArtifactFolder, number: int) -> list[str]:
    try:
        return Artifact(folder, number).verify()
    except ArtifactError as error:
        return [str(error)]


def _summary(folder: ArtifactFolder) -> dict[str, Any]:
    versions = [f"v{number}" for number in folder.versions()]
    aliases = {alias: f"v{number}" for alias, number in folder.aliases().items()}
    return {"artifact": folder.id, "versions": versions, "aliases": aliases}


def _document(found: Artifact) -> dict[str, Any]:
    facts: dict[str, Any] = {"artifact": f"{found.project}/{found.name}", "version": found.version, "kind": found.kind}
    facts |= {"digest": found.digest, "time": found.time, "run": found.run, "step": found.step}
    return facts | {"aliases": found.aliases, "files": len(found.files), "bytes": found.size}


def _details(found: Artifact) -> dict[str, Any]:
    return {"metadata": found.metadata, "runs": found.runs, "content": list(found.files)}

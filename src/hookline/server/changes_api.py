"""Actions on runs: edit their names, tags and notes, archive them, and delete them.

Either all of the given runs are changed or none. Everything is checked before the first change; if the disk then fails,
the changes made so far are undone. Running runs can be edited, but not deleted.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hookline._engine.errors import ConfigError, OptionError
from hookline._record import run_directory
from hookline._record.terminal import plural
from hookline.server.actions import ACTION_PREFIX, ActionContext, ActionEndpoint, ActionRefusedError, ActionRequest
from hookline.store.edits import Change, blobs_of, edit_runs, remove_blobs, remove_runs, run_directory_of
from hookline.store.journal_files import regular_journal_files
from hookline.store.run_info import RunLocation, read_facts
from hookline.store.run_summary import Liveness, summarize

MAX_RUNS = 10_000
_Runs = Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]


class RunEdit(msgspec.Struct, forbid_unknown_fields=True):
    """A change of some runs; what is not given stays."""

    runs: _Runs
    name: str | None = None
    notes: str | None = None
    add_tags: list[str] = []
    remove_tags: list[str] = []
    archived: bool | None = None


class RunDeletion(msgspec.Struct, forbid_unknown_fields=True):
    """The runs to delete."""

    runs: _Runs


class EditedRuns(msgspec.Struct):
    """The runs that were edited."""

    runs: list[str]


class DeletedRuns(msgspec.Struct):
    """The runs that were deleted, and how many bytes of files that only they used were freed."""

    runs: list[str]
    freed_bytes: int


def _locations(context: ActionContext, request: ActionRequest) -> list[RunLocation]:
    runs = list(dict.fromkeys(request.body.runs))
    # Before anything is looked up: nothing shows whether a run of another project exists.
    context.check_projects(request.principal, [run.partition("/")[0] for run in runs])
    return [RunLocation(run.partition("/")[0], run_directory_of(context.root, run)) for run in runs]


def _edit(context: ActionContext, request: ActionRequest) -> EditedRuns:
    given: RunEdit = request.body
    change = Change(given.name, given.notes, given.add_tags, given.remove_tags, given.archived)
    if given.name is not None and len(given.runs) > 1:
        raise OptionError(f"One name is given for {len(given.runs)} runs: rename them one by one.")
    locations = _locations(context, request)
    try:
        edit_runs([location.directory for location in locations], change)
    except OSError as error:
        raise _unchanged(error) from error
    runs = [location.id for location in locations]
    context.record("run.edited", request, runs)
    return EditedRuns(runs)


def _delete(context: ActionContext, request: ActionRequest) -> DeletedRuns:
    locations = _locations(context, request)
    running = [location.id for location in locations if _is_active(location, context.liveness)]
    if running:
        which = ", ".join(running[:5]) + (f" and {len(running) - 5} more" if len(running) > 5 else "")
        raise ConfigError(f"{plural(len(running), 'run')} still running: {which}. Stop first; nothing was deleted.")
    directories = [location.directory for location in locations]
    used = blobs_of(directories)  # before they are deleted: afterwards nothing says which files they referred to
    try:
        remove_runs(context.root, directories)
    except OSError as error:
        raise _unchanged(error) from error
    runs = [location.id for location in locations]
    context.record("run.deleted", request, runs)
    return DeletedRuns(runs, remove_blobs(context.root, used))


def _is_active(location: RunLocation, liveness: Liveness) -> bool:
    """Whether a process, here or on the machine that sends it, still records or delivers a run."""
    facts, _ = read_facts(location.facts)
    status = liveness.status(summarize(regular_journal_files(location.journal)), location.directory, facts)
    return status in ("running", "stalled") or bool(run_directory.is_alive(location.directory))


def _unchanged(error: OSError) -> ActionRefusedError:
    return ActionRefusedError(f"{error.strerror or error}. Nothing was changed.")


ACTIONS: Sequence[ActionEndpoint] = (
    ActionEndpoint(f"{ACTION_PREFIX}edit_runs", "Edit runs: name, tags, notes, archived.", RunEdit, EditedRuns, _edit),
    ActionEndpoint(f"{ACTION_PREFIX}delete_runs", "Delete runs that are over.", RunDeletion, DeletedRuns, _delete),
)

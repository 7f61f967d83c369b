"""The action of annotating samples of a run: good, bad, and notes."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hookline.server.actions import ACTION_PREFIX, ActionContext, ActionEndpoint, ActionRefusedError, ActionRequest
from hookline.store.annotations import annotate
from hookline.store.edits import run_directory_of

MAX_SAMPLES = 10_000


class SampleAnnotation(msgspec.Struct, forbid_unknown_fields=True):
    """A change of what is said about a sample; what is not given stays, and an empty text removes it."""

    sample: str
    label: str | None = None
    note: str | None = None


class SampleAnnotations(msgspec.Struct, forbid_unknown_fields=True):
    """Changes of the annotations of a run."""

    run: str
    samples: Annotated[list[SampleAnnotation], msgspec.Meta(min_length=1, max_length=MAX_SAMPLES)]


class AnnotatedSamples(msgspec.Struct):
    """How many samples of a run were annotated."""

    run: str
    samples: int


def _annotate(context: ActionContext, request: ActionRequest) -> AnnotatedSamples:
    given: SampleAnnotations = request.body
    # Before anything is looked up: nothing shows whether a run of another project exists.
    context.check_projects(request.principal, [given.run.partition("/")[0]])
    directory = run_directory_of(context.root, given.run)
    try:
        annotate(directory, {each.sample: (each.label, each.note) for each in given.samples})
    except OSError as error:
        raise ActionRefusedError(f"{error.strerror or error}. Nothing was changed.") from error
    context.record("samples.annotated", request, [given.run])
    return AnnotatedSamples(given.run, len(given.samples))


ACTIONS: Sequence[ActionEndpoint] = (
    ActionEndpoint(
        f"{ACTION_PREFIX}annotate_samples",
        "Annotate samples of a run as good or bad, or with notes.",
        SampleAnnotations,
        AnnotatedSamples,
        _annotate,
    ),
)

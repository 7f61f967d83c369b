"""Runs for the tests of the commands, made as users make them."""

import contextlib
import json

import hookline as hl


def record(name="warm", losses=(3.0, 2.0, 1.0), *, error=None, **options):
    """The directory of a run that logged these losses, below ``runs``, and ended, with an error if one is given."""
    with contextlib.suppress(RuntimeError), hl.run(name, summary=False, **options) as run:
        for loss in run.steps(losses):
            run.log(loss=loss)
        if error:
            raise RuntimeError(error)
    return run.dir


def journal_file(directory):
    """The only journal file of a run."""
    (file,) = (directory / "journal").glob("*.jsonl")
    return file


def change_facts(directory, **facts):
    """Say something else about a run."""
    path = directory / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))

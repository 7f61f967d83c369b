"""Warns about bodies of ``run.steps`` whose own counts or iterators begin again after a resume.

A resume gives the body the batches behind those that are done. What the body counts itself, with `enumerate`, or takes
from an iterator of its own, with `next`, starts from the beginning, and the training would differ without an error.
"""

import gc
import io
import logging
from collections.abc import Iterator
from types import FrameType, GeneratorType
from typing import Any

logger = logging.getLogger("hookline")


def check_resumed_body(steps: Any, frame: FrameType | None, *, name: str, step: int, batch_idx: int) -> None:
    """Look at who asks for the first batch after a resume, once.

    Args:
        steps: The iterator that gives the batches.
        frame: That of the loop.
        name, step, batch_idx: The run, the completed steps, and the index of the batch in its epoch.
    """
    for counter in (each for each in gc.get_referrers(steps) if type(each) is enumerate):
        count = counter.__reduce__()[1][1]  # what the batch under way is numbered with
        if count not in (step, batch_idx):
            logger.warning(
                "%r is resumed after step %d, and enumerate(run.steps(...)) counts from %d again. "
                "Use run.step, or enumerate(run.steps(...), start=run.step).",
                *(name, step, count),
            )
    if frame is None or "next" not in frame.f_code.co_names:
        return
    own = [key for key, value in frame.f_locals.items() if _is_own_iterator(value, steps)]
    if own:
        logger.warning(
            "%r is resumed after step %d, and its loop calls next() on iterators of its own (%s), which begin again "
            "with their first item. Give the data to run.steps(...), which continues behind the batches that are done.",
            *(name, step, ", ".join(own)),
        )


def _is_own_iterator(value: Any, steps: Any) -> bool:
    if not isinstance(value, Iterator) or isinstance(value, io.IOBase) or value is steps:
        return False
    is_ours = isinstance(value, GeneratorType) and isinstance(steps, GeneratorType) and value.gi_code is steps.gi_code
    return not is_ours and steps not in gc.get_referents(value)

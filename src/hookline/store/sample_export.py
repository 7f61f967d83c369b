"""Samples as training data: JSON objects for supervised fine-tuning, and pairs for preference learning.

The formats are those of TRL, which other trainers read as well:

- ``sft``: ``{"messages": [...]}`` for a chat, ``{"prompt": ..., "completion": ...}`` for text.
- ``preference``: ``{"prompt": ..., "chosen": ..., "rejected": ...}``, one pair for each group of completions of one
  prompt: of those annotated ``good`` and ``bad``, or else of those with the highest and the lowest reward. A group
  without a difference has no pair.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hookline._engine.errors import OptionError, closest
from hookline.store.annotations import LABELS

FORMATS = ("sft", "preference")

Label = Mapping[tuple[str, str], str]
"""The label of samples by the run and their id."""


def export_rows(samples: Iterable[Mapping[str, Any]], format: str, labels: Label) -> Iterator[dict[str, Any]]:  # noqa: A002
    """Convert rows of `Runs.samples`.

    Args:
        format: ``sft`` or ``preference``.
        labels: The annotated samples.

    Raises:
        OptionError: There is no such format.
    """
    if format not in FORMATS:
        raise OptionError(f"format={format!r:.80} is not accepted. {closest(format, FORMATS)}")
    return _sft(samples, labels) if format == "sft" else _preference(samples, labels)


def _sft(samples: Iterable[Mapping[str, Any]], labels: Label) -> Iterator[dict[str, Any]]:
    for sample in samples:
        if labels.get((sample["run"], sample["id"])) == "bad":
            continue
        prompt, completion = _texts(sample)
        if isinstance(prompt, list) and isinstance(completion, list):
            yield {"messages": prompt + completion}
        else:
            yield {"prompt": prompt, "completion": completion}


def _preference(samples: Iterable[Mapping[str, Any]], labels: Label) -> Iterator[dict[str, Any]]:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for sample in samples:
        # Without a group, completions of the same prompt are compared; within one step in any case.
        key = (sample["run"], sample["axis"], sample["step"], sample["group"], sample["prompt"])
        groups.setdefault(key, []).append(sample)
    for members in groups.values():
        by_label = {
            name: [each for each in members if labels.get((each["run"], each["id"])) == name] for name in LABELS
        }
        scored = [each for each in members if each["reward"] is not None and not math.isnan(each["reward"])]
        scored.sort(key=lambda each: each["reward"])
        # A person's label counts more than a reward; one label is enough if rewards decide the other side.
        chosen = (by_label["good"] or [each for each in scored[-1:] if each not in by_label["bad"]])[:1]
        rejected = (by_label["bad"] or [each for each in scored[:1] if each not in by_label["good"]])[:1]
        if not chosen or not rejected or chosen == rejected:
            continue
        is_labelled = bool(by_label["good"] or by_label["bad"])
        if not is_labelled and chosen[0]["reward"] == rejected[0]["reward"]:
            continue
        prompt, better = _texts(chosen[0])
        _, worse = _texts(rejected[0])
        if better != worse:
            yield {"prompt": prompt, "chosen": better, "rejected": worse}


def _texts(sample: Mapping[str, Any]) -> tuple[Any, Any]:
    """The prompt and the completion: as messages if one of them was recorded as such, otherwise as text."""
    prompt, completion = _messages(sample["prompt_messages"]), _messages(sample["completion_messages"])
    if prompt is None and completion is None:
        return sample["prompt"], sample["completion"]
    return (
        prompt if prompt is not None else [{"role": "user", "content": sample["prompt"]}],
        completion if completion is not None else [{"role": "assistant", "content": sample["completion"]}],
    )


def _messages(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, list) else None

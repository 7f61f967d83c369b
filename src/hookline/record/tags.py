"""Tags, short words that a run is found by, and notes. They are checked before anything is recorded."""

from collections.abc import Iterable
from typing import Any

from hookline.core.errors import OptionError

MOST_TAGS = 32
LONGEST_TAG = 64


def checked_tags(given: Any) -> tuple[str, ...]:
    """Tags as they are kept: each once, in the order given.

    >>> checked_tags(["nightly", "lr-sweep", "nightly"])
    ('nightly', 'lr-sweep')

    Raises:
        OptionError: They are not a list of short texts.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise OptionError(f"tags={given!r:.200}: give a list of texts, e.g. tags=['nightly', 'lr-sweep'].")
    tags = list(given)
    for tag in tags:
        if not isinstance(tag, str) or not _is_tag(tag):
            raise OptionError(
                f"tags: {tag!r:.200} is none. Give texts of 1 to {LONGEST_TAG} characters on one line, without spaces "
                "at their ends, e.g. 'nightly'."
            )
    kept = tuple(dict.fromkeys(tags))
    if len(kept) > MOST_TAGS:
        raise OptionError(f"tags: {len(kept)} are given; at most {MOST_TAGS} are accepted.")
    return kept


def checked_notes(given: Any) -> str:
    """Notes as they are kept: any text.

    Raises:
        OptionError: They are no text.
    """
    if not isinstance(given, str):
        raise OptionError(f"notes={given!r:.200}: give a text.")
    return given


def _is_tag(text: str) -> bool:
    return 0 < len(text) <= LONGEST_TAG and text == text.strip() and text.isprintable()

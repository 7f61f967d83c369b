"""What runs and files of other machines may be called: each name is one plain component of a path, and nothing else.

Names of runs come from arms of experiments as well, so they may have spaces, ``=`` or letters of any language. They
may not have what could lead elsewhere or deceive whoever reads them: no separators, no control or invisible characters,
no dot at the beginning (so neither ``..`` nor the server's own hidden files), no second spelling of the same letters,
and nothing that stands for bytes which are no text.
"""

import re
import unicodedata

from hookline.core.errors import OptionError

LONGEST_NAME = 200
_MOST_BYTES = 255
_FILE = re.compile(r"(?P<name>[^-]{1,100})-[0-9]{1,9}-[0-9]{1,10}-[0-9a-z]{1,32}-[0-9]{1,6}\.jsonl")
WHOLE_FILES = ("git.diff", "result.json")
"""Files beside the journal that are sent whole, and replace what was there."""


def check_name(what: str, name: str) -> str:
    """The name of a project or of a run.

    Raises:
        OptionError: It is none that is accepted.
    """
    plain = name.isprintable() and not set(name) & set("/\\\ufffd") and unicodedata.is_normalized("NFC", name)
    short = 0 < len(name) <= LONGEST_NAME and len(name.encode("utf-8", "surrogatepass")) <= _MOST_BYTES
    if not (plain and short) or name[0] == "." or name != name.strip():
        raise OptionError(
            f"{what}={name!r:.80} is no name: give 1 to {LONGEST_NAME} letters, digits, '_', '-', '.', '=' and the "
            "like, without '/' and not beginning with '.'."
        )
    return name


def check_file(name: str) -> str:
    """The name of a file that can be received.

    Raises:
        OptionError: It is none of a journal.
    """
    found = _FILE.fullmatch(name)
    if name in WHOLE_FILES or (found and found["name"].isidentifier() and len(name.encode()) <= _MOST_BYTES):
        return name
    raise OptionError(
        f"file={name!r:.80} cannot be received: give a journal's, <name>-<session>-<pid>-<token>-<number>.jsonl, "
        f"or {' or '.join(WHOLE_FILES)}."
    )

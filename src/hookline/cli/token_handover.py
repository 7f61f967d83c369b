"""Keeps tokens out of the list of processes: a command that was given one begins anew without it.

The command line of a process can be read by everybody on the machine for as long as it runs. So the program is started
again in its place, with the same process id, and gets its tokens by a pipe that only it has. Until then, for a part of
a second, they could be seen: where that is too long, give them by the environment or a file.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import msgspec

from hookline.server.tokens import Given, check_token

WRITE_OPTION, READ_OPTION = "--token", "--read-token"
_PIPE = "_HOOKLINE_TOKEN_PIPE"


def handed_over(given: Given) -> Given:
    """The tokens that a command was given, once its command line has none; may not return, but begin anew.

    Raises:
        OptionError: One is no token.
    """
    if _PIPE in os.environ:
        return _received().or_else(given)
    for what, token in (("The write token", given.write), ("The read token", given.read)):
        if token is not None:
            check_token(what, token)
    if any(token and token in argument for token in (given.write, given.read) for argument in sys.orig_argv):
        _begin_anew(given)
    return given


def without_tokens(arguments: Sequence[str]) -> Iterator[str]:
    """A command line without the options that hold tokens."""
    rest = iter(arguments)
    for argument in rest:
        if argument in (WRITE_OPTION, READ_OPTION):
            next(rest, None)
        elif not argument.startswith((f"{WRITE_OPTION}=", f"{READ_OPTION}=")):
            yield argument


def _begin_anew(given: Given) -> None:
    reading, writing = os.pipe()
    os.write(writing, msgspec.json.encode([given.write, given.read]))  # two short texts: a pipe holds them
    os.close(writing)
    os.set_inheritable(reading, True)
    os.environ[_PIPE] = str(reading)
    os.execv(sys.executable, list(without_tokens(sys.orig_argv)))  # noqa: S606 - this program


def _received() -> Given:
    text = os.environ.pop(_PIPE)
    with contextlib.suppress(OSError, ValueError, msgspec.DecodeError), os.fdopen(int(text), "rb") as pipe:
        return Given(*msgspec.json.decode(pipe.read(), type=tuple[str | None, str | None]))
    return Given()

"""``hookline serve`` receives and shows runs of other machines; ``hookline ui`` shows recorded runs.

Every user of a machine can read the command lines of its processes. So a server that was given a token on its command
line replaces itself, with the same process id, by one without it, and passes the token through a pipe. For a fraction
of a second the token is visible: to avoid that, pass it by the environment or a file.
"""

import contextlib
import errno
import os
import re
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hookline._engine.defaults import ROOT_VARIABLE
from hookline._engine.errors import ConfigError, OptionError
from hookline._record.terminal import plural
from hookline.cli.output import AsJson, console
from hookline.server.received_blobs import BlobLimits
from hookline.server.root_tokens import (
    TOKENS_FILE,
    OptionalTokens,
    ResolvedTokens,
    check_token,
    resolve_tokens,
    tokens_from_environment,
    tokens_from_file,
)
from hookline.server.storage.objects import check_url
from hookline.server.storage.service import StorageOptions
from hookline.server.web_server import (
    WebServer,
    allowed_name,
    check_host,
    is_loopback,
    raise_descriptor_limit,
    shorten_pauses,
)
from hookline.store.run_summary import STALL_SECONDS

WRITE_OPTION, READ_OPTION = "--token", "--read-token"
_PIPE = "_HOOKLINE_TOKEN_PIPE"


def hide_tokens(given: OptionalTokens) -> OptionalTokens:
    """Return the given tokens; first replace this process if they are on its command line.

    Raises:
        OptionError: One of them is not a valid token.
    """
    if _PIPE in os.environ:
        return _read_pipe().or_else(given)
    for what, token in (("The write token", given.write), ("The read token", given.read)):
        if token is not None:
            check_token(what, token)
    if any(token and token in argument for token in (given.write, given.read) for argument in sys.orig_argv):
        reading, writing = os.pipe()
        os.write(writing, msgspec.json.encode([given.write, given.read]))  # short enough for the pipe's buffer
        os.close(writing)
        os.set_inheritable(reading, True)
        os.environ[_PIPE] = str(reading)
        os.execv(sys.executable, list(without_tokens(sys.orig_argv)))  # noqa: S606 - this program
    return given


def without_tokens(arguments: Sequence[str]) -> Iterator[str]:
    """A command line without the token options."""
    rest = iter(arguments)
    for argument in rest:
        if argument in (WRITE_OPTION, READ_OPTION):
            next(rest, None)
        elif not argument.startswith((f"{WRITE_OPTION}=", f"{READ_OPTION}=")):
            yield argument


def _read_pipe() -> OptionalTokens:
    text = os.environ.pop(_PIPE)
    with contextlib.suppress(OSError, ValueError, msgspec.DecodeError), os.fdopen(int(text), "rb") as pipe:
        return OptionalTokens(*msgspec.json.decode(pipe.read(), type=tuple[str | None, str | None]))
    return OptionalTokens()


PORT = 8765
_SIZE = re.compile(r"(?P<number>\d{1,15}(\.\d{1,3})?) ?(?P<prefix>[KMGTkmgt]?)(?P<binary>i?)[Bb]?")

DEFAULT_ROOT = Path("runs")
UiDirectory = Annotated[
    Path | None, typer.Argument(metavar="[RUNS]", help="The directory of the runs, as --root.", show_default=False)
]
UiRoot = Annotated[Path, typer.Option(envvar=ROOT_VARIABLE, help="The directory of the runs.")]
UiPort = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")]
UiHost = Annotated[str, typer.Option(help="The loopback address.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")]
Stall = Annotated[float, typer.Option(min=0.1, help="How long without progress until a run counts as stalled.")]
Alerts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Evaluate the rules of this file over the runs, and deliver alerts to its destinations.",
        show_default=False,
    ),
]
CompressAfter = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="DAYS",
        help="Compress the journals of runs that ended at least this many days ago; off by default.",
    ),
]


def ui(
    context: typer.Context,
    directory: UiDirectory = None,
    *,
    root: UiRoot = DEFAULT_ROOT,
    port: UiPort = PORT,
    host: UiHost = "127.0.0.1",
    open_page: Open = True,
    stall_seconds: Stall = STALL_SECONDS,
    compress_after: CompressAfter = None,
    alerts: Alerts = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Runs cannot be edited or deleted from the page.")
    ] = False,
) -> None:
    """Show recorded runs live in a browser on this machine. Ctrl-C ends it."""
    source = context.get_parameter_source("root")
    if directory is not None and source is not None and source.name == "COMMANDLINE":
        raise OptionError(f"{str(directory)!r} and --root {str(root)!r}: give the directory of the runs once.")
    root = directory or root
    raise_descriptor_limit()
    service = contextlib.nullcontext() if read_only and alerts is None else _alert_service(root, alerts)
    server = WebServer(
        root,
        host=host,
        port=port,
        stall_seconds=stall_seconds,
        compress_after_days=compress_after,
        read_only=read_only,
    )
    with server.stopped_by_interrupt(), service:
        out = console()
        out.print(f"{plural(server.run_count, 'run')} in {server.root} at {server.url}", soft_wrap=True)
        if server.note:
            out.print(server.note)
        if open_page:
            webbrowser.open(server.url)
        shorten_pauses()
        server.serve()


Root = Annotated[
    Path | None,
    typer.Argument(help="The directory of the runs, 'runs' by default; created if necessary.", show_default=False),
]
Host = Annotated[str, typer.Option(help="The address; 0.0.0.0 means every address of this machine.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")]
Token = Annotated[
    str | None,
    typer.Option(WRITE_OPTION, help="The token for sending runs. Better: HOOKLINE_WRITE_TOKEN, or a file."),
]
ReadToken = Annotated[
    str | None,
    typer.Option(READ_OPTION, help="The token for viewing runs. Better: HOOKLINE_READ_TOKEN, or a file."),
]
TokenFile = Annotated[
    Path | None, typer.Option(help='A file with {"write": "...", "read": "..."}, or with the write token alone.')
]
TokensOption = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        help="The file of the tokens with roles and projects, see hookline tokens; by default .hookline/tokens.json "
        "in the directory.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A host name of a proxy, with its port if necessary. May be repeated."),
]
MaxBlob = Annotated[str, typer.Option(help="The maximum size of one image or file, e.g. 500MB.")]
MaxRunBlobs = Annotated[str, typer.Option(help="The maximum size of all files that one run sends.")]
MaxBlobs = Annotated[str | None, typer.Option(help="The maximum size of all files of the server; no limit by default.")]
KeepFree = Annotated[str, typer.Option(help="Refuse images and files when less than this much disk space is free.")]
StorageUrl = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Keep the runs in an object store: s3://bucket/prefix, gs://, az:// or file:///dir. Several servers can "
        "share it.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        help="With --storage: the directory of this server's local copy, 'hookline-cache' by default.",
        show_default=False,
    ),
]
CacheBytes = Annotated[str, typer.Option(help="With --storage: the maximum size of the local copy.")]


def serve(
    root: Root = None,
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    read_token: ReadToken = None,
    token_file: TokenFile = None,
    tokens: TokensOption = None,
    allow_host: AllowHost = None,
    stall_seconds: Stall = STALL_SECONDS,
    max_blob: MaxBlob = "5GB",
    max_run_blobs: MaxRunBlobs = "100GB",
    max_blobs: MaxBlobs = None,
    keep_free: KeepFree = "1GB",
    compress_after: CompressAfter = None,
    alerts: Alerts = None,
    storage: StorageUrl = None,
    cache: Cache = None,
    cache_bytes: CacheBytes = "50GB",
    as_json: AsJson = False,
) -> None:
    """Receive runs from other machines, and show them live in a browser. Ctrl-C ends it.

    Sending needs the write token. Viewing needs the read token, unless only this machine can reach the server and no
    read token was given. Missing tokens are created, shown once, and kept in the directory for the next start. These
    two are for all projects; hookline tokens creates others, for some projects and roles.
    """
    given = hide_tokens(OptionalTokens(token, read_token)).or_else(tokens_from_environment(os.environ))
    given = given.or_else(tokens_from_file(token_file)) if token_file is not None else given
    blobs = BlobLimits(
        blob_bytes=parse_bytes("--max-blob", max_blob),
        run_bytes=parse_bytes("--max-run-blobs", max_run_blobs),
        total_bytes=None if max_blobs is None else parse_bytes("--max-blobs", max_blobs),
        free_bytes=parse_bytes("--keep-free", keep_free),
    )
    options = None
    if storage is not None:
        options = StorageOptions(storage, cache_bytes=parse_bytes("--cache-bytes", cache_bytes))
        check_storage(storage, has_root=root is not None, has_limit=max_blobs is not None)
        if given.write is None:
            raise OptionError(
                "--storage needs a write token that all servers share: give --token-file, or set HOOKLINE_WRITE_TOKEN. "
                "A token that is made here would be lost with the local copy."
            )
        root = cache or Path("hookline-cache")
    elif cache is not None:
        raise OptionError(f"--cache {cache}: only --storage has a local copy. Give the directory as an argument.")
    root = root or Path("runs")
    names = allow_host or []
    check_host(host)
    for name in names:
        allowed_name(name)
    _make_writable(root)
    settled = resolve_tokens(root, given, needs_read=bool(names) or not is_loopback(host))
    raise_descriptor_limit()
    service = _alert_service(root, alerts)
    server = WebServer(
        root,
        host=host,
        port=port,
        stall_seconds=stall_seconds,
        tokens=settled.tokens,
        allow_hosts=names,
        blobs=blobs,
        tokens_file=tokens,
        compress_after_days=compress_after,
        storage=options,
        # The local copy of an object store is kept up to date by the process that reads it.
        separate_queries=options is None,
    )
    facts = _facts(server, settled, _address(server.url, names))
    with server.stopped_by_interrupt(), service:
        if as_json:
            typer.echo(msgspec.json.encode(facts).decode())
        else:
            _print_facts(facts)
        shorten_pauses()
        server.serve()


def _alert_service(root: Path, alerts: Path | None) -> contextlib.AbstractContextManager[Any]:
    """What evaluates the rules of an alert file, and those of the page, while the server serves.

    Raises:
        ConfigError: Something in the file is not accepted.
    """
    from hookline.server.alerts import AlertService, AlertSettings, load_alerts

    return AlertService(root.resolve(), AlertSettings() if alerts is None else load_alerts(alerts))


def check_storage(url: str, *, has_root: bool, has_limit: bool) -> None:
    """Refuse options that an object store does not have.

    Raises:
        ConfigError: The URL is not accepted.
        OptionError: There are other options for a directory.
    """
    check_url(url)
    if has_root:
        raise OptionError("Both a directory and --storage are given: give one. --cache is for the local copy.")
    if has_limit:
        raise OptionError("--max-blobs does not apply to --storage: set a quota for the bucket.")


def parse_bytes(option: str, text: str) -> int:
    """Parse a size such as ``5GB``, ``500 MB``, ``5GiB`` or ``1000``.

    Raises:
        OptionError: It is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise OptionError(f"{option}={text!r}: give a number of bytes, or a size such as 500MB or 5GB.")
    power = " KMGT".index(found["prefix"].upper() or " ")
    return int(float(found["number"]) * (1024 if found["binary"] else 1000) ** power)


def _make_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{root} cannot be created: {error.strerror}. Give another directory.") from error
    try:
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # there may be space later
            raise ConfigError(
                f"{root} cannot be written: {error.strerror}. Give a writable directory; to only view "
                "runs, use: hookline ui"
            ) from error


def _facts(server: WebServer, settled: ResolvedTokens, address: str) -> dict[str, Any]:
    tokens = {"write": settled.tokens.write, "read": settled.tokens.read}
    return {
        "url": server.url,
        "root": str(server.root),
        "runs": server.run_count,
        "made": {name: tokens[name] for name in settled.created},
        "kept": list(settled.saved),
        "token_file": str(server.root / TOKENS_FILE) if settled.saved else None,
        "reading_needs_token": server.reading_needs_token,
        "sinks": sinks_line(address),
    }


def sinks_line(address: str) -> str:
    """The configuration line for a machine that trains."""
    return f'sinks: [{{hookline: {{url: "{address}", token: "${{HOOKLINE_TOKEN}}"}}}}]'


def _print_facts(facts: dict[str, Any]) -> None:
    out = console()
    out.print(f"{plural(facts['runs'], 'run')} in {facts['root']} at {facts['url']}", soft_wrap=True)
    out.print(f"Viewing needs {'a read token' if facts['reading_needs_token'] else 'no token on this machine'}.")
    if facts["made"]:
        out.print(f"These tokens are new and saved in {facts['token_file']}:", soft_wrap=True)
        for name, token in facts["made"].items():
            out.print(f"  {name:<5}  {token}", soft_wrap=True)
    for name in facts["kept"]:
        if name not in facts["made"]:
            out.print(f"The {name} token is the one in {facts['token_file']}.", soft_wrap=True)
    out.print("A machine that trains needs the write token in HOOKLINE_TOKEN, and in its configuration:")
    out.print(f"  {facts['sinks']}", soft_wrap=True)


def _address(url: str, names: list[str]) -> str:
    """The server's address for others: a proxy's name, over TLS, or this machine's."""
    if names:
        is_bare = names[0].count(":") > 1 and not names[0].startswith("[")
        return f"https://[{names[0]}]" if is_bare else f"https://{names[0]}"
    for anywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(anywhere, f"//{socket.gethostname()}:")
    return url.rstrip("/")

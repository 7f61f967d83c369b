"""The code of a run: the git commit, the changes against it, and, on request, untracked files; and writing them back.

`gather_code` calls ``git`` on the repository that holds the working directory, without taking its locks. The diff is
limited in size: a file whose changes do not fit is left out whole, so what is kept still applies, and the record names
it. Untracked files are kept only with ``code="all"``: never ignored ones, links, or files that usually hold secrets,
and up to a size for each and for all. Diff and text files are redacted.

`restore_code` trusts nothing that it reads, since a run may come from elsewhere: contents are compared with their
digests, no path leaves the target, no link is followed, and no existing file is replaced.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
import selectors
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypeAlias

from hookline._engine.errors import HooklineError, OptionError
from hookline._record.blobs import BlobError, read_blob
from hookline._record.redaction import FAILED, Redactor

Code: TypeAlias = Literal["diff", "all", "none"]
CODES = ("diff", "all", "none")
DIFF = "git.diff"
"""The file of a run's directory with the changes of its latest session, for people and for copies of the directory."""
GIT_SECONDS = 60.0
_MAX_LISTED = 100
_PAUSE_SECONDS = 0.002
_POLL_SECONDS = 0.02
_LISTING_BYTES = 4 << 20
_SECRET_FILES = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", ".pypirc", ".npmrc", ".git-credentials", "credentials", "credentials.*", ".htpasswd"),
)
_SECTION = re.compile(rb"^diff --git ", re.MULTILINE)
_SECTION_PATH = re.compile(rb'diff --git "?a/(.*?)"? "?b/')
_USER_INFO = re.compile(r"(?<=://)[^/@]*@")


class GitError(HooklineError):
    """A git command failed, or took too long."""


class RestoreError(HooklineError):
    """The code of a run cannot be restored."""


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """How much of a run's code is kept.

    Attributes:
        diff_bytes: The size of the diff.
        file_bytes: The size of an untracked file.
        total_bytes: The size of all untracked files.
        files: How many untracked files.
    """

    diff_bytes: int = 1 << 20
    file_bytes: int = 1 << 20
    total_bytes: int = 32 << 20
    files: int = 1000


_MAX_DIFF_READ = 64 << 20
"""A larger diff is not read: anyone may have sent it."""


def checked_code(code: Any) -> Code:
    """Return what is kept of the code; False means "none".

    Raises:
        OptionError: It is something else.
    """
    if code is False:
        return "none"
    if code not in CODES:
        raise OptionError(f"code={code!r}: give 'diff', 'all' (with untracked files) or 'none'.")
    return code  # type: ignore[no-any-return]


def head_commit(directory: Path) -> str | None:
    """Return the commit of the repository that holds a directory, from git's files: a process would take too long."""
    with contextlib.suppress(OSError, ValueError):
        for folder in (directory, *directory.parents):
            place = folder / ".git"
            if place.is_file():  # a worktree or a submodule
                place = (folder / place.read_text("utf-8").strip().removeprefix("gitdir:").strip()).resolve()
            if not place.is_dir():
                continue
            head = (place / "HEAD").read_text("utf-8").strip()
            if not head.startswith("ref:"):
                return head if re.fullmatch("[0-9a-f]{40,64}", head) else None
            return _commit_of(place, head.removeprefix("ref:").strip())
    return None


def _commit_of(place: Path, reference: str) -> str | None:
    common = place
    with contextlib.suppress(OSError):
        common = (place / (place / "commondir").read_text("utf-8").strip()).resolve()
    with contextlib.suppress(OSError):
        return (common / reference).read_text("utf-8").strip() or None
    with contextlib.suppress(OSError):
        for line in (common / "packed-refs").read_text("utf-8").splitlines():
            commit, _, name = line.partition(" ")
            if name == reference:
                return commit
    return None


def gather_code(
    directory: Path,
    *,
    code: Code,
    limits: CodeLimits,
    redactor: Redactor,
    add: Callable[[bytes], dict[str, Any]],
    run: Path | None = None,
) -> tuple[dict[str, Any], bytes]:
    """Return the facts about the code in a directory, and the diff; empty outside of a repository.

    Args:
        add: Stores a content, and returns the fields that refer to it.
        run: The run's directory: files below its root are not code.
    """
    try:
        top = Path(os.fsdecode(_git(directory, "rev-parse", "--show-toplevel")[0].rstrip(b"\n")))
        commit, _, branch = _line(top, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").partition("\n")
    except (GitError, OSError):
        return {}, b""
    facts: dict[str, Any] = {"commit": commit or None, "branch": branch}
    if remote := _remote(top):
        facts["remote"] = remote
    with contextlib.suppress(ValueError):
        facts["directory"] = directory.resolve().relative_to(top.resolve()).as_posix()
    diff = b""
    if code != "none":
        try:
            diff = _add_diff(facts, top, limits, redactor, add) if facts["commit"] else b""
            _add_untracked(facts, top, code, limits, redactor, add, run)
        except (GitError, OSError) as error:
            facts["problem"] = str(error)
    return redactor.values(facts), diff


def _add_diff(
    facts: dict[str, Any], top: Path, limits: CodeLimits, redactor: Redactor, add: Callable[[bytes], dict[str, Any]]
) -> bytes:
    options = (
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=dirty",
        "--src-prefix=a/",
        "--dst-prefix=b/",
    )
    content, is_cut = _git(top, "diff", "HEAD", *options, limit=16 * limits.diff_bytes)
    facts["changed"] = bool(content)
    kept, left_out, room = [], [], limits.diff_bytes
    sections = split_diff(content)
    for index, section in enumerate(sections):
        if len(section) <= room and not (is_cut and index == len(sections) - 1):
            kept.append(section)
            room -= len(section)
        else:
            left_out.append(_section_path(section))
    if not content:
        return b""
    redacted, is_changed = [], False
    for section in kept:
        text = redactor(original := section.decode("utf-8", "surrogateescape"))
        if text == FAILED:
            left_out.append(f"{_section_path(section)}, since redact= failed")
        else:
            redacted.append(text.encode("utf-8", "surrogateescape"))
            is_changed = is_changed or text != original
        # A search in a long text keeps the interpreter from the training, which starts at this moment.
        time.sleep(_PAUSE_SECONDS)
    diff = b"".join(redacted)
    facts["diff"] = add(diff) if diff else {}
    if is_changed:
        facts["diff"]["redacted"] = True
    if left_out or is_cut:
        facts["diff"] |= {"left_out": left_out[:_MAX_LISTED], "left_out_count": len(left_out)}
        facts["diff"] |= {"is_cut": True} if is_cut else {}
    return diff


def _section_path(section: bytes) -> str:
    found = _SECTION_PATH.match(section)
    return os.fsdecode(found[1]) if found else "?"


def split_diff(content: bytes) -> list[bytes]:
    """Split a diff into the parts of its files."""
    starts = [match.start() for match in _SECTION.finditer(content)]
    return [content[first:last] for first, last in pairwise([*starts, len(content)])]


def _add_untracked(
    facts: dict[str, Any],
    top: Path,
    code: Code,
    limits: CodeLimits,
    redactor: Redactor,
    add: Callable[[bytes], dict[str, Any]],
    run: Path | None,
) -> None:
    listed, is_cut = _git(
        top, "ls-files", "--others", "--exclude-standard", "-z", *_exclude(top, run), limit=_LISTING_BYTES
    )
    names = [os.fsdecode(name) for name in listed.split(b"\0")[:-1]]
    facts["untracked"] = len(names)
    if is_cut:
        facts["untracked_is_cut"] = True
    if code != "all":
        return
    files: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    room = limits.total_bytes
    # The smallest first: one large file must not push out the many small ones that code consists of.
    for name, found in sorted(_stats(top, names), key=lambda item: (item[1].st_size, item[0])):
        reason = _reason_to_leave_out(name, found, limits, room, len(files))
        content = b"" if reason else _content(top / name, limits.file_bytes)
        if content is None:
            reason = "could not be read"
        if not reason and content is not None:
            redacted = _redacted(content, redactor)
            if redacted is None:
                reason = "redact= failed"
            else:
                room -= len(redacted)
                files.append({"path": name, **add(redacted), "executable": bool(found.st_mode & 0o100)})
                if redacted != content:
                    files[-1]["redacted"] = True
        if reason:
            left_out.append({"path": name, "reason": reason})
    facts["files"] = sorted(files, key=lambda file: str(file["path"]))
    if left_out:
        facts |= {"files_left_out": left_out[:_MAX_LISTED], "files_left_out_count": len(left_out)}


def _stats(top: Path, names: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    for name in names:
        with contextlib.suppress(OSError):
            yield name, (top / name).lstat()


def _reason_to_leave_out(name: str, found: os.stat_result, limits: CodeLimits, room: int, count: int) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if any(fnmatch.fnmatchcase(PurePosixPath(name).name.lower(), pattern) for pattern in _SECRET_FILES):
        return "may hold secrets"
    if found.st_size > limits.file_bytes:
        return f"larger than {limits.file_bytes} bytes"
    return "no room" if found.st_size > room or count >= limits.files else ""


def _content(path: Path, limit: int) -> bytes | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(limit + 1)
    except OSError:
        return None
    return content if len(content) <= limit else None


def _redacted(content: bytes, redactor: Redactor) -> bytes | None:
    """Redact a file if it is a text; None if that failed."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    if "\0" in text:
        return content
    redacted = redactor(text)
    return None if redacted == FAILED else redacted.encode("utf-8", "surrogateescape")


def _exclude(top: Path, run: Path | None) -> list[str]:
    """Return the option that leaves out the root of a run's directory, which is often in the repository."""
    if run is None:
        return []
    try:
        root = run.resolve().parent.parent.relative_to(top.resolve()).as_posix()
    except ValueError:
        return []
    escaped = re.sub(r"([*?\[\]!# \\])", r"\\\1", root)
    return [] if root == "." else [f"--exclude=/{escaped}/"]


def _remote(top: Path) -> str:
    """Return the address of ``origin``, or of the first remote, without credentials."""
    found: dict[str, str] = {}
    for line in _line(top, "config", "--get-regexp", r"^remote\..*\.url$").splitlines():
        name, _, url = line.partition(" ")
        found[name] = _USER_INFO.sub("", url)
    return found.get("remote.origin.url") or next(iter(found.values()), "")


def _line(directory: Path, *arguments: str) -> str:
    try:
        return _git(directory, *arguments)[0].decode("utf-8", "replace").strip()
    except GitError:
        return ""


def _git(directory: Path, *arguments: str, limit: int = 1 << 20, given: bytes | None = None) -> tuple[bytes, bool]:
    """Return the output of a git command, and whether it is cut."""
    settings = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-c", "diff.noprefix=false")
    # Without its locks: a status that this process takes must not make a command of the user fail.
    variables = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = run_program(
            ["git", "-C", str(directory), *settings, *arguments],
            # With a limit: git may hang on a network file system.
            seconds=GIT_SECONDS,
            limit=limit,
            variables=variables,
            given=given,
        )
    except OSError as error:
        raise GitError(f"git cannot be started: {error}") from error
    if done.status and not done.is_cut:
        shown = done.output.decode("utf-8", "replace").strip() if given is not None else ""
        raise GitError(f"git {arguments[0]} failed{f': {shown}' if shown else ''}.")
    return done.output, done.is_cut


class ProgramResult(NamedTuple):
    """How a program ended; ``is_cut`` says that it wrote more than ``output``, and was killed for that."""

    status: int
    output: bytes
    is_cut: bool


def run_program(
    command: Sequence[str],
    *,
    seconds: float,
    limit: int = 1 << 20,
    variables: Mapping[str, str] | None = None,
    given: bytes | None = None,
) -> ProgramResult:
    """Run a program to its end while the training goes on beside it, and return what it wrote.

    The training may fork at any moment, as data loaders do. A child inherits the pipes that are open just then, and
    keeps them open for as long as it lives. So nothing here waits for the end of a pipe: the output is complete when
    the program has ended.

    Args:
        seconds: The program is killed after this time.
        limit: The program is killed when it has written more bytes than this.
        variables: Added to the environment.
        given: Its standard input; its standard error is then part of the output.

    Raises:
        OSError: The program cannot be started.
    """
    path = shutil.which(command[0])
    if path is None:
        raise FileNotFoundError(f"{command[0]} is not installed")
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        stdin: Any = subprocess.DEVNULL
        if given is not None:
            stdin = stack.enter_context(tempfile.TemporaryFile())
            stdin.write(given)
            stdin.seek(0)
        # A path, no directory and close_fds=False let Popen use posix_spawn; otherwise it waits for the end of a pipe
        # of its own. The descriptors that Python opens are not inherited anyway.
        process = subprocess.Popen(  # noqa: S603 - of this package
            [path, *command[1:]],
            env=None if variables is None else os.environ | variables,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if given is None else subprocess.STDOUT,
            close_fds=False,
        )
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        stack.callback(process.wait)
        try:
            output = _read_output(process, process.stdout.fileno(), limit, deadline)
            if len(output) > limit:
                process.kill()
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            output = b""
        finally:
            process.kill()  # does nothing to a program that has ended
    return ProgramResult(process.returncode, output[:limit], len(output) > limit)


def _read_output(process: "subprocess.Popen[bytes]", pipe: int, limit: int, deadline: float) -> bytes:
    output = bytearray()
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(output) <= limit:
            has_ended = process.poll() is not None
            try:
                part = os.read(pipe, 1 << 16)
            except BlockingIOError:
                if has_ended:  # a forked child holds the pipe open
                    break
                if time.monotonic() >= deadline:
                    raise subprocess.TimeoutExpired(process.args, 0) from None
                selector.select(_POLL_SECONDS)
                continue
            if not part:
                break
            output += part
    return bytes(output)


@dataclass(slots=True)
class Restored:
    """The result of `restore_code`.

    Attributes:
        is_applied: Whether the diff was applied; otherwise it is in ``git.diff``, if there is one.
        written: The files that were written.
        left_out: What was not restored, and why.
    """

    is_applied: bool = False
    written: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read_diff(run_dir: Path, git: Mapping[str, Any]) -> bytes:
    """Return the diff that the facts about a run's code refer to; empty if there is none.

    Raises:
        BlobError: It is missing or damaged.
    """
    diff = git.get("diff")
    digest = diff.get("blob") if isinstance(diff, dict) else None
    if isinstance(digest, str):
        try:
            return read_blob(run_dir, digest, max_bytes=_MAX_DIFF_READ)
        except BlobError:
            # A copied directory without its blobs still has the file.
            content = _regular_content(run_dir / DIFF)
            if hashlib.sha256(content).hexdigest() == digest:
                return content
            raise
    # A run of version 0.1 has the file alone.
    return _regular_content(run_dir / DIFF) if git.get("changed") and diff is None else b""


def _regular_content(path: Path) -> bytes:
    return _content(path, _MAX_DIFF_READ) or b""


def restore_code(run_dir: Path, git: Mapping[str, Any], target: Path) -> Restored:
    """Write the code of a run back: into a clean checkout of its commit, or into a new directory.

    In a checkout the diff is applied. In a directory that is new or empty it is written to ``git.diff``.

    Raises:
        RestoreError: The target is neither; nothing was written. Or the diff does not apply.
        BlobError: A part of the code is missing or damaged.
    """
    restored = Restored()
    diff = read_diff(run_dir, git)
    listed = git.get("files")
    files = [_checked_file(file, restored) for file in listed] if isinstance(listed, list) else []
    contents = [(file, read_blob(run_dir, file["blob"])) for file in files if file is not None]
    if (target / ".git").exists():
        _require_clean(target, git.get("commit"))
        kept = [section for section in split_diff(diff) if b"\nBinary files " not in section]
        if len(kept) < len(split_diff(diff)):
            restored.left_out.append("changes of binary files, which a diff does not hold")
        if kept:
            try:
                # git itself refuses paths outside of the checkout, and those behind links.
                _git(target, "apply", "--whitespace=nowarn", "-", given=b"".join(kept))
            except GitError as error:
                raise RestoreError(f"The changes do not apply to {target}: {error}") from error
            restored.is_applied = True
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RestoreError(
            f"{target} is neither a git checkout nor empty. Give a new directory, or a checkout of {git.get('commit')}."
        )
    else:
        target.mkdir(parents=True, exist_ok=True)
        if diff:
            (target / DIFF).write_bytes(diff)
            restored.written.append(DIFF)
    for file, content in contents:
        try:
            _write_below(target, file["path"], content, executable=bool(file.get("executable")))
            restored.written.append(file["path"])
        except OSError as error:
            restored.left_out.append(f"{file['path']}: {error.strerror}")
    return restored


def _checked_file(file: Any, restored: Restored) -> dict[str, Any] | None:
    path = file.get("path") if isinstance(file, dict) else None
    if not isinstance(path, str) or not isinstance(file.get("blob"), str):
        restored.left_out.append("an entry that is not a file")
        return None
    parts = PurePosixPath(path).parts
    is_inside = parts and not path.startswith("/") and ".." not in parts and "\0" not in path
    if not is_inside or any(part.lower() == ".git" for part in parts):
        restored.left_out.append(f"{path!r}: its path leads out of the directory")
        return None
    return dict(file)


def _require_clean(target: Path, commit: Any) -> None:
    here = _line(target, "rev-parse", "HEAD")
    if not isinstance(commit, str) or here != commit:
        raise RestoreError(f"{target} is at commit {here or '(none)'}, the run at {commit}. Check that one out first.")
    if _git(target, "diff", "HEAD", "--name-only")[0]:
        raise RestoreError(f"{target} has local changes. Commit or stash them, or give another checkout.")


def _write_below(root: Path, path: str, content: bytes, *, executable: bool) -> None:
    """Write a new file below a directory without following a link."""
    *folders, name = PurePosixPath(path).parts
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(each, dir_fd=folder)
            inner = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o755 if executable else 0o644, dir_fd=folder), "wb") as file:
            file.write(content)
    finally:
        os.close(folder)

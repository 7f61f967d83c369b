"""The environment of a run: command, Python, packages, hardware, container, scheduler ids, and the code.

Gathered on a thread of its own, because ``git`` and ``nvidia-smi`` may take seconds, and written to
``environment.json`` in the run's directory: ``{"sessions": [...]}``, with one entry for each session, since a resumed
run may have other code and packages. A file and not a record, because it has no place among the rows: it comes whenever
it is complete. The diff and the untracked files are blobs that it refers to (`hookline._record.source_code`).

That is rank zero's. Each other rank records an event with what differs there: the host, Python, the variables, the
packages; and on another host, by one rank of it, the hardware. What it compares itself with comes with the broadcast in
which it learns of the run's directory, so nothing waits for it.

Guarantees:

- No CUDA context is created, and torch is not imported.
- Of the environment's variables only those in `VARIABLES` are recorded. Every text is redacted.
- The end of a run waits at most `WAIT_SECONDS`; what is not there by then is left out, and that is logged.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hookline._record import run_directory
from hookline._record.blobs import BlobBatch, run_blob_store
from hookline._record.files import write_atomically
from hookline._record.reader import JOURNAL, read_lines
from hookline._record.records import RANK_ENVIRONMENT, Event, clean, decode
from hookline._record.redaction import Redactor
from hookline._record.segment import JournalFile, journal_files
from hookline._record.source_code import DIFF, Code, CodeLimits, gather_code, run_program

logger = logging.getLogger("hookline")

ENVIRONMENT = "environment.json"
MAX_SESSIONS = 20
"""How many sessions are kept: the first, and the latest ones."""
MAX_BYTES = 16 << 20
WAIT_SECONDS = 10.0
COMMAND_SECONDS = 20.0
MAX_PACKAGES = 5000
MAX_RANKS = 256
"""How many ranks' environments are read."""
MAX_ARGUMENT = 4096
VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NODELIST"),
    *(
        "SLURM_JOB_PARTITION",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_RESTART_COUNT",
        "SLURM_CLUSTER_NAME",
    ),
    *("PBS_JOBID", "PBS_JOBNAME", "LSB_JOBID", "LSB_JOBNAME", "JOB_ID", "CONDOR_JOB_ID", "FLUX_JOB_ID"),
    *("POD_NAME", "POD_NAMESPACE", "POD_UID", "NODE_NAME", "JOB_COMPLETION_INDEX", "JOB_NAME"),
    *("RAY_JOB_ID", "RAY_JOB_NAME", "RAY_SUBMISSION_ID", "RAY_CLUSTER_NAME"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "GROUP_RANK", "ROLE_RANK"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"),
    *("AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ATTEMPT", "TRAINING_JOB_NAME", "CLOUD_ML_JOB_ID", "SKYPILOT_TASK_ID"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TPU_NAME", "TPU_WORKER_ID"),
    *("OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "XLA_FLAGS", "PYTHONHASHSEED"),
    *("CONDA_DEFAULT_ENV", "VIRTUAL_ENV"),
)
"""The variables that are recorded: ids of jobs and processes, and what changes how a training computes."""

_CONTAINER_ID = re.compile(r"(?:docker|containers|libpod|kubepods|crio|containerd)[^\s]*?([0-9a-f]{64})")
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DIST_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?(?:-[\w.]+)?\.(?:dist|egg)-info")


class Environment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The environment of one session.

    Attributes:
        time: When the session started.
        packages: All installed distributions, as ``name==version``.
        variables: Variables of the environment, of those in `VARIABLES`.
        git: The code: ``commit``, ``branch``, ``remote``, ``changed``, ``diff``, ``files``, and what was left out.
    """

    time: float = 0.0
    directory: str = ""
    command: list[str] = []
    python: dict[str, Any] = {}
    host: dict[str, Any] = {}
    hardware: dict[str, Any] = {}
    container: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    packages: list[str] = []
    packages_left_out: int = 0
    git: dict[str, Any] = {}


class RankEnvironment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The differences of a rank's environment from that of rank zero; see `Environment`.

    Attributes:
        host: The name of its host, always.
        hardware: On another host than rank zero's, from one rank of it.
        packages: All of them, if one differs.
    """

    rank: int
    time: float
    host: str = ""
    python: str = ""
    hardware: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    packages: list[str] = []


class EnvironmentGathering:
    """Gathers the environment of a session and writes it, on a thread of its own.

    Args:
        directory: The run's directory.
        redactor: Redacts all texts.
        code: How much of the code is recorded.
        limits: How much of it.
    """

    def __init__(
        self, directory: Path, redactor: Redactor, *, code: Code = "diff", limits: CodeLimits | None = None
    ) -> None:
        self._directory, self._redactor, self._code = directory, redactor, code
        self._limits = CodeLimits() if limits is None else limits
        # Read now: the program may change its working directory.
        self._started, self._cwd = time.time(), Path.cwd()
        self._lock = threading.Lock()
        self._has_ended = False  # another process may have the run's directory from now on
        self._thread = threading.Thread(target=self._run, name="hookline-environment", daemon=True)

    def start(self) -> None:
        """Start gathering."""
        with contextlib.suppress(RuntimeError):  # no more threads: the run does without
            self._thread.start()

    def finish(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until it is written, for a bounded time; nothing is written after this."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        # The lock is held while the files are written, for milliseconds.
        with self._lock:
            self._has_ended = True
        if seconds and self._thread.is_alive():
            logger.warning("The environment of %s took too long to gather: it is not recorded.", self._directory.name)

    def _run(self) -> None:
        try:
            self._gather()
        except Exception as error:  # a fault here must not reach the training
            logger.warning("The environment of %s cannot be recorded: %s", self._directory, error)
            logger.debug("The environment of %s", self._directory, exc_info=True)

    def _gather(self) -> None:
        facts = gather_environment(self._redactor)
        with contextlib.ExitStack() as stack:
            blobs: BlobBatch | None = None

            def add(content: bytes) -> dict[str, Any]:
                nonlocal blobs
                if blobs is None:  # most runs have no changes, and need no lock
                    blobs = stack.enter_context(run_blob_store(self._directory).writing())
                info = blobs.add(content)
                return {"blob": info.digest, "size": info.size}

            git, diff = gather_code(
                self._cwd, code=self._code, limits=self._limits, redactor=self._redactor, add=add, run=self._directory
            )
            if blobs is not None:
                blobs.commit()
            with self._lock:
                if not self._has_ended:
                    # Still in the block: a collection of unused blobs waits until the file refers to them.
                    place = self._redactor(str(self._cwd))
                    self._write(Environment(time=self._started, directory=place, git=git, **clean(facts)), diff)

    def _write(self, environment: Environment, diff: bytes) -> None:
        sessions = [*read_environments(self._directory), environment]
        if diff:
            write_atomically(self._directory / DIFF, diff)
        # The small facts are in ``run.json`` too, where lists find them. It describes the first session of a run.
        known, git = run_directory.read_metadata(self._directory), environment.git
        small = {name: git[name] for name in ("commit", "branch", "remote", "changed") if name in git}
        if len(sessions) == 1 and small:
            run_directory.update(self._directory, "git", small)
        if "packages" not in known:
            run_directory.update(self._directory, "packages", loaded_packages())
        # Last: the sink that sends a run to a server looks for this one.
        write_environments(self._directory, sessions)


class RankEnvironmentGathering(EnvironmentGathering):
    """Gathers what differs on another rank than zero, and records it, on a thread of its own.

    Args:
        directory: The run's directory.
        redactor: Redacts all texts.
        shared: Rank zero's `shared_facts`.
        record: Records an event: ``record(name, **data)``.
    """

    def __init__(
        self, directory: Path, redactor: Redactor, shared: dict[str, Any], record: Callable[..., None]
    ) -> None:
        super().__init__(directory, redactor, code="none")
        self._shared, self._record = shared, record

    def _gather(self) -> None:
        facts = rank_facts(self._shared, self._redactor)
        with self._lock:
            if not self._has_ended:
                self._record(RANK_ENVIRONMENT, **clean(facts))


def shared_facts() -> dict[str, Any]:
    """Return the facts that other ranks are compared with; takes milliseconds."""
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "variables": _variables(),
        "packages": _digest(installed_packages()),
    }


def rank_facts(shared: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Return the differences from rank zero's facts, and the name of this host."""
    own = shared_facts()
    facts: dict[str, Any] = {"host": own["host"]}
    if own["python"] != shared["python"]:
        facts["python"] = own["python"]
    if variables := {name: value for name, value in own["variables"].items() if shared["variables"].get(name) != value}:
        facts["variables"] = variables
    if own["packages"] != shared["packages"]:
        facts["packages"] = installed_packages()[:MAX_PACKAGES]
    # Once per host: gathering it starts programs.
    if own["host"] != shared["host"] and os.environ.get("LOCAL_RANK", "0") == "0":
        facts["hardware"] = hardware()
    redacted: dict[str, Any] = redactor.values(facts)
    return redacted


def _digest(packages: list[str]) -> str:
    return hashlib.sha256("\n".join(packages).encode()).hexdigest()


def _variables() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}


def read_rank_environments(directory: Path) -> list[RankEnvironment]:
    """Return what differs on other ranks than zero, of each in its latest session; empty where nothing was recorded.

    Only the first file of a rank's journal is read. It may come from elsewhere: what is not valid is left out.
    """
    folder = directory / JOURNAL
    first: dict[str, JournalFile] = {}
    for file in [] if folder.is_symlink() else journal_files(folder):
        if file.name.removeprefix("rank").isdecimal() and file.number == 0 and not file.path.is_symlink():
            first[file.name] = file  # by session: the latest counts
    found = [
        each
        for file in list(first.values())[:MAX_RANKS]
        if (each := _rank_environment(file.path, int(file.name.removeprefix("rank")[:9]))) is not None
    ]
    return sorted(found, key=lambda each: each.rank)


def _rank_environment(path: Path, rank: int) -> RankEnvironment | None:
    with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        # Most lines are rows of metrics: a search for bytes finds the event without decoding them.
        for line, _ in read_lines(path):
            if b'"name":"environment"' in line:
                record = decode(line)
                if isinstance(record, Event) and record.name == RANK_ENVIRONMENT:
                    return msgspec.convert({**record.data, "rank": rank, "time": record.time}, RankEnvironment)
    return None


def write_environments(directory: Path, sessions: list[Environment]) -> None:
    """Write the environments of a run's sessions, the latest last; of many, the first and the latest."""
    if len(sessions) > MAX_SESSIONS:
        sessions = [sessions[0], *sessions[1 - MAX_SESSIONS :]]
    content = msgspec.json.format(msgspec.json.encode({"sessions": sessions}), indent=1)
    write_atomically(directory / ENVIRONMENT, content + b"\n")


def read_environments(directory: Path) -> list[Environment]:
    """Return the environments of a run's sessions, the latest last; empty where none was recorded.

    The file may come from elsewhere: a field of another type than it should have is left out.
    """
    path = directory / ENVIRONMENT
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(MAX_BYTES + 1)
        found = msgspec.json.decode(content) if len(content) <= MAX_BYTES else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    sessions = found.get("sessions") if isinstance(found, dict) else None
    return (
        [convert_environment(each) for each in sessions if isinstance(each, dict)] if isinstance(sessions, list) else []
    )


def convert_environment(found: dict[str, Any]) -> Environment:
    """Return an environment from plain data; a field of another type than it should have is left out."""
    try:
        return msgspec.convert(found, Environment)
    except msgspec.ValidationError:
        environment = Environment()
        for field in msgspec.structs.fields(Environment):
            with contextlib.suppress(msgspec.ValidationError, KeyError):
                setattr(environment, field.name, msgspec.convert(found[field.name], field.type))
        return environment


def gather_environment(redactor: Redactor) -> dict[str, Any]:
    """Return the environment of this process, without its code."""
    packages = installed_packages()
    facts: dict[str, Any] = {
        "command": [argument[:MAX_ARGUMENT] for argument in redactor.command(sys.orig_argv)],
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "host": {"name": socket.gethostname(), "user": run_directory.user_name(), **_system()},
        "hardware": hardware(),
        "variables": _variables(),
        "packages": packages[:MAX_PACKAGES],
    }
    if len(packages) > MAX_PACKAGES:
        facts["packages_left_out"] = len(packages) - MAX_PACKAGES
    if container := _container():
        facts["container"] = container
    command = facts.pop("command")  # redacted already
    return {"command": command, **redactor.values(facts)}


def installed_packages(paths: Iterable[str] | None = None) -> list[str]:
    """Return the installed distributions as ``name==version``, sorted; the first of a name on the path counts.

    From the names of their directories: parsing the metadata of hundreds of packages would take the interpreter from
    the training for a tenth of a second.
    """
    found: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path if paths is None else paths):
        with contextlib.suppress(OSError):
            for name in sorted(entry.name for entry in os.scandir(folder or ".")):
                match = _DIST_INFO.fullmatch(name) if name.endswith("-info") else None
                if match:
                    found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def loaded_packages() -> dict[str, str]:
    """Return the versions of the loaded packages that have one."""
    # A copy, made atomically: other threads may import something meanwhile.
    tops = {name: module for name, module in sys.modules.copy().items() if "." not in name and name[0] != "_"}
    others = sorted(tops.keys() - sys.stdlib_module_names)
    versions = {name: _module_dict(tops[name]).get("__version__") for name in others}
    return {name: version for name, version in versions.items() if isinstance(version, str)}


def _module_dict(module: Any) -> dict[str, Any]:
    # Past the module's own attribute access: that of a lazy module imports it, here at the same time as the program.
    try:
        found = object.__getattribute__(module, "__dict__")
    except AttributeError:  # an object in place of a module, with slots
        return {}
    return found if isinstance(found, dict) else {}


def _system() -> dict[str, Any]:
    facts = {"platform": platform.platform()}
    with contextlib.suppress(OSError):
        facts["os"] = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return facts


@functools.cache
def hardware() -> dict[str, Any]:
    """Return the processor, the memory and the GPUs of this machine; once per process, for it starts programs."""
    facts: dict[str, Any] = {"cpu": _processor(), "cores": os.cpu_count()}
    if hasattr(os, "sched_getaffinity"):
        facts["usable_cores"] = len(os.sched_getaffinity(0))
    with contextlib.suppress(ValueError, OSError):
        facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    if limit.isdigit():
        facts["memory_limit_bytes"] = int(limit)
    facts["gpus"] = list(_gpus())
    return facts


def _processor() -> str:
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string").strip()
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _gpus() -> Iterator[dict[str, Any]]:
    # By a program: the driver's library in this process could get in the way of a fork.
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,memory.total,driver_version,uuid"
        for line in _output("nvidia-smi", query, "--format=csv,noheader,nounits").splitlines():
            name, memory, driver, uuid = ([*map(str.strip, line.split(",")), "", "", ""])[:4]
            yield {
                "name": name,
                "memory_mib": int(memory) if memory.isdigit() else None,
                "driver": driver,
                "uuid": uuid,
            }
        return
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        facts = dict(line.partition(":")[::2] for line in _read(path).splitlines())
        yield {"name": facts.get("Model", "").strip(), "uuid": facts.get("GPU UUID", "").strip()}


def _container() -> dict[str, str]:
    """Return the kind and the id of the container that this process is in; empty outside of one."""
    kinds = {
        "kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
        "apptainer": bool(os.environ.get("APPTAINER_NAME") or os.environ.get("SINGULARITY_NAME")),
        "podman": Path("/run/.containerenv").exists(),
        "docker": Path("/.dockerenv").exists(),
    }
    found = _CONTAINER_ID.search(_read(Path("/proc/self/cgroup")) + _read(Path("/proc/self/mountinfo")))
    kind = next((name for name, is_it in kinds.items() if is_it), "container" if found else "")
    namespace = _read(_NAMESPACE).strip()[:200]
    image = os.environ.get("APPTAINER_NAME") or os.environ.get("SINGULARITY_NAME") or ""
    facts = {"kind": kind, "id": found[1] if found else "", "namespace": namespace, "image": image}
    return {name: value for name, value in facts.items() if value} if kind else {}


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        done = run_program(command, seconds=COMMAND_SECONDS)
    except OSError:
        return ""
    return "" if done.status else done.output.decode("utf-8", "replace")

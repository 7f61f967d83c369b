"""A process that has imported torch and the sinks' packages, and is forked for each session of the training.

A start takes a tenth of a second then instead of several, so there is time for many more of them. It has no threads
and has opened nothing, so that a child is like a fresh process. It reads what to start from its standard input, one
JSON object a line, and reports on its standard output which sessions were started and which ended.
"""

import importlib
import json
import os
import select
import signal
import sys
import traceback

from soak.order import Order
from soak.program import train

PACKAGES = {
    "wandb": ["wandb"],
    "mlflow": ["mlflow", "mlflow.tracking"],
    "trackio": ["trackio.sqlite_storage"],
    "tensorboard": ["tensorboard.compat.proto.event_pb2"],
    "status": ["httpx"],
    "hookline": ["httpx"],
    "prometheus": ["prometheus_client"],
}


def child(order: Order, log: str, console: str) -> None:
    """Be a training."""
    os.setsid()
    for path, stream in ((console, 1), (log, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    try:
        status = train(order)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def start(request: dict) -> None:
    pid = os.fork()
    if pid == 0:
        child(Order(**request["order"]), request["log"], request["console"])
    say({"started": pid})


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def say(message: dict) -> None:
    os.write(1, f"{json.dumps(message)}\n".encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the soak itself decides
    for name in sys.argv[1:]:
        for package in PACKAGES.get(name, ()):
            importlib.import_module(package)
    say({"ready": os.getpid()})
    waiting = b""
    while True:
        reap()
        ready, _, _ = select.select([0], [], [], 0.02)
        if not ready:
            continue
        data = os.read(0, 65536)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            start(json.loads(line))


if __name__ == "__main__":
    main()

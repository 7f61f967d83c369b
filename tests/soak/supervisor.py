"""`Supervisor`: starts the training, sees it end, and starts it again until all of its steps are done."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from soak.layout import Layout
from soak.order import Order

RESTART_SECONDS = 0.3
START_SECONDS = 240.0
"""How long the nursery may take to answer; at first it imports torch and the sinks' packages."""


class Supervisor:
    """Keeps a training going.

    Args:
        layout: What is trained, and where.
        seed: Decides which sessions deliver from a process of their own.
        process_share: How many of them do.
    """

    def __init__(self, layout: Layout, *, seed: int, process_share: float) -> None:
        self.layout, self.until = layout, 0.0
        self.session = 0
        self.pid: int | None = None
        self.endings: list[int] = []
        """The exit status of each session; below 0 the signal."""
        self.is_complete = False
        self.is_paused = False
        """Whether somebody works on the files of a training that is down: it is not started then."""
        self._rng, self._process_share = random.Random(seed), process_share
        self._not_before = 0.0
        self._waiting = b""
        path = layout.save()
        self._log = (layout.logs / "nursery.log").open("ab")
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "soak.nursery", *layout.sinks],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=layout.environment(),
            start_new_session=True,
        )
        self._path = str(path)
        self.is_ready = False

    def run_quietly(self) -> None:
        """Begin the quiet run; `tick` until it has ended."""
        self._start(Order(self._path, 0, is_quiet=True), "quiet")

    def tick(self) -> None:
        """See who was started and who ended, and start the training if it is down."""
        for message in self._said():
            self.is_ready = self.is_ready or "ready" in message
            if "started" in message:
                self.pid = message["started"]
            if message.get("ended") == self.pid and self.pid is not None:
                self._note_end(message["status"])

    def keep_going(self) -> None:
        """Start the training if it is down and not complete."""
        if self.pid is None and not (self.is_complete or self.is_paused) and time.monotonic() >= self._not_before:
            self.session += 1
            delivery = "process" if self._rng.random() < self._process_share else "thread"
            self._start(Order(self._path, self.session, delivery, self.until), f"{self.session:04d}")

    def wait_for_end(self, seconds: float = 60.0) -> None:
        """Wait until the session has ended."""
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
            self.tick()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def children(self, word: bytes) -> list[int]:
        """The processes below the training whose command has a word in it."""
        found = []
        below = [self.pid] if self.pid is not None else []
        while below:
            pid = below.pop()
            for file in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    below += [int(child) for child in file.read_text().split()]
            with contextlib.suppress(OSError):
                if pid != self.pid and word in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def steps_done(self) -> int:
        """How many steps are complete, as the session reported last."""
        lines = self._acknowledged()
        return json.loads(lines[-1])["step"] if lines else 0

    def rows_acknowledged(self) -> int:
        """How many rows the session has acknowledged."""
        return len(self._acknowledged())

    def has_lost(self) -> bool:
        """Whether the session has lost records to a full disk."""
        lines = self._acknowledged()
        return bool(lines) and json.loads(lines[-1])["lost"] > 0

    def _acknowledged(self) -> list[bytes]:
        path = self.layout.reported / f"{self.session:04d}"
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []

    def close(self) -> None:
        """End the training and the nursery."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self._nursery.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._nursery.wait(5)
        self._nursery.kill()
        self._nursery.wait()
        self._nursery.stdout.close()
        self._log.close()

    def _start(self, order: Order, name: str) -> None:
        logs = self.layout.logs
        request = {
            "order": asdict(order),
            "log": f"{logs}/training-{name}.log",
            "console": f"{logs}/console-{name}.txt",
        }
        self._nursery.stdin.write(f"{json.dumps(request)}\n".encode())
        self._nursery.stdin.flush()
        deadline = time.monotonic() + START_SECONDS
        while self.pid is None:
            assert time.monotonic() < deadline, f"the nursery does not answer: see {logs}/nursery.log"
            self.tick()
            time.sleep(0.005)

    def _note_end(self, status: int) -> None:
        self.pid = None
        self.endings.append(status)
        self.is_complete = status == 0
        self._not_before = time.monotonic() + RESTART_SECONDS

    def _said(self) -> list[dict]:
        os.set_blocking(self._nursery.stdout.fileno(), False)
        data = self._nursery.stdout.read() or b""
        *lines, self._waiting = (self._waiting + data).split(b"\n")
        return [json.loads(line) for line in lines]

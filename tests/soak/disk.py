"""`SmallDisk`: a small mounted file system that can fill up; a plain directory where none can be mounted."""

import contextlib
import os
import subprocess
from pathlib import Path


class SmallDisk:
    """A small file system in memory.

    Args:
        path: Where it is mounted.
        megabytes: How much it holds.
    """

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        path.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
        self.is_mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self.is_full = False

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        """Leave no room; call it again and again, because others give some back."""
        self.is_full = True
        with self._ballast.open("ab", buffering=0) as ballast:
            free = os.statvfs(self.path)
            room = free.f_bavail * free.f_frsize
            if room > 1 << 20:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(ballast.fileno(), ballast.tell(), room)
                ballast.seek(0, os.SEEK_END)
            for size in (4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        ballast.write(b"x" * size)

    def free(self) -> None:
        """Have room again."""
        self._ballast.unlink(missing_ok=True)
        self.is_full = False

    def close(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False)
            self.is_mounted = False

"""`AppendedFile`: locking, and recovery after faults."""

import errno

import pytest

import hookline as hl
from hookline.sinks.output_files import AppendedFile


def refuse(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("fails", "size"), [("os.pwrite", None), ("os.ftruncate", 3)])
def test_appended_file_after_a_full_disk_can_be_opened_later(tmp_path, monkeypatch, fails, size):
    path = tmp_path / "log.txt"
    path.write_bytes(b"one\ntwo")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(fails, refuse)
        with pytest.raises(OSError, match="No space left"):
            AppendedFile(path, size)
    file = AppendedFile(path)
    file.append(b"three\n")
    file.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_appended_file_refused_keeps_the_lock_of_its_holder(tmp_path):
    path = tmp_path / "log.txt"
    first = AppendedFile(path)
    for _ in range(2):
        with pytest.raises(hl.RefusedError, match="by another sink or run"):
            AppendedFile(path)
    first.append(b"one\n")
    first.close()
    AppendedFile(path).close()
    assert path.read_bytes() == b"one\n"

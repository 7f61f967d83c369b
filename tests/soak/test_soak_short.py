"""The abuse test at a small scale: the same code as ``make soak``, for a few seconds."""

from soak.audit import audit
from soak.session import Soak

SINKS = ("console", "csv", "jsonl", "tensorboard", "function", "status")
SCALE = {"seconds": 4.0, "rate": 40.0, "pace": 0.2, "least_faults": 6, "process_share": 0.0}


def test_soak_of_a_few_seconds_finds_every_row_once_and_would_find_what_differs(tmp_path):
    soak = Soak(tmp_path, seed=12, sinks=SINKS, **SCALE)
    try:
        result = soak.run()
        tamper_with(soak.layout)
        tampered = audit(soak.layout, kills=result.sessions)
    finally:
        soak.close(keep=False)
    assert [finding for finding in result.findings if not finding.is_right] == []
    assert result.look_failures == []
    assert (sum(result.faults.values()) >= 6, result.sessions > 1) == (True, True)
    assert {finding.name for finding in result.findings} - {"power cuts"} == {
        *(*SINKS, "acknowledged", "quiet run", "store", "flipped bits"),
    }
    wrong = {(each.name, each.missing, each.doubled) for each in tampered if not each.is_right}
    (repeated,) = (each.doubled for each in result.findings if each.name == "function")  # as it may after a kill
    assert wrong == {("csv", 0, 1), ("function", 1, repeated)}


def tamper_with(layout):
    """Write a row of the table twice, and take one call of the function away."""
    table, calls = layout.run_dir / "metrics.csv", layout.function_file
    table.write_bytes(table.read_bytes() + table.read_bytes().splitlines(keepends=True)[-1])
    calls.write_bytes(b"".join(calls.read_bytes().splitlines(keepends=True)[:-1]))

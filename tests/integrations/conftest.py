"""What the tests of hosts share."""

import pytest


@pytest.fixture
def options(tmp_path):
    """The options of a run that is strict and prints nothing at its end."""
    return {"root": tmp_path / "runs", "summary": False, "strict": True}

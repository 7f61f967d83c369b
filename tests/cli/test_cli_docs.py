"""``docs/cli.md`` says what the commands themselves say."""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = DOCS.with_name("scripts")


def test_cli_page_is_what_the_commands_say(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    import cli_reference

    page = cli_reference.PAGE.read_text(encoding="utf-8")
    assert page == cli_reference.with_reference(page), "run: python scripts/cli_reference.py"
    assert "### `hookline runs list`" in page

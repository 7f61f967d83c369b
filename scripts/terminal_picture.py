"""Writes docs/images/terminal.png, what the demo prints at its end: python scripts/terminal_picture.py [FOLDER].

Runs `hookline demo` in a temporary directory, and has Debian's Chromium draw its last screen.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from screenshots import FLAGS, IMAGES

COLUMNS = 104
MOVES = re.compile(r"\x1b\[(?!\d*(?:;\d+)*m)[?\d;]*[A-Za-z]|\r(?!\n)")
"""What moves the cursor: all before the last of it was drawn over."""
PAGE = """<body style="margin:0;background:#272822"><div id="screen" style="display:inline-block;padding:18px 22px">
<div style="font:13px monospace;color:#a6e22e;padding-bottom:6px">$ hookline demo</div>{body}</div></body>"""


def main(folder: Path = IMAGES) -> None:
    """Run it, and take the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        printed = _printed(Path(home))
    page = PAGE.format(body=_drawn(MOVES.split(printed)[-1]))
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or "/usr/bin/chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.set_content(page)
        tab.locator("#screen").screenshot(path=folder / "terminal.png")
        browser.close()


def _printed(directory: Path) -> str:
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    command = [str(Path(sys.executable).with_name("hookline")), "demo"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def _drawn(text: str) -> str:
    console = Console(record=True, width=COLUMNS, file=Path(os.devnull).open("w"))  # noqa: SIM115
    console.print(Text.from_ansi(text.strip("\n")))
    style = "font:13px/1.35 monospace;margin:0;color:#f8f8f2"
    return console.export_html(theme=MONOKAI, inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

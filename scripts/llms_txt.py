"""Writes ``docs/llms.txt``, an index of the documentation for language models: ``python scripts/llms_txt.py``.

The format is that of https://llmstxt.org: a title, a summary, and sections of links with a sentence each. Sections and
their order are those of ``nav`` in ``mkdocs.yml``; titles and sentences come from the pages.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "llms.txt"
ADDRESS = "https://raw.githubusercontent.com/hookline/hookline/main/docs/"
"""Where a page is as Markdown."""
OPTIONAL = ("Migrating", "About")
"""Sections that a reader with little room may leave out, as the format calls them."""
LONGEST = 240


def index() -> str:
    """The content of the file."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    sections = [section for entry in nav for section in _sections(entry)]
    first = [(name, pages) for name, pages in sections if name not in OPTIONAL]
    rest = [page for name, pages in sections if name in OPTIONAL for page in pages]
    lines = ["# hookline", "", f"> {_paragraph(DOCS / 'index.md')}", ""]
    lines += ["`pip install hookline`, `import hookline as hl`. `hookline --help` lists the commands.", ""]
    for name, pages in [*first, *([("Optional", rest)] if rest else [])]:
        lines += [f"## {name}", "", *map(_line, pages), ""]
    return "\n".join(lines)


def _sections(entry: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The sections of an entry of ``nav``: its pages, and then those of the sections inside it."""
    for name, inside in entry.items():
        pages = [page for each in inside for page in ([each] if isinstance(each, str) else each.values())]
        yield name, [page for page in pages if isinstance(page, str) and page != "index.md"]
        for each in inside:
            if isinstance(each, dict):
                yield from _sections({title: value for title, value in each.items() if isinstance(value, list)})


def _line(page: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    return f"- [{title[1] if title else page}]({ADDRESS}{page}): {_first_sentence(_paragraph(DOCS / page))}"


def _paragraph(path: Path) -> str:
    """The first paragraph of a page, without links."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = (" ".join(block.split()) for block in text.split("\n\n"))
    found = next((block for block in blocks if block and block[0] not in "#|!:<-*"), "")
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", found)


def _first_sentence(text: str) -> str:
    """The first sentence that is about the topic of a page."""
    sentences = [each.rstrip(":") for each in re.split(r"(?<=[.!?]) ", text)]
    found = next((each for each in sentences if not each.startswith("This page is generated")), "")
    return found if len(found) <= LONGEST else f"{found[:LONGEST].rsplit(' ', 1)[0]} …"


def main() -> None:
    """Write the file."""
    PAGE.write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()

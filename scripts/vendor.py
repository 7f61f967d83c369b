"""Copies the page's JavaScript libraries from node_modules into the package: ``make vendor``.

The versions are those of package.json. Each file gets a first line that names its package and version; a test compares
these lines with package.json. Licences are copied beside the files, and into the wheel's metadata.
"""

import json
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = ROOT / "node_modules"
VENDOR = ROOT / "src/hookline/server/static/vendor"

FILES = {
    "@highlightjs/cdn-assets": {"es/highlight.min.js": "highlight.js"},
    "@tanstack/virtual-core": {
        f"dist/esm/{name}.js": f"virtual/{name}.js"
        for name in ("index", "ios-gesture", "lazy-measurements", "scroll-classifier", "utils")
    },
    "diff": {"dist/diff.min.js": "diff.js"},
    "dompurify": {"dist/purify.es.mjs": "purify.js"},
    "katex": {"dist/katex.min.js": "katex/katex.js", "dist/katex.min.css": "katex/katex.css"},
    "markdown-it": {"dist/browser/markdown-it.esm.min.mjs": "markdown-it.js"},
    "uplot": {"dist/uPlot.esm.js": "uPlot.esm.js", "dist/uPlot.min.css": "uPlot.min.css"},
}
"""The files that the page loads, by package."""


def main() -> None:
    """Replace the content of the vendor folder."""
    versions = json.loads((ROOT / "package.json").read_text())["dependencies"]
    shutil.rmtree(VENDOR, ignore_errors=True)
    for package, files in FILES.items():
        for source, target in files.items():
            # What a bundler would fill in; browsers have no such variable.
            text = (MODULES / package / source).read_text().replace("process.env.NODE_ENV", '"production"')
            is_style = target.endswith(".css")
            # The type checker reads these files for their exports, and does not check them.
            note = (
                f"/* {package} {versions[package]} */" if is_style else f"// @ts-nocheck {package} {versions[package]}"
            )
            lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")]
            path = VENDOR / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([note, *lines]) + "\n")
        name = package.removeprefix("@").replace("/", "-")
        for licence in (MODULES / package).glob("LICENSE*"):
            shutil.copyfile(licence, VENDOR / f"{licence.name.removesuffix('.md')}-{name}")
    fonts = VENDOR / "katex/fonts"
    fonts.mkdir()
    for font in (MODULES / "katex/dist/fonts").glob("*.woff2"):
        shutil.copyfile(font, fonts / font.name)


if __name__ == "__main__":
    main()

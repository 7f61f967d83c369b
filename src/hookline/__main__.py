"""``python -m hookline``: the same as the command ``hookline``."""

from hookline.cli import app

if __name__ == "__main__":
    app(prog_name="hookline")

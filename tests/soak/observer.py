"""`Observer`: looks at the run through the store while it is abused, as the page does."""

import hookline as hl
from hookline.store.store import open_store
from soak.layout import Layout

QUERY = "SELECT count(DISTINCT (axis, step)) AS rows FROM metrics WHERE name IN ('loss', 'val/loss')"


class Observer:
    """Asks the store how many rows there are, again and again.

    Attributes:
        looks: How often it got an answer.
        failures: What went wrong.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.looks, self.rows = 0, 0
        self.failures: list[str] = []

    def look(self) -> None:
        if not self.layout.root.is_dir():
            return
        try:
            self.rows = hl.runs(self.layout.root).sql(QUERY).rows()[0]["rows"]
            self.looks += 1
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Let go of the index."""
        if self.layout.root.is_dir():
            open_store(self.layout.root).close()

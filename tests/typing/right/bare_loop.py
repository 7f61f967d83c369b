"""`hl.run` around any loop: steps keep the type of the batches, and a run offers what callbacks see."""

from pathlib import Path

import hookline as hl


def batches() -> list[tuple[float, str]]:
    return [(0.5, "a"), (0.25, "b")]


def main() -> float:
    callbacks = ["progress_bar", hl.callbacks.EarlyStoppingCallback("val/loss", patience=3)]
    with hl.run("typed", callbacks=callbacks, sinks=["csv", {"jsonl": {}}], resume="auto", tags=["a"]) as run:
        for number, word in run.steps(batches(), epochs=2):
            run.log(loss=number * len(word))
            with run.validate() as val:
                val.log(loss=number)
        for index in run.steps(10):
            run.log(index=index + 1)
    directory: Path | None = run.dir
    reason: str | None = run.stop_reason
    print(directory, reason)
    return float(run.get_metric("loss"))


def read_back(directory: Path) -> list[str]:
    return [type(record).__name__ for record in hl.read(directory)]

"""A bare loop with hookline: fits a line by gradient descent, in plain Python."""

import random

import hookline as hl


@hl.on("step_end", every=100)
def report(loop: hl.LoopState) -> None:
    """Prints the progress from time to time."""
    print(f"step {loop.step}: loss {loop.get_metric('loss'):.4f}")


def main() -> None:
    """Train until the validation loss no longer improves."""
    rng = random.Random(0)
    points = [(x, 3 * x + 1 + rng.gauss(0, 0.1)) for x in (rng.uniform(-1, 1) for _ in range(200))]
    train, held_out = points[:160], points[160:]
    weight = bias = 0.0

    with hl.run("line", callbacks=[report, "early_stopping"]) as run:
        for epoch in run.epochs(50):
            for x, y in run.steps(train):
                error = weight * x + bias - y
                weight -= 0.01 * error * x
                bias -= 0.01 * error
                run.log(loss=error**2, epoch=epoch)
            with run.validate() as val:
                for x, y in val.batches(held_out):
                    val.log(loss=(weight * x + bias - y) ** 2)

    print(f"y = {weight:.2f} x + {bias:.2f}, stopped because: {run.stop_reason}")


if __name__ == "__main__":
    main()

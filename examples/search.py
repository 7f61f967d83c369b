"""A search in Python: Optuna chooses a learning rate and a momentum, and hopeless trials are ended early.

Prints the trials and the best one. A second start with more trials continues the search.
"""

import hookline as hl


def train(ctx: hl.LogContext, run: hl.Run) -> None:
    """Descend into a narrow valley, and evaluate every ten steps."""
    x, y, speed_x, speed_y = 4.0, 2.0, 0.0, 0.0
    for step in run.steps(60):
        speed_x = run.config["momentum"] * speed_x - run.config["optimizer"]["lr"] * x
        speed_y = run.config["momentum"] * speed_y - run.config["optimizer"]["lr"] * 20 * y
        x, y = x + speed_x, y + speed_y
        if step % 10 == 9:
            with run.validate() as val:
                val.log(loss=min(x**2 / 2 + 10 * y**2, 1e6))


def main() -> None:
    """Search for the settings with the lowest validation loss."""
    search = hl.Optuna(
        {"optimizer.lr": {"low": 1e-4, "high": 0.2, "log": True}, "momentum": [0.0, 0.5, 0.9]},
        metric="val/loss",
        trials=20,
    )
    arm = hl.Arm("valley", {"optimizer": {"lr": 0.01}, "momentum": 0.0}, train=train)
    result = hl.Experiment("valley", [arm], search=search, output_dir="runs/valley").run()
    for trial in result.search.trials if result.search else ():
        chosen = ", ".join(f"{name}={value:.3g}" for name, value in trial.parameters.items())
        print(f"{trial.arm}: {chosen}: {trial.state} after step {max(trial.steps)}")
    if result.best_trial is not None:
        print(f"best: {result.best_trial.arm}, val/loss {result.best_trial.values[0]:.3g}")


if __name__ == "__main__":
    main()

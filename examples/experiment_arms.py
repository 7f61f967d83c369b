"""An experiment in Python: two arms with three repeats each, a benchmark, and a logger.

Prints a line for each run and the table of arms. A second start runs only what is missing.
"""

from typing import Any

import hookline as hl


class Parity(hl.Benchmark):
    """Checks whether the model distinguishes odd from even numbers."""

    name = "parity"

    def tasks(self) -> list[Any]:
        """Return the tasks."""
        return [hl.rl.Task(str(number), expected="odd" if number % 2 else "even") for number in range(20)]

    def score(self, task: Any, output: str) -> bool:
        """Return a boolean, which counts as accuracy."""
        return bool(output == task.expected)


class Registry(hl.Callback):
    """Creates a record for each run, under that of its group; the ids are in the context."""

    def on_experiment_start(self, ctx: hl.LogContext) -> None:
        """Create the experiment's record, before any arm."""
        ctx.ids["experiment_id"] = "exp-1"

    def on_group_start(self, ctx: hl.LogContext, group_name: str) -> None:
        """Create the record of an arm's repeats."""
        ctx.ids[f"group:{group_name}"] = f"{ctx.ids['experiment_id']}/{group_name}"

    def on_run_end(self, ctx: hl.LogContext, run_result: hl.RunResult, arm: hl.ArmResult) -> None:
        """Complete the run's record, after its benchmarks."""
        print(f"{ctx.ids[f'group:{ctx.group_name}']}/{ctx.run_key}: {run_result.metrics['parity/accuracy']:.2f}")


def train(ctx: hl.LogContext, run: hl.Run) -> None:
    """Memorize as many numbers as there are steps."""
    known = {}
    for number in run.steps(range(run.config["steps"])):
        known[str(number)] = "odd" if number % 2 else "even"
        run.log(known=len(known))
    run.answers = lambda prompts: [known.get(prompt, "odd") for prompt in prompts]


def main() -> None:
    """Compare a short training with a long one."""
    arms = [hl.Arm("short", {"steps": 5}, train=train), hl.Arm("long", {"steps": 20}, train=train)]
    experiment = hl.Experiment(
        "parity", arms, repeats=3, benchmarks=[Parity()], callbacks=[Registry()], output_dir="runs/parity"
    )
    result = experiment.run()
    print(result.to_markdown())
    print(f"best arm: {result.best_arms(1)[0]}")


if __name__ == "__main__":
    main()

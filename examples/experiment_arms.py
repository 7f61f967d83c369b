"""An experiment in Python: two arms with three repeats each, a benchmark, and a logger that hears all of it.

Prints a line for each run and the table of arms. Started again, it makes only what is missing.
"""

from typing import Any

import hookline as hl


class Parity(hl.Benchmark):
    """Whether the model tells odd from even."""

    name = "parity"

    def tasks(self) -> list[Any]:
        """What is asked."""
        return [hl.rl.Task(str(number), expected="odd" if number % 2 else "even") for number in range(20)]

    def score(self, task: Any, output: str) -> bool:
        """A truth value is the accuracy."""
        return bool(output == task.expected)


class Registry(hl.Callback):
    """Creates a record for each run, under that of its group; the ids are in the context."""

    def on_experiment_start(self, ctx: hl.LogContext) -> None:
        """Before any arm."""
        ctx.ids["experiment_id"] = "exp-1"

    def on_group_start(self, ctx: hl.LogContext, group_name: str) -> None:
        """The repeats of an arm."""
        ctx.ids[f"group:{group_name}"] = f"{ctx.ids['experiment_id']}/{group_name}"

    def on_run_end(self, ctx: hl.LogContext, run_result: hl.RunResult, arm: hl.ArmResult) -> None:
        """After its benchmarks."""
        print(f"{ctx.ids[f'group:{ctx.group_name}']}/{ctx.run_key}: {run_result.metrics['parity/accuracy']:.2f}")


def train(ctx: hl.LogContext, run: hl.Run) -> None:
    """Learn by heart, as many numbers as there are steps."""
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

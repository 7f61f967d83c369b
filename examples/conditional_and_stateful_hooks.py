"""A conditional hook and a stateful hook in one composite, each with its own cadence.

Prints when the condition held, and the average reward over the steps at which the stateful hook ran.
"""

import random
from typing import Any

import hookline as hl
from hookline.hooks import CompositeHook, Hook, HookContext, PeriodicHook


class GoodEnough(Hook):
    """Runs when the advanced lesson goes well, and requests a stop."""

    def should_run(self, context: HookContext) -> bool:
        """Check the context, which has the step, its metrics and, in a rollout worker, the lesson."""
        return bool(
            context.step > 50
            and context.metadata.get("lesson") == "advanced"
            and context.metadata.get("performance", 0) > 0.95
        )

    def run(self, context: HookContext) -> dict[str, Any]:
        """Return metrics, which are recorded under the hook's name."""
        context.worker.request_stop(f"{context.metadata['performance']:.2f} in {context.metadata['lesson']}")
        return {"step": context.step}


class AverageReward(PeriodicHook):
    """Averages the reward over the steps at which it runs."""

    def __init__(self) -> None:
        super().__init__(frequency=10)
        self.state = {"runs": 0, "total_reward": 0.0}

    def run(self, context: HookContext) -> dict[str, Any]:
        """Update the average."""
        self.state["runs"] += 1
        self.state["total_reward"] += context.metadata.get("reward", 0)
        return {"avg_reward": self.state["total_reward"] / self.state["runs"]}


def main() -> None:
    """Run two lessons; performance grows with time."""
    rng, average = random.Random(0), AverageReward()
    with hl.run("lessons", callbacks=[CompositeHook([GoodEnough(), average])], summary=False) as run:
        for step in run.steps(1000):
            lesson = rng.choice(["basic", "advanced"])
            run.log(lesson=lesson, reward=rng.random(), performance=min(1.0, step / 100))
    print(f"stopped at step {run.step}: {run.stop_reason}")
    print(f"{average.state['runs']} looks, average reward {average.state['total_reward'] / average.state['runs']:.2f}")


if __name__ == "__main__":
    main()

"""Reinforcement learning that stops at a target reward: a policy over ten digits, in plain Python.

Prints the mean reward from time to time, and why the training ended. Every rollout is recorded as a sample.
"""

import math
import random

import hookline as hl
from hookline.callbacks import EarlyStoppingCallback


@hl.on("step_end", every=25)
def report(loop: hl.LoopState) -> None:
    """Prints the mean reward of the policy."""
    print(f"step {loop.step}: reward {loop.get_metric('reward/mean'):.2f}")


def main() -> None:
    """Learn to write an even digit above five: 6 and 8 are rewarded."""
    rng = random.Random(0)
    logits = [0.0] * 10
    stop = EarlyStoppingCallback("reward/mean", mode="max", patience=200, stopping_threshold=0.95)
    with hl.run("digits", callbacks=[report, stop], summary=False) as run:
        for _ in run.steps(500):
            weights = [math.exp(logit) for logit in logits]
            digits = rng.choices(range(10), weights, k=32)
            rewards = [float(digit in (6, 8)) for digit in digits]
            mean = sum(rewards) / len(rewards)
            for digit, reward in zip(digits, rewards, strict=True):
                for other in range(10):  # the gradient of the log-probability of the drawn digit
                    logits[other] += 0.01 * (reward - mean) * ((other == digit) - weights[other] / sum(weights))
            run.log({"reward/mean": mean})
            run.log_samples(
                {"prompt": "a digit", "completion": str(digit), "rewards": {"even": reward}}
                for digit, reward in zip(digits[:4], rewards[:4], strict=True)
            )
    print(f"stopped at step {run.step}: {run.stop_reason}")


if __name__ == "__main__":
    main()

"""A stand-in for the orchestrator of prime-rl: what it passes to its monitors, in its order.

prime-rl is not on the package index. Its episodes and traces are those of verifiers 0.4, which it works with.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any


def episode(prompt: str, reply: str, score: float, *, key: str = "task", group: str | None = None) -> Any:
    """An episode of one trace with one answer."""
    messages = [SimpleNamespace(role="user", content=prompt), SimpleNamespace(role="assistant", content=reply)]
    rewards = {"right": SimpleNamespace(score=score, weight=2.0), "judge": None}
    trace = SimpleNamespace(
        messages=messages, rewards=rewards, reward=2.0 * score, last_reply=reply, task=SimpleNamespace(key=key)
    )
    return SimpleNamespace(traces=[trace], ok=True, group=None if group is None else SimpleNamespace(id=group))


def orchestrate(monitors: Iterable[Any], *, steps: int = 8, breaks_at: int | None = None) -> None:
    """Pretend to train, with an evaluation after each step."""
    monitors = list(monitors)
    for step in range(steps):
        if step == breaks_at:
            raise RuntimeError("the inference server is gone")
        for each in monitors:
            each.log_episodes([episode("1+1=", "2", 1.0)], step, kind="train", subset="sums")
        for each in monitors:
            each.log({"loss/mean": 1.0 / (1 + step), "reward/sums/mean": 1.0, "progress/tokens": 10}, step=step)
        for each in monitors:
            each.log_episodes([episode("2+2=", "4", 1.0), episode("2+3=", "6", 0.0)], step, kind="eval", subset="sums")
        for each in monitors:
            each.log({"eval/sums/avg@1": 0.5, "eval/sums/loss": 1.0 / (2 + step)}, step=step)
    for each in monitors:
        each.save_final_summary()
        each.close()

"""An asynchronous hook waits for a slow service while training continues; its result is recorded at its own step.

Prints that all steps finished before the first answer arrived, and the answer for each step.
"""

import asyncio
import threading

import hookline as hl
from hookline.hooks import HookContext, PeriodicHook


class RemoteJudge(PeriodicHook):
    """Asks a remote judge about every fourth step."""

    def __init__(self) -> None:
        super().__init__(frequency=4)
        self.is_back = threading.Event()
        self.answers = 0

    async def run(self, context: HookContext) -> dict[str, float]:
        """Runs on hookline's event loop, in order, while training continues."""
        await asyncio.to_thread(self.is_back.wait)
        self.answers += 1
        return {"score": 1.0 / context.step}


def main() -> None:
    """Train while the judge works; the end of the run waits for its remaining answers."""
    judge = RemoteJudge()
    with hl.run("judged", callbacks=[judge], summary=False) as run:
        for step in run.steps(12):
            run.log(loss=1.0 / (step + 1))
        print(f"{run.step} steps made, {judge.answers} answers")
        judge.is_back.set()
    scores = {row.step: row.metrics["remote_judge/score"] for row in run.history if "remote_judge/score" in row.metrics}
    print(f"scores by step: { {step: round(score, 3) for step, score in scores.items()} }")


if __name__ == "__main__":
    main()

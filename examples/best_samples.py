"""The best answers of a policy so far, in a table that grows: only new rows are recorded.

Prints how many rows the table has, and the last of them.
"""

from typing import Any

import torch

import hookline as hl
from hookline import rl
from hookline.testing import character_tokenizer, tiny_causal_lm


class BestSamples(hl.Callback):
    """Records each completion that earns more than any before it for its prompt."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}
        self.table = hl.Table(["step", "prompt", "completion", "reward"])

    def on_rollout_end(self, loop: Any, step_idx: int, rollouts: Any) -> None:
        """Add the rows that are better, and log the table, which records those that are new."""
        for rollout in rollouts:
            prompt = rollout.task.prompt
            if rollout.total > self.best.get(prompt, 0.0):
                self.best[prompt] = rollout.total
                self.table.append([step_idx + 1, prompt, rollout.completion.text, rollout.total])
        loop.log(best_samples=self.table)


def digits(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A reward function: the share of the digits of the prompt that the completion has."""
    return [len(set(prompt[:-1]) & set(text)) / 3 for prompt, text in zip(prompts, completions, strict=True)]


def main() -> None:
    """Let an untrained model write digits, some of which are asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = character_tokenizer("0123456789>")
    rows = [{"prompt": "123>"}, {"prompt": "456>"}, {"prompt": "789>"}]
    tasks = rl.make_environment({"dataset": {"dataset": rows, "rewards": [digits], "held_out_share": 0.0}})
    config = rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig(
            lessons=[rl.Lesson("digits", tasks)], micro_eval_frequency=0, eval_frequency=0
        ),
        policy=rl.HFPolicy(tiny_causal_lm(tokenizer), tokenizer),
        rollout=rl.RolloutConfig(prompts=3, group_size=4, max_tokens=5),
        summary=False,
    )
    worker = rl.RolloutWorker(config, callbacks=[BestSamples()])
    worker.run(max_steps=8)
    assert worker.output_dir is not None
    found = [record for record in hl.read(worker.output_dir) if isinstance(record, hl.sinks.TableRows)]
    kept = [row for record in found for row in record.rows]
    print(f"{len(kept)} of 96 completions in the table, recorded once each at steps {[row[0] for row in kept]}")
    print(f"the last: {dict(zip(found[0].columns, kept[-1], strict=True))}")


if __name__ == "__main__":
    main()

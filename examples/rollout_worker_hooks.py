"""A rollout worker with custom hooks: an alarm, an evaluation, and one that is removed again."""

import torch

from hookline import rl
from hookline.hooks import EvaluationHook, Hook, HookContext, PeriodicHook
from hookline.testing import character_tokenizer, tiny_causal_lm


class LengthMonitor(PeriodicHook):
    """Records the length of completions, every second step."""

    def __init__(self) -> None:
        super().__init__(frequency=2)

    def run(self, context: HookContext) -> dict[str, float]:
        """Return metrics to record."""
        return {"monitor/length": context.metadata["completions/length_mean"]}


class LowReward(Hook):
    """Warns when fewer than half of the tasks are solved."""

    def should_run(self, context: HookContext) -> bool:
        """Check the success rate."""
        return bool(context.metadata["performance"] < 0.5)

    def run(self, context: HookContext) -> None:
        """Print a warning."""
        print(f"step {context.step}: success rate {context.metadata['performance']:.2f} in {context.lesson_id}")


def main() -> None:
    """Run four rollout steps with an untrained model."""
    torch.set_num_threads(1)
    tokenizer = character_tokenizer("0123456789>")
    config = rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig(
            lessons=[rl.Lesson("sort", {"sorting": {"length": 3}})], micro_eval_frequency=0, eval_frequency=0
        ),
        policy=rl.HFPolicy(tiny_causal_lm(tokenizer), tokenizer),
        rollout=rl.RolloutConfig(prompts=4, group_size=4, max_tokens=5),
        summary=False,
    )
    worker = rl.RolloutWorker(config)
    low_reward = LowReward()
    worker.register_hook(LengthMonitor())
    worker.register_hook(low_reward)
    worker.register_hook(EvaluationHook(frequency=4, n_examples=16, eval_type="held_out"))
    worker.run(max_steps=4)
    worker.unregister_hook(low_reward)
    print(f"{worker.step} rollout steps, held-out success {worker.metrics['held_out/success_rate']:.2f}")
    print(f"recorded in {worker.output_dir}")


if __name__ == "__main__":
    main()

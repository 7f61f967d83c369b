"""hookline's own GRPO learner, whose data are rollouts of the model that it trains."""

from pathlib import Path
from typing import Any

import hookline as hl
from hookline import rl
from hookline.rl.environments import RewardDataset
from hosts.base import STEPS, Host
from hosts.language_model import TOKENIZER, evenness, sums, tiny


class Learner(Host):
    """`rl.GRPOLearner`, as `rl.train` makes it."""

    name = "learner"
    monitor = "probe/success_rate"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        from hookline.rl.learner.training import make_learner

        lesson = rl.Lesson("sums", RewardDataset(list(sums(8)), [evenness]))
        config = rl.RLConfig(
            curriculum=rl.CurriculumConfig(lessons=[lesson], micro_eval_frequency=4, eval_frequency=0),
            rollout=rl.RolloutConfig(prompts=2, group_size=2, max_tokens=4, samples=1),
            train=hl.TrainerConfig(
                max_steps=STEPS, output_dir=str(self.directory / "runs"), save_at_end=False, summary=False
            ),
        )
        hooks = [each for each in callbacks if isinstance(each, rl.EvaluationHook)]  # which a rollout worker asks
        others = [each for each in callbacks if each not in hooks]
        self.loop = make_learner(config, tiny(), TOKENIZER, hooks=hooks or None, callbacks=others)
        self.loop.fit() if resume is None else self.loop.resume(resume)

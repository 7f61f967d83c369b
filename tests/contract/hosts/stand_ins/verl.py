"""A stand-in for verl 0.9.1: the loop of its `PPOTrainer` (v1), with its events, trackers and checkpoints.

verl itself requires CUDA libraries and an older transformers.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Tracking:
    """Trackers by name."""

    def __init__(self) -> None:
        self.logger: dict[str, Any] = {}

    def log(self, data: Any, step: int, backend: Any = None) -> None:
        for name, instance in self.logger.items():
            if backend is None or name in backend:
                instance.log(data=data, step=step)


class CheckpointCallback:
    """Is notified of checkpoints."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None: ...


def settings(directory: Path, **given: Any) -> Any:
    """The configuration of a training."""
    defaults = {
        "total_epochs": 1,
        "save_freq": -1,
        "test_freq": 1,
        "val_before_train": False,
        "resume_mode": "auto",
        "rollout_data_dir": None,
        "validation_data_dir": None,
        "default_local_dir": str(directory),
    }
    return SimpleNamespace(trainer=SimpleNamespace(**{**defaults, **given}))


class PPOTrainer:
    """Pretends to train a policy, whose reward rises from step to step."""

    def __init__(self, config: Any, *, steps: int = 8, breaks_at: int | None = None) -> None:
        self.config, self.total_training_steps, self.steps_per_epoch = config, steps, steps
        self.breaks_at = breaks_at
        self.checkpoint_callback = CheckpointCallback()
        self.global_steps = 0
        self.logger: Any = None
        self.events: list[str] = []

    def init(self) -> None:
        folders = sorted(Path(self.config.trainer.default_local_dir).glob("global_step_*"))
        if folders and self.config.trainer.resume_mode == "auto":
            self.global_steps = json.loads((folders[-1] / "data.json").read_text())

    def fit(self, agent_loop_manager: Any = None) -> None:
        trainer = self.config.trainer
        self.logger = Tracking()
        if trainer.val_before_train:
            self.on_validate_begin()
            val_metrics = self._validate()
            self.on_validate_end()
            self.logger.log(data=val_metrics, step=self.global_steps)
        current_epoch = self.global_steps // self.steps_per_epoch
        self.global_steps += 1
        self.on_train_begin()
        while current_epoch < trainer.total_epochs and self.global_steps <= self.total_training_steps:
            is_last_step = self.global_steps >= self.total_training_steps
            metrics: dict[str, Any] = {}
            self.on_step_begin()
            self.step(metrics)
            if trainer.save_freq > 0 and (is_last_step or self.global_steps % trainer.save_freq == 0):
                self._save_checkpoint()
            self.on_step_end()
            if trainer.test_freq > 0 and (is_last_step or self.global_steps % trainer.test_freq == 0):
                self.on_validate_begin()
                val_metrics = self._validate()
                self.on_validate_end()
                metrics.update(val_metrics)
            metrics.update({"training/global_step": self.global_steps, "training/epoch": current_epoch})
            if trainer.rollout_data_dir:
                self._log_rollout_data(trainer.rollout_data_dir)
            self.logger.log(data=metrics, step=self.global_steps)
            self.global_steps += 1
            current_epoch = (self.global_steps - 1) // self.steps_per_epoch
            if is_last_step:
                return
        self.on_train_end()

    def step(self, metrics: dict[str, Any]) -> None:
        self.on_sample_begin()
        self.on_sample_end()
        if self.global_steps == self.breaks_at:
            raise RuntimeError("the rollouts are gone")
        metrics.update({"actor/pg_loss": 1.0 / self.global_steps, "actor/grad_norm": 0.5, "critic/score/mean": 0.25})

    def on_train_begin(self) -> None:
        self.events.append("train_begin")

    def on_train_end(self) -> None:
        self.events.append("train_end")

    def on_validate_begin(self) -> None: ...

    def on_validate_end(self) -> None: ...

    def on_step_begin(self) -> None:
        self.events.append(f"step {self.global_steps}")

    def on_step_end(self) -> None: ...

    def on_sample_begin(self) -> None: ...

    def on_sample_end(self) -> None: ...

    def _validate(self) -> dict[str, float]:
        texts = ["1+1=", "2+2="]
        self._maybe_log_val_generations(inputs=texts, outputs=["2", "5"], scores=[1.0, 0.0])
        if self.config.trainer.validation_data_dir:
            folder = self.config.trainer.validation_data_dir
            self._dump_generations(texts, ["2", "5"], ["2", "4"], [1.0, 0.0], {"uid": ["a_0_0", "b_0_0"]}, folder)
        loss = 1.0 / (1 + self.global_steps)
        return {"val-core/sums/acc/mean@1": 0.5, "val-aux/sums/loss/mean@1": loss}

    def _maybe_log_val_generations(self, inputs: Any, outputs: Any, scores: Any) -> None: ...

    def _log_rollout_data(self, rollout_data_dir: str) -> None:
        self._dump_generations(
            inputs=["1+2=", "1+2="],
            outputs=["3", "4"],
            gts=["3", "3"],
            scores=[1.0, 0.0],
            reward_extra_infos_dict={"uid": ["a_0_0", "a_1_0"]},
            dump_path=rollout_data_dir,
        )

    def _dump_generations(
        self, inputs: Any, outputs: Any, gts: Any, scores: Any, reward_extra_infos_dict: Any, dump_path: str
    ) -> None: ...

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True)
        (folder / "data.json").write_text(json.dumps(self.global_steps))
        self.checkpoint_callback.on_save(
            trainer=self, global_step=self.global_steps, checkpoint_dir=str(folder), async_save=False
        )

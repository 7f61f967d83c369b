"""verl: hookline's callbacks observe and control its PPO trainers (v1: sync, colocated and separate).

    from hookline.integrations.verl import attach

    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    attach(trainer, ["early_stopping"], name="grpo")
    trainer.init()
    trainer.fit(agent_loop_manager)

The trainer is in the process of verl's task runner, so `attach` belongs there: in a runner of your own, or in the
constructor of a trainer class of your own (``register_trainer``). How verl's events become moments:

- A step is one of verl's: rollouts, and the updates on them. Its row is what verl gives its trackers at the end of the
  step, by its names (``actor/...``, ``critic/...``, ``timing_s/...``), with ``actor/pg_loss`` as the ``loss``.
- `on_rollout_start` and `on_rollout_end` fire around the sampling from verl's buffer and the end of the step. The
  rollouts are those that verl writes to ``rollout_data_dir``; without that there are none to see.
- A validation is the evaluation ``val``: ``val-core/<data set>/<metric>`` is ``val/<data set>/<metric>``. Its outputs
  have the ``rollouts``. The one before the training is recorded at the first step's number.
- A stop ends the training after the step. A requested validation is made at once. A requested checkpoint is one of
  verl's own. The callbacks' states are in a folder ``hookline`` of each, so a training that verl resumes continues its
  run.

The models are in other processes: callbacks see no weights, rates and gradients. A bridge does not import verl.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError
from hookline._engine.state import ManifestRow
from hookline.integrations import host_loop
from hookline.integrations.host_callback import HostCallback, WrappedMethods
from hookline.loops.options import RunOptions
from hookline.rl.types import Completion, Rollout, Task

__all__ = ["AttachedTrainer", "attach"]

LOSS = "actor/pg_loss"
EVALUATION = "val"
TEXTS = ("inputs", "outputs", "gts", "scores")
CORE, FURTHER = "val-core/", "val-aux/"
NEEDED = ("fit", "on_step_begin", "on_validate_begin", "checkpoint_callback", "config")


def attach(
    trainer: Any, callbacks: Iterable[Any] = (), *, name: str = NAME, **options: Unpack[RunOptions]
) -> "AttachedTrainer":
    """Have callbacks run in the ``fit`` of a trainer, which becomes a run.

    Args:
        trainer: A `PPOTrainer` of verl, version 1.
        callbacks, name, options: As for every run of hookline; ``config`` is the trainer's by default.
    """
    if not all(hasattr(trainer, each) for each in NEEDED):
        raise OptionError(f"attach({type(trainer).__name__}): give a PPOTrainer of verl's v1 trainers.")
    options.setdefault("config", trainer.config)
    attached = AttachedTrainer(callbacks, name=name, **options)
    attached.attach(trainer)
    return attached


class AttachedTrainer(HostCallback):
    """What `attach` returns.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "verl"
    package = "verl"
    no_gradients = "verl's models are in other processes, and it logs actor/grad_norm"

    def attach(self, trainer: Any) -> None:
        """Wrap the trainer's methods; for `attach`."""
        self._trainer = trainer
        self._planned: int | None = None
        self._saved: tuple[int, Path] | None = None
        self._announced = -1
        self._rollouts: list[Rollout] = []
        self._evaluated: list[Rollout] = []
        self._rolls_out = False
        self._methods = [WrappedMethods(trainer), WrappedMethods(trainer.checkpoint_callback)]
        for name in ("fit", "on_step_begin", "on_sample_begin", "on_validate_begin"):
            self._methods[0].wrap(name, getattr(self, f"_{name}"))
        for name in ("_dump_generations", "_maybe_log_val_generations"):  # with rollouts as texts
            if hasattr(trainer, name):
                self._methods[0].wrap(name, getattr(self, f"_after{name}"))
        self._methods[1].wrap("on_save", self._on_save)

    def detach(self) -> None:
        """Restore the trainer."""
        for each in self._methods:
            each.restore()

    def _fit(self, fit: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trainer = self._trainer
        self._planned, self._saved, self._announced = trainer.total_training_steps, None, -1
        self._rollouts, self._evaluated, self._rolls_out = [], [], False
        try:
            self._begin(None, native=trainer, step=trainer.global_steps, num_steps=trainer.total_training_steps)
            result = fit(*args, **kwargs)
            self._end()
        except BaseException as error:
            self._fail_if_running(error)
            raise
        finally:
            trainer.total_training_steps = self._planned
        return result

    def _resumed(self) -> tuple[dict[str, Any] | None, ManifestRow | None]:
        trainer, settings = self._trainer, self._trainer.config.trainer
        if not trainer.global_steps:
            return None, None
        if getattr(settings, "resume_mode", "auto") == "resume_path":
            folder = Path(settings.resume_from_path)
        else:
            folder = Path(settings.default_local_dir) / f"global_step_{trainer.global_steps}"
        state = host_loop.load(folder)
        return state, None if state is None else self.loop.checkpoint_row(folder, step=trainer.global_steps)

    def _listen(self) -> None:
        """Register as one of verl's trackers, which it creates when it starts to train."""
        self._trainer.logger.logger.setdefault("hookline", self)

    def _on_validate_begin(self, begin: Callable[..., Any]) -> Any:
        self._listen()
        return begin()

    def _on_step_begin(self, begin: Callable[..., Any]) -> Any:
        self._listen()
        self.loop.step_start()
        return begin()

    def _on_sample_begin(self, begin: Callable[..., Any]) -> Any:
        if not self._rolls_out:  # several updates of a step may sample
            self._rolls_out = True
            self.loop.rollout_start(self.loop.step)
        return begin()

    def _after_dump_generations(self, dump: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(dump).bind(*args, **kwargs).arguments
        is_of_validation = given["dump_path"] == getattr(self._settings, "validation_data_dir", None)
        if self._rolls_out and not is_of_validation:
            inputs, outputs, expected, scores = (given[name] for name in TEXTS)
            uids = (given["reward_extra_infos_dict"] or {}).get("uid")
            self._rollouts = self._as_rollouts(inputs, outputs, expected, scores, uids)
        return dump(*args, **kwargs)

    def _after_maybe_log_val_generations(
        self, log: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str], scores: Sequence[float]
    ) -> Any:
        self._evaluated = self._as_rollouts(inputs, outputs, None, scores, None)
        return log(inputs=inputs, outputs=outputs, scores=scores)

    @property
    def _settings(self) -> Any:
        return self._trainer.config.trainer

    def _as_rollouts(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        expected: Sequence[Any] | None,
        scores: Sequence[float],
        uids: Sequence[str] | None,
    ) -> list[Rollout]:
        """Return the rollouts of verl's texts; its keys are ``<prompt>_<rollout>_<output>``."""
        rollouts = []
        for index, (prompt, text, score) in enumerate(zip(inputs, outputs, scores, strict=True)):
            answer = None if expected is None or expected[index] is None else str(expected[index])
            group = "" if uids is None else uids[index].rsplit("_", 2)[0]
            rollouts.append(
                Rollout(
                    Task(prompt, answer, group),
                    Completion(text),
                    rewards={"score": float(score)},
                    total=float(score),
                    success=score > 0,
                    version=self.loop.step,
                )
            )
        return rollouts

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Record the values that verl passes to trackers, after a step or after the initial validation."""
        loop = self.loop
        evaluated = {name: value for name, value in data.items() if name.startswith((CORE, FURTHER))}
        row = {name: value for name, value in data.items() if name not in evaluated}
        if loop.in_step:
            if self._rolls_out:
                self._rolls_out = False
                rollouts, self._rollouts = self._rollouts, []
                loop.rollout_end(loop.step, rollouts)
            loss = {"loss": row[LOSS]} if LOSS in row else {}
            loop.step_end(None, loop.recordable(loss | row), step=step)
            self._note_saved(step)
        if evaluated:
            self._end_validation(evaluated)
        if loop.step == step and step and self._boundary() is not None:
            self._trainer.total_training_steps = self._trainer.global_steps

    def _end_validation(self, metrics: Mapping[str, Any]) -> None:
        loop, rollouts = self.loop, self._evaluated
        self._evaluated = []
        named = {f"{EVALUATION}/{_without_prefix(name)}": value for name, value in metrics.items()}
        loop.validation_start()
        if rollouts:
            loop.validation_batch_start()
            loop.validation_batch_end({"rollouts": rollouts})
        loop.validation_end(EVALUATION, loop.recordable({**named, **metrics}))

    def _validate_now(self) -> None:
        trainer = self._trainer
        trainer.on_validate_begin()
        metrics = trainer._validate()  # verl has no public method that validates
        trainer.on_validate_end()
        self._end_validation(metrics)

    def _on_save(self, on_save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = on_save(*args, **kwargs)
        if "checkpoint_dir" in kwargs:
            self._saved = (int(kwargs["global_step"]), Path(kwargs["checkpoint_dir"]))
        return result

    def _note_saved(self, step: int) -> None:
        """Save the callbacks' states in the checkpoint that verl saved in this step, if it did."""
        if self._saved is not None and self._saved[0] == step != self._announced:
            self._announce(self._saved[1])

    def _announce(self, folder: Path) -> ManifestRow:
        self._announced = self.loop.step
        host_loop.save(folder, self.loop)
        return self.loop.checkpoint_saved(folder)

    def _default_path(self) -> Path:
        step = self.loop.step + self.loop.in_step
        return Path(self._settings.default_local_dir) / f"global_step_{step}"

    def _save_now(self, path: Path) -> ManifestRow:
        if self._saved is None or self._saved[0] != self.loop.step:
            self._trainer._save_checkpoint()  # verl has no public method that saves
        return self._announce(self._default_path() if self._saved is None else self._saved[1])

    def _cannot(self, command: str) -> str | None:
        return None


def _without_prefix(name: str) -> str:
    return name.removeprefix(CORE).removeprefix(FURTHER)

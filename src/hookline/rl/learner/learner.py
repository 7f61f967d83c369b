"""`GRPOLearner`: a `Trainer` whose data are rollouts of the model that it trains.

Everything of a `Trainer` applies: callbacks, checkpoints and exact resume, signals, clipping, schedules, several
processes and sharded models. Its data are a `RolloutStream`: a batch of the Trainer is a micro-batch, and a step learns
from all of those that the stream has for an optimizer step. Losses are divided such that their sum over micro-batches,
averaged over processes, is the loss of everything in one piece: see `hookline.rl.learner.loss`.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hookline._engine.errors import OptionError
from hookline._engine.metrics import collect
from hookline._engine.torch_models import is_adapted, is_sharded, plain_state
from hookline._record.device import defer
from hookline._record.tokens import Tokens
from hookline.loops.checkpoint import read_tensors, require_equal_shapes, write_tensors
from hookline.loops.trainer import Trainer, Window
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.training_state import TrainerState
from hookline.loops.training_step import set_to_evaluate
from hookline.rl.learner.batch import Batch
from hookline.rl.learner.config import GRPOConfig
from hookline.rl.learner.logprobs import token_logprobs
from hookline.rl.learner.loss import EntropyControl, Facts, grpo_loss
from hookline.rl.learner.reference import CopiedReference, reference_of
from hookline.rl.learner.stream import RolloutSource, RolloutStream
from hookline.rl.learner.weights import WeightsFormat, weights_of
from hookline.rl.types import Rollout, Sampling

logger = logging.getLogger("hookline")

REFERENCE_FILE = "reference.pt"
"""The weights of a reference model that follows the policy, in a checkpoint."""


class GRPOLearner(Trainer):
    """Learns from the rollouts of a worker.

    Args:
        model: The model, which the worker's policy generates with; with adapters of PEFT, only these are trained.
        worker: Makes the rollouts.
        pad_id: The padding token.
        grpo: The settings of the loss.
        temperature, top_p: The settings of the worker's sampling.
        max_tokens: The largest number of tokens of a completion, which "dr_grpo" divides by; that of the worker's
            settings by default.
        reward_weights: The weights of the reward functions, for rewards that are normalized before they are summed;
            those of the worker's settings by default.
        config: The settings of the training; ``max_steps`` is required.
        optimizer, scheduler, callbacks, custom_logger_fns, hook_fns: As for `Trainer`.
    """

    measures_grad_norm = True

    def __init__(
        self,
        model: Any,
        worker: RolloutSource,
        *,
        pad_id: int,
        config: TrainerConfig,
        grpo: GRPOConfig | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int | None = None,
        reward_weights: Mapping[str, float] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        callbacks: Any = None,
        custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
        hook_fns: Mapping[str, Any] | None = None,
    ) -> None:
        self.grpo = GRPOConfig() if grpo is None else grpo
        if config.max_steps is None:
            raise OptionError("Rollouts never end: give TrainerConfig.max_steps.")
        rollout = getattr(worker, "rollout", None)
        max_tokens = getattr(rollout, "max_tokens", None) if max_tokens is None else max_tokens
        weights = getattr(rollout, "reward_weights", {}) if reward_weights is None else reward_weights
        _check(self.grpo, model, worker, max_tokens)
        self.advantages = self.grpo.advantages(weights)
        """How advantages are computed, here and for the samples that the worker records."""
        self.reference = reference_of(model) if self.grpo.beta else None
        self.temperature, self.top_p = temperature, top_p
        self.stream = RolloutStream(
            worker,
            self,
            config=self.grpo,
            pad_id=pad_id,
            sampling=Sampling(temperature, top_p),
            device=lambda: self.device,
            accumulation=config.accumulation,
            max_tokens=max_tokens or 1,
            reference=self.reference,
        )
        self.rollout_worker = worker
        self._entropy = EntropyControl(self.grpo)
        self._facts = Facts()
        self._sample_tokens: dict[str, Tokens] = {}
        super().__init__(
            model,
            self.stream,
            config=config,
            optimizer=optimizer,
            scheduler=scheduler,
            callbacks=callbacks,
            custom_logger_fns=custom_logger_fns,
            hook_fns=hook_fns,
        )
        self.recorded_config = {
            "rollouts": getattr(worker, "config", None),
            "grpo": self.grpo,
            "temperature": temperature,
            "top_p": top_p,
            "train": config,
        }

    def training_step(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Return the loss of a micro-batch, which is an estimate of the loss of the whole step."""
        logprobs, entropy = self._logprobs(model, batch, entropy_grad=self.grpo.uses_entropy_bonus)
        if batch["is_fresh"]:  # of the same weights: with dropout, only this very pass has a ratio of 1
            batch = {**batch, "old": logprobs.detach()}
            self.stream.set_old_logprobs(batch, batch["old"])
        coef = self._entropy.applied
        loss = grpo_loss(self.grpo, logprobs, entropy, batch, batch["span"], self._facts, entropy_coef=coef)
        if batch["token_places"] and batch["is_last_use"] and self.recorder is not None:
            self._sample_tokens |= _sample_tokens(batch, logprobs, entropy)
        # The Trainer averages the micro-batches of a step.
        return {"loss": loss * batch["parts"]}

    def policy_logprobs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of a micro-batch under the present weights, without dropout."""
        with torch.no_grad(), set_to_evaluate(self.model):
            found: tuple[torch.Tensor, torch.Tensor] = self.backend.predict(self._logprobs, self.backend.place(batch))
        return found

    def reference_logprobs(self, batch: Batch) -> torch.Tensor:
        """Return log-probabilities of a micro-batch under the reference model."""
        reference = self.reference
        assert reference is not None

        def compute(_: Any, batch: Batch) -> torch.Tensor:
            return reference.compute(lambda model: self._logprobs(model, batch)[0], self.device)

        with torch.no_grad(), set_to_evaluate(self.model):  # the reference may be this model without its adapters
            found: torch.Tensor = self.backend.predict(compute, self.backend.place(batch))
        return found

    def weights(self, form: WeightsFormat = "model") -> dict[str, Any]:
        """Return the present weights, whole: for a policy of another process, or to save them.

        Args:
            form: ``"model"``: those of the model, or of its adapters if it has such. ``"merged"``: those of the model
                with the adapters merged into it. ``"adapter"``: those of the adapters under the names PEFT saves.
        """
        return weights_of(self.model, form)

    def save_adapter(self, directory: str | Path) -> Path:
        """Save the adapters as PEFT does, for ``PeftModel.from_pretrained`` and for inference servers.

        In several processes all have to call it; rank zero writes.
        """
        weights = self.weights("adapter")
        if self.rank == 0:
            from safetensors.torch import save_file

            place = Path(directory)
            place.mkdir(parents=True, exist_ok=True)
            contiguous = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
            save_file(contiguous, place / "adapter_model.safetensors", metadata={"format": "pt"})
            self.model.peft_config[self.model.active_adapter].save_pretrained(place)
        return Path(directory)

    def note_unused(self, rollouts: Sequence[Rollout], outcome: str) -> None:
        """Record that the next step does not use these rollouts, if they are recorded as samples."""
        names = [each.id for each in rollouts if each.recorded]
        if names and self.recorder is not None:
            self.recorder.sample_use(names, self.step + 1, outcome)

    def agree_on_more(self, more: bool) -> tuple[bool, bool]:
        """Return whether any process needs another rollout step, and whether all of them are to stop."""
        (more,) = self._agree(more)
        return more, self._agreed_to_stop  # not what this process alone knows

    def start(self) -> None:
        """Begin to record, and attach the worker."""
        is_first = not self.has_started
        super().start()
        if is_first:
            self.rollout_worker.attach_to(self)
            # Resumed, or in several processes, which train with the weights of rank zero: a policy may have others.
            # And servers were started with weights of their own.
            if self.step or self.world_size > 1 or getattr(self.rollout_worker, "needs_initial_weights", False):
                self._push_weights(self.step)

    @property
    def other_axes(self) -> dict[str, int]:
        """The number of rollout steps, which differs from the number of optimizer steps."""
        return {"rollout": self.rollout_worker.step, "eval": self.rollout_worker.step}

    def _logprobs(self, model: Any, batch: Batch, *, entropy_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(
            model,
            batch["ids"],
            batch["first"],
            temperature=self.temperature,
            top_p=self.top_p,
            entropy_grad=entropy_grad,
        )

    def _windows(self, source: Iterator[Any], done: int) -> Iterator[Window]:
        """Yield the micro-batches of each step."""
        window: Window = []
        for entry in zip(itertools.count(done), source, strict=False):
            window.append(entry)
            if entry[1]["ends_step"]:
                yield window
                window = []

    def _update(self, row: Any) -> None:
        facts, self._facts = self._facts, Facts()
        row.update(collect((), facts.values(), defer))
        super()._update(row)
        if self.grpo.uses_entropy_bonus:
            self._entropy.adapt(*facts.total("entropy/acting"), self.processes)
            row["entropy_coef"] = self._entropy.coef
        self._record_sample_use()
        metrics, seconds, needs_rollouts = self.stream.complete_step()
        if needs_rollouts:
            # The device is waited for here, so that its time counts as the learner's: the rollouts, which need the
            # new weights, could not begin earlier anyway.
            began = time.perf_counter()
            self.backend.synchronize()
            seconds += time.perf_counter() - began
        began = time.perf_counter()
        self._sync_reference()
        self._push_weights(self.step + 1)
        row.update(metrics | {"seconds/learn": seconds, "seconds/weights": time.perf_counter() - began})

    def _record_sample_use(self) -> None:
        names, tokens = self.stream.samples, self._sample_tokens
        self._sample_tokens = {}
        if names and self.recorder is not None:
            self.recorder.sample_use(names, self.step + 1, tokens=tokens)

    def _push_weights(self, version: int) -> None:
        form: WeightsFormat = getattr(self.rollout_worker, "weights_format", "model")
        self.rollout_worker.update_weights(version, self.weights(form))

    def _sync_reference(self) -> None:
        reference = self.reference
        is_due = self.grpo.sync_ref_model and (self.step + 1) % self.grpo.ref_model_sync_steps == 0
        if is_due and isinstance(reference, CopiedReference):
            reference.mix(self.weights(), self.grpo.ref_model_mixup_alpha)

    def _must_wait(self) -> bool:
        return super()._must_wait() or self.stream.is_open

    def _prepared(self) -> TrainerState:
        is_first = self._training is None
        prepared = super()._prepared()
        # The processes have the weights of rank zero from now on, and their references have to be of these.
        if is_first and self.world_size > 1 and isinstance(self.reference, CopiedReference):
            self.reference.mix(self.weights(), 1.0)
        return prepared

    def _reset(self) -> None:
        super()._reset()
        self._facts, self._sample_tokens = Facts(), {}  # a failed step left some behind

    def _checkpoint_state(self, step: int) -> dict[str, Any]:
        return super()._checkpoint_state(step) | {"entropy": self._entropy.state_dict()}

    def _restore_position(self, state: dict[str, Any]) -> None:
        super()._restore_position(state)
        self._entropy.load_state_dict(state.get("entropy", {}))

    def _save_common_files(self, directory: Path) -> None:
        super()._save_common_files(directory)
        if self.grpo.sync_ref_model and isinstance(self.reference, CopiedReference):
            write_tensors(plain_state(self.reference.model), directory / REFERENCE_FILE)

    def _load_files(self, directory: Path) -> None:
        saved = directory / REFERENCE_FILE
        if self.grpo.sync_ref_model and isinstance(self.reference, CopiedReference) and saved.exists():
            weights, own = read_tensors(saved), plain_state(self.reference.model)
            there, here = ({name: tuple(value.shape) for name, value in each.items()} for each in (weights, own))
            require_equal_shapes(directory, "reference model", there, here)
            super()._load_files(directory)
            self.reference.model.load_state_dict(weights)
        else:
            super()._load_files(directory)

    def _finish_open_work(self) -> None:
        super()._finish_open_work()
        self.rollout_worker.close_hooks()

    def _fail(self, error: BaseException) -> None:
        try:
            self.rollout_worker.close_hooks()
        finally:
            super()._fail(error)


def _sample_tokens(batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> dict[str, Tokens]:
    """Return the values that a step computed for each token of the completions recorded with tokens.

    Without texts and ids, which the samples have: there they are left out if they hold a secret.
    """
    columns = {
        "old_logprobs": batch["old"],
        "ref_logprobs": batch.get("reference"),
        "entropy": entropy.detach(),
        "ratio": (logprobs.detach() - batch["old"]).exp(),
        "advantage": batch["advantages"][:, None] * batch["mask"],
        "mask": batch["mask"],
    }
    found = {}
    for row, (name, begin, end) in batch["token_places"].items():
        found[name] = Tokens(**{key: values[row, begin:end] for key, values in columns.items() if values is not None})
    return found


def _check(grpo: GRPOConfig, model: Any, worker: RolloutSource, max_tokens: int | None) -> None:
    """Refuse settings that do not fit the model or the worker, and warn about those that rarely make sense."""
    if grpo.loss_type == "dr_grpo" and max_tokens is None:
        raise OptionError("loss_type='dr_grpo' divides by the largest length of completions: give max_tokens.")
    if grpo.sync_ref_model and is_adapted(model):
        raise OptionError(
            "sync_ref_model=True with adapters: the reference is the model without them, which does not change. Leave "
            "sync_ref_model out, or train the whole model."
        )
    if is_sharded(model) and getattr(getattr(worker, "policy", None), "model", None) is model:
        raise OptionError(
            "The policy has the sharded model that is trained: its processes would have to generate in lockstep. Give "
            "the policy its own unsharded model, as rl.train() does."
        )
    mode, is_exact = grpo.vllm_importance_sampling_mode, getattr(worker, "exact_logprobs", False)
    corrects = grpo.vllm_importance_sampling_correction and not is_exact
    if grpo.loss_type == "vespo" and corrects and mode.startswith("sequence"):
        raise OptionError(
            f"loss_type='vespo' with vllm_importance_sampling_mode={mode!r}: it combines ratios of tokens by itself. "
            "Give 'token_truncate' or 'token_mask', or vllm_importance_sampling_correction=False."
        )
    if grpo.loss_type == "luspo" and grpo.importance_sampling_level != "sequence":
        logger.warning("loss_type='luspo' is made for importance_sampling_level='sequence'.")
    if grpo.importance_sampling_level == "sequence" and grpo.loss_type in ("bnpo", "dr_grpo", "dapo", "cispo"):
        logger.warning(
            "importance_sampling_level='sequence' with loss_type=%r weights each sequence by its length. GSPO is "
            "loss_type='grpo'.",
            grpo.loss_type,
        )
    if grpo.loss_type == "cispo" and grpo.epsilon_high is None:
        logger.warning(
            "loss_type='cispo' without epsilon_high limits weights to epsilon=%g, so all of them are small. Give "
            "epsilon_high, such as 5.0.",
            grpo.epsilon,
        )

"""`HFPolicy`: generates completions with a Hugging Face causal language model in this process.

The completions of a prompt depend on the weights, the seed and the prompt's index, not on the batch it is in; no global
random state is read or changed. Dropout is off while it generates, and every module keeps its mode.

`generate` makes all completions of a list of prompts. `open_batch` generates for requests that arrive while others are
still being generated; see `hookline.rl.policies.batching`.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import MissingExtraError, OptionError
from hookline._engine.torch_models import forward_parameters, is_adapted, trained_state
from hookline._record.tokens import token_texts
from hookline.loops.backends import check_device
from hookline.loops.training_step import set_to_evaluate
from hookline.rl.chat_format import ChatFormat
from hookline.rl.policies.base import Prompt, StopTexts, check_request, derived_seed, with_first_token
from hookline.rl.policies.captured import can_capture, generate_captured
from hookline.rl.policies.decoding import Decoder, Row, StopCriteria, device_of
from hookline.rl.policies.hf_batch import HFBatch
from hookline.rl.types import Completion, Sampling

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtraError("HFPolicy", "hf") from error


class HFPolicy:
    """Generates with a transformers model.

    The model may be the one that is being trained: then it always has the newest weights, and `load_weights` only sets
    the version.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer. A prompt that begins with BOS gets no second one.
        batch_size: The largest number of completions generated at the same time. In multi-turn episodes, it also bounds
            the finished turns whose keys and values are kept.
        device: Where to move the model; None leaves it where it is.
    """

    exact_logprobs = True
    """A learner with the same weights and no dropout computes the same log-probabilities, up to rounding."""

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int = 256, device: str | None = None) -> None:
        require_integer("batch_size", batch_size)
        self.model = model if device is None else model.to(check_device(device))
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self._accepted = forward_parameters(model)
        self._version = 0

    @property
    def version(self) -> int:
        """The version of the weights; 0 until weights are loaded."""
        return self._version

    @property
    def weights_format(self) -> Literal["model", "merged"]:
        """The form of weights that `load_weights` takes: with adapters only if its own model has such."""
        return "model" if is_adapted(self.model) else "merged"

    def load_weights(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the model.

        Raises:
            OptionError: Names or shapes do not match the model; nothing is copied.
        """
        require_integer("version", version, minimum=0)
        own = self.model.state_dict()
        _check_weights(own, trained_state(self.model), weights)
        with torch.no_grad():
            for name, tensor in weights.items():
                if own[name].data_ptr() != tensor.data_ptr():  # those of the model itself are there already
                    own[name].copy_(tensor)
        self._version = version

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How chats become tokens: by the chat template of the tokenizer."""
        return ChatFormat(self.tokenizer)

    @property
    def context_length(self) -> int | None:
        """The largest number of tokens of prompt and completion together; None if the model does not limit it."""
        config = self.model.config
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        return getattr(config, "max_position_embeddings", None)

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Generate ``n`` completions for each prompt, a text or a list of token ids; at temperature 0 they are equal.

        A completion also ends at the last position of the model.

        Raises:
            OptionError: A prompt is too long for a completion.
            PolicyError: The model returns NaN.
        """
        encoded = self.encode(check_request(prompts, n))
        criteria = self.stop_criteria(sampling)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        distinct = n if sampling.temperature else 1
        groups: list[list[Completion]] = [[] for _ in encoded]
        with torch.no_grad(), set_to_evaluate(self.model):
            for indices, copies in self._batches(encoded, distinct):
                noise = self._noise(seed, indices, copies, criteria.max_tokens) if sampling.temperature else None
                batch = [encoded[index] for index in indices]
                rows = [Row(prompt, criteria) for prompt in batch for _ in copies]
                decoder = self.decoder(batch)
                logits = decoder.prefill(len(copies))
                generate = generate_captured if can_capture(decoder, criteria.max_tokens) else Decoder.generate
                generate(decoder, logits, rows, noise, criteria)
                completions = self.completions(rows)
                for number, index in enumerate(indices):
                    groups[index] += completions[number * len(copies) : (number + 1) * len(copies)]
        return [group * (n // distinct) for group in groups]

    def open_batch(self, sampling: Sampling) -> HFBatch:
        """Return a batch of requests with the temperature and top-p of ``sampling``, which others can join."""
        return HFBatch(self, sampling)

    def decoder(self, prompts: list[list[int]]) -> Decoder:
        """Return a decoder of tokenized prompts."""
        return Decoder(self.model, self._accepted, prompts, pad_id=self.tokenizer.pad_token_id or 0)

    def stop_criteria(self, sampling: Sampling) -> StopCriteria:
        """Return when completions of these settings end."""
        stop_texts = StopTexts(sampling.stop, self._decode)
        return StopCriteria(sampling, self._end_tokens(sampling), stop_texts, self.context_length)

    def encode(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return the tokens of each prompt; a list of token ids is used unchanged.

        Raises:
            OptionError: A prompt is too long for a completion, or has a token that the model does not have.
        """
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        of_texts = iter(self.tokenizer(texts)["input_ids"] if texts else ())
        encoded = [
            with_first_token(self.tokenizer, next(of_texts)) if isinstance(prompt, str) else list(prompt)
            for prompt in prompts
        ]
        positions, vocabulary = self.context_length, self.model.get_input_embeddings().weight.shape[0]
        for index, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
            if positions is not None and len(ids) >= positions:
                shown = f", {prompt[:40]!r}...," if isinstance(prompt, str) else ""
                raise OptionError(
                    f"prompts[{index}]{shown} has {len(ids)} tokens, the model {positions} positions: give a prompt of "
                    f"at most {positions - 1} tokens, which leaves room for one."
                )
            if not isinstance(prompt, str) and not 0 <= min(ids) <= max(ids) < vocabulary:
                raise OptionError(
                    f"prompts[{index}] has tokens from {min(ids)} to {max(ids)}, the model from 0 to {vocabulary - 1}: "
                    "give token ids of the model's own tokenizer."
                )
        return encoded

    def _end_tokens(self, sampling: Sampling) -> frozenset[int]:
        """Return the end tokens of the model and the tokenizer, and stop texts that are special tokens."""
        configured = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        ends = {*(configured if isinstance(configured, list) else [configured]), self.tokenizer.eos_token_id}
        special = [text for text in sampling.stop if text in self.tokenizer.all_special_tokens]
        return frozenset((ends | set(self.tokenizer.convert_tokens_to_ids(special))) - {None})

    def _batches(self, encoded: list[list[int]], n: int) -> Iterator[tuple[list[int], range]]:
        """Yield indices of prompts and ranges of their completions; prompts of similar lengths share a batch."""
        order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
        size = max(1, self.batch_size // n)
        for start in range(0, len(order), size):
            for first in range(0, n, self.batch_size):
                yield order[start : start + size], range(first, min(n, first + self.batch_size))

    def _noise(self, seed: int, indices: list[int], copies: range, length: int) -> Tensor:
        """Return a number from 0 to 1 for each token of each row, made on the CPU: equal for every device."""
        generator = torch.Generator()
        drawn = [
            torch.rand(copies.stop, length, generator=generator.manual_seed(derived_seed(seed, index)))[copies.start :]
            for index in indices
        ]
        return torch.cat(drawn).to(device_of(self.model))

    def completions(self, rows: list[Row]) -> list[Completion]:
        """Return rows as completions, with their texts."""
        texts = self.tokenizer.batch_decode(
            [row.tokens for row in rows], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return [row.completion(text) for row, text in zip(rows, texts, strict=True)]

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; for `RolloutConfig(tokens=...)`."""

        def decode(some: list[int]) -> str:
            return str(self.tokenizer.decode(some, skip_special_tokens=False, clean_up_tokenization_spaces=False))

        return token_texts(ids, decode)


def _check_weights(own: Mapping[str, Tensor], needed: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    problems: list[str] = []
    for name, tensor in weights.items():
        if name not in own:
            problems.append(f"{name!r} is not in it")
        elif not isinstance(tensor, Tensor):
            problems.append(f"{name!r} is {type(tensor).__name__}, not a tensor")
        elif tensor.shape != own[name].shape:
            problems.append(f"{name!r} has shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}")
    given = {own[name].data_ptr() for name in weights if name in own}  # a tied weight has several names
    problems += [f"{name!r} is missing" for name, tensor in needed.items() if tensor.data_ptr() not in given]
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise OptionError(
            f"weights do not fit the model: {'; '.join(problems[:5])}{more}. Give the state_dict() of the same model; "
            "nothing was loaded."
        )

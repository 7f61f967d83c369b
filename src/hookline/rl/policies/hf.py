"""`HFPolicy`: generates completions with a Hugging Face causal language model in this process.

The completions of a prompt depend on the weights, the seed and the prompt's index, not on the batch it is in; no global
random state is read or changed. Dropout is off while it generates, and every module keeps its mode.

`Decoder` samples the tokens rather than ``model.generate``, which draws from the global random state, returns no
log-probabilities of the sampled distribution without keeping the scores of every step, and takes 1.6 times as long for
a small model.
"""

import inspect
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import MissingExtraError, OptionError
from hookline.loops.backends import check_device
from hookline.loops.training_step import set_to_evaluate
from hookline.rl.policies.base import StopTexts, check_request, derived_seed
from hookline.rl.policies.decoding import Decoder, Row, StopCriteria, device_of
from hookline.rl.types import Completion, Sampling

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtraError("HFPolicy", "hf") from error


class HFPolicy:
    """Generates with a model of transformers.

    The model may be the one that is being trained: then it always has the newest weights, and `load_weights` only sets
    the version.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer. A prompt that begins with BOS gets no second one.
        batch_size: The largest number of completions generated at the same time.
        device: Where to move the model; None leaves it where it is.
    """

    exact_logprobs = True
    """A learner with the same weights and no dropout computes the same log-probabilities, up to rounding."""

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int = 256, device: str | None = None) -> None:
        require_integer("batch_size", batch_size)
        self.model = model if device is None else model.to(check_device(device))
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        self._version = 0

    @property
    def version(self) -> int:
        """The version of the weights; 0 until weights are loaded."""
        return self._version

    def load_weights(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the model.

        Raises:
            OptionError: Names or shapes do not match the model; nothing is copied.
        """
        require_integer("version", version, minimum=0)
        own = self.model.state_dict()
        _check_weights(own, weights)
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        self._version = version

    def generate(self, prompts: Sequence[str], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Generate ``n`` completions for each prompt; at temperature 0 they are equal.

        A completion also ends at the last position of the model.

        Raises:
            OptionError: A prompt is too long for a completion.
            PolicyError: The model returns NaN.
        """
        encoded = self._encode(check_request(prompts, n))
        criteria = StopCriteria(
            sampling, self._end_tokens(sampling), StopTexts(sampling.stop, self._decode), self._positions()
        )
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        distinct = n if sampling.temperature else 1
        groups: list[list[Completion]] = [[] for _ in encoded]
        with torch.no_grad(), set_to_evaluate(self.model):
            for indices, copies in self._batches(encoded, distinct):
                noise = self._noise(seed, indices, copies, criteria.max_tokens) if sampling.temperature else None
                batch = [encoded[index] for index in indices]
                decoder = Decoder(self.model, self._accepted, batch, pad_id=self.tokenizer.pad_token_id or 0)
                completions = self._completions(decoder.generate(len(copies), noise, criteria))
                for number, index in enumerate(indices):
                    groups[index] += completions[number * len(copies) : (number + 1) * len(copies)]
        return [group * (n // distinct) for group in groups]

    def _encode(self, prompts: list[str]) -> list[list[int]]:
        if not prompts:
            return []
        positions = self._positions()
        encoded = [self._with_first_token(ids) for ids in self.tokenizer(prompts)["input_ids"]]
        for index, ids in enumerate(encoded):
            if positions is not None and len(ids) >= positions:
                raise OptionError(
                    f"prompts[{index}], {prompts[index][:40]!r}..., has {len(ids)} tokens, the model {positions} "
                    f"positions: give a prompt of at most {positions - 1} tokens, which leaves room for one."
                )
        return encoded

    def _with_first_token(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            return ids[1:]
        if ids:
            return ids
        first = bos if bos is not None else self.tokenizer.eos_token_id
        if first is None:
            raise OptionError("An empty prompt has no first token: the tokenizer has neither BOS nor EOS.")
        return [first]

    def _positions(self) -> int | None:
        config = self.model.config
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        return getattr(config, "max_position_embeddings", None)

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

    def _completions(self, rows: list[Row]) -> list[Completion]:
        texts = self.tokenizer.batch_decode(
            [row.tokens for row in rows], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return [row.completion(text) for row, text in zip(rows, texts, strict=True)]

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    problems = [_weight_problem(name, own, tensor) for name, tensor in weights.items()]
    given = {own[name].data_ptr() for name in weights if name in own}  # a tied weight has several names
    problems += [f"{name!r} is missing" for name, tensor in own.items() if tensor.data_ptr() not in given]
    wrong = [problem for problem in problems if problem]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise OptionError(
            f"weights do not fit the model: {'; '.join(wrong[:5])}{more}. Give the state_dict() of the same model; "
            "nothing was loaded."
        )


def _weight_problem(name: str, own: Mapping[str, Tensor], tensor: Any) -> str:
    if name not in own:
        return f"{name!r} is not in it"
    if not isinstance(tensor, Tensor):
        return f"{name!r} is {type(tensor).__name__}, not a tensor"
    if tensor.shape != own[name].shape:
        return f"{name!r} has shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}"
    return ""

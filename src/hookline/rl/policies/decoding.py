"""Generates tokens with a causal language model of transformers: `Decoder`, `Row` and `sample_tokens`.

`Decoder` generates the tokens of a batch, with one forward pass per token of all rows. It replaces ``model.generate``,
which draws from the global random state, returns no log-probabilities of the sampled distribution without keeping the
scores of every step, and takes 1.6 times as long for a small model. A prompt is processed once for all its completions,
and finished rows are removed from the batch once there are enough of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hookline._engine.errors import MissingExtraError, OptionError
from hookline.rl.policies.base import PolicyError, StopTexts
from hookline.rl.types import Completion, Sampling

try:
    import torch
    from torch import Tensor
    from transformers.cache_utils import DynamicLayer
except ImportError as error:
    raise MissingExtraError("HFPolicy", "hf") from error

COMPACT_BELOW = 0.8
"""The share of unfinished rows below which finished rows are removed from the batch, which copies the cache."""


@dataclass(frozen=True, slots=True)
class StopCriteria:
    """When a completion ends.

    Attributes:
        end_tokens: Tokens that end it.
        stop_texts: Texts that end it.
        positions: The largest number of tokens of prompt and completion together.
    """

    sampling: Sampling
    end_tokens: frozenset[int]
    stop_texts: StopTexts
    positions: int | None

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of any completion."""
        return min(self.sampling.max_tokens, self.positions or self.sampling.max_tokens)


class Row:
    """A completion in progress."""

    __slots__ = ("_criteria", "_limit", "finish", "logprobs", "prompt", "sampled_logprobs", "tokens")

    def __init__(self, prompt: list[int], criteria: StopCriteria) -> None:
        self.prompt, self._criteria = prompt, criteria
        self._limit = min(criteria.max_tokens, (criteria.positions or math.inf) - len(prompt))
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sampled_logprobs: list[float] = []
        self.finish: Literal["stop", "length"] | None = None

    def add(self, token: int, logprob: float, *sampled_logprob: float) -> None:
        """Add a token with the log-probabilities of `sample_tokens`, and check whether it is the last."""
        if math.isnan(logprob):
            raise PolicyError("The model returns NaN for the next token, so its weights are not finite. Load others.")
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.sampled_logprobs += sampled_logprob
        if token in self._criteria.end_tokens or self._criteria.stop_texts.reached(self.tokens):
            self.finish = "stop"
        elif len(self.tokens) >= self._limit:
            self.finish = "length"

    def completion(self, text: str) -> Completion:
        """Return the completion, given the decoded text of its tokens."""
        text, finish = self._criteria.stop_texts.cut(text), self.finish or "length"
        return Completion(text, self.tokens, self.logprobs, finish, self.prompt, self.sampled_logprobs)


class Decoder:
    """Generates completions of tokenized prompts.

    Args:
        model: A causal language model of transformers, in evaluation mode.
        accepted: The parameter names of its ``forward``.
        pad_id: The token that short prompts are padded with on the left; it is masked, so any token works.

    Attributes:
        length: The number of tokens of each row in the cache, padding included.
        pads: The number of tokens of padding of each row.
        cache: The keys and values of the tokens; None before the prompts are processed.
    """

    def __init__(self, model: Any, accepted: frozenset[str], prompts: list[list[int]], *, pad_id: int) -> None:
        self.model, self.accepted, self._prompts = model, accepted, prompts
        self.length = max(map(len, prompts))
        pads = [self.length - len(prompt) for prompt in prompts]
        ids = [[pad_id] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
        self._ids = torch.tensor(ids, device=device_of(model))
        self.pads = torch.tensor(pads, device=self._ids.device)
        self.is_padded = any(pads)
        self.cache: Any = None

    @property
    def can_join(self) -> bool:
        """Whether the cache keeps all tokens of each row, so that other rows can be added to it."""
        return all(type(layer) is DynamicLayer for layer in getattr(self.cache, "layers", [None]))

    def generate(self, logits: Tensor, rows: Sequence[Row], noise: Tensor | None, criteria: StopCriteria) -> None:
        """Generate the tokens of rows, given the logits after the prompt of each.

        Args:
            noise: A number from 0 to 1 for each row and token; None for greedy decoding.
        """
        open_rows = rows
        for step in range(criteria.max_tokens):
            tokens, logprobs = sample_tokens(logits, None if noise is None else noise[:, step], criteria.sampling)
            for row, token, own in zip(open_rows, tokens.tolist(), logprobs.tolist(), strict=True):
                if row.finish is None:
                    row.add(token, *own)
            kept = [index for index, row in enumerate(open_rows) if row.finish is None]
            if not kept:
                break
            if len(kept) < COMPACT_BELOW * len(open_rows):
                selected = torch.tensor(kept, device=tokens.device)
                open_rows, tokens = [open_rows[index] for index in kept], tokens[selected]
                noise = None if noise is None else noise[selected]
                self.select(selected)
            logits = self.extend(tokens, criteria.positions)

    def prefill(self, copies: int, cached: Any = None, columns: int = 0) -> Tensor:
        """Return the logits after each prompt, repeated ``copies`` times.

        Args:
            cached: A cache of the first columns, which are not processed again.
            columns: How many columns it has.
        """
        self.cache = cached
        logits = self._forward(self._ids[:, columns:], None)
        if not hasattr(self.cache, "reorder_cache"):
            raise OptionError(f"{type(self.model).__name__} gives no past_key_values: give a model with a KV cache.")
        if copies == 1:
            return logits
        repeated = torch.arange(len(logits), device=logits.device).repeat_interleave(copies)
        self.select(repeated)
        return logits[repeated]

    def extend(self, tokens: Tensor, positions: int | None) -> Tensor:
        """Append a token to each row, and return the logits after it."""
        self.length += 1
        return self._forward(tokens[:, None], positions)

    def select(self, indices: Tensor) -> None:
        """Continue with these rows; an index may occur several times."""
        self.cache.reorder_cache(indices)
        self.pads = self.pads[indices]

    def join(self, others: "Sequence[Decoder]") -> None:
        """Add the rows of other decoders after the own ones; all have processed all tokens of theirs."""
        self._trim()
        length = max(self.length, *(other.length for other in others))
        layers = zip(self.cache.layers, *(other.cache.layers for other in others), strict=True)
        for own, *new in layers:
            own.keys = _stacked([own.keys, *(layer.keys for layer in new)], length)
            own.values = _stacked([own.values, *(layer.values for layer in new)], length)
        self.pads = torch.cat([each.pads + length - each.length for each in (self, *others)])
        self.length = length
        self.is_padded = bool(self.pads.any())

    def _trim(self) -> None:
        """Remove columns that are padding in every row, e.g. because the longest row is finished."""
        surplus = int(self.pads.min())
        if surplus:
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[..., surplus:, :], layer.values[..., surplus:, :]
            self.pads = self.pads - surplus
            self.length -= surplus

    def _forward(self, ids: Tensor, positions: int | None) -> Tensor:
        options: dict[str, Any] = {}
        if self.is_padded:  # without padding, the model's default mask and positions are right, and faster
            positions_in_row = torch.arange(self.length, device=ids.device)
            options["attention_mask"] = (positions_in_row >= self.pads[:, None]).long()
            if "position_ids" in self.accepted:
                own = positions_in_row[-ids.shape[1] :] - self.pads[:, None]
                # A finished row that is still in the batch may be beyond the last position.
                options["position_ids"] = own.clamp(0, None if positions is None else positions - 1)
        return self.forward(ids, options)

    def forward(self, ids: Tensor, options: dict[str, Any]) -> Tensor:
        """Return the logits after the last of these tokens, which are added to the cache."""
        keep = {"logits_to_keep": 1} if "logits_to_keep" in self.accepted else {}
        output = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, **keep, **options)
        self.cache = getattr(output, "past_key_values", None)
        return output.logits[:, -1].float()


def _stacked(parts: Sequence[Tensor], length: int) -> Tensor:
    """Stack keys or values of rows, padded on the left, where they are masked; they are copied once."""
    heads, dimension = parts[0].shape[1], parts[0].shape[3]
    stacked = parts[0].new_zeros(sum(map(len, parts)), heads, length, dimension)
    for part, place in zip(parts, stacked.split([len(part) for part in parts]), strict=True):
        place[:, :, length - part.shape[2] :] = part
    return stacked


def sample_tokens(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample a token for each row, and return its log-probability under the model.

    If temperature or top-p change the distribution, a second column has the log-probability under that distribution.
    """
    logprobs = logits.log_softmax(-1)
    if noise is None:
        tokens = logits.argmax(-1, keepdim=True)
        return tokens[:, 0], logprobs.gather(-1, tokens)
    tempered = logprobs
    if sampling.temperature != 1:  # the maximum is subtracted first, so that a tiny temperature does not overflow
        tempered = (logprobs - logprobs.max(-1, keepdim=True).values) / sampling.temperature
    weights = tempered.exp() if sampling.temperature == 1 else tempered.softmax(-1)
    if sampling.top_p != 1:
        weights = weights.masked_fill(~in_nucleus(weights, sampling.top_p), 0.0)
    edges = weights.cumsum(-1)
    # Inverse transform sampling with the first edge beyond the number, so never a token of weight 0.
    tokens = torch.searchsorted(edges, noise[:, None] * edges[:, -1:], right=True)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # only with NaN
    chosen = logprobs.gather(-1, tokens)
    if sampling.is_processed:
        sampled = tempered.gather(-1, tokens) - tempered.logsumexp(-1, keepdim=True)
        if sampling.top_p != 1:
            sampled -= edges[:, -1:].log()  # the probability of the nucleus
        chosen = torch.cat([chosen, sampled], dim=-1)  # one tensor, so that the host waits for the device once
    return tokens[:, 0], chosen


def device_of(model: Any) -> Any:
    """Return the device of a model's parameters."""
    return next(model.parameters()).device


def in_nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Return a mask of the nucleus: the most likely tokens that together have a probability of ``top_p``."""
    ordered, order = probabilities.sort(dim=-1, descending=True)
    is_inside = ordered.cumsum(-1) - ordered < top_p
    return torch.zeros_like(is_inside).scatter(-1, order, is_inside)

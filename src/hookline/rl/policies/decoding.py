"""`Decoding`: tokens for a batch of prompts, one pass of the model for each token of all rows.

A prompt is read once for all its completions. The log-probabilities, those of the model itself and those of the
distribution that was sampled from, are from the pass that the token was sampled in. Rows that are finished leave the
batch once they are enough to be worth it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hookline._engine.errors import OptionError
from hookline.rl.policies.base import PolicyError, StopTexts
from hookline.rl.types import Completion, Sampling

DROP_BELOW = 0.8
"""The share of unfinished rows below which the finished ones leave the batch; leaving copies the cache."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a completion ends.

    Attributes:
        ends: Tokens that end it.
        stops: Texts that end it.
        positions: The most tokens of prompt and completion together.
    """

    sampling: Sampling
    ends: frozenset[int]
    stops: StopTexts
    positions: int | None

    @property
    def longest(self) -> int:
        """The most tokens of any completion."""
        return min(self.sampling.max_tokens, self.positions or self.sampling.max_tokens)


class Row:
    """A completion that is being written."""

    __slots__ = ("_limit", "_rules", "finish", "logprobs", "prompt", "sampled", "tokens")

    def __init__(self, prompt: list[int], rules: Rules) -> None:
        self.prompt, self._rules = prompt, rules
        self._limit = min(rules.longest, (rules.positions or math.inf) - len(prompt))
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sampled: list[float] = []
        self.finish: Literal["stop", "length"] | None = None

    def add(self, token: int, logprob: float, *sampled: float) -> None:
        """Take a token with what `pick` knows of it, and see whether it is the last one."""
        if math.isnan(logprob):
            raise PolicyError("The model gives NaN for the next token: its weights are not finite. Load others.")
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.sampled += sampled
        if token in self._rules.ends or self._rules.stops.reached(self.tokens):
            self.finish = "stop"
        elif len(self.tokens) >= self._limit:
            self.finish = "length"

    def completion(self, text: str) -> Completion:
        """What was written, with the text of its tokens."""
        text, finish = self._rules.stops.cut(text), self.finish or "length"
        return Completion(text, self.tokens, self.logprobs, finish, self.prompt, self.sampled)


class Decoding:
    """Writes completions for prompts that are tokens already.

    Args:
        model: A causal language model of transformers, in evaluation mode.
        accepted: The names of what its ``forward`` takes.
        filler: What stands before a short prompt; it is masked, so any token will do.
    """

    def __init__(self, model: Any, accepted: frozenset[str], prompts: list[list[int]], *, filler: int) -> None:
        self._model, self._accepted, self._prompts = model, accepted, prompts
        self._length = max(map(len, prompts))
        pads = [self._length - len(prompt) for prompt in prompts]
        ids = [[filler] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
        self._ids = torch.tensor(ids, device=device_of(model))
        self._pads = torch.tensor(pads, device=self._ids.device)
        self._is_padded = any(pads)
        self._cache: Any = None

    def write(self, copies: int, noise: Tensor | None, rules: Rules) -> list[Row]:
        """``copies`` rows for each prompt.

        Args:
            noise: A number from 0 to 1 for each row and token; None takes the likeliest token.
        """
        rows = open_rows = [Row(prompt, rules) for prompt in self._prompts for _ in range(copies)]
        logits = self._read(copies)
        for step in range(rules.longest):
            tokens, logprobs = pick(logits, None if noise is None else noise[:, step], rules.sampling)
            for row, token, known in zip(open_rows, tokens.tolist(), logprobs.tolist(), strict=True):
                if row.finish is None:
                    row.add(token, *known)
            kept = [place for place, row in enumerate(open_rows) if row.finish is None]
            if not kept:
                break
            if len(kept) < DROP_BELOW * len(open_rows):
                chosen = torch.tensor(kept, device=tokens.device)
                open_rows, tokens = [open_rows[place] for place in kept], tokens[chosen]
                noise = None if noise is None else noise[chosen]
                self._keep(chosen)
            self._length += 1
            logits = self._forward(tokens[:, None], rules.positions)
        return rows

    def _read(self, copies: int) -> Tensor:
        """Logits after each prompt, ``copies`` times."""
        logits = self._forward(self._ids, None)
        if not hasattr(self._cache, "reorder_cache"):
            raise OptionError(f"{type(self._model).__name__} gives no past_key_values: give a model with a KV cache.")
        if copies == 1:
            return logits
        repeated = torch.arange(len(logits), device=logits.device).repeat_interleave(copies)
        self._keep(repeated)
        return logits[repeated]

    def _keep(self, chosen: Tensor) -> None:
        """Go on with these rows; one may be chosen several times."""
        self._cache.reorder_cache(chosen)
        self._pads = self._pads[chosen]

    def _forward(self, ids: Tensor, positions: int | None) -> Tensor:
        options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in self._accepted else {}
        if self._is_padded:  # without padding, the model's own mask and positions are right, and cost less
            places = torch.arange(self._length, device=ids.device)
            options["attention_mask"] = (places >= self._pads[:, None]).long()
            if "position_ids" in self._accepted:
                own = places[-ids.shape[1] :] - self._pads[:, None]
                # A finished row that is still in the batch may be past the last position.
                options["position_ids"] = own.clamp(0, None if positions is None else positions - 1)
        output = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, **options)
        self._cache = getattr(output, "past_key_values", None)
        return output.logits[:, -1].float()


def pick(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """A token for each row, and its log-probability under the model itself.

    Where temperature or top-p make that another distribution than the one that is sampled from, the log-probability
    under that one stands beside it.
    """
    logprobs = logits.log_softmax(-1)
    if noise is None:
        tokens = logits.argmax(-1, keepdim=True)
        return tokens[:, 0], logprobs.gather(-1, tokens)
    tempered = logprobs if sampling.temperature == 1 else _tempered(logprobs, sampling.temperature)
    edges = _weights(tempered, sampling).cumsum(-1)
    # The first edge beyond the number: never a token of weight 0.
    tokens = torch.searchsorted(edges, noise[:, None] * edges[:, -1:], right=True)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # only NaN gets there
    known = logprobs.gather(-1, tokens)
    if sampling.is_processed:
        sampled = tempered.gather(-1, tokens) - tempered.logsumexp(-1, keepdim=True)
        if sampling.top_p != 1:
            sampled -= edges[:, -1:].log()  # the probability of all that top-p leaves
        known = torch.cat([known, sampled], dim=-1)  # one tensor, which the host waits for once
    return tokens[:, 0], known


def device_of(model: Any) -> Any:
    """Where a model takes its input."""
    return next(model.parameters()).device


def _tempered(logprobs: Tensor, temperature: float) -> Tensor:
    """Logits at a temperature; the largest is taken off first, so that a tiny temperature does not overflow."""
    return (logprobs - logprobs.max(-1, keepdim=True).values) / temperature


def _weights(tempered: Tensor, sampling: Sampling) -> Tensor:
    weights = tempered.exp() if sampling.temperature == 1 else tempered.softmax(-1)
    if sampling.top_p == 1:
        return weights
    return weights.masked_fill(~in_nucleus(weights, sampling.top_p), 0.0)


def in_nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Which tokens top-p leaves: the likeliest ones that have this share of the probability together."""
    ordered, order = probabilities.sort(dim=-1, descending=True)
    is_left = ordered.cumsum(-1) - ordered < top_p
    return torch.zeros_like(is_left).scatter(-1, order, is_left)

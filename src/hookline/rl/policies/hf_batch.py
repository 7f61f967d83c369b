"""`HFBatch`: generates with a transformers model for requests that arrive one after another.

Requests join between two tokens: their prompts are processed together, equal ones once, and their rows are added to the
key-value cache. A finished row is returned at once, and is removed from the cache together with others. Each row draws
from a generator of its own request, so its tokens do not depend on the other rows. Their logits do, in the last bits:
arithmetic depends on the shape of a batch.

A model whose cache does not keep all tokens (sliding windows, state space models) cannot be joined; then further
requests wait until all rows are finished.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookline._engine.errors import OptionError
from hookline.loops.training_step import set_to_evaluate
from hookline.rl.policies.base import SampleRequest, check_prompt, derived_seed
from hookline.rl.policies.decoding import COMPACT_BELOW, Decoder, Row, StopCriteria, device_of, sample_tokens
from hookline.rl.types import Completion, Sampling

if TYPE_CHECKING:
    from hookline.rl.policies.hf import HFPolicy


@dataclass(slots=True, eq=False)
class _OpenRow:
    """A row of the batch, and the key of its request.

    Attributes:
        noise: A number from 0 to 1 for each token, on the CPU.
        is_dropped: Its request was cancelled.
    """

    key: int
    row: Row
    noise: Tensor
    is_dropped: bool = False

    @property
    def is_open(self) -> bool:
        return self.row.finish is None and not self.is_dropped


class HFBatch:
    """The requests that are being generated together; used by one thread at a time.

    Args:
        sampling: Has the temperature and top-p of all requests.
    """

    def __init__(self, policy: "HFPolicy", sampling: Sampling) -> None:
        self._policy, self._sampling = policy, sampling
        self._rows: list[_OpenRow] = []
        self._decoder: Decoder | None = None
        self._noise: Tensor | None = None
        self._logits: Tensor | None = None  # after the last token of each row; None if `_tokens` come first
        self._tokens: Tensor | None = None
        self._criteria: dict[tuple[Any, ...], StopCriteria] = {}

    def __len__(self) -> int:
        return sum(row.is_open for row in self._rows)

    @property
    def room(self) -> int:
        """How many requests can be admitted now."""
        if self._rows and self._decoder is not None and not self._decoder.can_join:
            return 0
        return self._policy.batch_size - len(self)

    def admit(self, requests: Sequence[tuple[int, SampleRequest]]) -> list[tuple[int, Exception]]:
        """Add requests with their keys; returns those that are not accepted, with their errors."""
        refused: list[tuple[int, Exception]] = []
        admitted: list[_OpenRow] = []
        for key, request in requests:
            try:
                admitted.append(self._row(key, request))
            except OptionError as error:
                refused.append((key, error))
        if admitted:
            with torch.no_grad(), set_to_evaluate(self._policy.model):
                self._add(admitted)
        return refused

    def advance(self, should_pause: Callable[[], bool]) -> list[tuple[int, Completion]]:
        """Generate tokens until a request is finished or a pause is requested; returns the finished ones."""
        finished: list[_OpenRow] = []
        with torch.no_grad(), set_to_evaluate(self._policy.model):
            while len(self) and not finished:
                finished = self._generate_token()
                if should_pause():
                    break
        completions = self._policy.completions([each.row for each in finished]) if finished else []
        return [(each.key, completion) for each, completion in zip(finished, completions, strict=True)]

    def drop(self, keys: set[int]) -> None:
        """Stop generating for cancelled requests."""
        for each in self._rows:
            each.is_dropped |= each.key in keys
        self._compact_if_worthwhile()

    def _row(self, key: int, request: SampleRequest) -> _OpenRow:
        if request.images:
            raise OptionError("HFPolicy generates from text alone: the prompt has images, which it cannot process.")
        sampling = request.sampling
        (ids,) = self._policy.encode([check_prompt(request.prompt, "prompt")])
        kind = (sampling.max_tokens, tuple(sampling.stop))
        if kind not in self._criteria:
            self._criteria[kind] = self._policy.stop_criteria(sampling)
        criteria = self._criteria[kind]
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        generator = torch.Generator().manual_seed(derived_seed(seed, 0))  # as generate([prompt], 1, sampling)
        return _OpenRow(key, Row(ids, criteria), torch.rand(criteria.max_tokens, generator=generator))

    def _add(self, admitted: list[_OpenRow]) -> None:
        """Process the prompts of new rows, and add the rows to the batch."""
        self._compact(self._open_indices())  # finished rows would be copied with the cache
        distinct = {tuple(each.row.prompt): None for each in admitted}
        places = {prompt: place for place, prompt in enumerate(distinct)}
        fresh = self._policy.decoder([list(prompt) for prompt in distinct])
        logits = fresh.prefill(1)
        if len(distinct) < len(admitted):
            selected = torch.tensor([places[tuple(each.row.prompt)] for each in admitted], device=logits.device)
            fresh.select(selected)
            logits = logits[selected]
        if self._decoder is None:
            self._decoder, self._logits = fresh, logits
        else:
            current = self._current_logits()
            self._decoder.join(fresh)
            self._logits = torch.cat([current, logits])
        self._rows += admitted
        noise = torch.nn.utils.rnn.pad_sequence([each.noise for each in self._rows], batch_first=True)
        self._noise = noise.to(logits.device) if self._sampling.temperature else None

    def _current_logits(self) -> Tensor:
        """Return the logits after the last token of each row."""
        if self._logits is None:
            assert self._decoder is not None
            assert self._tokens is not None
            self._logits = self._decoder.extend(self._tokens, self._policy.context_length)
        return self._logits

    def _generate_token(self) -> list[_OpenRow]:
        """Generate a token of each row, and return the rows that it finishes."""
        logits = self._current_logits()
        # A finished row that is still in the batch generates tokens that are never used: any noise will do.
        noise = None
        if self._noise is not None:
            counts = [min(len(each.row.tokens), self._noise.shape[1] - 1) for each in self._rows]
            noise = self._noise.gather(1, torch.tensor(counts, device=logits.device)[:, None])[:, 0]
        tokens, logprobs = sample_tokens(logits, noise, self._sampling)
        finished: list[_OpenRow] = []
        for each, token, own in zip(self._rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if each.is_open:
                each.row.add(token, *own)
                if not each.is_open:
                    finished.append(each)
        self._tokens, self._logits = tokens, None
        self._compact_if_worthwhile()
        return finished

    def _open_indices(self) -> list[int]:
        return [index for index, each in enumerate(self._rows) if each.is_open]

    def _compact_if_worthwhile(self) -> None:
        kept = self._open_indices()
        if len(kept) < COMPACT_BELOW * len(self._rows):
            self._compact(kept)

    def _compact(self, kept: list[int]) -> None:
        """Continue with these rows alone."""
        if len(kept) == len(self._rows):
            return
        if not kept:
            self._rows, self._decoder, self._noise, self._logits, self._tokens = [], None, None, None, None
            return
        assert self._decoder is not None
        selected = torch.tensor(kept, device=device_of(self._policy.model))
        self._rows = [self._rows[index] for index in kept]
        self._decoder.select(selected)
        self._noise = None if self._noise is None else self._noise[selected]
        self._logits = None if self._logits is None else self._logits[selected]
        self._tokens = None if self._tokens is None else self._tokens[selected]

"""`HFBatch`: generates with a transformers model for requests that arrive one after another.

Requests join between two tokens: their prompts are processed together, equal ones once, and their rows are added to the
key-value cache. A finished row is returned at once, and is removed from the cache together with others. Each row draws
from a generator of its own request, so its tokens do not depend on the other rows. Their logits do, in the last bits:
arithmetic depends on the shape of a batch.

In multi-turn episodes, the keys and values of finished rows are kept: of a prompt that begins with the tokens of one of
them, only the others are processed. A change of the weights drops what is kept, and what is in progress is not kept.

A model whose cache does not keep all tokens (sliding windows, state space models) cannot be joined; then further
requests wait until all rows are finished, and nothing is kept.
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
from hookline.rl.policies.prefix_cache import Prefix, PrefixCache, WeightsWatch
from hookline.rl.types import Completion, Sampling

if TYPE_CHECKING:
    from hookline.rl.policies.hf import HFPolicy

MIN_SAVED_TOKENS = 16
"""Kept keys and values are used if they save at least so many tokens of a pass: copying them takes time too."""
PASS_TOKENS = 256
"""Prompts are processed in two passes instead of one if that saves so many tokens: a pass alone costs about as much."""


@dataclass(slots=True, eq=False)
class _OpenRow:
    """A row of the batch, and the key of its request.

    Attributes:
        noise: A number from 0 to 1 for each token, on the CPU.
        is_dropped: Its request was cancelled.
        changes: How often the weights had changed when it was admitted.
        ids: The tokens of prompt and completion, once it is finished; a copy, since a `Completion` can be modified.
    """

    key: int
    row: Row
    noise: Tensor
    is_dropped: bool = False
    changes: int = 0
    ids: list[int] | None = None

    @property
    def is_open(self) -> bool:
        return self.row.finish is None and not self.is_dropped


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt to process, and what is kept of its beginning.

    Attributes:
        rows: Those that begin with it.
        new: The number of tokens that have to be processed: at least one, for its logits.
    """

    ids: list[int]
    rows: list[_OpenRow]
    prefix: Prefix | None
    new: int


class HFBatch:
    """The requests that are being generated together; used by one thread at a time.

    While there are `callers`, the keys and values of finished rows are kept for prompts that begin with their tokens.
    Rows of the batch and kept ones together are at most as many as callers, or as the most rows that the batch ever
    had, and never more than `HFPolicy.batch_size`: they take no more memory than if all callers generated at the same
    time. Once so many rows were kept and none was used, as in episodes of a single turn, nothing is kept any more.

    Args:
        sampling: Has the temperature and top-p of all requests.

    Attributes:
        callers: The number of callers whose requests may continue earlier ones.
    """

    def __init__(self, policy: "HFPolicy", sampling: Sampling) -> None:
        self._policy, self._sampling = policy, sampling
        self.callers = 0
        self._prefixes = PrefixCache()
        self._weights = WeightsWatch(policy.model)
        self._kept_in_vain = 0
        self._most_rows = 0
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
        changes = self._note_weights()
        groups: dict[tuple[int, ...], list[_OpenRow]] = {}
        for each in admitted:
            each.changes = changes
            groups.setdefault(tuple(each.row.prompt), []).append(each)
        passes = self._passes([self._with_prefix(rows) for rows in groups.values()])
        prefilled = [self._prefilled(prompts) for prompts in passes]
        decoders, logits = [decoder for decoder, _ in prefilled], [after for _, after in prefilled]
        if self._decoder is None:
            self._decoder = decoders.pop(0)
        else:
            logits.insert(0, self._current_logits())
        if decoders:
            self._decoder.join(decoders)
        self._logits = torch.cat(logits)
        self._rows += [row for prompts in passes for prompt in prompts for row in prompt.rows]
        noise = torch.nn.utils.rnn.pad_sequence([each.noise for each in self._rows], batch_first=True)
        self._noise = noise.to(self._logits.device) if self._sampling.temperature else None
        self._most_rows = max(self._most_rows, len(self._rows))
        self._prefixes.shrink(self._keeps(len(self._rows)))

    def _with_prefix(self, rows: list[_OpenRow]) -> _Prompt:
        ids = rows[0].row.prompt
        prefix, common = self._prefixes.find(ids)
        return _Prompt(ids, rows, prefix, max(1, len(ids) - common))

    def _passes(self, prompts: list[_Prompt]) -> list[list[_Prompt]]:
        """Divide prompts into those with few new tokens and others, if that saves tokens: a pass has rectangles."""
        if not len(self._prefixes):
            return [prompts]
        ordered = sorted(prompts, key=lambda prompt: prompt.new)
        count, most = len(ordered), ordered[-1].new
        saved = {split: split * (most - ordered[split - 1].new) for split in range(1, count)}
        split = max(saved, key=saved.__getitem__, default=0)
        return [ordered[:split], ordered[split:]] if split and saved[split] >= PASS_TOKENS else [ordered]

    def _prefilled(self, prompts: list[_Prompt]) -> tuple[Decoder, Tensor]:
        """Process prompts, and return a decoder with all their rows, and the logits after each.

        With n the largest number of new tokens, the last n tokens of every prompt are processed, over the keys and
        values of those before: then all padding is on the left.
        """
        decoder = self._policy.decoder([prompt.ids for prompt in prompts])
        columns = decoder.length - max(prompt.new for prompt in prompts)
        pads = [decoder.length - len(prompt.ids) for prompt in prompts]
        if sum(max(0, columns - pad) for pad in pads) >= MIN_SAVED_TOKENS:
            sources = [
                (prompt.prefix if pad < columns else None, pad) for prompt, pad in zip(prompts, pads, strict=True)
            ]
            logits = decoder.prefill(1, self._prefixes.gather(sources, columns), columns)
            self._kept_in_vain = 0
        else:
            logits = decoder.prefill(1)
        if all(len(prompt.rows) == 1 for prompt in prompts):
            return decoder, logits
        copies = torch.tensor([len(prompt.rows) for prompt in prompts], device=logits.device)
        indices = torch.arange(len(prompts), device=logits.device).repeat_interleave(copies)
        decoder.select(indices)
        return decoder, logits[indices]

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
                    each.ids = [*each.row.prompt, *each.row.tokens] if self.callers else None
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
        self._keep_finished(len(kept))
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

    def _keep_finished(self, num_open: int) -> None:
        """Keep the keys and values of finished rows, which are about to be removed from the batch."""
        assert self._decoder is not None
        room = self._keeps(num_open)
        if room < 1 or not self._decoder.can_join:
            return
        changes = self._note_weights()
        rows = [(index, each.ids) for index, each in enumerate(self._rows) if each.ids and each.changes == changes]
        self._prefixes.shrink(room - len(rows))
        self._prefixes.add(self._decoder, rows[-room:])
        self._kept_in_vain += len(rows)

    def _keeps(self, num_rows: int) -> int:
        """Return how many rows may be kept beside those of the batch."""
        most = min(self._policy.batch_size, max(self.callers, self._most_rows))
        return 0 if not self.callers or self._kept_in_vain > most else most - num_rows

    def _note_weights(self) -> int:
        """Drop what was computed with other weights; returns how often they have changed."""
        if not self.callers:
            return 0
        before, changes = self._weights.changes, self._weights.look(self._policy.version)
        if changes != before:
            self._prefixes.clear()
        return changes

"""Generates with a captured CUDA graph: `generate_captured`, which returns the same rows as `Decoder.generate`.

A forward pass of one token of a small model is some hundred kernels, and launching them one by one takes several times
as long as computing them. Captured as a CUDA graph they are launched together. A graph always works on the same memory,
so the keys and values are in a cache of fixed capacity, the noise and the results in tensors for all tokens, and the
graph counts its steps itself.

The host reads the tokens of `CHUNK` steps at a time, while the device computes the next ones: rows are found to be
finished up to two chunks late, and what was generated for them since is left out. When the cache is full, it is copied
into one of twice the capacity, without the finished rows, and the step is captured again.

A model whose step cannot be captured (it copies to the host, for example) makes the same steps without a graph, and so
does the CPU, in tests.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer

from hookline.rl.policies.decoding import Decoder, Row, StopCriteria, sample_tokens

logger = logging.getLogger("hookline")

CHUNK = 16
FIRST_ROOM = 256
"""The number of tokens that the first cache has room for, after the prompt."""
MIN_TOKENS = 32
"""Capturing takes as long as some steps without a graph: shorter completions are generated without one."""
MEMORY_SHARE = 0.5
"""The share of the free memory that the caches may take; a cache that grows with its tokens needs less at first."""


def can_capture(decoder: Decoder, max_tokens: int) -> bool:
    """Return whether a graph is possible and worthwhile for a decoder that has processed its prompts."""
    if decoder.pads.device.type != "cuda" or max_tokens < MIN_TOKENS or not decoder.can_join:
        return False
    # What transformers says of models whose step has static shapes and does not wait for the device.
    if not getattr(decoder.model, "_can_compile_fullgraph", False):
        return False
    size_of_token = sum(layer.keys.nbytes + layer.values.nbytes for layer in decoder.cache.layers) / decoder.length
    free, _ = torch.cuda.mem_get_info(decoder.pads.device)
    # While a cache is copied into the next one, which is twice as large, both exist.
    return bool(1.5 * size_of_token * (decoder.length + max_tokens) < MEMORY_SHARE * free)


def generate_captured(
    decoder: Decoder,
    logits: Tensor,
    rows: Sequence[Row],
    noise: Tensor | None,
    criteria: StopCriteria,
    *,
    first_room: int = FIRST_ROOM,
) -> None:
    """Generate the tokens of the rows.

    Args:
        decoder: Has processed the prompt of each row.
        logits: The logits after each prompt.
        noise: A number from 0 to 1 for each row and token; None for greedy decoding.
        first_room: The number of tokens that the first cache has room for, after the prompt.
    """
    steps = _Steps(decoder, logits, noise, criteria)
    room = min(first_room, criteria.max_tokens)
    while True:
        replay = steps.prepare(room)
        unread: _Chunk | None = None
        while steps.count < room:
            for _ in range(min(CHUNK, room - steps.count)):
                replay()
                steps.count += 1
            chunk, unread = unread, steps.read()
            # The chunk before the one that was just launched: the device computes while the host reads.
            if chunk is not None and not chunk.add_to(rows):
                return
        chunk = steps.read() if unread is None else unread
        if not chunk.add_to(rows) or room >= criteria.max_tokens:
            return
        kept = [index for index, row in enumerate(rows) if row.finish is None]
        rows = [rows[index] for index in kept]
        steps.select(torch.tensor(kept, device=logits.device))
        room = min(2 * room, criteria.max_tokens)


class _Chunk(NamedTuple):
    """Tokens on their way to the host, and their log-probabilities; the first dimension is that of the steps."""

    tokens: Tensor
    logprobs: Tensor
    arrived: Any

    def add_to(self, rows: Sequence[Row]) -> bool:
        """Add the tokens to the rows, and return whether any of these is unfinished."""
        if self.arrived is not None:
            self.arrived.synchronize()
        tokens, logprobs = self.tokens.T.tolist(), self.logprobs.transpose(0, 1).tolist()
        for row, own_tokens, own_logprobs in zip(rows, tokens, logprobs, strict=True):
            for token, own in zip(own_tokens, own_logprobs, strict=True):
                if row.finish is not None:
                    break
                row.add(token, *own)
        return any(row.finish is None for row in rows)


class _Steps:
    """The steps of a batch, each of which feeds the last token of each row to the model and samples the next.

    Attributes:
        count: How many tokens of each row have been sampled.
    """

    def __init__(self, decoder: Decoder, logits: Tensor, noise: Tensor | None, criteria: StopCriteria) -> None:
        self._decoder, self._sampling = decoder, criteria.sampling
        self._last_position = sys.maxsize if criteria.positions is None else criteria.positions - 1
        self._noise = None if noise is None else noise.T.contiguous()
        first = None if self._noise is None else self._noise[0]
        self._last, logprobs = sample_tokens(logits, first, self._sampling)
        steps = criteria.max_tokens
        self._tokens = self._last.new_zeros(steps, len(self._last))
        self._logprobs = logprobs.new_zeros(steps, *logprobs.shape)
        self._tokens[0], self._logprobs[0] = self._last, logprobs
        self._positions = decoder.length - decoder.pads[:, None]
        self._index = torch.ones(1, dtype=torch.long, device=logits.device)
        self._options: dict[str, Any] = {}
        self._graph: Any = None
        self._num_read = 0
        self.count = 1

    def prepare(self, room: int) -> Callable[[], object]:
        """Allocate room for this many tokens in total, and return a function that runs a step."""
        capacity = self._decoder.length + room
        filled = self._decoder.length + self.count - 1
        self._graph = None  # frees its memory
        layers = []
        for layer in self._decoder.cache.layers:
            grown = StaticLayer(max_cache_len=capacity)
            grown.lazy_initialization(layer.keys, layer.values)
            grown.keys[:, :, :filled] = layer.keys[:, :, :filled]
            grown.values[:, :, :filled] = layer.values[:, :, :filled]
            grown.cumulative_length.fill_(filled)
            layers.append(grown)
        self._decoder.cache = Cache(layers=layers)
        self._options = {}
        if self._decoder.is_padded:
            places = torch.arange(capacity, device=self._last.device)
            self._options["attention_mask"] = (places >= self._decoder.pads[:, None]).long()
        if "position_ids" in self._decoder.accepted:
            self._options["position_ids"] = self._positions
        return self._step if self._last.device.type != "cuda" or self.count >= room else self._captured()

    def select(self, indices: Tensor) -> None:
        """Continue with these rows."""
        for layer in self._decoder.cache.layers:
            layer.keys, layer.values = layer.keys[indices], layer.values[indices]
        self._decoder.pads = self._decoder.pads[indices]
        self._last, self._positions = self._last[indices], self._positions[indices]
        self._tokens, self._logprobs = self._tokens[:, indices], self._logprobs[:, indices]
        self._noise = None if self._noise is None else self._noise[:, indices]

    def read(self) -> _Chunk:
        """Start to copy the tokens since the last call to the host."""
        new = slice(self._num_read, self.count)
        self._num_read = self.count
        tokens, logprobs = self._tokens[new], self._logprobs[new]
        if tokens.device.type != "cuda":
            return _Chunk(tokens, logprobs, None)
        arrived = torch.cuda.Event()
        chunk = _Chunk(_pinned_copy(tokens), _pinned_copy(logprobs), arrived)
        arrived.record()
        return chunk

    def _captured(self) -> Callable[[], object]:
        # The first step is made without a graph: libraries allocate at their first use, which cannot be captured.
        self._step()
        self.count += 1
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step()
        except RuntimeError as error:
            logger.warning(
                "A step of %s cannot be captured as a CUDA graph, so it generates without one, which is slower: %s",
                type(self._decoder.model).__name__,
                error,
            )
            return self._step
        self._graph = graph
        replay: Callable[[], object] = graph.replay
        return replay

    def _step(self) -> None:
        logits = self._decoder.forward(self._last[:, None], self._options)
        noise = None if self._noise is None else self._noise.index_select(0, self._index)[0]
        tokens, logprobs = sample_tokens(logits, noise, self._sampling)
        self._last.copy_(tokens)
        self._tokens.index_copy_(0, self._index, tokens[None])
        self._logprobs.index_copy_(0, self._index, logprobs[None])
        self._index.add_(1)
        # A finished row that is still in the batch may be beyond the last position.
        self._positions.add_(1).clamp_(max=self._last_position)


def _pinned_copy(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

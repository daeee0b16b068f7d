"""Runs a model on given seqs without an engine, for tests of architectures.

It assigns scattered pages, fills `ForwardBuffers` and computes the seqs in chunks, without scheduling or sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quire_kernels.select import Ops
from quire_models.loading.mapping import CheckpointLoader
from quire_models.loading.weight_names import WeightsMapper
from quire_models.model_part import ModelPart
from quire_models.modules.builder import ModuleBuilder
from quire_models.step.forward_batch import ForwardBatch, ForwardBuffers, KVCache
from quire_models.step.state_cache import StateCache


@dataclass(frozen=True)
class ChunkSpec:
    """The next `count` tokens of seq number `seq`."""

    seq: int
    count: int


class ModelDriver:
    """A KV cache, state and buffers for some seqs, whose pages and slots are scattered in random order."""

    def __init__(
        self,
        model: Any,
        decoder: ModelPart,
        sequences: Sequence[Sequence[int]],
        page_size: int = 16,
        prompt_lens: Sequence[int] | None = None,
        token_types: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.model = model
        self._types = token_types
        self.sequences = [list(map(int, tokens)) for tokens in sequences]
        self.computed = [0] * len(sequences)
        self.page_size = page_size
        self._prompt_lens = np.array(prompt_lens or [len(tokens) for tokens in sequences], dtype=np.int32)
        dtype, device = model.dtype, model.device
        max_pages = max(-(-len(tokens) // page_size) for tokens in self.sequences)
        total = max_pages * len(sequences)
        order = np.random.default_rng(0).permutation(total)
        self._pages = order.reshape(len(sequences), max_pages).astype(np.int32)
        self.kv = KVCache.allocate(decoder.kv_shapes, total, page_size, dtype, device)
        slots = 2 * len(sequences)
        self.state = StateCache.allocate(decoder.state_shapes, slots, dtype, device)
        self._slots = np.random.default_rng(1).permutation(slots)[: len(sequences)] if self.state.flat else None
        num_tokens = sum(map(len, self.sequences))
        self._buffers = ForwardBuffers(num_tokens, len(sequences), max_pages, device)

    def step(self, chunks: Sequence[ChunkSpec]) -> list[Tensor]:
        """Compute the chunks in one forward pass; returns logits [count, vocab] of each."""
        logits = self.model.logits(self.model(self.forward(chunks)))
        return list(logits.split([chunk.count for chunk in chunks]))

    def hidden(self, seqs: Sequence[int]) -> list[Tensor]:
        """Hidden states [len, width] of these seqs, each computed whole in one forward pass."""
        chunks = [ChunkSpec(seq, len(self.sequences[seq])) for seq in seqs]
        return list(self.model(self.forward(chunks)).clone().split([chunk.count for chunk in chunks]))

    def skip(self, seq: int, count: int) -> Tensor:
        """The slots of the next `count` tokens of a seq, int64 [count], which from now on count as computed."""
        positions = np.arange(self.computed[seq], self.computed[seq] + count)
        self.computed[seq] += count
        pages = self._pages[seq, positions // self.page_size].astype(np.int64)
        return torch.from_numpy(pages * self.page_size + positions % self.page_size).to(self.model.device)

    def forward(self, chunks: Sequence[ChunkSpec]) -> ForwardBatch:
        """The ForwardBatch of one step; afterwards its chunks count as computed."""
        spans = [(p.seq, self.computed[p.seq], self.computed[p.seq] + p.count) for p in chunks]
        for seq, _, end in spans:
            assert end <= len(self.sequences[seq]), f"seq {seq} has no {end} tokens"
            self.computed[seq] = end
        positions = np.concatenate([np.arange(start, end) for _, start, end in spans])
        types = self._types
        owners = np.repeat([seq for seq, _, _ in spans], [end - start for _, start, end in spans])
        return self._buffers.fill(
            token_ids=np.concatenate([self.sequences[seq][start:end] for seq, start, end in spans]),
            positions=positions,
            slot_mapping=self._pages[owners, positions // self.page_size] * self.page_size + positions % self.page_size,
            query_starts=np.cumsum([0, *(end - start for _, start, end in spans)], dtype=np.int32),
            contexts=np.array([end for _, _, end in spans], dtype=np.int32),
            page_table=self._pages[[seq for seq, _, _ in spans]],
            logit_rows=np.arange(len(positions)),
            kv=self.kv,
            prompt_lens=self._prompt_lens[[seq for seq, _, _ in spans]],
            token_types=None if types is None else np.concatenate([types[seq][start:end] for seq, start, end in spans]),
            state=self.state if self._slots is not None else None,
            state_slots=self._slots[[seq for seq, _, _ in spans]] if self._slots is not None else None,
        )


def build(decoder: ModelPart, ops: Ops, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The module of a decoder, with uninitialized weights."""
    return decoder.build(ModuleBuilder(ops, dtype, torch.device(device)))


def run_tokens(
    model: Any,
    decoder: ModelPart,
    sequences: Sequence[Sequence[int]],
    chunking: Iterable[Sequence[ChunkSpec]] | None = None,
    page_size: int = 16,
    prompt_lens: Sequence[int] | None = None,
) -> list[Tensor]:
    """Logits [len, vocab] of every position of each seq.

    chunking: the steps, each a list of chunks; by default everything in one step. Remaining tokens are computed in a
    last step. prompt_lens: for rotary embeddings that depend on the length; the rest of a seq counts as generated
    (default: all of it is prompt).
    """
    driver = ModelDriver(model, decoder, sequences, page_size, prompt_lens)
    found: list[list[Tensor]] = [[] for _ in sequences]
    for chunks in [*(chunking or ()), None]:
        remaining = [ChunkSpec(i, len(s) - driver.computed[i]) for i, s in enumerate(driver.sequences)]
        step = [chunk for chunk in (remaining if chunks is None else chunks) if chunk.count]
        if step:
            for chunk, logits in zip(step, driver.step(step), strict=True):
                found[chunk.seq].append(logits)
    return [torch.cat(logits) for logits in found]


def load_state_dict_into(
    model: nn.Module, decoder: ModelPart, names: WeightsMapper, state_dict: Mapping[str, Tensor]
) -> None:
    """Fill a model from tensors in memory. Raises CheckpointError as `CheckpointLoader` does."""
    loader = CheckpointLoader(model, decoder, names)
    for name, tensor in state_dict.items():
        if loader.needs(name):
            loader.put(name, tensor)
    loader.finish()

"""Pools the hidden states of prompts into vectors, over as many steps as a prompt takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quire.params.pooling import PoolingParams, PoolingResult
from quire.types import Chunk, NewSeq
from quire_models.parts.pooling import Pooler

BindAdapters = Callable[[Sequence[int]], Any]
"""Binds adapters for rows of these sequences, one id per row; returns None if no adapter changes a head."""

EPS = 1e-12
"""Lower bound of the norm that an embedding is divided by."""


@dataclass(slots=True, eq=False)
class _PoolingState:
    """One prompt. length: its tokens, of which the first num_given are not computed and the first num_virtual were put
    before it by an adapter. kept: hidden states [n, width] so far; total: their sum, for means.
    """

    params: PoolingParams
    pooler: Pooler
    length: int
    num_virtual: int
    num_given: int
    kept: list[Tensor] = field(default_factory=list)
    total: Tensor | None = None

    def head_input(self) -> Tensor:
        """[1 or tokens, width]"""
        if self.total is not None:
            return (self.total / (self.length - self.num_given))[None]
        return self.kept[0] if len(self.kept) == 1 else torch.cat(self.kept)


class Poolers:
    """The poolers of one model by task, and the state of each prompt that is pooled.

    batch_invariant: each sequence goes through a head alone, so that its vector does not depend on others.
    """

    def __init__(
        self, poolers: Mapping[str, Pooler], heads: nn.ModuleDict, dtype: torch.dtype, batch_invariant: bool = False
    ) -> None:
        self._poolers, self._heads, self._dtype, self._batch_invariant = poolers, heads, dtype, batch_invariant
        self._states: dict[int, _PoolingState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def start(self, new_seq: NewSeq, params: PoolingParams) -> None:
        """Begin to pool the prompt of a sequence."""
        length, num_virtual, num_given = len(new_seq.prompt_ids), new_seq.num_virtual, new_seq.num_given
        pooler = self._poolers[params.task]
        self._states[new_seq.seq_id] = _PoolingState(params, pooler, length, num_virtual, num_given)

    def end(self, seq_id: int) -> None:
        """Drop a sequence, if it is known."""
        self._states.pop(seq_id, None)

    def clear(self) -> None:
        self._states.clear()

    def token_range(self, chunk: Chunk) -> range | None:
        """The tokens of a chunk whose hidden states are needed, counted from its first; None if there are none."""
        state = self._states.get(chunk.seq_id)
        if state is None:
            return None
        count = len(chunk.token_ids)
        match state.pooler.pooling_type:
            case "last":
                return range(count - 1, count) if chunk.start + count == state.length else None
            case "first":
                return range(1) if chunk.start == state.num_given else None
            case "mean":
                return range(count)
            case _:
                first = max(0, state.num_virtual - chunk.start)
                return range(first, count) if first < count else None

    def pool(
        self, hidden: Tensor, selected: Sequence[tuple[int, int]], chunks: Sequence[Chunk], bind: BindAdapters
    ) -> dict[int, PoolingResult]:
        """Results of the sequences whose last chunk this was.

        hidden: [rows, width]. selected: the sequences that the rows belong to, and how many rows each has.
        """
        self._add(hidden, selected)
        results: dict[int, PoolingResult] = {}
        for seq_ids in self._grouped([chunk.seq_id for chunk in chunks if self._is_complete(chunk)]):
            results |= self._finish_group(seq_ids, bind)
            for seq_id in seq_ids:
                self.end(seq_id)
        return results

    def _grouped(self, seq_ids: Sequence[int]) -> list[list[int]]:
        """Sequences in groups that are pooled in the same way."""
        groups: dict[Any, list[int]] = {}
        for seq_id in seq_ids:
            state = self._states[seq_id]
            key = (state.pooler, state.params.dimensions, state.params.use_activation)
            groups.setdefault(seq_id if self._batch_invariant else key, []).append(seq_id)
        return list(groups.values())

    def _finish_group(self, seq_ids: Sequence[int], bind: BindAdapters) -> dict[int, PoolingResult]:
        first = self._states[seq_ids[0]]
        rows = [self._states[seq_id].head_input() for seq_id in seq_ids]
        counts = [len(each) for each in rows]
        outputs = self._run_head(torch.cat(rows), first.pooler, seq_ids, counts, bind)
        vectors = _finish(outputs, first.pooler, first.params).cpu()
        per_seq = vectors.split(counts) if first.pooler.pooling_type == "every" else vectors.unbind()
        return {seq_id: PoolingResult.from_array(each.numpy()) for seq_id, each in zip(seq_ids, per_seq, strict=True)}

    def _add(self, hidden: Tensor, selected: Sequence[tuple[int, int]]) -> None:
        """Add the rows of this step to the states."""
        for (seq_id, _), rows in zip(selected, hidden.split([count for _, count in selected]), strict=True):
            state = self._states[seq_id]
            if state.pooler.pooling_type == "mean":
                # in float64, so that the mean does not depend on how the prompt was split into chunks
                total = rows.sum(0, dtype=torch.float64)
                state.total = total if state.total is None else state.total + total
            else:
                state.kept.append(rows.clone())  # valid until the next step only

    def _is_complete(self, chunk: Chunk) -> bool:
        state = self._states.get(chunk.seq_id)
        return state is not None and chunk.start + len(chunk.token_ids) == state.length

    def _run_head(
        self, rows: Tensor, pooler: Pooler, seq_ids: Sequence[int], counts: Sequence[int], bind: BindAdapters
    ) -> Tensor:
        """rows [n, width] -> float32 [n, outputs]."""
        if pooler.head is None:
            return rows.float()
        owners = [seq_id for seq_id, count in zip(seq_ids, counts, strict=True) for _ in range(count)]
        outputs: Tensor = self._heads[pooler.head](rows.to(self._dtype), bind(owners))
        return outputs.float()


def _finish(outputs: Tensor, pooler: Pooler, params: PoolingParams) -> Tensor:
    """float32 [n, outputs] -> [n, dimensions or outputs]: truncated, then the activation of the pooler, unless off."""
    if params.dimensions is not None:
        outputs = outputs[:, : params.dimensions]
    activation = "none" if params.use_activation is False else pooler.activation
    match activation:
        case "normalize":
            return outputs / outputs.norm(dim=-1, keepdim=True).clamp(min=EPS)
        case "softmax":
            return outputs.softmax(-1)
        case "sigmoid":
            return outputs.sigmoid()
        case _:
            return outputs

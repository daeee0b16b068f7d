"""The runtime of adapters with virtual tokens: their embeddings, or their keys and values, in place of computed ones.

Prompt tuning and P-tuning replace the embeddings of the first positions of a sequence (a delta on the embedding table);
everything after that is computed as for other tokens. Keys and values of prefix tuning are stored in the pages when a
sequence begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.records import AdapterMetadata, AdapterUses, Context
from quire.types import Plan
from quire_adapters.peft import tensor_files as files
from quire_adapters.peft.virtual_tokens import TENSOR, VirtualTokensShape, read
from quire_adapters.slot_allocator import SlotAllocator
from quire_kernels.low_rank import Segments
from quire_models.model_part import ModelPart
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.embedding import EmbeddingTable
from quire_models.modules.projection import adaptable_modules
from quire_models.parts.decoder import Attention
from quire_models.sharding.model import AttachedShard
from quire_models.sharding.parts import attention_share
from quire_models.step.kv_cache import KVCache

TABLES = {"embed", "positions", "types"}
"""Tables of which each token has one row; those of the last two depend on its position and its type."""


@dataclass(slots=True, eq=False)
class VirtualTokens:
    """One adapter. rows: [tokens, width], or [tokens, 2 · layers, heads, head_dim] for keys and values.

    placed: `rows` on the device, while the adapter has a slot.
    """

    rows: Tensor
    metadata: AdapterMetadata
    placed: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EmbeddingRows(Segments):
    """Embeddings of a step: rows[i] ([N, width]) is for token index[i]. No low-rank update is applied to any token,
    so that recorded programs run.
    """

    index: Tensor
    rows: Tensor

    @classmethod
    def from_index(cls, index: Tensor, rows: Tensor) -> EmbeddingRows:
        """The rows, with segments of no tokens."""
        no = Segments.from_uses((), ())
        return cls(
            no.tokens, no.weights, no.starts, no.slots, no.passes, no.host, no.min_tokens, index=index, rows=rows
        )


def put_rows(y: Tensor, x: Any, adapters: Any) -> Tensor:
    """The delta of the embedding table."""
    return y.index_copy_(0, adapters.index, adapters.rows)


def embeddings_of(model: Any) -> tuple[int, str | None]:
    """Numbers of each virtual token in prompt tuning and P-tuning, or 0 and why a model does not support these."""
    if model.part.encoder_input is not None:
        return 0, "its decoder is not the only reader of a prompt"
    embed = getattr(model, "embed", None)
    if not isinstance(embed, EmbeddingTable):
        return 0, "it makes embeddings in a way of its own"
    tables = {path for path, each in adaptable_modules(model).items() if isinstance(each, EmbeddingTable)}
    if any(path not in TABLES and not path.startswith("tower.") for path in tables):
        return 0, "its layers read the ids of tokens too"
    return embed.width, None


def keys_of(part: ModelPart) -> tuple[tuple[int, int, int], str | None]:
    """(layers, heads, head_dim) of keys and values in prefix tuning, or zeros and why a model does not support it."""
    none, shapes = (0, 0, 0), {shape for shape in part.kv_shapes if shape.kv_heads}
    if part.encoder_input is not None:
        return none, "its decoder is not the only reader of a prompt"
    if any(part.state_shapes):
        return none, "some of its layers keep a state"
    if part.non_causal or not shapes:
        return none, "it stores no keys and values"
    if len(shapes) > 1 or any(shape.value_width != shape.head_dim for shape in shapes):
        return none, "its layers do not all store keys and values of one shape"
    (shape,) = shapes
    return (len(part.kv_shapes), shape.kv_heads, shape.head_dim), None


def takes_of(model: Any) -> VirtualTokensShape:
    """What virtual tokens of a model consist of."""
    width, no_rows = embeddings_of(model)
    keys, no_keys = keys_of(model.part)
    return VirtualTokensShape(width, *keys, no_rows, no_keys)


def own_keys(shard: AttachedShard, own: ModelPart) -> range | None:
    """The key-value heads of a rank of a divided model; None = all."""
    whole: Any = shard.whole
    for block, kept in zip(whole.part.blocks, own.kv_shapes, strict=False):
        attn = getattr(block, "attn", None)
        if isinstance(attn, Attention) and 0 < kept.kv_heads < attn.kv_heads:
            return attention_share(attn, shard.rank).keys
    return None


class PromptTuningRuntime:
    """The adapter runtime of PROMPT_TUNING, P_TUNING and PREFIX_TUNING, a `quire.records.VirtualKvImpl`."""

    def __init__(self, context: Context) -> None:
        self._in_subprocess = context.in_subprocess
        self._in_subprocess.prepare(read)
        self._allocator = SlotAllocator[VirtualTokens](context.max_slots, self._load_slot, self._clear_slot)

    def attach(self, model: DecoderModel) -> None:
        self._model: Any = model
        shard = getattr(model, "shard", None)
        self._takes = takes_of(model if shard is None else shard.whole)
        self._keys = None if shard is None else own_keys(shard, model.part)
        self._scale = model.embed_scale if getattr(model.part, "scales_rows", False) else 1.0
        if isinstance(getattr(model, "embed", None), EmbeddingTable):
            model.embed.delta = put_rows

    def load(self, name: str, path: Path) -> VirtualTokens:
        found = self._in_subprocess(read, str(path), list(self._takes))
        is_prefix = bool(found.value["is_prefix"])
        given = files.tensors_of(found.value["tensors"], found.memory)[TENSOR]
        rows = given.to(self._model.dtype, copy=True)
        if not is_prefix and self._scale != 1.0:
            rows *= self._scale
        if not rows.isfinite().all():
            raise BadRequest(f"`{TENSOR}` has numbers that are not finite.", "lora_path")
        metadata = AdapterMetadata(num_bytes=rows.nbytes, virtual_tokens=len(rows), has_virtual_kv=is_prefix)
        if is_prefix:
            rows = rows.unflatten(1, (-1, self._takes.heads, self._takes.head_dim))
            rows = rows if self._keys is None else rows[:, :, self._keys.start : self._keys.stop].contiguous()
        return VirtualTokens(rows, metadata)

    def describe(self, adapter: VirtualTokens) -> AdapterMetadata:
        return adapter.metadata

    def acquire_slot(self, adapter: VirtualTokens) -> int | None:
        return self._allocator.acquire_slot(adapter)

    def release_slot(self, adapter: VirtualTokens) -> None:
        self._allocator.release_slot(adapter)

    def release(self, adapter: VirtualTokens) -> None:
        self._allocator.release(adapter)

    def _load_slot(self, adapter: VirtualTokens, slot: int) -> None:
        adapter.placed = adapter.rows.to(self._model.device)

    def _clear_slot(self, adapter: VirtualTokens, slot: int) -> None:
        adapter.placed = None

    def bind_step(self, plan: Plan, uses: AdapterUses) -> EmbeddingRows | None:
        """The embeddings of virtual tokens in a step; None for nearly all steps, which have none of these."""
        occupants, first = self._allocator.occupants, 0
        index, rows = list[Tensor](), list[Tensor]()
        for chunk, used in zip(plan.chunks, uses, strict=True):
            adapter, count = occupants[used[0][0]] if used else None, len(chunk.token_ids)
            if adapter is not None and chunk.start < len(adapter.rows) and not adapter.metadata.has_virtual_kv:
                assert adapter.placed is not None, "it has a slot"
                rows.append(adapter.placed[chunk.start : chunk.start + count])
                index.append(torch.arange(first, first + len(rows[-1])))
            first += count
        return EmbeddingRows.from_index(torch.cat(index).to(self._model.device), torch.cat(rows)) if rows else None

    def store_virtual(self, adapter: VirtualTokens, kv: KVCache, slot_mapping: Tensor) -> None:
        rows = adapter.rows if adapter.placed is None else adapter.placed
        for layer, (k_pool, v_pool) in enumerate(zip(kv.k, kv.v, strict=True)):
            if k_pool.shape[2]:  # else it reads the pages of another layer
                self._model.ops.write_kv(rows[:, 2 * layer], rows[:, 2 * layer + 1], k_pool, v_pool, slot_mapping)

    def bind_logits(self, uses: AdapterUses) -> None:
        """None: virtual tokens change nothing after the hidden states."""

    def bind_tower(self, uses: AdapterUses, counts: Sequence[int]) -> None:
        """None: virtual tokens change no tower."""

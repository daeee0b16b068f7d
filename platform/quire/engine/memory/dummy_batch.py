"""A step whose results are not used, to measure its memory or to prepare a model for its first one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from quire.engine.loading.load import LoadedModel
from quire_kernels.ops import AttentionMetadata
from quire_models import CrossAttentionBuffers, EncoderInput, ForwardBatch, ForwardBuffers, KVCache, StateCache

FIRST_ROWS = (4, 4)
"""Tokens of the rows of the step that prepares a model."""


def dummy_batch(loaded: LoadedModel, lens: npt.NDArray[np.int32], num_logits: int, page_size: int) -> ForwardBatch:
    """A batch with rows of these lengths and memory of its own for keys, values and state, which rows share."""
    device, source = loaded.device, loaded.decoder.encoder_input
    num_tokens, text_start = int(lens.sum()), 0 if source is None else source.padded_length
    num_pages = -(-max(int(lens.max()), text_start) // page_size)
    kv = KVCache.allocate(loaded.decoder.kv_shapes, num_pages, page_size, loaded.kv_dtype, device)
    state = StateCache.allocate(loaded.decoder.state_shapes, len(lens), loaded.dtype, device)
    positions = np.concatenate([np.arange(n) for n in lens])
    return ForwardBuffers(num_tokens, len(lens), num_pages, device).fill(
        np.zeros(num_tokens, np.int64),
        positions,
        positions,  # as slots
        np.concatenate(([0], np.cumsum(lens))).astype(np.int32),
        lens,
        np.tile(np.arange(num_pages, dtype=np.int32), (len(lens), 1)),
        np.arange(num_logits, dtype=np.int64),
        kv,
        cross_attention=_sources(source, num_tokens, num_pages, page_size, device),
        state=state,
        state_slots=np.arange(len(lens)),
    )


@torch.inference_mode()
def run_first_step(loaded: LoadedModel, page_size: int) -> None:
    """Run a step, so that the first request does not wait for what is made with the first one, such as programs."""
    lens = np.minimum(np.array(FIRST_ROWS, np.int32), loaded.info.max_model_len)
    last = loaded.module(dummy_batch(loaded, lens, len(lens), page_size))
    if loaded.decoder.has_lm_head:
        loaded.module.argmax(last)


def _sources(
    source: EncoderInput | None, max_tokens: int, num_pages: int, page_size: int, device: torch.device
) -> AttentionMetadata | None:
    """Every token reads the first pages as its encoder input."""
    if source is None:
        return None
    pages = min(num_pages, source.padded_length // page_size)
    buffers = CrossAttentionBuffers(max_tokens, source.length, pages, device)
    return buffers.fill(np.tile(np.arange(pages, dtype=np.int32), (max_tokens, 1)))

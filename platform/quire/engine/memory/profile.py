"""Runs the largest possible step of a model to measure the device memory that it takes besides weights and pages."""

from __future__ import annotations

import numpy as np
import torch

from quire.engine.graphs.capture import graph_bytes
from quire.engine.loading.load import LoadedModel
from quire.settings.model_config import ModelConfig
from quire_kernels.ops import AttentionMetadata
from quire_models import CrossAttentionBuffers, EncoderInput, ForwardBuffers, KVCache, StateCache, TowerCall
from quire_models.towers.tower import SupportsDummyInput


@torch.inference_mode()
def activation_bytes(loaded: LoadedModel, config: ModelConfig, max_tokens: int) -> int:
    """Peak bytes on a CUDA device of a step of `max_tokens` tokens or of the tower's largest call, and the bytes of
    captured steps.
    """
    step = _step_bytes(loaded, max_tokens, config.max_num_seqs, config.page_size)
    return max(step, _tower_bytes(loaded, config)) + graph_bytes(loaded, config)


def _tower_bytes(loaded: LoadedModel, config: ModelConfig) -> int:
    """Peak bytes of the largest call of the tower; 0 if there is none, or it provides no dummy input."""
    tower, device = loaded.module.tower, loaded.device
    if not isinstance(tower, SupportsDummyInput):
        return 0
    item, num_rows = tower.dummy_input()
    items = [item] * (1 if config.batch_invariant else max(1, config.max_num_encoder_tokens // num_rows))
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    tower(items, TowerCall(device))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak


def _step_bytes(loaded: LoadedModel, max_tokens: int, max_rows: int, page_size: int) -> int:
    """Peak bytes of a step with `max_rows` rows of logits."""
    device, shapes, source = loaded.device, loaded.decoder.kv_shapes, loaded.decoder.encoder_input
    text_start = 0 if source is None else source.padded_length
    length = min(max_tokens, loaded.info.max_model_len - text_start)
    lens = np.full(-(-max_tokens // length), length, np.int32)
    lens[-1] = max_tokens - length * (len(lens) - 1)
    num_pages = -(-max(length, text_start) // page_size)
    kv = KVCache.allocate(shapes, num_pages, page_size, loaded.kv_dtype, device)
    state = StateCache.allocate(loaded.decoder.state_shapes, len(lens), loaded.dtype, device)
    buffers = ForwardBuffers(max_tokens, len(lens), num_pages, device)
    positions = np.concatenate([np.arange(n) for n in lens])
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    forward = buffers.fill(
        np.zeros(max_tokens, np.int64),
        positions,
        positions,  # as slots: the rows share their pages, since the results are not used
        np.concatenate(([0], np.cumsum(lens))).astype(np.int32),
        lens,
        np.tile(np.arange(num_pages, dtype=np.int32), (len(lens), 1)),
        np.arange(min(max_rows, max_tokens), dtype=np.int64),
        kv,
        cross_attention=_sources(source, max_tokens, num_pages, page_size, device),
        state=state,
        state_slots=np.arange(len(lens)),
    )
    last = loaded.module(forward)
    if loaded.decoder.has_lm_head:
        last = torch.softmax(loaded.module.logits(last), -1).mul_(2.0).floor_()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del forward, buffers, kv, state, last
    torch.cuda.empty_cache()
    return peak


def _sources(
    source: EncoderInput | None, max_tokens: int, num_pages: int, page_size: int, device: torch.device
) -> AttentionMetadata | None:
    """Every token reads the first pages as its encoder input."""
    if source is None:
        return None
    pages = min(num_pages, source.padded_length // page_size)
    buffers = CrossAttentionBuffers(max_tokens, source.length, pages, device)
    return buffers.fill(np.tile(np.arange(pages, dtype=np.int32), (max_tokens, 1)))
